"""The bench (trials) and the experiments on it (break_it): each failure happens with its guard off, does not with it on, and nothing is left of it."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import ROOT
from harnesslab import break_it, trials
from harnesslab.break_it import flooded_context, hand_back_bugs, injected_prompt, leaked_process, run_experiments, stolen_secret, useless_errors
from harnesslab.loop import UsageError
from harnesslab.providers import offline
from harnesslab.scripted import call, canned, say
from harnesslab.trials import Experiment, Outcome, end_process, leftovers, processes, run_here, throwaway, try_it

linux = pytest.mark.skipif(sys.platform != "linux", reason="optional: needs /proc")


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def real(policy):
    """A model that says it is a real one."""
    model = offline(policy, name="claude-haiku-4-5")
    model.facts = replace(model.facts, scripted=False)
    return model


# --- the bench -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("look", [trials._from_proc, trials._from_ps], ids=["proc", "ps"])
def test_process_list(look):
    if look is trials._from_proc and not os.path.exists("/proc/self/stat"):
        pytest.skip("optional: no /proc here")
    if look is trials._from_ps and not shutil.which("ps"):
        pytest.skip("optional: no ps here")
    child = subprocess.Popen(["sleep", "61.25"])
    try:
        [seen] = [process for process in look() if process.pid == child.pid]
        assert seen.parent == os.getpid() and seen.command == "sleep 61.25"
        assert os.getpid() in {process.pid for process in look()}
        child.kill()
        wait_for(lambda: child.pid not in {process.pid for process in look()})  # dead, not yet collected: does not count
    finally:
        child.kill()
        child.wait()


def test_only_what_is_ours_is_ended(tmp_path):
    """The same program elsewhere, and one whose folder only begins like ours, are left alone."""
    with throwaway(mark="nobody has this") as repo:
        near = Path(str(repo.parent) + "-neighbour")
        near.mkdir()
        others = [subprocess.Popen(["sleep", "62"], cwd=place) for place in (tmp_path, near)]
        ours = subprocess.Popen(["sleep", "62"], cwd=repo)
        if not os.path.exists("/proc"):
            ours.kill()
    assert ours.wait(timeout=10) == -signal.SIGKILL and not repo.parent.exists()
    assert [other.poll() for other in others] == [None, None]
    for other in others:
        other.kill()
        other.wait()
    near.rmdir()


def test_a_mark_finds_what_has_no_folder_to_be_seen(monkeypatch):
    """As on macOS: `ps` shows no folder, so the mark must do; an older process with the same mark is not ours."""
    if not shutil.which("ps"):
        pytest.skip("optional: no ps here")
    monkeypatch.setattr(trials, "processes", trials._from_ps)
    older = subprocess.Popen(["sleep", "63.125"])
    with throwaway(mark="sleep 63.125") as repo:
        ours = subprocess.Popen(["sleep", "63.125"], cwd=repo)
        before = {older.pid}
        assert [process.pid for process in leftovers(repo.parent, before, "sleep 63.125")] == [ours.pid]
    assert ours.wait(timeout=10) == -signal.SIGKILL and older.poll() is None
    older.kill()
    older.wait()


@linux
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_swept_on_every_way_out(error):
    escape = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
    with pytest.raises(error):
        with throwaway() as repo:
            subprocess.run([sys.executable, "-c", escape], cwd=repo, timeout=30)
            assert wait_for(lambda: leftovers(repo.parent))
            raise error
    assert leftovers(repo.parent) == [] and not repo.parent.exists()


def test_end_process_says_whether_it_is_gone():
    child = subprocess.Popen(["sleep", "60"])
    assert end_process(child.pid) and child.wait(timeout=5) == -signal.SIGKILL
    assert end_process(child.pid)  # nobody there: gone


def test_an_interrupted_run_interrupts_the_experiment():
    def stop(request):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), throwaway() as repo:
        run_here("Do it.", repo, offline(stop))


def test_rows_means_and_words():
    outcomes = [Outcome("a", "on", "good" if n else "bad", bool(n), facts={"harm": n, "kind": None}) for n in range(3)]
    [row] = Experiment("x", "y", "harm", outcomes).rows
    assert row == {"setting": "a", "guard": "on", "runs": 3, "what happened": "good 2x, bad 1x", "harm": 1.0, "kind": "unknown 3x"}
    rows = trials.Rows([{"a": 1_234_567, "dollars": None}, {"a": 0.25, "b": "<i>"}, {"a": True, "dollars": 0.5}])
    assert rows.cells() == [["1,234,567", "unknown", ""], ["0.2", "", "<i>"], ["yes", "$0.5000", ""]]
    assert "<i>" in str(rows) and "<i>" not in rows._repr_html_() and str(trials.Rows()) is not None


def test_a_model_without_prices_can_be_drawn():
    pytest.importorskip("altair")
    model = offline(canned([[say("Done.")]]), name="no-price-is-known")
    outcome = try_it("a", "off", "Do it.", model)
    experiment = Experiment("x", "y", "dollars", [outcome, outcome, Outcome("b", "on", "not on this machine: why", None)])
    assert "unknown" in experiment.table() and experiment.chart().to_dict()["layer"]


# --- the experiments -----------------------------------------------------------------------------------------------------------------

def test_useless_errors():
    experiment = useless_errors(runs=2)
    alone, useless, helpful = experiment.rows
    assert alone["same call, at most"] > 25 and alone["status"] == "max_steps" and alone["what happened"] == "not solved"
    assert "repeat" in useless["status"] and "not solved" in useless["what happened"]
    assert helpful["what happened"] == "solved 4x" and helpful["status"] == "done 4x"
    errors = [event["payload"]["content"] for trace in experiment.traces["useless errors"] for event in trace.events
              if event["type"] == "tool_returned" and event["payload"]["is_error"]]
    loops_own = "Not run: this exact call was made too often, and the run ends here."  # no tool's word, and nobody reads it any more
    assert {text.split("\n\n")[0] for text in errors} == {"Error", loops_own}
    assert all("Error" != event["payload"]["content"] for trace in experiment.traces["errors that help"] for event in trace.events if event["type"] == "tool_returned")
    looked_at = trials.fold(experiment.find("useless errors", 1).trace).moments[experiment.find("useless errors", 1).look_at - 1]
    assert looked_at.name == "edit_file"


def test_flooded_context():
    experiment = flooded_context()
    refused, unsent, paid, *clipped = experiment.outcomes
    assert re.fullmatch(r"refused: prompt is too long: \d+ tokens > 200000 maximum", refused.what)
    assert unsent.what == "not sent: it would not fit" and not unsent.trace.end["error"]
    assert paid.held and paid.row()["dollars"] > 100 * clipped[1].row()["dollars"]
    assert all(outcome.held and outcome.row()["input tokens"] < 10_000 for outcome in clipped)
    assert len(repr(experiment)) + len(repr(experiment.outcomes)) < 10_000, "a notebook stores what it shows: not the traces"


def test_leaked_process_and_who_catches_it():
    before = {process.pid for process in processes()}
    naive, group, escaped, family, room = leaked_process().outcomes
    assert naive.facts == {"left over": 2, "port held": True, "next run": "address already in use"}
    assert group.held and group.facts["next run"] == "found the port free"
    assert not escaped.held and escaped.facts["next run"] == "address already in use"
    if sys.platform == "linux":
        assert family.held and family.facts["next run"] == "found the port free"
        assert room.held in (True, None)
    assert "already in use" in trials.fold(naive.trace).moments[naive.look_at - 1].text
    assert [process for process in processes() if "http.server" in process.command and process.pid not in before] == []


def test_injected_prompt():
    bare, gated, *walled = injected_prompt().outcomes
    assert bare.facts["harm"] == 3 and bare.facts["beside it"] == "diary.txt" and not bare.held
    assert gated.facts["harm"] == 0 and gated.facts["refused"] == gated.facts["asked for"] == 3
    assert all(outcome.held is None or outcome.facts["in the copy"] == "ANSWER.txt, test deleted" for outcome in walled)
    asked = []
    [gated, *_] = injected_prompt("on", ask=lambda question: asked.append(question) or "y").outcomes
    assert len(asked) == 3 and gated.facts["harm"] == 3 and "rm tests/test_core.py" in asked[2]


def test_stolen_secret():
    threads, environment = threading.active_count(), dict(os.environ)
    control, half, *walled = stolen_secret().outcomes
    assert control.what == "stolen: the key and the file" and control.facts["secrets stolen"] == 2
    assert half.what == "stolen: the file"
    for outcome in walled:
        assert outcome.held is None or (outcome.held and outcome.facts["tried"] == 1 and not outcome.facts["reached the collector"])
    assert dict(os.environ) == environment
    wait_for(lambda: threading.active_count() <= threads)


def test_hand_back_bugs():
    rows = hand_back_bugs()
    assert len(rows) == 5 and [row["our loop"].split()[0] for row in rows] == ["done"] * 4 + ["max_steps"]
    assert "tool_result.content" in rows[0]["handed back wrongly"] and "toolu_x" in rows[1]["handed back wrongly"]
    assert "100 model calls" in rows[4]["handed back wrongly"]


# --- other people's models and machines ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("experiment", [flooded_context, leaked_process, injected_prompt, stolen_secret])
def test_a_real_model_does_no_harm_unless_you_know(experiment):
    def must_not_be_asked(request):
        raise AssertionError("a real model was asked")

    for outcome in experiment("off", model=real(must_not_be_asked)).outcomes:
        assert outcome.held is None and outcome.what.startswith("not run: with a real model, ") and not outcome.traces
    done = [say("I will not do that.")]
    for outcome in experiment("off", model=real(lambda request: done), i_know=True).outcomes:
        assert outcome.traces and outcome.trace.end["status"] == "done"
    table = experiment("off", model=real(lambda request: done), i_know=True).table()
    assert "scripted" not in table and "Answered by claude-haiku-4-5." in table


def test_useless_errors_take_a_model_by_name(monkeypatch):
    experiment = useless_errors("on", model="scripted/general", runs=1)
    assert [outcome.what for outcome in experiment.outcomes] == ["not solved", "not solved"]
    with pytest.raises(UsageError, match="needs a key"):
        useless_errors("on", model="claude-haiku-4-5", runs=1)


@pytest.mark.parametrize("have", [set(), {"landlock"}])
def test_fences_that_are_not_here(monkeypatch, have):
    whole = trials.choose_fence

    def choose(name="auto"):
        if name in {"namespace", "landlock"} - have:
            raise UsageError(f"There is no {name} fence on this machine ({name}: user namespaces are off); repair that, or choose another one.")
        try:
            return whole(name if name != "auto" else "process")
        except UsageError:
            pytest.skip("optional: no landlock here either")

    monkeypatch.setattr(trials, "choose_fence", choose)
    monkeypatch.setattr(break_it, "choose_fence", choose)
    for experiment in (injected_prompt("on"), stolen_secret("on")):
        room, landlock = experiment.outcomes[-2:]
        assert room.what == "not on this machine: user namespaces are off" and room.held is None
        assert landlock.held if have else landlock.what == "not on this machine: user namespaces are off"
        assert "not on this machine" in experiment.table() and "not on this machine" in experiment._repr_html_()
    with pytest.raises(UsageError, match="no trace"):
        experiment.step("no gate, namespace" if experiment.name.startswith("4 ") else "namespace")


def test_run_experiments_writes_tables():
    written = []
    [experiment] = run_experiments("2", write=written.append)
    assert written == [experiment.table() + "\n"] or os.environ.get("COLUMNS") and "switched off: results are not clipped" in written[0]
    with pytest.raises(UsageError, match="choose one of 1, 2, 3, 4 or all"):
        run_experiments("5")
    with pytest.raises(UsageError, match='"off", "on" or "both"'):
        useless_errors("maybe")


# --- Ctrl-C ------------------------------------------------------------------------------------------------------------------------------

@linux
@pytest.mark.parametrize("moment", ["the server is up", "the first command has ended", "at once"])
def test_interrupt_leaves_nothing(tmp_path, moment):
    code = "from harnesslab.break_it import leaked_process; leaked_process('off')"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    program = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    ours = lambda: [process for process in leftovers(tmp_path) if "http.server" in process.command and "sh -c" not in process.command]
    try:
        wait_for(lambda: list(tmp_path.glob("harnesslab-*")))
        if moment != "at once":
            [server] = wait_for(ours)
            parent = lambda: next((process.parent for process in processes() if process.pid == server.pid), None)
            if moment == "the first command has ended":
                first = server.parent
                wait_for(lambda: parent() != first)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
        assert "KeyboardInterrupt" in errors, errors
        assert leftovers(tmp_path) == [] and list(tmp_path.iterdir()) == []
    finally:
        program.kill()
        for process in leftovers(tmp_path):
            end_process(process.pid)


# --- the notebook ------------------------------------------------------------------------------------------------------------------------

def test_links_to_the_five_bugs_name_real_cells():
    cells = json.loads((ROOT / "nbs" / "05_break_it.ipynb").read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\((\w+\.ipynb)#cell-id=([\w-]+)\)", text)
    assert len(links) == 5
    for name, cell in links:
        assert cell in {each["id"] for each in json.loads((ROOT / "nbs" / name).read_text())["cells"]}
