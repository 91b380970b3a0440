"""Evals: one run from fresh repo to verdict, many runs through kills, budgets and faults, agents of other people's making."""
import functools
import inspect
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from eval_agents import bad_agent, boasting_agent, chatty_agent, crashing_agent, idle_agent, uncounting_agent, unhurried_solver, unsure_check
from harnesslab import evals
from harnesslab.batches import Attempt, Spent, spent_by
from harnesslab.eval_commands import eval_command, text_table, validate_command
from harnesslab.evals import Setup, ScriptedSolver, TaskEnv, load_results, make_setup, run_comparison, run_one, run_tasks
from harnesslab.fake_api import Fault
from harnesslab.fences import choose_fence
from harnesslab.loop import Limits, UsageError
from harnesslab.providers import connect, offline
from harnesslab.scripted import call, make_repo, say
from harnesslab.statistics import cost_per_solved, outcome
from harnesslab.tasks import Task, wordcount_tasks
from harnesslab.tools import Tool
from harnesslab.verifier import Verdict
from parts import change, look

TASKS = {task.id: task for task in wordcount_tasks()}
LOCATE, NORMALIZE = TASKS["locate"], TASKS["normalize"]
SURE = ScriptedSolver(slip_rate=0, miss_rate=0)
KEPT = ("label", "task", "rep", "passed", "status", "steps", "tok_in", "tok_out", "tool_errors")
quiet = functools.partial(run_tasks, progress=False, i_know=True)


def kept(rows):
    return sorted(tuple(row[name] for name in KEPT) for row in rows)


def index(folder):
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def replies(*turns):
    """A maker of models that answer with these turns."""
    return lambda task, rep: offline([*turns])


# ---- one run ---------------------------------------------------------------------------------------------------

