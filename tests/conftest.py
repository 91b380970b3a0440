"""Shared by all tests. With HARNESSLAB_NO_SKIPS=1 (CI) a test that was skipped fails the whole run, unless its reason begins with 'optional:'."""
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# A test run that was started in the background ignores Ctrl-C, and so would every program that it starts; some tests send exactly that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples are not timed: on a busy machine a deadline says more about the machine than about the code.
settings.register_profile("harnesslab", deadline=None)
settings.load_profile("harnesslab")

# Predictions and traces that tests leave are nobody's: they go to a folder of their own.
_state = tempfile.TemporaryDirectory(prefix="harnesslab-test-state-")
os.environ["XDG_STATE_HOME"] = _state.name

ROOT = Path(__file__).resolve().parent.parent
_skipped: list[str] = []


@pytest.fixture(autouse=True)
def no_key_and_no_model(monkeypatch):
    """Tests run on the scripted model, whatever the person at the keyboard has set."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "AGENT_API_KEY", "AGENT_MODEL", "AGENT_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder with harnesslab in it as the wheel installs it. One for all processes of a test run."""
    from test_repo import copy_of_the_project
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            source = copy_of_the_project(folder)
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)], check=True, timeout=240)
            [wheel] = folder.glob("harnesslab_kit-*.whl")
            subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True, timeout=240)
            (folder / "done").touch()
    return folder / "site"


def pytest_xdist_auto_num_workers(config):
    """Two processes for each core: half of the time of many tests is waiting."""
    return 2 * (os.cpu_count() or 1)


LONGEST_FIRST = ("test_attacks.py", "test_notebooks.py", "test_lab_lessons.py", "test_verifier.py", "test_site.py", "test_evals.py", "test_exercises.py", "test_commands.py",
                 "test_break_it.py", "test_stepper.py")


def pytest_collection_modifyitems(items):
    """For several processes (`make test`): what takes long comes first, so that no process is left alone with it at the end. test_fences.py comes
    last: like test_attacks.py, it fills up what one user may have of processes, and the two must not run at the same time."""
    order = {name: place for place, name in enumerate(LONGEST_FIRST)} | {"test_fences.py": 1000}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith("optional:"):
            _skipped.append(f"{report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workerinput"):      # one of several processes: the first one decides for all
        return
    if os.environ.get("HARNESSLAB_NO_SKIPS") and _skipped and session.exitstatus == 0:
        print("\nskipped, but nothing may be skipped here:\n  " + "\n  ".join(_skipped))
        session.exitstatus = 1
