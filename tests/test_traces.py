"""The trace reader: damaged, growing and foreign files, every request rebuilt, replay, fork, and the bill."""
import gc
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnesslab import traces
from harnesslab.fake_api import FakeApi, Fault
from harnesslab.loop import EventLog, History, Limits, Prices, Retry, UsageError, mend, run_loop
from harnesslab.providers import FACTS, AnthropicModel, make_client, offline
from harnesslab.sandbox import make_tools, run_agent
from harnesslab.scripted import WALKTHROUGH_TASK, call, canned, make_repo, say, solver, walkthrough
from harnesslab.tools import Registry, Tool, ToolError
from harnesslab.traces import (
    check_prefix,
    diff_runs,
    fold,
    follow,
    measured_growth,
    predict_input,
    read_trace,
    requests,
    result_costs,
    summary,
    timeline,
    to_dataframe,
)
from harnesslab.what_if import fork, replay


def echo(text: str) -> str:
    """Give the text back."""
    return text


def fail(text: str) -> str:
    """Fail with the text."""
    raise ToolError(text)


def write(text: str) -> str:
    """A call that a gate has to allow."""
    return f"wrote {text}"


TOOLS = [Tool(echo, read_only=True), Tool(fail, read_only=True), Tool(write)]


def go(replies, *, limits=Limits(), gate=lambda name, arguments: True, name="claude-sonnet-5-5", tools=TOOLS, sink=None, **api):
    """A run against the strict API. Gives the run, its events, and the bodies that went over the wire, retries left out."""
    api = FakeApi(canned(replies) if isinstance(replies, list) else replies, **api)
    model = AnthropicModel(FACTS[name], make_client(api.transport()), "http://offline", "offline", retry=Retry(first=0.001))
    events, registry = [], Registry(".", tools)
    history = History("Do it. \u00e4\u2028\U0001f600", "You are careful.", registry.definitions)
    run = run_loop(history, model, registry, limits, gate, sink or events.append)
    sent = [r.body for r in api.requests]
    return run, events, [body for body, next in zip(sent, [*sent[1:], None]) if body != next]


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """The trace of the walk over the sample repo, and what went over the wire."""
    folder = tmp_path_factory.mktemp("walk")
    api = FakeApi(walkthrough)
    model = AnthropicModel(FACTS["claude-sonnet-5-5"], make_client(api.transport()), "http://offline", "offline")
    path = folder / "walk.jsonl"
    run = run_agent(WALKTHROUGH_TASK, make_repo(folder / "repo"), "yes", model=model, trace=path, i_know=True)
    return path, run, [r.body for r in api.requests]


# ---------------------------------------------------------------- damaged files

def test_a_file_torn_at_every_byte(walk, tmp_path):
    path, _, _ = walk
    data, all_events = path.read_bytes(), read_trace(path).events
    data = data[: data.index(b"\n", 7_000) + 1]
    torn = tmp_path / "torn.jsonl"
    for cut in range(len(data) + 1):
        torn.write_bytes(data[:cut])
        trace = read_trace(torn)
        whole_lines = data[:cut].count(b"\n")
        assert trace.events[:whole_lines] == all_events[:whole_lines]
        assert len(trace.events) - whole_lines in (0, 1)  # one more if only its line break is missing
        assert trace.bad_lines <= 1 and len(trace.events) + trace.bad_lines <= whole_lines + 1