def test_a_run_starts_from_one_commit_and_leaves_nothing(tmp_path):
    look = "git rev-list --all --count; git remote; git tag; git reflog; git count-objects -v | grep -E 'count|packs'"
    lines = [[call("run_command", cmd=look)], [call("run_command", cmd="sleep 77.25 & sleep 77.25 & echo started")], "Done."]
    before = set(Path(tempfile.gettempdir()).glob("harnesslab-eval-*"))
    row = run_one(Setup(replies(*lines), i_know=True), LOCATE, 0, Attempt(tmp_path))
    results = [json.loads(line)["payload"] for line in (tmp_path / "trace.jsonl").read_text().splitlines() if '"tool_returned"' in line]
    assert results[0]["content"].splitlines()[:2] == ["exit code 0", "1"] and "remote" not in results[0]["content"]
    assert not [line for line in results[0]["content"].splitlines() if re.match(r"[0-9a-f]{7} ", line)]          # an empty reflog
    assert "started" in results[1]["content"] and row["passed"] is False
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"77.25" in read(path)]
    assert set(Path(tempfile.gettempdir()).glob("harnesslab-eval-*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patch.diff", "trace.jsonl", "verdict.json", "verifier.txt"]
    assert json.loads((tmp_path / "verdict.json").read_text())["passed"] is False


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_row_is_the_lessons_row_and_more(tmp_path):
    results = quiet("v1", 1, tasks=[NORMALIZE], out=tmp_path, model=ScriptedSolver(miss_rate=0, name="claude-haiku-4-5"))
    [row] = index(tmp_path)
    assert list(row)[:10] == ["label", "task", "rep", "passed", "wall_s", "status", "steps", "tok_in", "tok_out", "tool_errors"]
    assert {"fresh", "cache_read", "cache_write", "output", "dollars", "model_seconds", "tool_seconds", "verifier_error", "reason", "warnings", "attempt"} <= set(row)
    assert row["tok_in"] == row["fresh"] + row["cache_read"] + row["cache_write"] and row["dollars"] > 0 and row["scripted"]
    run = json.loads((results.path("normalize") / "row.json").read_text())
    assert run == row and results.rows == [row] and b"+    words" in (results.path("normalize") / "patch.diff").read_bytes()
    from harnesslab.traces import summary
    told = summary(results.path("normalize") / "trace.jsonl")
    assert all(told[name] == row[name] for name in told if name in row)                                          # one fold, no second count


def test_work_done_at_the_step_limit_is_work_done(tmp_path):
    for steps, passed in ((4, True), (2, False)):
        row = run_one(Setup(SURE, limits=Limits(max_steps=steps)), NORMALIZE, 0, Attempt(tmp_path))
        assert (row["status"], row["passed"], outcome(row)) == ("max_steps", passed, "passed" if passed else "failed")


def test_a_verifier_that_cannot_decide_is_no_failure_of_the_agent(tmp_path):
    task = Task("unsure", "Do it.", LOCATE.make_repo, unsure_check)
    results = quiet("v1", 2, tasks=[task], out=tmp_path, agent=idle_agent)
    assert [row["passed"] for row in results.rows] == [None, None] and "no space left" in results.rows[0]["verifier_error"]
    assert results.score.outcomes["unverified"] == 2 and results.score.rate.runs == 0
    assert "0 of 0" in text_table(results)
    again = quiet("v1", 2, tasks=[task], out=tmp_path, agent=idle_agent, retry_errors=True)
    assert [(row["attempt"], row["earlier"][0]["status"]) for row in again.rows] == [(2, "done")] * 2


def test_warnings_stand_beside_the_verdict(tmp_path):
    lines = [[call("run_command", cmd="git log --all -p")], [call("edit_file", path="ANSWER.txt", old="", new="format_report wordcount/report.py\n")], "Done."]
    row = run_one(Setup(replies(*lines), i_know=True), LOCATE, 0, Attempt(tmp_path))
    assert row["passed"] is True and "history" in row["warnings"][0]


# ---- many runs -------------------------------------------------------------------------------------------------

RUNNER = """
import sys
sys.path.insert(0, {tests!r})
from eval_agents import unhurried_solver
from harnesslab.evals import run_tasks
from harnesslab.fences import choose_fence
from harnesslab.tasks import wordcount_tasks
choose_fence("auto")
print("ready", flush=True)
run_tasks("v1", {repeats}, tasks=[t for t in wordcount_tasks() if t.id in {tasks!r}], model=unhurried_solver, out={out!r}, workers=3, progress=False, i_know=True)
print("finished", flush=True)
"""


def runner(out, repeats=3, tasks=("locate", "normalize", "fix-test")):
    code = RUNNER.format(tests=os.path.dirname(__file__), repeats=repeats, tasks=tasks, out=str(out))
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def test_ten_kills_and_the_final_table_is_that_of_an_undisturbed_run(tmp_path):
    tasks = [TASKS[name] for name in ("locate", "normalize", "fix-test")]
    undisturbed = quiet("v1", 4, tasks=tasks, model=unhurried_solver, out=tmp_path / "quiet", workers=3)
    seed, kills = random.Random(3), 0
    while kills < 10:
        process = runner(tmp_path / "wild", 4)
        time.sleep(seed.uniform(0.05, 0.8))
        assert process.poll() is None, f"all runs were done after {kills} kills: they are too short for this test"
        process.kill()
        kills += 1
        process.wait()
        process.stdout.close()
    resumed = quiet("v1", 4, tasks=tasks, model=unhurried_solver, out=tmp_path / "wild", workers=3)
    assert kept(resumed.rows) == kept(undisturbed.rows) == kept(index(tmp_path / "wild"))
    columns = [name for name in resumed.table().columns if name not in ("dollars",)]
    assert resumed.table()[columns].equals(undisturbed.table()[columns])
    broken = [row for row in resumed.rows if row["attempt"] > 1]
    assert broken and all(len(row["earlier"]) == row["attempt"] - 1 and row["earlier"][0]["status"].startswith("killed") for row in broken)
    for attempt in (tmp_path / "wild/runs/v1").glob("*.attempt-*/scratch"):                                      # what the killed ones left in /tmp is gone
        assert not Path(attempt.read_text()).exists()


def test_the_second_ctrl_c_stops_an_agent_in_a_command(tmp_path):
    code = ("import sys; sys.path.insert(0, sys.argv[1])\nfrom eval_agents import sleepy_model\nfrom harnesslab.evals import run_tasks\n"
            "print('ready', flush=True)\nr = run_tasks('v1', 1, model=sleepy_model, out=sys.argv[2], progress=False, i_know=True)\nprint(r.stopped)")
    process = subprocess.Popen([sys.executable, "-c", code, os.path.dirname(__file__), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len([p for p in tmp_path.glob("runs/v1/*.attempt-1/trace.jsonl") if '"tool_called"' in p.read_text()]) < 5:
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out.strip() == "interrupted" and time.monotonic() - began < 15, err
    ends = [json.loads(path.read_text().splitlines()[-1]) for path in tmp_path.glob("runs/v1/*.attempt-1/trace.jsonl")]
    assert len(ends) == 5 and {end["payload"]["status"] for end in ends} == {"interrupted"}
    assert {row["status"] for row in index(tmp_path)} == {"not run: interrupted"}


def test_the_budget_is_asked_before_each_start(tmp_path):
    priced = ScriptedSolver(slip_rate=0, miss_rate=0, name="claude-haiku-4-5")
    capped = quiet("v1", 4, tasks=[LOCATE], out=tmp_path, model=priced, workers=1, budget_dollars=0.004)
    spent = [row["dollars"] for row in capped.rows if row["status"] == "done"]
    assert capped.stopped == "budget" and sum(spent[:-1]) < 0.004 <= sum(spent)
    assert [row["status"] for row in capped.rows[len(spent):]] == ["not run: budget"] * (4 - len(spent)) and len(index(tmp_path)) == 4
    assert "not run" in capped.sentence and outcome(capped.rows[-1]) == "not run"
    assert all(row["fence"] and row["probe"] == choose_fence("auto").probe for row in index(tmp_path))      # also where nothing was run
    whole = quiet("v1", 4, tasks=[LOCATE], out=tmp_path, model=priced)
    assert not whole.stopped and len(index(tmp_path)) == 4 and {row["status"] for row in index(tmp_path)} == {"done"}
    with pytest.raises(UsageError, match="prices of scripted-general are unknown"):
        quiet("other", 1, tasks=[LOCATE], out=tmp_path, model=SURE, budget_dollars=1)
    tokens = quiet("tokens", 3, tasks=[LOCATE], out=tmp_path, model=SURE, workers=1, budget_tokens=5_000)
    assert [row["status"] for row in tokens.rows] == ["done", "done", "not run: budget"]


@pytest.mark.parametrize("change", [{"edit_errors": "v1"}, {"limits": Limits(max_steps=9)}, {"model": ScriptedSolver(seed=1)}, {"fence": "process"},
                                    {"system": "Be brief."}, {"agent": idle_agent}, {"options": {"max_steps": 3}}])
def test_two_setups_are_not_mixed_under_one_label(tmp_path, change):
    quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE)
    with pytest.raises(UsageError, match=r"already holds runs of another configuration under the label 'v1' \(\w+: .* there, .* here\): choose another label or another folder\.$"):
        quiet("v1", 1, tasks=[LOCATE], out=tmp_path, **{"model": SURE, **change})
    assert len(quiet("v2", 1, tasks=[LOCATE], out=tmp_path, **{"model": SURE, **change}).rows) == 1             # another label may
    assert set(load_results(tmp_path)) == {"v1", "v2"}


def test_tools_are_told_apart_by_name(tmp_path):
    quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE, options={"tools": [Tool(look)]})
    quiet("v1", 2, tasks=[LOCATE], out=tmp_path, model=SURE, options={"tools": [Tool(look)]})
    with pytest.raises(UsageError, match="another configuration"):
        quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE, options={"tools": [Tool(change)]})


