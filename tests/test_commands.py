"""The commands of the later lessons, as a person uses them: real processes, real exit codes."""
import json
import re
import signal
import subprocess
import time

import pytest

from harnesslab.fake_api import FakeApi
from harnesslab.scripted import canned, say
from test_cli import HARNESSLAB, harnesslab, place      # noqa: F401  (a fixture)


def test_eval_prints_tables_and_goes_on_where_it_stopped(place):
    options = ("--i-know", "--only", "locate", "--only", "fix-test", "--out", "out")
    done = harnesslab(place, "eval", "demo", "2", *options)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (place[0] / "out" / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and {row["task"] for row in rows} == {"locate", "fix-test"} and all(row["scripted"] for row in rows)
    assert re.search(r"locate +\d of 2", done.stdout) and "scripted" in done.stdout and "results.jsonl" in done.stdout
    again = harnesslab(place, "eval", "demo", "2", *options)
    assert again.returncode == 0 and len((place[0] / "out" / "results.jsonl").read_text().splitlines()) == 4
    mixed = harnesslab(place, "eval", "demo", "2", *options, "--max-steps", "7")
    assert mixed.returncode == 2 and mixed.stderr.count("\n") == 1 and mixed.stderr.startswith("harnesslab: ")


def test_eval_compares_edit_errors_in_one_command(place):
    done = harnesslab(place, "eval", "edits", "1", "--i-know", "--only", "normalize", "--only", "rename", "--compare-edit-errors")
    assert done.returncode == 0, done.stderr
    assert "edits-v1" in done.stdout and "edits-v2" in done.stdout and "cannot decide" in done.stdout.lower()


def test_an_empty_budget_ends_with_one_and_says_what_did_not_run(place):
    done = harnesslab(place, "eval", "demo", "3", "--i-know", "--only", "locate", "--budget-tokens", "1", "--workers", "1")
    assert done.returncode == 1 and "budget" in done.stdout, done.stdout + done.stderr
    rows = [json.loads(line) for line in (place[0] / "results.jsonl").read_text().splitlines()]
    assert [row["status"].startswith("not run") for row in rows].count(True) == 2


@pytest.mark.parametrize("words, wanted", [
    (("eval", "demo", "0"), "repeats"), (("eval", "demo", "1", "--only", "nothing"), "There is no task nothing"), (("eval", "demo", "1", "--tasks", "/no/such"), "/no/such"),
    (("validate", "/no/such"), "/no/such"), (("check", "/no/such"), "harnesslab exercises"), (("models", "nobody"), "no provider"),
    (("models", "openai"), "OPENAI_API_KEY"), (("eval", "demo", "1", "--model", "openai/gpt-5"), "OPENAI_API_KEY"), (("eval", "demo", "1", "--dask", "tcp://127.0.0.1:9"), "dask")])
def test_bad_use_is_one_sentence(place, words, wanted):
    done = harnesslab(place, *words, *(["--i-know"] if words[0] == "eval" else []), env={"OPENAI_API_KEY": ""})
    assert done.returncode == 2 and wanted in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_validate_says_all_is_well(place):
    done = harnesslab(place, "validate", "--only", "locate", "--only", "normalize")
    assert done.returncode == 0 and "All is well" in done.stdout, done.stdout + done.stderr


def test_break_it_prints_the_tables(place):
    done = harnesslab(place, "break-it", "1")
    assert done.returncode == 0 and "scripted" in done.stdout, done.stdout + done.stderr


def test_exercises_are_written_kept_and_graded(place):
    folder = place[0] / "mine"
    done = harnesslab(place, "exercises", "mine")
    assert done.returncode == 0 and len(list(folder.glob("*.ipynb"))) >= 5, done.stderr
    path = sorted(folder.glob("*.ipynb"))[0]
    notebook = json.loads(path.read_text())
    notebook["cells"][-1]["source"] = "# my own words"
    path.write_text(json.dumps(notebook))
    again = harnesslab(place, "exercises", "mine")
    assert "kept" in again.stdout and "my own words" in path.read_text()
    for other in sorted(folder.glob("*.ipynb"))[1:]:
        other.unlink()
    graded = harnesslab(place, "check", "mine")
    assert graded.returncode == 1 and "not written" in graded.stdout, graded.stdout + graded.stderr


def test_models_of_a_server(place):
    with FakeApi(canned([[say("x")]])).serve() as server:
        done = harnesslab(place, "models", "anthropic", "--base-url", server.url)
    assert done.returncode == 0 and "anthropic/claude-haiku-4-5" in done.stdout, done.stderr
    assert "needs ANTHROPIC_API_KEY" in harnesslab(place, "models").stdout


def test_a_streamed_run_shows_the_words_once(place):
    from harnesslab.scripted import call
    with FakeApi(canned([[say("I look around."), call("list_dir")], [say("There is a README.")]])).serve() as server:
        environment = {"ANTHROPIC_API_KEY": "key-of-the-test", "AGENT_BASE_URL": server.url}
        done = harnesslab(place, "run", "repo", "What is here?", "--model", "claude-haiku-4-5", "--stream", env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("I look around.") == 1 and done.stdout.count("There is a README.") == 1


def test_an_interrupted_eval_says_so_and_can_go_on(place):
    folder, environment = place
    work = subprocess.Popen([*HARNESSLAB, "eval", "demo", "40", "--i-know", "--workers", "1", "--only", "rename"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (folder / "results.jsonl").exists():
        time.sleep(0.05)
    work.send_signal(signal.SIGINT)
    out, err = work.communicate(timeout=60)
    assert work.returncode == 130, out + err
    assert "Traceback" not in err
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert rows and len({row["key"] for row in rows}) == len(rows)
