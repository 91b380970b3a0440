"""One contestant, one run, in a fresh process: `python -m benchmarks.worker NAME URL STEPS` prints one line of JSON with what the run cost.

The HTTP client is made and a run of 5 steps is done before the clock starts, so imports, certificates and first-use work are in no figure.
"""
import importlib
import importlib.metadata
import json
import resource
import sys
import time


def peak_memory() -> int:
    """The most memory this process has had, in bytes. On Linux from /proc: the figure of getrusage is inherited from the parent across exec."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    name, url, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if name in ("bare", "ours"):
        run, version = getattr(importlib.import_module("benchmarks.contestants"), f"make_{name}")(url), ""
    else:
        peer = importlib.import_module(f"benchmarks.peers.{name}")
        run, version = peer.make(url), importlib.metadata.version(peer.PACKAGE)
    run(5)
    cpu, wall = time.process_time(), time.perf_counter()
    did = run(steps)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert did == steps, f"{did} tool calls instead of {steps}"
    print(json.dumps({"cpu": cpu, "wall": wall, "peak": peak_memory(), "version": version}))


if __name__ == "__main__":
    main()