def test_another_version_of_a_task_is_another_run(tmp_path):
    import dataclasses
    quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE)
    newer = quiet("v1", 1, tasks=[dataclasses.replace(LOCATE, version="2")], out=tmp_path, model=SURE)
    assert newer.rows[0]["task_version"] == "2" and len(index(tmp_path)) == 2


def test_more_repeats_add_to_what_is_there(tmp_path):
    first = quiet("v1", 1, tasks=[LOCATE, NORMALIZE], out=tmp_path, model=SURE)
    more = quiet("v1", 2, tasks=[LOCATE, NORMALIZE], out=tmp_path, model=SURE)
    assert more.rows[:2] == first.rows and [row["rep"] for row in more.rows] == [0, 0, 1, 1]


def test_errors_of_the_api_are_apart_and_can_be_done_again(tmp_path):
    down = threading.Event()
    down.set()

    def flaky(task, rep):
        return offline(["Done."], faults=[Fault("spend_limit", times=99)] if down.is_set() else ())
    results = quiet("v1", 2, tasks=[LOCATE], out=tmp_path, model=flaky)
    assert [row["status"] for row in results.rows] == ["rate_limited"] * 2 and results.score.outcomes["error"] == 2 and results.score.rate.runs == 0
    down.clear()
    assert quiet("v1", 2, tasks=[LOCATE], out=tmp_path, model=flaky).rows == results.rows                       # never silently
    again = quiet("v1", 2, tasks=[LOCATE], out=tmp_path, model=flaky, retry_errors=True)
    assert [(row["status"], row["attempt"], row["earlier"][0]["status"]) for row in again.rows] == [("done", 2, "rate_limited")] * 2
    assert "Begun more than once: 2 runs" in again.sentence and len(index(tmp_path)) == 2


