"""How things are measured here: in turn, several times, and what one row of the table holds."""
import atexit
import functools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable

PYTHON, ROOT = sys.executable, Path(__file__).parent.parent


@dataclass(frozen=True)
class Row:
    """One line of the table. `met` is None where there is no target, or nothing could be measured."""
    what: str
    measured: str
    target: str = ""
    met: bool | None = None


def in_turn(measures: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list]:
    """Take every measure `repeats` times, always one of each in turn, so that a busy moment of the machine hits all of them alike."""
    taken: dict[str, list] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            taken[name].append(measure())
    return taken


def at_most(what: str, value: float, limit: float, shown: str, target: str) -> Row:
    """A row whose target is an upper limit."""
    return Row(what, shown, target, value <= limit)


def seconds(action: Callable[[], Any]) -> float:
    """Wall clock of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@functools.cache
def environment() -> dict[str, str]:
    """The variables for every process that is measured. Byte code is cached, in a scratch folder, whatever the caller's settings are: so it is for a user
    from the second start on, and it changes both the time of an import and the shape of the heap."""
    folder = tempfile.TemporaryDirectory(prefix="harnesslab-bench-")
    atexit.register(folder.cleanup)
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": folder.name}


def cpu_of(argv: list[str]) -> float:
    """CPU time (user and system) of one process, in seconds."""
    process = subprocess.Popen(argv, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    complaint = process.stderr.read()
    process.stderr.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(complaint.decode("utf-8", "replace").strip()[-300:] or f"exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def middle(values: list[float]) -> float:
    return statistics.median(values)


def ms(value: float) -> str:
    """Seconds as a readable time."""
    return f"{value * 1e6:.0f} µs" if value < 1e-3 else f"{value * 1e3:.2f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"


def machine() -> str:
    """The label of a table: date, cores, memory, Python, system, and how busy the machine was."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (f"{datetime.now(timezone.utc):%Y-%m-%d}, {cores} cores ({platform.machine()}), {memory:.0f} GiB of memory, Python {platform.python_version()}, "
            f"{platform.system()} {platform.release().split('-')[0]}, load {os.getloadavg()[0]:.1f} at the start")
