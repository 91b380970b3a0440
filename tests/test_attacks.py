"""The attack suite in tests/attacks, through the project's own adapter: for each fence, as whoever runs the tests and, for root, as an ordinary user too.

Each case is a harness process of its own with a key in its environment; see attacks/run.py. The runs go four at a time, because most of a
case's time is waiting. What depends on no fence (file tools, the gate) is run once.
"""
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import ROOT
from harnesslab.fences import IMAGE, choose_fence, close_idle
from harnesslab.loop import UsageError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="optional: the suite's expectations for macOS have not been tried")
TOOLS, COMMANDS = "P,I,G0,G10,G16,G17,G2", "C,S,G15,V"
COLUMN = {"Process": "plain_linux", "Landlock": "landlock", "Namespace": "namespace", "Container": "container"}
NOBODY = 65534
RUNS = [(adapter, user) for adapter in COLUMN for user in ("me", "nobody")] + [("tools", "me")]


@pytest.fixture(scope="module")
def copy():
    """The package and the suite in a place that an ordinary user can read."""
    place = Path(tempfile.mkdtemp(prefix="attacks-", dir="/tmp"))
    for part in ("harnesslab", "tests/attacks"):
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["chmod", "-R", "a+rX", str(place)], check=True)
    yield place
    shutil.rmtree(place)


def find_python(place):
    """(interpreter, folders of its packages) that an ordinary user can run with the package in `place`, or None."""
    packages = os.pathsep.join([str(place), *site.getsitepackages()])
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}", f"/usr/local/bin/python3.{sys.version_info.minor}"):
        trial = [python, "-c", "import harnesslab.sandbox, harnesslab.verifier"]
        try:
            if subprocess.run(trial, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", env={"PYTHONPATH": packages}, capture_output=True).returncode == 0:
                return python, packages
        except OSError:
            pass
    return None


@pytest.fixture(scope="module")
def python_for_nobody(copy):
    return find_python(copy)


def has_container():
    try:
        choose_fence("container", engine=os.environ.get("HL_ENGINE", ""), image=os.environ.get("HL_IMAGE", IMAGE))
        return True
    except UsageError:
        return False
    finally:
        close_idle()


@pytest.fixture(scope="module")
def reports(copy, python_for_nobody):
    """(adapter, user) to the rows of its run, as futures; a string instead of a future says why there is no run."""
    pool, found = ThreadPoolExecutor(4), {}

    def run(adapter, user, only):
        out = copy / f"{adapter}-{user}-{only[0]}.json"
        command = [sys.executable, "run.py", "--adapter", f"adapter:{adapter}", "--only", only, "--json", str(out), "-q"]
        packages = str(copy)
        if user == "nobody":
            python, packages = python_for_nobody
            command += ["--uid", str(NOBODY), "--python", python]
        subprocess.run(command, cwd=copy / "tests" / "attacks", env=os.environ | {"HL_ADAPTER_PATH": packages}, capture_output=True)
        return json.loads(out.read_text())["rows"]
    container = has_container()
    for adapter, user in RUNS:
        if user == "nobody" and os.getuid() != 0:
            found[adapter, user] = "optional: only root can become somebody else"
        elif user == "nobody" and python_for_nobody is None:
            found[adapter, user] = "optional: no Python with the packages that an ordinary user may run"
        elif adapter == "Container" and (not container or user == "nobody"):
            found[adapter, user] = "optional: no container engine with the image answers here"
        else:
            found[adapter, user] = pool.submit(run, *(("Process", user, TOOLS) if adapter == "tools" else (adapter, user, COMMANDS)))
    yield found
    pool.shutdown()


@pytest.mark.parametrize("adapter, user", RUNS)
def test_suite(adapter, user, reports):
    if isinstance(reports[adapter, user], str):
        pytest.skip(reports[adapter, user])
    rows = reports[adapter, user].result()
    column = COLUMN.get(adapter, "plain_linux")
    expected = [row for row in rows if row["stops"][column] == "y" or adapter in ("Landlock", "Namespace", "Container")]
    assert len(rows) > 30 and len(expected) >= 20
    assert adapter == "tools" or sum(row["group"] == "verifier" for row in rows) >= 13
    bad = [f"{row['id']} {row['title']}: {row['result']}: {row['note']}" for row in expected if row["result"] != "pass"]
    assert not bad, "\n".join(bad)


def test_the_attacks_are_attacks(copy):
    """Without any fence they work. An attack that always fails would prove nothing."""
    out = copy / "naive.json"
    only = "C03,C12,C19,C26,C29,S01,S05,P01,P04"
    subprocess.run([sys.executable, "run.py", "--adapter", "adapters.naive:Naive", "--only", only, "--json", str(out), "-q"],
                   cwd=copy / "tests" / "attacks", capture_output=True)
    results = {row["id"]: row["result"] for row in json.loads(out.read_text())["rows"]}
    assert len(results) == len(only.split(",")) and "pass" not in results.values(), results
