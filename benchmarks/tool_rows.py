"""Rows about the tools: commands in each fence, a search, a flood of output."""
import json
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator

from .measure import PYTHON, ROOT, Row, at_most, environment, in_turn, ms, seconds


def commands(repeats: int) -> Iterator[Row]:
    """`run_command("true")` over the plainest `subprocess.run` that also returns the output."""
    from harnesslab import UsageError, choose_fence, run_command
    with tempfile.TemporaryDirectory(prefix="harnesslab-bench-") as folder:
        fences = {}
        for name in ("process", "landlock", "namespace"):
            try:
                fences[name] = choose_fence(name)
            except UsageError as error:
                yield Row(f'run_command("true"), {name} fence', f"not measured: {error}")

        def bare() -> None:
            subprocess.run("true", shell=True, cwd=folder, capture_output=True, text=True, timeout=30)
        measures = {"bare": bare} | {name: lambda fence=fence: run_command(Path(folder), "true", fence=fence) for name, fence in fences.items()}
        for measure in measures.values():
            measure()
        taken = in_turn({name: lambda measure=measure: seconds(measure) for name, measure in measures.items()}, repeats)
        cost = {name: min(values) for name, values in taken.items()}
        for name in fences:
            what, detail = f'run_command("true"), {name} fence', f"({ms(cost[name])}, bare {ms(cost['bare'])})"
            if name == "namespace":
                more = cost[name] - cost["bare"]
                yield at_most(what, more, 0.012, f"{ms(more)} more than subprocess.run {detail}", "at most 12 ms more")
            else:
                ratio = cost[name] / cost["bare"]
                yield at_most(what, ratio, 1.5, f"{ratio:.2f} times subprocess.run {detail}", "at most 1.5 times")


def make_tree(root: Path, files: int = 20_000) -> None:
    """A made repo: 20,000 small source files in 400 folders, 34 MB. The word that is searched for stands in 1 of 100 files."""
    draw = random.Random(1)
    words = [f"{a}_{b}" for a in ("table", "value", "count", "index", "total") for b in ("of", "for", "with", "from", "until")]
    for number in range(files):
        folder = root / f"part_{number // 1000:02d}" / f"unit_{number // 50 % 20:02d}"
        if number % 50 == 0:
            folder.mkdir(parents=True)
        lines = [f"{draw.choice(words)} = {draw.choice(words)}({draw.randrange(1000)})" for _ in range(60)]
        if number % 100 == 7:
            lines[30] = f"def find_the_needle(haystack_{number}):"
        (folder / f"module_{number:05d}.py").write_text("\n".join(lines) + "\n")


def searching(repeats: int) -> Iterator[Row]:
    from harnesslab.tools import _ripgrep, search
    with tempfile.TemporaryDirectory(prefix="harnesslab-bench-") as folder:
        make_tree(Path(folder))
        argv = [_ripgrep(), "--line-number", "--no-heading", "find_the_needle", "."]
        found = subprocess.run(argv, cwd=folder, capture_output=True, text=True).stdout.count("\n")
        assert found == 200 and "150 more" in search(Path(folder), "find_the_needle")
        measures = {"bare": lambda: subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True), "ours": lambda: search(Path(folder), "find_the_needle")}
        taken = in_turn({name: lambda measure=measure: seconds(measure) for name, measure in measures.items()}, repeats)
    bare, ours = min(taken["bare"]), min(taken["ours"])
    yield at_most("search, 20,000 files, 200 matches", ours / bare, 1.3, f"{ours / bare:.2f} times bare rg ({ms(ours)}, rg {ms(bare)})", "at most 1.3 times")


_FLOOD = '''
import json, sys
from pathlib import Path
from harnesslab import choose_fence, run_command
from benchmarks.worker import peak_memory

def resident(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0

fence = choose_fence("process")
run_command(Path("."), "true", fence=fence)
idle = resident("self") if sys.platform == "linux" else peak_memory()
if sys.platform == "linux":
    try:
        open("/proc/self/clear_refs", "w").write("5")    # the peak starts again from here, where the system allows it
    except OSError:
        pass
text = run_command(Path("."), "head -c 1000000000 /dev/zero | tr '\\\\0' x", 60, fence=fence)
print(json.dumps({"more": peak_memory() - idle, "first": text.splitlines()[0]}))
'''


def flood(repeats: int) -> Iterator[Row]:
    """Peak of the harness's own process while a command prints 1 GB, less what it had before."""
    peaks = []
    for _ in range(repeats):
        done = subprocess.run([PYTHON, "-c", _FLOOD], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:])
        result = json.loads(done.stdout.splitlines()[-1])
        assert result["first"] == "exit code 0", result
        peaks.append(result["more"])
    more = max(peaks) / 1e6
    yield at_most("peak memory, a command prints 1 GB", more, 30, f"{more:.1f} MB above idle", "at most 30 MB")