def test_all_runs_of_a_process_share_one_model(tmp_path):
    seen = []

    def curious(prompt, repo, mode="ask", trace=None, model=None):
        seen.append(model)
        return idle_agent(prompt, repo)
    results = quiet("v1", 3, tasks=[LOCATE], out=tmp_path, agent=curious, model="scripted/general")
    assert len(seen) == 3 and len({id(model) for model in seen}) == 1 and seen[0].client.is_closed and not evals._SHARED
    assert len(results.rows) == 3
    own = connect("scripted/general")
    quiet("v2", 2, tasks=[LOCATE], out=tmp_path, agent=curious, model=own)
    assert seen[-1] is own and not own.client.is_closed                                                         # what you connected, you close
    own.close()


# ---- workers of every kind -------------------------------------------------------------------------------------

def test_processes_and_threads_give_the_same_rows(tmp_path):
    threads = quiet("v1", 1, out=tmp_path / "threads", executor=ThreadPoolExecutor(2))
    with ProcessPoolExecutor(2) as pool:
        processes = quiet("v1", 1, out=tmp_path / "processes", executor=pool)
    assert kept(threads.rows) == kept(processes.rows) and len(threads.rows) == 5


def test_what_cannot_go_to_other_processes_is_said_before_anything_runs(tmp_path):
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(UsageError, match="A connected model cannot go to other processes"):
            quiet("v1", 1, out=tmp_path, executor=pool, model=offline(["Done."]))
        with pytest.raises(UsageError, match="functions must stand in a module"):
            quiet("v1", 1, out=tmp_path, executor=pool, model=lambda task, rep: offline(["Done."]))


def test_a_real_cluster_runs_the_agents(tmp_path):
    dask = pytest.importorskip("dask.distributed", reason="dask.distributed is an extra")
    with dask.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        assert eval_command("v1", 2, dask=cluster.scheduler_address, workers=2, out=tmp_path, only=["locate", "normalize"], progress=False, i_know=True) == 0
    assert len(index(tmp_path)) == 4
    with pytest.raises(UsageError, match="No dask scheduler answers"):
        eval_command("v1", 1, dask="tcp://127.0.0.1:1", out=tmp_path)


# ---- agents of other people's making ----------------------------------------------------------------------------

def test_an_agent_with_the_lessons_signature(tmp_path):
    results = quiet("mine", 1, tasks=[LOCATE], out=tmp_path, agent=chatty_agent)
    assert results.rows[0]["passed"] is True and results.rows[0]["mood"] == "good"


def test_an_agent_built_on_ours_gets_the_model_the_fence_and_the_limits(tmp_path):
    from harnesslab.sandbox import run_agent
    results = quiet("mine", 1, tasks=[LOCATE], out=tmp_path, agent=functools.partial(run_agent, allow=["ls"]), model=SURE, limits=Limits(max_steps=2))
    assert results.rows[0]["status"] == "max_steps" and results.rows[0]["model"] == "scripted-general"
    fixed = quiet("fixed", 1, tasks=[LOCATE], out=tmp_path, agent=functools.partial(run_agent, limits=Limits(max_steps=1)), model=SURE)
    assert fixed.rows[0]["steps"] == 1                                                                          # what you have settled stays settled


def test_an_agent_that_returns_something_else_is_named(tmp_path):
    with pytest.raises(UsageError, match="The agent must return a dictionary with status, steps, tok_in, tok_out, tool_errors"):
        quiet("mine", 1, tasks=[LOCATE], out=tmp_path, agent=bad_agent)


def test_what_an_agent_says_about_its_own_verdict_does_not_count(tmp_path):
    [row] = quiet("mine", 1, tasks=[LOCATE], out=tmp_path, agent=boasting_agent).rows
    assert row["passed"] is False and row["task"] == "locate" and "ANSWER.txt" in row["reason"] and row["fence"] != "steel"
    assert row["probe"]["fence"] == row["fence"] and row["probe"]["works"] is True and index(tmp_path) == [row]


def test_an_agent_that_does_not_count_is_named(tmp_path):
    with pytest.raises(UsageError, match="must count tok_in as a number from 0 up, not 'many'"):
        quiet("mine", 1, tasks=[LOCATE], out=tmp_path, agent=uncounting_agent)


