"""The context levers: what is sent is legal and rebuilt to the byte, budgets and clocks are the parent's, guards fire."""
import json
import re
import threading
import time

import pytest

from harnesslab.context import SUMMARY_MARK, Helper, clear_old_results, compact
from harnesslab.exports import to_atif, to_otlp
from harnesslab.fake_api import FakeApi
from harnesslab.formats import open_trace
from harnesslab.loop import EventLog, History, Limits, ModelFacts, Reply, UsageError, cancelled, run_loop, time_left
from harnesslab.providers import FACTS, AnthropicModel, make_client, offline
from harnesslab.scripted import call, canned, say
from harnesslab.tools import Registry, Tool
from harnesslab.stepper import page_data
from harnesslab.traces import Prices, Usage, check_prefix, fold, read_trace, requests
from harnesslab.what_if import fork, replay


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


@pytest.mark.parametrize("wrap", [LEVERS[name] for name in LEVERS if name != "both"], ids=[name for name in LEVERS if name != "both"])
def test_replay_and_fork_shorten_the_history_again(wrap):
    run, trace, _, _ = read_book(wrap)
    registry = lambda: Registry(".", [Tool(chapter, read_only=True)])
    again = replay(trace, registry)
    assert again.run["tok_in"] == run["tok_in"] and requests(again.trace) == requests(trace)
    for step in (1, run["steps"] // 2, run["steps"]):
        api = FakeApi(lambda request: [say("Enough.")])
        told = fork(trace, step, registry, AnthropicModel(FACTS["claude-sonnet-5-5"], make_client(api.transport()), "http://offline", "offline"))
        assert told.run.status == "done" and told.run["steps"] == step
        assert api.requests[0].body == requests([e for e in trace.events if e["step"] <= step])[-1] == requests(told.trace)[-1]


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


def without_a_cache(prices, *usages):
    return sum(prices.cost(Usage(fresh=usage.input, output=usage.output)) for usage in usages)


def check_the_two_lines(trace, *spent):
    """What stands on the page at the last call counts all that was spent: `spent`, a Usage each."""
    folded, page = fold(trace), page_data(trace)["runs"][0]["calls"][-1]
    last, prices, used = folded.calls[-1], folded.prices, folded.totals.usage
    assert last.usage_so_far == used == sum(spent, Usage()) and page["ci"] == used.input
    assert last.dollars_so_far == pytest.approx(folded.totals.dollars)
    assert last.dollars_uncached_so_far == pytest.approx(without_a_cache(prices, *spent))
    weighed = prices.cost(Usage(used.fresh, used.cache_read, used.cache_write)) * 1e6 / prices.input
    assert page["cc"] == pytest.approx(weighed) and 0 < weighed != used.input


def test_with_and_without_a_cache_a_summary_is_in_both():
    _, trace, _, _ = read_book(LEVERS["compact"])
    check_the_two_lines(trace, *(Usage(**e["payload"]["usage"]) for e in trace.events if e["payload"].get("usage")))


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


def test_with_and_without_a_cache_a_sub_agent_is_in_both():
    _, events = boss_and(canned([[call("chapter", n=1)], [say("It rained.")]]), helper_tools=[chapter], asks=3)
    trace = read_trace(events)
    check_the_two_lines(trace, *(call.usage for one in (trace, *trace.children.values()) for call in fold(one).calls))
    dearer = json.loads(json.dumps(trace.events))  # a helper with prices of its own: what the cache saved grows in proportion
    for event in dearer:
        if event["payload"].get("dollars"):
            event["payload"]["dollars"] *= 10
    own = without_a_cache(fold(trace).prices, *(call.usage for call in fold(trace).calls))
    small, large = (fold(one).calls[-1].dollars_uncached_so_far - own for one in (trace, dearer))
    assert large == pytest.approx(10 * small) and small > 0
    for event in dearer:
        if event["payload"].get("dollars"):
            event["payload"]["dollars"] = None  # nobody knows what the helper cost
    last = fold(dearer).calls[-1]
    assert last.dollars_so_far is None and last.dollars_uncached_so_far is None and last.dollars_uncached > 0


@pytest.mark.parametrize("convert", [to_atif, to_otlp])
@pytest.mark.parametrize("wrap", LEVERS.values(), ids=LEVERS)
def test_exports_keep_what_summaries_cost(wrap, convert, tmp_path):
    _, trace, _, _ = read_book(wrap)
    path = tmp_path / "out.json"
    path.write_text(json.dumps(convert(trace)))
    assert fold(open_trace(path)).totals.usage == fold(trace).totals.usage


@pytest.mark.parametrize("wrap", LEVERS.values(), ids=LEVERS)
def test_atif_keeps_edits_and_prices_every_step(wrap, tmp_path):
    _, trace, _, _ = read_book(wrap)
    made, folded = to_atif(trace), fold(trace)
    assert made["final_metrics"]["total_cost_usd"] == pytest.approx(folded.totals.dollars)
    assert made["final_metrics"]["total_prompt_tokens"] == folded.totals.usage.input
    (tmp_path / "out.json").write_text(json.dumps(made))
    back = open_trace(tmp_path / "out.json")
    kept = [[{k: e["payload"].get(k) for k in ("kind", "messages", "cleared", "asked", "usage")} for e in one.events if e["type"] == "history_edited"]
            for one in (trace, back)]
    assert kept[0] == kept[1] != []


@pytest.mark.parametrize("wrap", LEVERS.values(), ids=LEVERS)
def test_otlp_shows_the_prompts_that_were_sent(wrap):
    _, trace, _, sent = read_book(wrap)
    spans = to_otlp(trace)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    said = [json.loads(pair["value"]["stringValue"]) for span in spans for pair in span["attributes"] if pair["key"] == "gen_ai.input.messages"]
    texts = [[[part.get("content", part.get("response", part.get("id"))) for part in message["parts"]] for message in one] for one in said]
    prompts = []
    for body in sent:
        messages = [m["content"] if isinstance(m["content"], list) else [{"text": m["content"]}] for m in json.loads(body)["messages"]]
        prompts.append([[block.get("text", block.get("content", block.get("id"))) for block in blocks] for blocks in messages])
    assert texts == prompts


@pytest.mark.parametrize("convert", [to_atif, to_otlp])
@pytest.mark.parametrize("whole", [True, False], ids=["with the helper's run", "the helper's run is not in the file"])
def test_exports_count_a_sub_agent_once(convert, whole, tmp_path):
    _, events = boss_and(canned([[call("chapter", n=1)], [say("It rained.")]]), helper_tools=[chapter], asks=3)
    trace, path = read_trace(events), tmp_path / "out.json"
    trace = trace if whole else read_trace(trace.events)
    assert len(trace.children) == 3 * whole
    made = convert(trace)
    path.write_text(json.dumps(made))
    assert fold(open_trace(path)).totals.usage == fold(trace).totals.usage
    if convert is to_atif:  # the sums are those of the trajectory's own steps
        for one in (made, *made.get("subagent_trajectories", [])):
            metrics, final = [step["metrics"] for step in one["steps"] if "metrics" in step], one["final_metrics"]
            for name, total in (("prompt_tokens", "total_prompt_tokens"), ("completion_tokens", "total_completion_tokens"), ("cost_usd", "total_cost_usd")):
                assert final[total] == pytest.approx(sum(step[name] for step in metrics))


def test_a_price_of_zero_is_a_price():
    _, trace, _, _ = read_book(lambda model: model)
    free = json.loads(json.dumps(trace.events))
    free[0]["payload"]["model"]["prices"] |= {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0}
    made = to_atif(free)
    assert made["final_metrics"]["total_cost_usd"] == 0 and all(step["metrics"]["cost_usd"] == 0 for step in made["steps"] if "metrics" in step)


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


class Forgetful:
    """A model with a small window that makes long calls; `counts`: does its server count tokens?"""

    def __init__(self, counts=True, first=()):
        self.counts, self.turns, self.first, self.facts, self.seen = counts, 0, list(first), ModelFacts("m", window=10_000, max_output=500), []

    def __call__(self, history, max_tokens, on_wait=lambda info: None):
        usage = Usage(history.size // 3 if self.counts else 0)
        self.seen.append(json.dumps(history.messages))
        if "Stop here for a moment" in str(history.messages[-1]["content"]):
            return Reply([say("Looked.")], "end_turn", usage)
        self.turns += 1
        if self.first:
            return Reply([say(self.first.pop(0))], "end_turn", usage)
        if self.turns > 12:
            return Reply([say("Done.")], "end_turn", usage)
        return Reply([{"type": "tool_use", "id": f"t{self.turns}", "name": "chapter", "input": {"n": self.turns, "why": "y" * 2_000}}], "tool_use", usage)


def long_calls(model, history=None):
    def read(n: int, why: str) -> str:
        """Read."""
        return "seen"
    tools = Registry(".", [Tool(read, name="chapter", read_only=True)])
    history = history or History("Rename count_words.", "", tools.definitions)
    return run_loop(history, model, tools)


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("lever", [compact, clear_old_results])
def test_a_lever_has_its_say_before_the_window_is_called_full(lever, counts):
    """The history is far longer than the window; what is sent is not. (Clearing helps little here: the calls are what is long. Then the window is full.)"""
    run = long_calls(lever(Forgetful(counts), over=5_000))
    assert run.status == "done" if lever is compact or counts else run.status == "context_full"
    history = History("Task.")
    for n in range(20):
        history.append({"role": "assistant", "content": [{"type": "tool_use", "id": f"o{n}", "name": "chapter", "input": {"n": n, "why": ""}}]})
        history.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"o{n}", "content": "z" * 2_000}]})
    history.add_user("Go on.")
    assert long_calls(Forgetful(counts), History(history.messages)).status == "context_full"
    resumed = long_calls(lever(Forgetful(counts), over=5_000), history)
    assert resumed["steps"] > 3 and (lever is clear_old_results or resumed.status == "done")