@pytest.mark.parametrize("nuls", [1, 511, 4096])
def test_tails_of_nul_bytes(walk, tmp_path, nuls):
    data, torn = walk[0].read_bytes(), tmp_path / "torn.jsonl"
    for cut in (0, 1, len(data) // 2, len(data) - 1, len(data)):
        torn.write_bytes(data[:cut] + b"\0" * nuls)
        trace = read_trace(torn)
        assert trace.events == read_trace(walk[0]).events[: len(trace.events)] and trace.bad_lines <= 1
        assert fold(trace).totals.status == ("done" if cut >= len(data) - 1 else "")
    torn.write_bytes(data[: len(data) // 2] + b"\0" * nuls)
    before = len(read_trace(torn).events)
    with EventLog(torn) as log:  # a later run goes on in the same file
        go([[say("hi")]], sink=log)
    assert read_trace(torn).end["status"] == "done" and read_trace(torn).bad_lines == 1
    assert len(read_trace(torn, run=read_trace(walk[0]).events[0]["run"]).events) == before


def test_a_writer_killed_in_the_middle(tmp_path):
    path = tmp_path / "killed.jsonl"
    code = (
        "import sys\n"
        "from harnesslab.loop import EventLog, History, Limits, run_loop\n"
        "from harnesslab.providers import offline\n"
        "from harnesslab.scripted import call\n"
        "from harnesslab.tools import Registry, Tool\n"
        "def echo(n: int) -> str:\n"
        "    'Give a long text.'\n"
        "    return 'x' * 5000\n"
        "steps = iter(range(10**9))\n"
        "model = offline(lambda request: [call('echo', n=next(steps))])\n"
        "tools = Registry('.', [Tool(echo, read_only=True)])\n"
        "limits = Limits(max_steps=10**6, max_input_tokens=10**12)\n"
        "run_loop(History('go', '', tools.definitions), model, tools, limits, sink=EventLog(sys.argv[1]))\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (not path.exists() or path.stat().st_size < 100_000):
            time.sleep(0.01)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    trace = read_trace(path)
    assert [event["n"] for event in trace.events] == list(range(len(trace.events)))
    assert len(trace.events) > 20 and trace.bad_lines <= 1 and trace.end is None
    folded = fold(trace)
    assert folded.totals.status == "" and folded.unreadable == 0 and len(requests(trace)) >= len(folded.calls) > 3
    assert check_prefix(trace) == []


def test_reading_while_it_is_written(walk, tmp_path):
    data, path = walk[0].read_bytes(), tmp_path / "growing.jsonl"
    path.touch()
    all_events, done = read_trace(walk[0]).events, threading.Event()

    def write_it():
        with open(path, "ab", buffering=0) as file:
            for start in range(0, len(data), 313):
                file.write(data[start : start + 313])
                time.sleep(0.001)
        done.set()

    writer = threading.Thread(target=write_it)
    writer.start()
    lengths = []
    while not done.is_set():
        trace = read_trace(path)
        assert trace.events == all_events[: len(trace.events)] and trace.bad_lines <= 1
        lengths.append(len(trace.events))
    writer.join()
    assert lengths == sorted(lengths) and read_trace(path).events == all_events


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text(st.characters(codec=None), max_size=60), st.floats(), st.integers(-(2**62), 2**62)), max_size=5))
def test_any_text_and_number_comes_back(tmp_path, rows):
    path = tmp_path / "any.jsonl"
    path.unlink(missing_ok=True)
    events = [
        {"v": 1, "run": "r", "n": n, "step": 0, "time": 1.5, "type": "odd", "payload": {"text": text, text: number, "whole": whole}}
        for n, (text, number, whole) in enumerate(rows)
    ]
    with EventLog(path) as log:
        for event in events:
            log(event)
    assert read_trace(path).events == mend(events) and read_trace(path).bad_lines == 0


JSON = st.recursive(st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6)
FIELDS = ["task", "messages", "system", "tools", "model", "request", "limits", "content", "stop_reason", "usage", "seconds", "tries", "waits", "id",
          "name", "arguments", "allowed", "is_error", "changed", "kind", "text", "cleared", "answer", "status", "max_tokens", "asked"]
TYPES = ["run_started", "model_called", "model_waited", "model_replied", "tool_called", "gate_decided", "tool_returned", "nudged",
         "history_edited", "run_ended", "of_the_future"]
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES), "payload": st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6)},
    optional={"run": st.sampled_from(["a", "b"]), "n": JSON, "step": st.integers(0, 3), "time": st.floats(0, 9) | st.text(max_size=2)},
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=12))
def test_damaged_events_never_raise(events):
    trace = read_trace(events)
    folded = fold(trace)
    assert [m.number for m in folded.moments] == list(range(1, len(folded.moments) + 1))
    summary(trace), requests(trace), to_dataframe(events), diff_runs(trace, trace), check_prefix(trace), result_costs(folded)


def test_a_list_with_things_that_are_no_events():
    trace = read_trace([{"type": "odd"}, {"type": 5}, None, {"type": "odd", "payload": []}])
    assert trace.events == [{"type": "odd", "payload": {}}] and trace.bad_lines == 3 and len(to_dataframe([None])) == 0


def test_bad_use_is_one_sentence(walk, tmp_path):
    for bad in (lambda: read_trace(tmp_path / "gone"), lambda: read_trace(tmp_path), lambda: read_trace(walk[0], run="nobody"),
                lambda: fork(walk[0], 99, Registry("."), None), lambda: fork(walk[0], 0, Registry("."), None),
                lambda: measured_growth(fold([])), lambda: list(follow(tmp_path)), lambda: replay([], Registry(".")), lambda: check_prefix([b"{", b"}"])):
        with pytest.raises(UsageError) as error:
            bad()
        assert str(error.value).endswith(".") and "\n" not in str(error.value)