def test_an_agent_that_raises_has_no_verdict_and_is_run_again(tmp_path):
    results = quiet("mine", 1, tasks=[LOCATE], out=tmp_path, agent=crashing_agent, options={"flag": str(tmp_path / "flag")})
    assert results.rows[0]["status"] == "crashed" and "ZeroDivisionError" in results.rows[0]["error"] and results.rows[0].get("passed") is None
    again = quiet("mine", 1, tasks=[LOCATE], out=tmp_path, agent=crashing_agent, options={"flag": str(tmp_path / "flag")})
    assert (again.rows[0]["status"], again.rows[0]["attempt"], again.rows[0]["earlier"][0]["status"]) == ("done", 2, "crashed")


LEARNERS_SCRIPT = '''
"""My own runner: python3 my_tasks.py LABEL REPEATS"""
import json, pathlib, shutil, subprocess, sys, tempfile, time
import harnesslab as agent

HERE = pathlib.Path(__file__).parent.resolve()
tasks = json.loads((HERE / "checks" / "tasks.json").read_text())
label, repeats = sys.argv[1], int(sys.argv[2])
with open(HERE / "results.jsonl", "a") as out:
    for rep in range(repeats):
        for task in tasks:
            scratch = pathlib.Path(tempfile.mkdtemp(prefix="mine-"))
            repo = scratch / "repo"
            shutil.copytree(HERE / "sample_repo", repo)
            began = time.time()
            stats = agent.run_agent(task["prompt"], repo, mode="yes", trace=HERE / "traces" / f"{label}-{task['id']}-{rep}.jsonl")
            wall = time.time() - began
            check = subprocess.run(task["check"].format(checks=HERE / "checks"), shell=True, cwd=repo, capture_output=True, text=True, timeout=60)
            row = dict(label=label, task=task["id"], rep=rep, passed=check.returncode == 0, wall_s=round(wall, 1), **stats)
            print(json.dumps(row))
            out.write(json.dumps(row) + "\\n")
            out.flush()
            shutil.rmtree(scratch)
'''


