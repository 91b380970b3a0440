"""The context levers: what is sent is legal and rebuilt to the byte, budgets and clocks are the parent's, guards fire."""
import json
import re
import threading
import time

import pytest

from harnesslab.context import SUMMARY_MARK, Helper, clear_old_results, compact
from harnesslab.fake_api import FakeApi
from harnesslab.loop import EventLog, History, Limits, UsageError, cancelled, run_loop, time_left
from harnesslab.providers import FACTS, AnthropicModel, make_client, offline
from harnesslab.scripted import call, canned, say
from harnesslab.tools import Registry, Tool
from harnesslab.traces import check_prefix, fold, read_trace, requests


def chapter(n: int) -> str:
    """Return one chapter."""
    return f"Chapter {n}.\n" + "It rained all day.\n" * (40 + n * 37 % 50)


def reader(request):
    """Reads on from the last chapter that it can see, two at a time, up to 20."""
    last = max([0, *map(int, re.findall(r"(?:'n': |chapters 1 to )(\d+)", str(request["messages"])))])
    if "[harness] Stop here" in str(request["messages"][-1]["content"]):
        return [say(f"I have read chapters 1 to {last}.")]
    return [call("chapter", n=last + 1), call("chapter", n=last + 2)] if last < 20 else [say("It rained.")]


def read_book(wrap, policy=reader, limits=Limits(max_input_tokens=10**6)):
    """A run with a lever. Gives the run, its trace, its history, and the bodies that went over the wire."""
    api = FakeApi(policy)
    model = wrap(AnthropicModel(FACTS["claude-sonnet-5-5"], make_client(api.transport()), "http://offline", "offline"))
    tools, events = Registry(".", [Tool(chapter, read_only=True)]), []
    history = History("Read the book.", "You read.", tools.definitions)
    run = run_loop(history, model, tools, limits, sink=events.append)
    assert all(received.verdict == "ok" for received in api.requests)  # the strict API refused nothing
    return run, read_trace(events), history, [received.body for received in api.requests]


LEVERS = {
    "clear": lambda model: clear_old_results(model, over=2_000),
    "clear all but one": lambda model: clear_old_results(model, over=1_500, keep=1),
    "clear all": lambda model: clear_old_results(model, over=1_500, keep=0),
    "compact": lambda model: compact(model, over=2_000),
    "both": lambda model: compact(clear_old_results(model, over=1_500), over=3_000),
}


@pytest.mark.parametrize("wrap", [LEVERS[name] for name in LEVERS if name != "both"], ids=[name for name in LEVERS if name != "both"])
def test_every_request_is_legal_and_rebuilt(wrap):
    run, trace, history, sent = read_book(wrap)
    edits = [e for e in trace.events if e["type"] == "history_edited"]
    assert run.status == "done" and len(edits) >= 2 and requests(trace) == sent
    assert fold(trace).totals.usage.input == run["tok_in"] and fold(trace).unreadable == 0
    plain, _, whole, _ = read_book(lambda model: model)
    bare = [re.sub(rb"toolu_\w+", b"id", h.json()) for h in (history, whole)]
    assert bare[0] == bare[1]  # the loop's own history is whole, and the same as without a lever
    assert run["tok_in"] < plain["tok_in"]
    assert len(check_prefix(trace)) == len(edits)


def test_levers_can_be_stacked():
    run, _, _, sent = read_book(LEVERS["both"])
    assert run.status == "done" and any(SUMMARY_MARK in json.loads(body)["messages"][0]["content"] for body in sent)


def test_the_calls_keep_their_results():
    _, _, _, sent = read_book(LEVERS["clear"])
    for body in map(json.loads, sent):
        calls = [b["id"] for m in body["messages"] if m["role"] == "assistant" for b in m["content"] if b["type"] == "tool_use"]
        results = [b["tool_use_id"] for m in body["messages"] if isinstance(m["content"], list) for b in m["content"] if b["type"] == "tool_result"]
        assert calls == results
        if isinstance(body["messages"][-1]["content"], list):  # what came last is never cleared unread
            assert not any(b["content"].startswith("[cleared") for b in body["messages"][-1]["content"] if b["type"] == "tool_result")
    last = json.loads(sent[-1])["messages"]
    texts = [b["content"] for m in last if isinstance(m["content"], list) for b in m["content"] if b["type"] == "tool_result"]
    assert texts[0].startswith("[cleared: chapter(n=1), ") and texts[-1] == chapter(20)


def test_a_lever_below_its_mark_changes_nothing():
    for wrap in (lambda model: clear_old_results(model, over=10**6), lambda model: compact(model, over=10**6)):
        run, trace, _, sent = read_book(wrap)
        assert sent == read_book(lambda model: model)[3] and not any(e["type"] == "history_edited" for e in trace.events)


def test_nothing_is_cleared_for_a_small_gain():
    run, trace, _, _ = read_book(lambda model: clear_old_results(model, over=100, keep=19))
    assert not any(e["type"] == "history_edited" for e in trace.events)


def test_a_lever_begins_anew_with_every_run():
    lever = None

    def wrap(model):
        nonlocal lever
        lever = lever or compact(model, over=2_000)
        lever._model = model
        return lever

    first, second = read_book(wrap), read_book(wrap)
    assert first[3] == second[3] and first[0]["tok_in"] == second[0]["tok_in"]