# ---------------------------------------------------------------- one fold

def test_the_file_says_what_the_loop_said(walk):
    path, run, _ = walk
    told = summary(path)
    assert {key: told[key] for key in run if key != "events_lost"} == {key: run[key] for key in run if key != "events_lost"}
    folded = fold(path)
    assert math.isclose(sum(c.dollars for c in folded.calls), run["dollars"]) and folded.calls[-1].input_so_far == run["tok_in"]
    assert [(m.number, m.kind) for m in folded.moments if m.kind in ("task", "answer")] == [(1, "task"), (18, "answer")]
    whole = folded.moments[-1].event["time"] - folded.moments[0].event["time"]
    assert math.isclose(sum(folded.shares.values()), whole, abs_tol=1e-6) and all(s >= 0 for s in folded.shares.values())


def test_the_numbers_are_those_of_the_live_lines(walk, tmp_path):
    import io

    from harnesslab.cli import LiveLines
    out = io.StringIO()
    lines = LiveLines(out, colour=False, width=400)
    for event in read_trace(walk[0]).events:
        lines(event)
    numbered = [line.split(None, 2) for line in out.getvalue().splitlines() if line[:4].strip().isdigit()]
    kinds = {"ERROR": "result"}
    assert [(int(n), kinds.get(kind, kind)) for n, kind, *_ in numbered] == [(m.number, m.kind) for m in timeline(walk[0])]


def test_fields_of_a_later_version_are_passed_over():
    _, events, _ = go([[call("echo", text="a")], [call("write", text="b")], [say("ok")]])
    later = json.loads(json.dumps(events))
    for event in later:
        facts, payload = event["payload"].get("model") or {}, event["payload"]
        for record in (event, payload, facts, facts.get("prices"), payload.get("limits"), payload.get("usage")):
            if record is not None:
                record["newer"] = {"a": 1}
    assert summary(later) == summary(events) and fold(later).calls == fold(events).calls and fold(later).unreadable == 0
    again = replay(later, Registry(".", TOOLS))
    assert again.run.status == "done" and again.differences == [] and again.run["tok_in"] == summary(events)["tok_in"]
    assert fork(later, 2, Registry(".", TOOLS), offline(canned([[say("x")], [say("ok")]]))).run.status == "done"


@pytest.mark.parametrize("usage", [None, {}])
def test_a_reply_without_usage_counts_as_none(usage):
    _, events, _ = go([[call("echo", text="a")], [say("ok")]])
    bare = [{**e, "payload": {**e["payload"], "usage": usage}} if e["type"] == "model_replied" else e for e in events]
    assert summary(bare)["tok_in"] == 0 and fold(bare).unreadable == 0
    assert replay(bare, Registry(".", TOOLS)).run.status == "done"


def test_a_gate_that_names_no_call_does_not_stop_a_replay():
    _, events, _ = go([[call("write", text="a")], [say("ok")]])
    bare = [{**e, "payload": {k: v for k, v in e["payload"].items() if k != "id"}} if e["type"] == "gate_decided" else e for e in events]
    assert replay(bare, Registry(".", TOOLS)).run.status == "done"


def test_tools_side_by_side_are_not_counted_twice():
    def slow(n: int) -> str:
        """Take a while."""
        time.sleep(0.2)
        return str(n)

    _, events, _ = go([[call("slow", n=1), call("slow", n=2), call("slow", n=3)], [say("ok")]], tools=[Tool(slow, read_only=True)])
    folded = fold(events)
    assert folded.totals.tool_seconds > 0.59 and 0.19 < folded.shares["tools"] < 0.5


def test_waiting_for_a_person_is_not_the_tools_time():
    def asks(name, arguments):
        time.sleep(0.2)
        return False

    _, events, _ = go([[call("write", text="a")], [say("ok")]], gate=asks)
    folded = fold(events)
    assert folded.shares["approval"] >= 0.19 and folded.shares["tools"] < 0.05 and folded.totals.denied == 1


def test_prices_of_another_model():
    _, events, _ = go([[call("echo", text="a")], [say("ok")]])
    cheap = Prices(1, 1, 1, 1)
    assert math.isclose(fold(events, cheap).totals.dollars, (fold(events).totals.usage.input + fold(events).totals.usage.output) / 1e6)
    unpriced = [{**e, "payload": {**e["payload"], "model": {**e["payload"]["model"], "prices": None}}} if e["type"] == "run_started" else e for e in events]
    assert fold(unpriced).totals.dollars is None and summary(unpriced)["dollars"] is None
    assert fold(unpriced, cheap).totals.dollars == fold(events, cheap).totals.dollars