def test_a_learners_own_runner_works_unchanged(tmp_path):
    if choose_fence("auto").name == "process":
        pytest.skip("mode yes needs a fence that keeps commands inside the repo, and there is none on this machine")
    (tmp_path / "my_tasks.py").write_text(LEARNERS_SCRIPT)
    make_repo(tmp_path / "sample_repo")
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/ok.py").write_text("print('ok')\n")
    tasks = [{"id": "look", "prompt": "Which functions does this package export?", "check": f"{sys.executable} {{checks}}/ok.py"},
             {"id": "suite", "prompt": "Run the tests and say which fail.", "check": f"{sys.executable} -m unittest -q"}]
    (tmp_path / "checks/tasks.json").write_text(json.dumps(tasks))
    done = subprocess.run([sys.executable, "my_tasks.py", "v1", "2"], cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    rows = index(tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == rows
    assert [(row["task"], row["rep"], row["passed"], row["status"]) for row in rows] == [(t, r, t == "look", "done") for r in (0, 1) for t in ("look", "suite")]
    assert all({"steps", "tok_in", "tok_out", "tool_errors"} <= set(row) for row in rows) and len(list((tmp_path / "traces").iterdir())) == 4
    ours = quiet("ours", 1, tasks=[LOCATE], out=tmp_path, model=SURE)                                            # and we leave its lines alone
    assert len(index(tmp_path)) == 5 and len(ours.rows) == 1


# ---- comparing, tables, commands ---------------------------------------------------------------------------------

def test_v1_against_v2_in_one_call(tmp_path):
    experiment = run_comparison(repeats=3, tasks=[NORMALIZE, TASKS["min-length"]], out=tmp_path, model=ScriptedSolver(slip_rate=1, miss_rate=0), progress=False, i_know=True)
    steps = experiment.comparison.differences["steps"]
    assert steps.difference < 0 and steps.decided and not experiment.comparison.differences["pass rate"].decided
    assert "cannot decide" in experiment.sentence.lower() and "scripted model" in experiment.sentence
    assert [row["label"] for row in sorted(index(tmp_path), key=lambda row: row["began"])].count("v1") == 6
    assert set(experiment.table().columns) >= {"measure", "before", "after", "low", "high"}
    spec = experiment.chart().to_dict()
    assert "Scripted model" in json.dumps(spec) and "tool errors" in json.dumps(spec)
    with pytest.raises(UsageError, match="two labels"):
        run_comparison({"v1": {}}, out=tmp_path)


def test_tables(tmp_path):
    results = quiet("v1", 2, tasks=[LOCATE, NORMALIZE], out=tmp_path, model=SURE)
    assert list(results.table()["task"]) == ["locate", "normalize"] and len(results.frame()) == 4
    assert "scripted model" in results.sentence and results.sentence == repr(results) and "<table" in results._repr_html_()
    loaded = load_results(tmp_path)["v1"]
    assert kept(loaded.rows) == kept(results.rows) and loaded.path("locate", 1) == results.path("locate", 1)
    with pytest.raises(UsageError, match="no finished run 7"):
        loaded.path("locate", 7)
    for wrong in (lambda: load_results(tmp_path / "nowhere"), lambda: load_results(tmp_path, "v9")):
        with pytest.raises(UsageError, match="holds no finished runs"):
            wrong()
    assert not (tmp_path / "nowhere").exists()


def test_the_command(tmp_path, capsys):
    assert eval_command("demo", 1, out=tmp_path, model=SURE, only=["locate", "normalize"], progress=False) == 0
    said = capsys.readouterr().out
    assert re.search(r"^locate +1 of 1 +\d+% to 100%", said, re.M) and "scripted model" in said and str(tmp_path / "results.jsonl") in said
    assert eval_command("demo", 2, out=tmp_path, model=SURE, only=["locate"], budget_tokens=10, progress=False) == 1
    assert "Not all was done (budget)" in capsys.readouterr().out
    assert eval_command("edits", 1, compare_edit_errors=True, out=tmp_path, model=SURE, only=["normalize"], progress=False) == 0
    said = capsys.readouterr().out
    assert "edits-v1 (before) against edits-v2 (after)" in said and (tmp_path / "edits-comparison.svg").read_text().startswith("<svg")
    with pytest.raises(UsageError, match="There is no task lokate; there are: fix-test"):
        eval_command("demo", 1, only=["lokate"])


def test_the_demo_offline_from_nothing(tmp_path):
    """`harnesslab eval demo 3`, as a process of its own: well under two minutes."""
    code = "import sys; from harnesslab.eval_commands import eval_command; sys.exit(eval_command('demo', 3, i_know=True))"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=115)
    assert done.returncode == 0 and time.monotonic() - began < 115, done.stderr
    assert len(index(tmp_path)) == 15 and done.stderr == "" and "of 15 runs passed" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.jsonl", "runs"]


def test_without_scipy_and_pandas_there_is_still_a_table(tmp_path):
    code = ("import sys\nfor name in ('scipy', 'pandas', 'numpy', 'altair'): sys.modules[name] = None\n"
            "from harnesslab.evals import ScriptedSolver\nfrom harnesslab.eval_commands import eval_command\n"
            "sys.exit(eval_command('demo', 1, only=['locate'], model=ScriptedSolver(miss_rate=0), i_know=True))")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^locate +1 of 1 +4\.0", done.stdout, re.M) and "pip install 'harnesslab-kit[evals]'" in done.stdout


def test_validate_says_which_check_is_wrong(capsys):
    assert validate_command(only=["locate"]) == 0 and "All is well." in capsys.readouterr().out
    always = Task("always", "Do it.", LOCATE.make_repo, lambda bench: None, lambda repo: None)
    assert validate_command([always]) == 1
    assert "always: nothing done: PASSES, but must fail" in capsys.readouterr().out


@pytest.mark.parametrize("wrong, said", [
    (lambda: quiet("", 1, tasks=[LOCATE]), "The label is empty"),
    (lambda: quiet("v1", 0, tasks=[LOCATE]), "repeats must be a whole number"),
    (lambda: quiet("v1", True, tasks=[LOCATE]), "repeats must be a whole number"),
    (lambda: quiet("v1", 1, tasks=[]), "There are no tasks"),
    (lambda: quiet("v1", 1, tasks=[LOCATE, LOCATE]), "Two tasks have the same id"),
    (lambda: quiet("v1", 1, tasks="no-such-folder"), "no-such-folder"),
    (lambda: quiet("v1", 1, modell="x"), "A setup has no modell"),
    (lambda: quiet("v1", 1, fence="moat"), "There is no fence called 'moat'"),
    (lambda: quiet("v1", 1, model="no/such"), "no/such"),
    (lambda: quiet("v1", 1, edit_errors="v3", model=SURE), "edit_errors is"),
])
def test_bad_use_is_one_sentence(wrong, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        wrong()
    assert said in str(error.value) and "\n" not in str(error.value)


def test_the_model_is_the_one_that_the_environment_names(monkeypatch):
    assert isinstance(make_setup().model, ScriptedSolver)
    monkeypatch.setenv("AGENT_MODEL", "scripted/walkthrough")
    assert make_setup().model == "scripted/walkthrough" and make_setup(SURE).model is SURE


def test_what_a_crashed_run_spent_is_told(tmp_path):
    def spends_and_raises(prompt, repo, mode="ask", trace=None, model=None, fence=None, sink=None):
        from harnesslab.sandbox import run_agent
        run_agent(prompt, repo, mode, trace=trace, model=model, fence=fence, sink=sink, i_know=True)
        raise RuntimeError("after the fact")
    results = quiet("v1", 3, tasks=[LOCATE], out=tmp_path, agent=spends_and_raises, model=SURE, workers=1, budget_tokens=5_000)
    assert [row["status"] for row in results.rows] == ["crashed", "crashed", "not run: budget"] and results.rows[0]["tok_in"] > 3_000


# ---- the door to reinforcement learning ---------------------------------------------------------------------------

def test_the_environment_is_short_and_works():
    assert len(inspect.getsource(TaskEnv).splitlines()) <= 40
    env = TaskEnv(LOCATE, max_steps=2)
    messages, info = env.reset(seed=1)
    assert messages[0]["content"] == LOCATE.prompt and {tool["name"] for tool in info["tools"]} >= {"read_file", "run_command"}
    write = [{**call("edit_file", path="ANSWER.txt", old="", new="format_report wordcount/report.py\n"), "id": "toolu_1"}]
    messages, reward, terminated, truncated, info = env.step(write)
    assert (reward, terminated, truncated) == (0.0, False, False) and messages[-1]["content"][0]["type"] == "tool_result"
    *_, reward, terminated, truncated, info = env.step([say("Done.")])
    assert (reward, terminated, truncated) == (1.0, True, False) and isinstance(info["verdict"], Verdict)
    env.reset()
    env.step([{**call("list_dir"), "id": "toolu_1"}])
    *_, reward, terminated, truncated, info = env.step([{**call("list_dir"), "id": "toolu_2"}])
    assert (reward, terminated, truncated) == (0.0, False, True)
    folder = env._folder
    env.close()
    assert not Path(folder).exists()
    env.close()


def test_a_broken_verifier_teaches_nothing():
    env = TaskEnv(Task("unsure", "Do it.", LOCATE.make_repo, unsure_check))
    env.reset()
    with pytest.raises(RuntimeError, match="no space left"):
        env.step([say("Done.")])
    env.close()


# ---- who is who, and what was paid -----------------------------------------------------------------------------

COUNTED = {"status": "done", "steps": 1, "tok_in": 10, "tok_out": 1, "tool_errors": 0}


def agent_with(setting):
    def agent(prompt, repo, mode="ask", trace=None):
        return {**COUNTED, "setting": repr(setting)}
    return agent


class Agent:
    def __init__(self, setting):
        self.setting, self.lock, self.me = setting, threading.Lock(), self

    def __call__(self, prompt, repo, mode="ask", trace=None):
        return {**COUNTED, "setting": repr(self.setting)}

    def run(self, prompt, repo, mode="ask", trace=None):
        return self(prompt, repo)


def with_default(setting):
    def agent(prompt, repo, mode="ask", trace=None, setting=setting):
        return dict(COUNTED)
    return agent


def with_keyword_default(setting):
    def agent(prompt, repo, mode="ask", trace=None, *, setting=setting):
        return dict(COUNTED)
    return agent


def with_attribute(setting):
    def agent(prompt, repo, mode="ask", trace=None):
        return {**COUNTED, "setting": agent.setting}
    agent.setting = setting
    return agent


def typed_at_a_prompt(setting):
    names = {"COUNTED": COUNTED}
    exec(f"def agent(prompt, repo, mode='ask', trace=None): return {{**COUNTED, 'setting': {setting!r}}}", names)
    return names["agent"]


MADE = [agent_with, Agent, lambda setting: Agent(setting).run, lambda setting: Agent({"deep": [agent_with(setting)]}), with_default, with_keyword_default, with_attribute, typed_at_a_prompt,
        lambda setting: functools.partial(agent_with(setting), mode="yes"), lambda setting: agent_with(frozenset(["a", "b", "c", str(setting)])), lambda setting: agent_with(b"x" * (setting == 1))]


@pytest.mark.parametrize("make", MADE)
def test_agents_that_differ_in_what_they_were_made_with_are_told_apart(make, tmp_path):
    quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE, agent=make(1))
    assert len(quiet("v1", 2, tasks=[LOCATE], out=tmp_path, model=SURE, agent=make(1)).rows) == 2      # the same, made anew
    with pytest.raises(UsageError, match="another configuration"):
        quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE, agent=make(2))


