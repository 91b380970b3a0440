"""Small jobs for tests/test_batches.py, in a module of their own so that other processes can load them."""
import functools
import os
import signal
import time
from pathlib import Path

from harnesslab.batches import Job, make_key


def work(kind, number, attempt):
    """One job: writes its process id, then does what its kind says."""
    (attempt.folder / "pid").write_text(str(os.getpid()))
    row = {"status": "done", "passed": True, "tok_in": 100 + number, "tok_out": 10, "dollars": 0.01, "pid": os.getpid(), "saw": [path.name for path in attempt.earlier]}
    seconds = {"brief": 0.04, "half-second": 0.5, "third-second": 0.33, "slowly": 1.3, "slow": 30, "spends-early": 0.8}.get(kind, 0)
    if kind == "dies-once" and number == 0 and not attempt.earlier:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "odd":
        row |= {"path": Path("/tmp"), "task": "another", "rep": 9, "label": "another", "key": "none", "attempt": 7}
    if kind == "spends-early":
        usage = {"fresh": 1_000}
        attempt.totals.add({"type": "model_replied", "payload": {"usage": usage}})
        row |= {"tok_in": 1_000, "tok_out": 0}
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if attempt.cancel.wait(min(left, 0.1)):
            return {"status": "interrupted"}
    return row


def jobs_of(kind, count):
    """So many jobs of one kind. The kind is not part of their key: a slow one and a brief one are the same run."""
    return [Job("demo", f"task-{number}", make_key(number), {"task": f"task-{number}", "rep": 0}, functools.partial(work, kind, number)) for number in range(count)]
