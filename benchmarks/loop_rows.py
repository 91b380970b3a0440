"""Rows about the loop: CPU time and memory of whole runs, parallel tools, one event of the trace."""
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterator

from .measure import PYTHON, ROOT, Row, at_most, cpu_of, environment, in_turn, middle, ms
from .server import serving
from .task import page

STEPS = {50: 1.5, 400: 1.0, 800: 0.8}      # steps to the most times the bare loop's CPU time; "well below" at 800 is read as 0.8


def work(name: str, url: str, steps: int, python: str = PYTHON) -> dict:
    """One run of one contestant in a process of its own: {"cpu", "wall", "peak"} in seconds and bytes."""
    done = subprocess.run([python, "-m", "benchmarks.worker", name, url, str(steps)], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def cpu_and_memory(repeats: int) -> Iterator[Row]:
    with serving() as url:
        for steps, limit in STEPS.items():
            names = ("bare", "ours")
            taken = in_turn({name: lambda name=name: work(name, url, steps) for name in names}, repeats)
            bare, ours = (min(one["cpu"] for one in taken[name]) / steps for name in names)
            yield at_most(f"CPU time per step, {steps} steps, everything on", ours / bare, limit,
                          f"{ours / bare:.2f} times the bare loop ({ms(ours)}, bare {ms(bare)})", f"at most {limit} times")
        bare, ours = (middle([one["peak"] for one in taken[name]]) / 1e6 for name in names)
        yield at_most(f"peak memory, {steps} steps", ours / bare, 1.3, f"{ours / bare:.2f} times the bare loop ({ours:.0f} MB, bare {bare:.0f} MB)", "at most 1.3 times")


def parallel_tools(repeats: int) -> Iterator[Row]:
    """Three tools of 100 ms in one turn: from the arrival of the reply to the moment when the next request is made."""
    from harnesslab import Limits, Tool, offline, run_loop
    from harnesslab.loop import History
    from harnesslab.scripted import call, say
    from harnesslab.tools import Registry

    def wait(number: int) -> str:
        """Take 100 ms."""
        time.sleep(0.1)
        return "done"

    tools, taken = Registry(Path("."), [Tool(wait, read_only=True)]), []
    model = offline([[call("wait", number=3 * k + i) for i in range(3)] for k in range(repeats)] + [[say("Done.")]])

    def sink(event: dict) -> None:
        if event["type"] == "model_replied":
            taken.append(time.perf_counter())
        elif event["type"] == "model_called" and taken:
            taken[-1] = time.perf_counter() - taken[-1]
    done = run_loop(History("Wait.", tools=tools.definitions), model, tools, Limits(max_steps=repeats + 1, max_input_tokens=10**9), sink=sink)
    model.close()
    assert done.status == "done" and done["tool_calls"] == 3 * repeats, dict(done)
    turn = middle(taken[:repeats])
    yield at_most("three parallel 100 ms tools in one turn", turn, 0.115, ms(turn), "at most 115 ms")


def trace_append(repeats: int, events: int = 2_000) -> Iterator[Row]:
    """One event with a tool result of 2,000 characters, through the recorder, the totals, the redactor and the file, over writing the same bytes."""
    from harnesslab.loop import EventLog, Recorder
    from harnesslab.sandbox import make_redactor

    redact = make_redactor({"ANTHROPIC_API_KEY": "a-key-to-be-found-and-redacted-0123456789"})
    with tempfile.TemporaryDirectory(prefix="harnesslab-bench-") as folder:
        path = Path(folder, "trace.jsonl")

        def traced() -> float:
            path.unlink(missing_ok=True)
            with EventLog(path, redact) as log:
                record = Recorder(log)
                began = time.process_time()
                for number in range(events):
                    record("tool_returned", id=f"toolu_{number:06d}", name="read_page", content=page(number), is_error=False, seconds=0.000012, changed=[])
                return (time.process_time() - began) / events

        def bare() -> float:
            lines = path.read_bytes().splitlines(keepends=True)
            with open(Path(folder, "bare"), "wb", buffering=0) as file:
                began = time.process_time()
                for number, line in enumerate(lines):
                    page(number)
                    file.write(line)
                return (time.process_time() - began) / events
        taken = in_turn({"traced": traced, "bare": bare}, repeats)
    more = min(taken["traced"]) - min(taken["bare"])
    yield at_most("one event of the trace, beyond the bare write", more, 30e-6, f"{more * 1e6:.1f} µs ({min(taken['traced']) * 1e6:.1f}, bare {min(taken['bare']) * 1e6:.1f})", "at most 30 µs")


def imports(repeats: int) -> Iterator[Row]:
    """CPU time of fresh interpreters, less that of an interpreter that imports nothing."""
    lines = {"nothing": "pass", "httpx": "import httpx", "harnesslab": "import harnesslab", "run_agent": "from harnesslab import run_agent"}
    measures = {name: lambda line=line: cpu_of([PYTHON, "-c", line]) for name, line in lines.items()}
    in_turn(measures, 1)                            # once for nothing: this writes the byte code
    taken = in_turn(measures, repeats)
    cost = {name: max(0.0, min(values) - min(taken["nothing"])) for name, values in taken.items()}
    for name, limit in (("harnesslab", 0.3), ("run_agent", 2.5)):
        ratio = cost[name] / cost["httpx"]
        yield at_most(lines[name], ratio, limit, f"{ratio:.2f} times `import httpx` ({ms(cost[name])}, httpx {ms(cost['httpx'])})", f"at most {limit} times")