def test_what_the_harness_says_is_not_taken_for_the_task():
    model = Forgetful(first=['{"name": "chapter", "arguments": {"n": 1, "why": ""}}'])
    run = long_calls(compact(model, over=3_000))
    assert run.status == "done" and run["call_as_text"] == 1
    assert sum(SUMMARY_MARK[2:20] in seen for seen in model.seen) >= 2 and all("Rename count_words." in json.loads(seen)[0]["content"] for seen in model.seen)


def test_a_helper_whose_price_nobody_knows():
    free = Forgetful(first=["The answer."])
    helper, prices = Helper(free, Registry(".", [])), Prices(input=10, output=10, cache_read=1, cache_write=1)
    asking = Forgetful()
    asking.facts, replies = ModelFacts("p", prices=prices), iter([Reply([{"type": "tool_use", "id": "a", "name": "ask_helper", "input": {"task": "q"}}], "tool_use", Usage(50)),
                                                                 Reply([say("end")], "end_turn", Usage(50))])
    tools = Registry(".", [Tool(helper.ask_helper, read_only=True)])
    run = run_loop(History("x", "", tools.definitions), type("Two", (), {"facts": asking.facts, "__call__": lambda self, *args, **more: next(replies)})(), tools, sink=helper.watch(lambda event: None))
    assert run.status == "done" and run["dollars"] is None and run["tok_in"] > 100