def test_makers_of_models_are_told_apart_too(tmp_path):
    maker = lambda rate: lambda task, rep: ScriptedSolver(slip_rate=0, miss_rate=rate)(task, rep)
    assert quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=maker(1.0)).rows[0]["passed"] is False
    with pytest.raises(UsageError, match="another configuration"):
        quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=maker(0.0))


def test_an_agent_is_the_same_in_every_process():
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); import test_evals as t; print(json.dumps([t.Setup(t.SURE, agent=make(1)).describe() for make in t.MADE]))"
    seen = {subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")}
    assert len(seen) == 1 and " at 0x" not in seen.pop()


@pytest.mark.parametrize("dollars", ["0.12", float("nan"), float("inf"), -5.0, [1], 10 ** 16, "x", Decimal("NaN"), Decimal("sNaN")])
def test_a_price_that_is_none_is_one_sentence(dollars, tmp_path):
    agent = lambda prompt, repo, mode="ask", trace=None: {**COUNTED, "dollars": dollars}
    for _ in range(2):
        with pytest.raises(UsageError, match="must count dollars as a number from 0 up"):
            quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE, agent=agent)


@pytest.mark.parametrize("dollars, kept", [(Decimal("0.12"), 0.12), (Fraction(1, 4), 0.25), (0, 0), (None, None)])
def test_a_price_of_any_kind_of_number(dollars, kept, tmp_path):
    agent = lambda prompt, repo, mode="ask", trace=None: {**COUNTED, "dollars": dollars, "steps": Fraction(2)}
    for _ in range(2):
        [row] = quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE, agent=agent).rows
        assert row["dollars"] == kept and row["steps"] == 2.0