def test_a_second_task_in_the_same_history_is_kept_word_for_word():
    model = compact(offline(reader, name="claude-sonnet-5-5"), over=2_000)
    tools = Registry(".", [Tool(chapter, read_only=True)])
    history = History("Say hello.", "You read.", tools.definitions)
    history.append({"role": "assistant", "content": [say("hello")]})
    history.add_user("Now read the book.")
    events = []
    assert run_loop(history, model, tools, sink=events.append).status == "done"
    new = [e["payload"]["messages"] for e in events if e["type"] == "history_edited"]
    assert new and all(len(messages) == 1 and messages[0]["content"].startswith("Now read the book." + SUMMARY_MARK) for messages in new)


@pytest.mark.parametrize("bad", [
    lambda: clear_old_results(None, over=0), lambda: clear_old_results(None, over=5, keep=-1), lambda: compact(None, over=True), lambda: compact(None, over=2.5),
    lambda: Helper(None, None, share=0), lambda: Helper(None, None, share=2),
])
def test_bad_use_is_one_sentence(bad):
    with pytest.raises(UsageError, match=r"^[^\n]*\.$"):
        bad()


# ---------------------------------------------------------------- sub-agents

def boss_and(helper_policy, *, limits=Limits(), helper_tools=(), cancel=None, sink=None, asks=1, **options):
    helper = Helper(offline(helper_policy, name="claude-sonnet-5-5"), Registry(".", [Tool(f, read_only=True) for f in helper_tools]), **options)
    events, tools = [], Registry(".", [helper.ask_helper])
    model = offline(canned([[call("ask_helper", task=f"Question {n}?")] for n in range(asks)] + [[say("Done.")]]), name="claude-sonnet-5-5")
    history = History("Work.", "You lead.", tools.definitions)
    run = run_loop(history, model, tools, limits, sink=helper.watch(sink or events.append), cancel=cancel)
    return run, events


def test_the_helper_is_nested_in_the_file(tmp_path):
    path = tmp_path / "run.jsonl"
    with EventLog(path) as log:
        run, _ = boss_and(canned([[call("chapter", n=1)], [say("It rained.")]]), helper_tools=[chapter], sink=log, asks=2)
    trace = read_trace(path)
    assert trace.bad_lines == 0 and trace.end["answer"] == "Done." and len(trace.children) == 2
    own = sum(c.usage.input for c in fold(trace).calls)
    assert run["tok_in"] == own + sum(fold(child).totals.usage.input for child in trace.children.values())
    calls = [m for m in fold(trace).moments if m.kind == "call"]
    assert [m.id for m in calls] == list(trace.children)
    assert [trace.children[m.id].start["task"] for m in calls] == ["Question 0?", "Question 1?"]


def test_the_helper_stops_with_the_parent_and_shares_its_clock():
    seen, cancel = {}, threading.Event()

    def wait_here() -> str:
        """Wait until stopped."""
        seen["left"] = time_left()
        cancel.set()
        while not cancelled() and time_left() > 0:
            time.sleep(0.01)
        seen["stopped"] = cancelled()
        return "stopped"

    began = time.monotonic()
    run, _ = boss_and(canned([[call("wait_here")], [say("never")]]), helper_tools=[wait_here], limits=Limits(wall_seconds=20), cancel=cancel)
    assert run.status == "interrupted" and seen["stopped"] and seen["left"] <= 20 and time.monotonic() - began < 10


def test_the_helper_spends_at_most_its_share():
    forever = lambda request: [call("chapter", n=len(request["messages"]))]
    limits = Limits(max_input_tokens=40_000)
    run, events = boss_and(forever, helper_tools=[chapter], limits=limits, asks=1, max_steps=1_000, share=0.5)
    [child] = read_trace(events).children.values()
    spent = fold(child).totals
    biggest = max(c.usage.input for c in fold(child).calls)
    assert spent.status == "budget" and spent.usage.input <= 20_000 + biggest
    assert run.status == "done" and any(m.is_error and "did not finish (status budget)" in m.text for m in fold(events).moments)


def test_dollars_are_shared_too():
    forever = lambda request: [call("chapter", n=len(request["messages"]))]
    run, events = boss_and(forever, helper_tools=[chapter], limits=Limits(max_dollars=0.05), max_steps=1_000, share=0.5)
    [child] = read_trace(events).children.values()
    assert fold(child).totals.status == "budget" and 0.02 < fold(child).totals.dollars < 0.04


def test_an_empty_purse_is_an_error_result():
    forever = lambda request: [call("chapter", n=len(request["messages"]))]
    run, events = boss_and(forever, helper_tools=[chapter], limits=Limits(max_input_tokens=3_000), max_steps=1_000, share=1.0, asks=3)
    texts = [m.text for m in fold(events).moments if m.is_error]
    assert run.status in ("budget", "done") and "did not finish" in texts[0]


def test_a_helper_may_not_write_unless_its_gate_says_so():
    def write(text: str) -> str:
        """Write."""
        raise AssertionError("it ran")

    helper = Helper(offline(canned([[call("write", text="x")], [say("no")]]), name="claude-sonnet-5-5"), Registry(".", [write]))
    result = helper.ask_helper("Write x.")
    assert result.text == "no" and not result.is_error and result.usage.input > 0


def test_a_long_answer_is_cut():
    run, events = boss_and(canned([[say("x" * 9_000)]]), longest=100)
    [result] = [m for m in fold(events).moments if m.kind == "result"]
    assert 100 <= len(result.text) < 200 and "cut" in result.text