def test_several_runs_and_children_in_one_file():
    _, first, _ = go([[say("one")]])
    _, second, _ = go([[say("two")]])
    child = [{**e, "run": "child", "payload": {**e["payload"], "parent": {"run": second[0]["run"], "call": "c1"}}} if e["type"] == "run_started"
             else {**e, "run": "child"} for e in first]
    trace = read_trace(first + second + child)
    assert trace.end["answer"] == "two" and list(trace.children) == ["c1"] and trace.children["c1"].end["answer"] == "one"
    assert read_trace(first + second, run=first[0]["run"]).end["answer"] == "one"
    assert to_dataframe(first + second + child)["run"].nunique() == 3


# ---------------------------------------------------------------- every request again

def calls_text(text):
    return [say(f'```json\n{{"name": "echo", "arguments": {{"text": "{text}"}}}}\n```')]


CASES = {
    "parallel calls": dict(replies=[[say("both"), call("echo", text="\u00e4\u2028"), call("fail", text="no"), call("echo", text="")], [say("ok")]]),
    "a denied call": dict(replies=[[call("write", text="x"), call("echo", text="y")], [say("ok")]], gate=lambda name, arguments: False),
    "a nudge and a stop": dict(replies=[[call("echo", text="again")]] * 9),
    "a call written as text": dict(replies=[calls_text("a"), [say("Sorry. Done.")]]),
    "a cut reply, asked again": dict(replies=[[call("echo", text="a" * 200)], [say("ok " * 50)]], faults=[Fault("cut", at=1)], limits=Limits(max_tokens=1_000)),
    "overloaded twice": dict(replies=[[call("echo", text="a")], [say("ok")]], faults=[Fault("overloaded", at=1), Fault("drop", at=3)]),
    "a refusal": dict(replies=[[call("echo", text="a")], [say("ok")]], faults=[Fault("refusal", at=2)]),
    "an empty reply": dict(replies=[[call("echo", text="a")], [say("ok")]], faults=[Fault("empty", at=2)]),
    "an unknown tool and bad arguments": dict(replies=[[call("nope", a=1), call("echo", wrong=1)], [say("ok")]]),
    "steps used up": dict(replies=[[call("echo", text=str(n))] for n in range(9)], limits=Limits(max_steps=4)),
    "a dead server": dict(replies=[[call("echo", text="a")], [say("ok")]], faults=[Fault("overloaded", at=2, times=99)]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_request_is_rebuilt_to_the_byte(case):
    run, events, sent = go(**case)
    assert requests(events) == sent and len(sent) >= run["steps"]
    assert [len(body) for body in sent][: len(fold(events).calls)] == [e["payload"]["request_bytes"] for e in events if e["type"] == "model_replied"]
    assert check_prefix(events) == []
    assert {**summary(events), "events_lost": 0}.items() >= dict(run).items()


def test_every_request_of_the_walk(walk):
    assert requests(walk[0]) == walk[2] and len(walk[2]) == 8


def test_requests_of_a_run_that_is_cut_anywhere(walk):
    events = read_trace(walk[0]).events
    for end in range(len(events) + 1):
        rebuilt = requests(events[:end])
        assert rebuilt == walk[2][: len(rebuilt)]
        assert len(rebuilt) == sum(e["type"] == "model_called" for e in events[:end])


def test_a_time_in_the_system_prompt_is_named(walk):
    bodies = [json.loads(body) for body in walk[2]]
    for second, body in enumerate(bodies):
        body["system"] += f"\nThe time is 2026-11-30 10:00:{second:02}."
    breaks = check_prefix([json.dumps(body).encode() for body in bodies], FACTS["claude-haiku-4-5"].prices)
    assert [b.request for b in breaks] == list(range(2, 9)) and all("a time" in b.cause and b.where == "the system prompt" for b in breaks)
    assert all(b.dollars > 0 for b in breaks) and breaks[0].before != breaks[0].after
    tools = sum(len(json.dumps(tool, separators=(",", ":"), ensure_ascii=False).encode()) for tool in bodies[0]["tools"])
    system = json.dumps(bodies[0]["system"], ensure_ascii=False)
    where = len('{"type":"text","text":') + system.index(":00.") + 2  # the second digit of the seconds
    assert breaks[0].byte == tools + where  # the tools come first, and are still read from the cache


@pytest.mark.parametrize("change, where, cause", [
    (lambda b: b["tools"].reverse(), "tools[0]", "another order"),
    (lambda b: b["tools"].pop(), "tools[", "added or removed: run_command"),
    (lambda b: b["tools"][1].update(description="x"), "tools[1]", "a tool's definition changed"),
    (lambda b: b.update(model="claude-opus-5"), "the model", "another model"),
    (lambda b: b.update(system="Be brief."), "the system prompt", "the system prompt changed"),
    (lambda b: b["messages"][2]["content"][0].update(content="[cleared]"), "messages[2].content[0]", "an old result was replaced"),
    (lambda b: b.update(messages=b["messages"][:1] + b["messages"][-1:]), "messages[1].content[0]", "cut or written anew"),
    (lambda b: b.update(messages=b["messages"][:1]), "messages[1].content[0]", "cut or written anew"),
    (lambda b: b["messages"][1]["content"][0].update(text="other"), "messages[1].content[0]", "a message of the assistant was changed"),
    (lambda b: b.update(max_tokens=5, stream=True, metadata={}), None, None),
    (lambda b: b["messages"][0].update(content=[{"type": "text", "text": b["messages"][0]["content"], "cache_control": {"type": "ephemeral"}}]), None, None),
])
def test_causes_of_a_broken_prefix(walk, change, where, cause):
    body = json.loads(walk[2][5])
    change(body)
    breaks = check_prefix([walk[2][4], json.dumps(body).encode()])
    assert len(breaks) == (where is not None)
    for found in breaks:
        assert found.where.startswith(where) and cause in found.cause and found.dollars is None
        assert (found.lost_tokens > 0) == (len(body["messages"]) > 1)  # what is a whole prefix of the one before is all in the cache


# ---------------------------------------------------------------- two runs, replay, fork

def test_a_run_is_no_different_from_itself(walk):
    same = diff_runs(walk[0], walk[0])
    assert same.first == "" and same.at is None and same.setup == [] and len(same.pairs) == 18


@pytest.mark.parametrize("replies, first, kinds", [
    ([[call("echo", text="a")], [call("echo", text="c")], [say("ok")]], "Event 4: both call echo, with another text", {"other arguments", "other result"}),
    ([[call("echo", text="a")], [say("ok")]], "Event 4 of a has no partner", {"only a"}),
    ([[call("echo", text="a")], [call("echo", text="b")], [call("write", text="z")], [say("ok")]], "Event 6 of b has no partner", {"only b"}),
    ([[call("echo", text="a")], [call("echo", text="b")], [say("other")]], "Event 6: another answer", {"other result"}),
])
def test_the_first_divergence_is_named(replies, first, kinds):
    _, a, _ = go([[call("echo", text="a")], [call("echo", text="b")], [say("ok")]])
    _, b, _ = go(replies)
    found = diff_runs(a, b)
    assert found.first.startswith(first), found.first
    assert {pair.kind for pair in found.pairs} - {"same"} == kinds
    assert sum(pair.a is not None for pair in found.pairs) == len(timeline(a)) and sum(pair.b is not None for pair in found.pairs) == len(timeline(b))
    assert [pair.a.number for pair in found.pairs if pair.a] == sorted(pair.a.number for pair in found.pairs if pair.a)


def test_durations_are_no_difference(walk):
    events = json.loads(json.dumps(read_trace(walk[0]).events))
    for event in events:
        if event["type"] == "tool_returned":
            event["payload"]["content"] = event["payload"]["content"].replace("0.00", "7.31")
    assert diff_runs(walk[0], events).first == ""


def told(*rows, run="r", repo="/tmp/a", answer="ok"):
    """A made-up run: a call and its result for each row (name, arguments, text, is_error)."""
    events = []

    def add(type, step, **payload):
        events.append({"v": 1, "run": run, "n": len(events), "step": step, "time": 1000.0 + len(events), "type": type, "payload": payload})

    add("run_started", 0, task="t", model={"name": "m"}, repo=repo)
    for step, (name, arguments, text, is_error) in enumerate(rows, 1):
        add("tool_called", step, id=f"c{step}", name=name, arguments=arguments)
        add("tool_returned", step, id=f"c{step}", name=name, content=text, is_error=is_error)
    add("run_ended", len(rows), status="done", answer=answer)
    return events


def test_the_repos_own_path_in_arguments_is_no_difference():
    a, b = ([("read", {"path": f"{repo}/x.py"}, "x", False), ("run", {"command": f"cd {repo} && ls", "timeout": seconds}, f"in {repo}: x.py", False)]
            for repo, seconds in (("/tmp/a", "5 s"), ("/tmp/bb", "9 s")))
    found = diff_runs(told(*a, repo="/tmp/a"), told(*b, repo="/tmp/bb"))
    assert found.first.startswith("Event 4: both call run, with another timeout. a: ")  # a duration in arguments was chosen
    b[1][1]["timeout"] = "5 s"
    assert diff_runs(told(*a, repo="/tmp/a"), told(*b, repo="/tmp/bb")).first == ""


@pytest.mark.parametrize("text, is_error, words", [
    ("same", True, "the same text, but b calls it an error."),
    ("same\n", False, "a: 'same' / b: 'same\\n'"),
    ("same\n\n\nmore", False, "a: '' / b: 'more'"),
    ("other", True, "a: 'same' / b: 'other'"),
])
def test_what_differs_can_be_seen(text, is_error, words):
    first = diff_runs(told(("f", {}, "same", False)), told(("f", {}, text, is_error))).first
    assert first.startswith("Event 3: the same call of f came back with another result") and first.endswith(words)


def test_a_replay_tells_what_differs_in_the_same_text():
    _, events, _ = go([[call("echo", text="a")], [say("ok")]])
    failing = lambda: Registry(".", [Tool(fail, name="echo", read_only=True)])
    assert str(replay(events, failing)).endswith("event 3, echo: the same text, an error only now")
    assert str(replay(replay(events, failing).trace, Registry(".", TOOLS))).endswith("the same text, an error only in the recording")


def test_runs_that_repeat_themselves_are_lined_up_in_time():
    poll = ("poll", {"c": "ls"}, "same", False)
    a, b = [poll] * 2_000, [("poll", {"c": f"ls {n}"}, "same", False) if n % 50 == 49 else poll for n in range(2_000)]
    began = time.perf_counter()
    found = diff_runs(told(*a), told(poll, *b))
    assert time.perf_counter() - began < 5
    assert found.first.startswith("Event 102: both call poll, with another c.") and found.at == 101
    for side, runs in (("a", a), ("b", [poll, *b])):
        numbers = [getattr(pair, side).number for pair in found.pairs if getattr(pair, side)]
        assert numbers == list(range(1, 2 * len(runs) + 3))
    assert diff_runs(told(*a), told(*a)).first == ""


ROWS = st.lists(st.tuples(st.sampled_from("fg"), st.fixed_dictionaries({"x": st.integers(0, 2)}), st.sampled_from(["r", "s"]), st.booleans()), max_size=9)


@pytest.mark.parametrize("many", [0, 200_000])
@settings(max_examples=100, deadline=None)
@given(a=ROWS, b=ROWS)
def test_every_moment_is_in_one_pair_and_same_means_the_same(many, a, b):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "_MANY", many)
        found = diff_runs(told(*a), told(*b))
    for side, rows in (("a", a), ("b", b)):
        assert [getattr(p, side).number for p in found.pairs if getattr(p, side)] == list(range(1, 2 * len(rows) + 3))
    for pair in found.pairs:
        if pair.kind == "same":
            assert (pair.a.name, pair.a.arguments, pair.a.text, pair.a.is_error) == (pair.b.name, pair.b.arguments, pair.b.text, pair.b.is_error)
    assert (found.first == "") == (a == b)
    assert all(pair.kind == "same" for pair in found.pairs[: found.at])


def test_what_was_set_up_differently_is_said(walk):
    events = json.loads(json.dumps(read_trace(walk[0]).events))
    events[0]["payload"]["limits"]["max_steps"] = 5
    events[0]["payload"]["system"] = "x"
    assert diff_runs(walk[0], events).setup == ["system", "limits"] and "Set up differently: system, limits." in str(diff_runs(walk[0], events))


def test_replay_gives_the_same_results_on_a_fresh_repo(walk, tmp_path):
    again = replay(walk[0], make_tools(make_repo(tmp_path / "repo")))
    assert again.differences == [] and again.compared == 8 and again.run.status == "done"
    assert diff_runs(walk[0], again.trace).first == "" and str(again) == "8 of 8 results are the same"


def test_another_folder_is_no_difference(tmp_path):
    def where(root) -> str:
        """Say where the repo is."""
        return f"in {root}/tests: ran in 0.{len(str(root))}s"

    traces = []
    for name in ("a", "longer"):
        repo, events = make_repo(tmp_path / name), []
        run_agent("Where?", repo, "yes", model=offline(canned([[call("where")], [say("ok")]])), tools=[where], sink=events.append, i_know=True)
        traces.append(events)
    assert str(tmp_path / "a") in timeline(traces[0])[2].text and diff_runs(*traces).first == ""
    again = replay(traces[0], make_tools(make_repo(tmp_path / "third"), extra=[where]))
    assert again.compared == 1 and again.differences == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_replay_ends_as_the_run_ended(case):
    run, events, sent = go(**case)
    again = replay(events, lambda: Registry(".", TOOLS))
    assert again.run.status == run.status and again.differences == []
    assert requests(again.trace) == requests(events)
    assert again.run["denied"] == run["denied"] and again.run["nudges"] == run["nudges"] and again.run["tok_in"] == run["tok_in"]


def test_replay_names_what_a_changed_tool_says():
    def louder(text: str) -> str:
        """Give the text back."""
        return text.upper()

    _, events, _ = go([[call("echo", text="a"), call("fail", text="b")], [say("ok")]])
    again = replay(events, Registry(".", [Tool(louder, name="echo", read_only=True), Tool(write)]))
    assert [(d.number, d.before.text, d.after.text) for d in again.differences][0] == (4, "a", "A")
    assert again.differences[1].after.is_error and "no tool" in again.differences[1].after.text and "1 of 2" not in str(again)


def test_fork_keeps_the_history_and_redoes_the_edits(tmp_path):
    task = "tokenize() should lowercase words and strip punctuation at the edges of each word."
    path = tmp_path / "run.jsonl"
    run_agent(task, make_repo(tmp_path / "a"), "yes", model=offline(solver(1, 1.0)), trace=path, edit_errors="v1", i_know=True)
    last = max(e["step"] for e in read_trace(path).events)
    for step in range(1, last + 1):
        repo = make_repo(tmp_path / f"fork-{step}")
        told = fork(path, step, make_tools(repo, edit_errors="v2"), offline(canned([[say("never mind")]] * 20)))
        assert told.run.status == "done" and told.run["steps"] == step and told.run.answer == "never mind"
        assert requests(told.trace)[: step - 1] == requests(path)[: step - 1]
        edited = any(e["type"] == "tool_returned" and e["payload"]["changed"] and e["step"] < step for e in read_trace(path).events)
        assert (".lower()" in (repo / "wordcount/core.py").read_text()) == edited
        assert told.trace.start["forked"]["step"] == step


def test_a_fork_asks_its_own_gate_after_the_fork():
    _, events, _ = go([[call("write", text="a")], [call("write", text="b")], [say("ok")]])
    asked = []
    told = fork(events, 2, Registry(".", TOOLS), offline(canned([[say("x")], [call("write", text="c")], [say("ok")]])),
                gate=lambda name, arguments: asked.append(arguments["text"]))
    assert asked == ["c"] and told.run["denied"] == 1


# ---------------------------------------------------------------- following

def test_follow_sees_each_event_soon_after_it_is_written(tmp_path):
    path, seen = tmp_path / "live.jsonl", []

    def slowly(n: int) -> str:
        """Take a moment."""
        time.sleep(0.05)
        return str(n)

    def watch():
        for event in follow(path, poll=0.005, patience=20):
            seen.append((event["n"], time.time() - event["time"]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with EventLog(path) as log:
        go([[call("slowly", n=n)] for n in range(5)] + [[say("ok")]], tools=[Tool(slowly, read_only=True)], sink=log)
    watcher.join(timeout=20)
    assert not watcher.is_alive()
    assert [n for n, _ in seen] == list(range(len(read_trace(path).events))) and sorted(delay for _, delay in seen)[len(seen) // 2] < 1


def test_follow_survives_a_file_that_begins_again_and_can_be_stopped(walk, tmp_path):
    data, path = walk[0].read_bytes(), tmp_path / "again.jsonl"
    path.write_bytes(data[: len(data) // 2])
    stop, seen = threading.Event(), []
    events = follow(path, poll=0.005, stop=stop)
    for event in events:
        seen.append(event["n"])
        if len(seen) == 5:
            path.write_bytes(b"junk\n" + data[: len(data) // 3])  # shorter than what was read
        if len(seen) > 5 and event["n"] == 0 or len(seen) > 60:
            break
    first_half = len(read_trace(walk[0]).events[: data[: len(data) // 2].count(b"\n")])
    events.close()
    assert seen[:first_half] == list(range(first_half))
    stop.set()
    assert list(follow(path, stop=stop)) == []


# ---------------------------------------------------------------- the bill

@settings(max_examples=50, deadline=None)
@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(1, 200))
def test_the_formula_is_the_sum(fixed, per_step, calls):
    assert predict_input(fixed, per_step, calls) == sum(fixed + k * per_step for k in range(calls))


def test_the_dear_result_is_found():
    replies = [[call("echo", text="x" * (9_000 if n == 1 else 30 + n))] for n in range(8)] + [[say("ok")]]
    _, events, _ = go(replies)
    dearest = result_costs(fold(events))[0]
    assert dearest["step"] == 2 and dearest["calls_after"] == 7 and dearest["billed_tokens"] == 7 * dearest["tokens"]
    assert dearest["dollars"] < dearest["dollars_uncached"]
    assert result_costs(fold(events, None))[0]["number"] == dearest["number"]


def test_a_table_of_many_files(walk, tmp_path):
    _, events, _ = go([[call("fail", text="a")], [say("ok")]])
    other = tmp_path / "other.jsonl"
    with EventLog(other) as log:
        for event in events:
            log(event)
    table = to_dataframe([walk[0], other])
    assert table["run"].nunique() == 2 and len(table) == len(read_trace(walk[0]).events) + len(events)
    assert table.groupby("run", observed=True)["is_error"].sum().tolist() == [1, 1]
    assert table[["fresh", "cache_read", "cache_write"]].sum().sum() == walk[1]["tok_in"] + fold(events).totals.usage.input


def test_import_loads_no_pandas():
    code = "import sys, harnesslab.traces; assert not {'pandas', 'altair', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0


ODD = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.just(2**70), st.floats(allow_nan=False), st.text(max_size=3), st.lists(st.integers(), max_size=2))
ODD_PAYLOAD = st.dictionaries(st.sampled_from(["name", "id", "seconds", "content", "is_error", "usage"]), st.one_of(ODD, st.dictionaries(st.sampled_from(["fresh", "output"]), ODD)))
ODD_EVENT = st.fixed_dictionaries({"type": st.sampled_from(["model_replied", "tool_returned", "nudged"]), "payload": ODD_PAYLOAD},
                                  optional={"run": ODD, "n": ODD, "step": ODD, "time": ODD})


@settings(deadline=None)
@given(st.lists(ODD_EVENT, max_size=12), st.integers(1, 5))
def test_the_table_takes_whatever_stands_in_an_event(events, block):
    """Quick ways for ordinary events give what a look at each event gives, whatever is in them and however they are cut into blocks."""
    before, traces._LINES = traces._LINES, block
    try:
        table = to_dataframe(events)
    finally:
        traces._LINES = before

    def number(value):
        try:
            return float(value) if isinstance(value, (int, float)) else None
        except OverflowError:
            return None

    def whole(value):
        return value if isinstance(value, int) and abs(value) < 2**63 else -1
    assert len(table) == len(events)
    for row, event in zip(table.itertuples(), events):
        payload, kind = event["payload"], event["type"]
        usage = payload.get("usage") if kind == "model_replied" and isinstance(payload.get("usage"), dict) else {}
        wanted = {"n": whole(event.get("n")), "step": whole(event.get("step")), "time": number(event.get("time")), "fresh": number(usage.get("fresh")), "output": number(usage.get("output")),
                  "seconds": number(payload.get("seconds")) if kind != "nudged" else None,
                  "chars": len(str(payload.get("content", ""))) if kind == "tool_returned" else None,
                  "is_error": float(bool(payload.get("is_error"))) if kind == "tool_returned" else None}
        for name, value in wanted.items():
            got = getattr(row, name)
            assert got == value or value is None and got != got, (name, got, value)
        assert row.payload == payload and row.type == kind
        assert row.run == str(event.get("run", "")) or event.get("run", "") is None
        assert row.name == (None if payload.get("name") is None else str(payload["name"])) or payload.get("name") is None


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_the_garbage_collector_is_left_as_it_was(on, frozen):
    events = [{"type": "nudged", "payload": {"text": str(n)}, "run": "r", "n": n, "step": 0, "time": 0.0} for n in range(101_000)]
    was_on = gc.isenabled()
    try:
        if frozen:
            gc.freeze()
        (gc.enable if on else gc.disable)()
        kept = gc.get_freeze_count()
        assert len(to_dataframe(events)) == 101_000
        assert gc.isenabled() is on and bool(gc.get_freeze_count()) == bool(kept) == frozen
    finally:
        gc.unfreeze()
        (gc.enable if was_on else gc.disable)()