def flaky_agent(prompt, repo, mode="ask", trace=None, flag=""):
    """Ended by the API the first time. It writes no trace."""
    if not os.path.exists(flag):
        Path(flag).touch()
        return {**COUNTED, "status": "api_error", "dollars": 5.0}
    (Path(repo) / "ANSWER.txt").write_text("format_report wordcount/report.py\n")
    return {**COUNTED, "dollars": 1.0}


def test_what_a_first_try_has_cost_is_part_of_the_price(tmp_path):
    how = {"tasks": [LOCATE], "out": tmp_path, "model": SURE, "agent": flaky_agent, "options": {"flag": str(tmp_path / "flag")}}
    quiet("v1", 1, **how)
    results = quiet("v1", 1, **how, retry_errors=True)
    assert results.rows[0]["earlier"] == [{"attempt": 1, "status": "api_error", "steps": 1, "tok_in": 10, "tok_out": 1, "dollars": 5.0, "error": ""}]
    assert cost_per_solved(results.rows) == 6.0 and spent_by(results.rows[0]) == Spent(6.0, 22, 0)


def test_the_budget_counts_what_killed_tries_have_spent(tmp_path):
    """A process that dies while it verifies, night after night, does not begin a run again when the budget is spent."""
    code = """
import os, sys
from harnesslab import evals
evals.verify = lambda *_, **__: os.kill(os.getpid(), 9)
tasks = [task for task in evals.wordcount_tasks() if task.id == "locate"]
results = evals.run_tasks("v1", 1, tasks=tasks, out=sys.argv[1], model=evals.ScriptedSolver(slip_rate=0, miss_rate=0), budget_tokens=2, workers=1, progress=False)
print(results.stopped)
"""
    ends = [subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True) for _ in range(2)]
    assert ends[0].returncode == -9 and ends[1].stdout == "budget\n", ends
    [row] = quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE).rows
    assert row["passed"] and row["earlier"][0]["tok_in"] > 2


def test_results_can_be_read_where_nothing_can_be_written(tmp_path):
    quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE)
    (tmp_path / "runs/.lock").unlink()
    places = [tmp_path, *tmp_path.rglob("*")]
    modes = [place.stat().st_mode for place in places]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)                 # root may write all the same, but does not
    try:
        before = sorted((str(place), place.stat().st_mtime_ns) for place in places)
        assert load_results(tmp_path)["v1"].rows[0]["passed"]
        assert sorted((str(place), place.stat().st_mtime_ns) for place in [tmp_path, *tmp_path.rglob("*")]) == before
    finally:
        for place, mode in zip(places, modes):
            place.chmod(mode)


def test_a_crash_is_said_at_the_end(tmp_path, capsys):
    results = quiet("v1", 1, tasks=[LOCATE], out=tmp_path, model=SURE, agent=lambda prompt, repo, mode="ask", trace=None: 1 / 0)
    assert "Not all was done (1 run broke off); the same call again goes on from here." in results.sentence
