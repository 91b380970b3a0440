"""Rows about the eval runner: 500 runs of 10 steps against a server that takes 50 ms for an answer, 32 at a time.

The server is the project's own strict local API, in a process of its own (`python -m benchmarks.eval_rows server`). The runner is `run_tasks` with threads,
in another (`... runner URL RUNS WIDTH`): each run has its fresh repo, its trace and its verdict. The task is `locate`: eight reads, one edit, a last word.
"""
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from typing import Iterator

from .measure import PYTHON, ROOT, Row, at_most, environment
from .worker import peak_memory

RUNS, STEPS, LATENCY, WIDTH = 500, 10, 0.05, 32


def serve() -> None:
    """Print the address, serve until standard input closes, print the CPU time that it took."""
    from harnesslab.fake_api import FakeApi
    from harnesslab.scripted import call, canned

    looks = [[call("read_file", path="wordcount/core.py", start=line)] for line in range(1, STEPS - 1)]
    answer = [call("edit_file", path="ANSWER.txt", old="", new="format_report wordcount/report.py\n")]
    replies = canned([*looks, answer, "Done."])

    def policy(request: dict) -> list[dict]:
        time.sleep(LATENCY)
        return replies(request)

    with FakeApi(policy, keep=1).serve() as server:
        print(server.url, flush=True)
        sys.stdin.read()
    print(time.process_time(), flush=True)


def run(url: str, runs: int, width: int) -> None:
    """Do the batch, and print one line of JSON: {"wall", "own", "children", "peak"} in seconds and bytes, and "memory", bytes in use at every tenth of it."""
    from harnesslab.evals import run_tasks
    from harnesslab.loop import ModelFacts
    from harnesslab.providers import AnthropicModel, make_client
    from harnesslab.tasks import wordcount_tasks

    tasks = [task for task in wordcount_tasks() if task.id == "locate"]
    options = {"tasks": tasks, "model": AnthropicModel(ModelFacts("claude-haiku-4-5"), make_client(), url, "none"), "progress": False, "i_know": True}
    with tempfile.TemporaryDirectory(prefix="harnesslab-bench-") as folder:
        run_tasks("warm", 2, out=folder, workers=2, **options)          # first-use work is in no figure
        memory, over = [], threading.Event()
        watch = threading.Thread(target=_watch, args=(f"{folder}/results.jsonl", runs, memory, over))
        watch.start()
        own, children, wall = time.process_time(), _children(), time.perf_counter()
        results = run_tasks("batch", runs, out=folder, workers=width, **options)
        own, children, wall = time.process_time() - own, _children() - children, time.perf_counter() - wall
        over.set()
        watch.join()
    assert all(row["passed"] and row["steps"] == STEPS for row in results.rows), results.sentence
    print(json.dumps({"wall": wall, "own": own, "children": children, "peak": peak_memory(), "memory": memory}))


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(index: str, runs: int, memory: list[int], over: threading.Event) -> None:
    """Note the memory in use whenever another tenth of the runs is finished (Linux only)."""
    while not over.wait(0.05) and os.path.exists("/proc/self/statm"):
        with open(index, "rb") as file:
            done = file.read().count(b'"label":"batch"')
        while done >= (len(memory) + 1) * runs / 10:
            with open("/proc/self/statm") as status:
                memory.append(int(status.read().split()[1]) * resource.getpagesize())


# Under `python -m benchmarks` the module's own name is benchmarks.eval_rows, so the processes below find it.
def measure(runs: int = RUNS, width: int = WIDTH) -> dict:
    """What one batch took: the runner's figures, and "server", the CPU time of the server."""
    here = {"cwd": ROOT, "env": environment(), "text": True, "stdout": subprocess.PIPE}
    server = subprocess.Popen([PYTHON, "-m", __name__, "server"], stdin=subprocess.PIPE, **here)
    try:
        url = server.stdout.readline().strip()
        done = subprocess.run([PYTHON, "-m", __name__, "runner", url, str(runs), str(width)], stderr=subprocess.PIPE, timeout=900, **here)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
        server.stdin.close()
        return json.loads(done.stdout.splitlines()[-1]) | {"server": float(server.stdout.readline())}
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def batch(repeats: int) -> Iterator[Row]:
    """The best of so many batches, against the larger of two bounds: the time that the model takes, and the CPU time. The latter is at least that of the
    runner, because in one interpreter one thread runs at a time, and at least that of all processes over all cores."""
    best = min((measure() for _ in range(repeats)), key=lambda one: one["wall"] / _bound(one))
    ratio = best["wall"] / _bound(best)
    parts = f"waiting {_waiting():.1f} s; CPU of the runner {best['own']:.1f}, of its children {best['children']:.1f}, of the server {best['server']:.1f} s, {_cores()} cores"
    yield at_most(f"{RUNS} eval runs of {STEPS} steps, {WIDTH} at a time, verified", ratio, 1.25, f"{ratio:.2f} times the larger bound ({best['wall']:.1f} s; {parts})", "at most 1.25 times")
    if best["memory"]:
        growth = (best["memory"][-1] - best["memory"][1]) / 1e6
        yield at_most("memory of the runner, from run 100 to run 500", growth, 10, f"{growth:+.1f} MB (peak {best['peak'] / 1e6:.0f} MB)", "at most 10 MB more")


def _waiting() -> float:
    return RUNS * STEPS * LATENCY / WIDTH


def _work(taken: dict) -> float:
    return max(taken["own"], (taken["own"] + taken["children"] + taken["server"]) / _cores())


def _bound(taken: dict) -> float:
    return max(_waiting(), _work(taken))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    serve() if sys.argv[1] == "server" else run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
