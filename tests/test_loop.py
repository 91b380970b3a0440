"""The loop under attack: whatever a model, a tool, a gate, a sink or a person does, the run ends with a status and the history stays good."""
import contextvars
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from parts import Mute, assert_goes_on, assert_taken, call, change, look, messages_of, registry, results_of, run, say, use

from harnesslab import loop
from harnesslab.api_rules import check_request, sign
from harnesslab.fake_api import Fault
from harnesslab.loop import (messages_body, CALL_AS_TEXT, DENIED, INTERRUPTED, NUDGE, STATUSES, TIME_IS_UP, EventLog, History, Limits, ModelError, ModelFacts, Prices, Reply,
                             ToolResult, Totals, Usage, UsageError, cancelled, encode_json, looks_like_call, mend, pause, run_clock, run_loop, time_left)
from harnesslab.providers import offline
from harnesslab.tools import Registry, Tool, ToolError, file_tools

PROJECT = Path(__file__).resolve().parent.parent
LOOKS = [[call("look", key=number)] for number in range(60)]      # a model that never comes to an end
SMALL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def types(events):
    return [event["type"] for event in events]


# ------------------------------------------------------------------ how a run ends
def stuck() -> str:
    """Wait for ever, but listen."""
    while time_left() > 0 and not cancelled():
        pause(1)
    return "gave up"


def lost() -> str:
    """A tool whose sandbox is gone."""
    raise ToolError("NOT RUN: the sandbox is gone", ends_run="sandbox_lost")


def pressed():
    cancel = threading.Event()
    cancel.set()
    return cancel


ENDINGS = {
    "done": lambda events: run(["Hello."], events=events),
    "max_steps": lambda events: run(LOOKS, limits=Limits(max_steps=3), events=events),
    "budget": lambda events: run(LOOKS, limits=Limits(max_input_tokens=300), events=events),
    "wall_clock": lambda events: run([[call("stuck")], "x"], registry(stuck), Limits(wall_seconds=0.3), events=events),
    "repeat": lambda events: run([[call("look", key=1)]] * 9, events=events),
    "context_full": lambda events: run(["x"], task="word " * 120_000, events=events),
    "truncated": lambda events: run([{"content": [say("and then")], "stop_reason": "max_tokens"}], events=events),
    "refusal": lambda events: run(["x"], faults=[Fault("refusal")], events=events),
    "interrupted": lambda events: run(["x"], cancel=pressed(), events=events),
    "rate_limited": lambda events: run(["x"], faults=[Fault("rate_limit", retry_after=3600)], events=events),
    "api_error": lambda events: run(["x"], keys={"another key"}, events=events),
    "sandbox_lost": lambda events: run([[call("lost")], "x"], registry(lost), events=events),
}


def test_every_status_has_a_way_to_provoke_it():
    assert set(ENDINGS) == set(STATUSES)


@pytest.mark.parametrize("status", STATUSES)
def test_ending(status):
    events = []
    finished = ENDINGS[status](events)
    assert finished.status == status
    assert types(events).count("run_ended") == 1 and events[-1]["type"] == "run_ended" and events[-1]["payload"]["status"] == status
    assert [event["n"] for event in events] == list(range(len(events)))
    assert finished.answer == ("Hello." if status == "done" else "")
    if status != "context_full":
        assert_goes_on(finished)


def test_steps_are_counted_to_the_limit():
    assert run(LOOKS, limits=Limits(max_steps=3))["steps"] == 3


def test_context_is_checked_before_anything_is_sent():
    finished = run(["x"], task="word " * 120_000)
    assert finished.status == "context_full" and finished["steps"] == 0 and finished["tries"] == 0


def test_a_big_result_fills_the_context_in_mid_run():
    """One read takes the context past its end: the run stops with a name, and no request is refused for it."""
    def flood() -> str:
        """Too much."""
        return "x" * 900_000
    tools = Registry(Path("."), [Tool(flood)], limit=2_000_000)
    finished = run(None, tools, model=offline(lambda body: [call("flood")]))
    assert finished.status == "context_full" and finished["steps"] == 1


@pytest.mark.parametrize("usage", [Usage(fresh=600), Usage(cache_read=600), Usage(cache_write=600), Usage(200, 200, 200)])
def test_budget_counts_cached_tokens(usage):
    model = Mute(*[Reply([use("look", key=number)], "tool_use", usage) for number in range(9)])
    finished = run(None, limits=Limits(max_input_tokens=1_100), model=model)
    assert (finished.status, finished["tok_in"], model.asked) == ("budget", 1_200, 2)


def test_a_history_says_what_it_cannot_hold():
    deep = inner = []
    for _ in range(100_000):
        inner.append([])
        inner = inner[0]
    for bad, words in ((["text"], "A message is a dictionary with role and content, not 'text'"), ([None], "not None"), ([{"role": "user", "content": {1}}], "set is not JSON"),
                       ([{"role": "user", "content": deep}], "recursion"), ([deep], "nested too deeply")):
        with pytest.raises(UsageError, match=words) as caught:
            History(bad)
        assert str(caught.value).endswith(".") and len(str(caught.value)) < 250
    assert len(History([{"role": "assistant", "content": ["odd", use("look")]}]).messages) == 1
    while deep:     # not even Python takes such a thing apart by itself
        deep = deep.pop()


def test_a_server_that_counts_nothing_does_not_switch_the_budget_off():
    """What it does not count is estimated from what was sent, and not shown as if it had been counted."""
    def silent(**facts):
        return Mute(*[Reply([use("look", key=number)], "tool_use", Usage()) for number in range(99)], facts=ModelFacts("silent", **facts))
    model = silent()
    finished = run(None, limits=Limits(max_input_tokens=1_000), model=model)
    assert (finished.status, finished["tok_in"]) == ("budget", 0) and 1 < model.asked < 30
    dear = silent(prices=Prices(input=1_000, output=1_000, cache_read=1, cache_write=1))
    finished = run(None, limits=Limits(max_dollars=1.0, max_input_tokens=10**9), model=dear)
    assert (finished.status, finished["dollars"]) == ("budget", 0) and abs(dear.asked - model.asked) <= 1   # a thousand dollars a million: the same wall


def test_budget_in_dollars():
    prices = Prices(input=10, output=100, cache_read=1, cache_write=12.5)
    usage = Usage(1_000, 1_000, 1_000, 1_000)                          # 0.01 + 0.001 + 0.0125 + 0.1 dollars
    model = Mute(*[Reply([use("look", key=number)], "tool_use", usage) for number in range(9)], facts=ModelFacts("priced", prices=prices))
    finished = run(None, limits=Limits(max_dollars=0.3), model=model)
    assert finished.status == "budget" and finished["dollars"] == pytest.approx(3 * 0.1235) and model.asked == 3


def test_unknown_price_refuses_a_dollar_limit_before_anything_happens():
    events, model = [], Mute([say("x")])
    with pytest.raises(UsageError, match="prices of mute are unknown"):
        run(None, limits=Limits(max_dollars=1.0), model=model, events=events)
    assert events == [] and model.asked == 0
    assert run(["x"])["dollars"] is None                              # unknown, not zero


@pytest.mark.parametrize("field, value", [(name, value) for name in ("max_steps", "max_input_tokens", "repeat_nudge", "repeat_stop", "repeat_window",
                                          "max_tokens", "parallel") for value in (0, -1, 1.5, True, None, "3")]
                         + [(name, value) for name in ("max_dollars", "wall_seconds") for value in (0, -1, float("nan"), True, "3")]
                         + [("wall_seconds", None), ("repeat_stop", 2), ("repeat_window", 4)])
def test_limits_that_cannot_hold(field, value):
    with pytest.raises(UsageError) as caught:
        Limits(**{field: value})
    assert field in str(caught.value) and "\n" not in str(caught.value)


# ------------------------------------------------------------------ cut-off, paused, refused, empty
@pytest.mark.parametrize("input", [{}, {"key": "half"}, {"key": "", "more": ""}])
def test_nothing_of_a_cut_off_reply_runs(input):
    ran = []

    def act(key: str = "", more: str = "") -> str:
        """Act."""
        ran.append(key)
        return "acted"
    cut = {"content": [say("I will."), call("act", **input)], "stop_reason": "max_tokens"}
    events = []
    finished = run([cut], registry(act), events=events)
    assert finished.status == "truncated" and ran == [] and "tool_called" not in types(events)
    assert len(messages_of(finished.history)) == 1
    assert [event["payload"]["max_tokens"] for event in events if event["type"] == "model_called"] == [8_192, 32_768]


def test_a_cut_off_reply_is_asked_for_once_more_with_more_room():
    finished = run(None, limits=Limits(max_tokens=100), model=offline(lambda body: {"content": [say("word " * 40)], "output_tokens": 200}))
    assert finished.status == "done" and finished["steps"] == 2 and finished.answer.startswith("word word")
    assert_goes_on(finished)


def test_more_room_is_given_once_for_a_reply():
    cut = Reply([say("half")], "max_tokens", Usage(10))
    events, model = [], Mute(cut, [use("look", key=1)], cut, cut)
    assert run(None, model=model, events=events).status == "truncated" and model.asked == 4
    assert [event["payload"]["max_tokens"] for event in events if event["type"] == "model_called"] == [8_192, 32_768, 8_192, 32_768]


@pytest.mark.parametrize("window, max_output, asked", [(32_768, 32_768, 2), (8_192, 8_192, 2), (16_384, 64_000, 2), (2_800, 64_000, 2), (1_300, 64_000, 1)])
def test_more_room_is_what_the_window_leaves(window, max_output, asked):
    """A quarter of the window is the usual room. What is left of the window is given once, and it is never asked for more than fits."""
    cut, whole = Reply([say("half")], "max_tokens", Usage(1_000)), Reply([say("whole")], "end_turn", Usage(1_000))
    events, model = [], Mute(cut, whole, facts=ModelFacts("m", window=window, max_output=max_output))
    finished = run(None, limits=Limits(max_tokens=max(1, window // 4)), model=model, events=events)
    assert (finished.status, model.asked) == ("done" if asked == 2 else "truncated", asked)
    rooms = [event["payload"]["max_tokens"] for event in events if event["type"] == "model_called"]
    assert rooms == sorted(rooms) and all(1_000 + room <= window for room in rooms[1:])


def test_room_never_exceeds_the_model():
    model = Mute(Reply([say("half")], "max_tokens"), facts=ModelFacts("small", max_output=4_000))
    events = []
    assert run(None, model=model, events=events).status == "truncated" and model.asked == 1
    assert [event["payload"]["max_tokens"] for event in events if event["type"] == "model_called"] == [4_000]


def test_paused_turn_is_sent_back():
    model = Mute(Reply([say("Searching.")], "pause_turn"), [say("Found.")])
    finished = run(None, model=model)
    assert (finished.status, finished.answer) == ("done", "Found.")
    assert [message["role"] for message in messages_of(finished.history)] == ["user", "assistant", "assistant"]
    assert_goes_on(finished)


def test_full_window_in_mid_reply_is_named_and_not_kept():
    finished = run(None, model=Mute(Reply([use("look")], "model_context_window_exceeded")))
    assert finished.status == "context_full" and len(finished.history.messages) == 1 and finished["tool_calls"] == 0


@pytest.mark.parametrize("content", [[], [say("")], [say(" \n\t")], ["no block"], [None, 5]])
def test_empty_turn_is_not_kept(content):
    finished = run(None, model=Mute(content))
    assert finished.status == "done" and len(finished.history.messages) == 1
    assert_goes_on(finished)


def test_blank_text_beside_a_call_is_left_out():
    finished = run(None, model=Mute([say(""), use("look"), say("  ")], [say("done")]))
    assert messages_of(finished.history)[1]["content"] == [use("look")]
    assert_goes_on(finished)


# ------------------------------------------------------------------ pairs
def test_results_of_one_turn_are_one_message_in_call_order():
    calls = [call("look", key=1), call("change", key=2), call("nothing_such"), call("look", key=3), call("look", wrong=4)]
    finished = run([[say("Go."), *calls], "done"])
    assistant, results = messages_of(finished.history)[1:3]
    assert [block["tool_use_id"] for block in results["content"]] == [block["id"] for block in assistant["content"] if block["type"] == "tool_use"]
    assert [block["is_error"] for block in results["content"]] == [False, False, True, False, True]
    assert {block["type"] for block in results["content"]} == {"tool_result"}
    assert_goes_on(finished)


def test_what_is_stored_is_what_was_sent():
    """Save after a parallel batch, load, and say one word more."""
    finished = run([[call("look", key=1), call("look", key=2)], "done"])
    loaded = History(json.loads(json.dumps(finished.history.messages)), "", finished.history.tools)
    assert loaded.json() == finished.history.json()
    loaded.add_user("And now?")
    assert run(None, history=loaded, model=offline(lambda body: [say("yes")])).answer == "yes"


@pytest.mark.parametrize("id", ["call_0", "", None])
def test_ids_stay_unique_after_loading(id):
    finished = run(None, model=Mute([{**use("look", key=1), "id": id}], [say("done")]))
    loaded = History(finished.history.messages, "", finished.history.tools)
    loaded.add_user("Again.")
    assert_goes_on(run(None, history=loaded, model=Mute([{**use("look", key=2), "id": id}], [say("done")])))


def test_a_history_that_was_cut_short_is_completed():
    history = History([{"role": "user", "content": "x"}, {"role": "assistant", "content": [use("look", "a"), use("look", "b")]}], "", registry().definitions)
    history.add_user("Go on.")
    assert_taken(history)
    history = History([{"role": "user", "content": "x"}, {"role": "assistant", "content": [use("look", "a"), use("look", "b")]}], "", registry().definitions)
    assert run(["x", "done"], history=history).status == "done"


@pytest.mark.parametrize("text", ["", "  \n"])
def test_no_words_are_no_message(text):
    with pytest.raises(UsageError):
        History(text)
    with pytest.raises(UsageError):
        History("x").add_user(text)


class Odd(Exception):
    pass


FAILURES = [ValueError("try key=7"), KeyError("key"), RuntimeError(), SystemExit(3), GeneratorExit(), StopIteration("no"), MemoryError("much"), AssertionError(),
            ToolError("Use key=7 instead."), OSError(2, "No such file", "x"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), Odd("odd one"), TimeoutError("late")]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("read_only", [True, False])
def test_one_failing_call_never_loses_the_others(failure, read_only):
    def risky(key: int) -> str:
        """Risky."""
        if key == 2:
            raise failure
        return f"good {key}"
    finished = run([[call("risky", key=key) for key in (1, 2, 3)], "done"], registry(Tool(risky, read_only=read_only)))
    first, second, third = results_of(finished.history)
    assert (first["content"], third["content"]) == ("good 1", "good 3") and not first["is_error"] and not third["is_error"]
    assert second["is_error"] and second["content"].strip()
    assert all(str(part) in second["content"] for part in failure.args if isinstance(part, str) and part), "the hint must reach the model"
    if not isinstance(failure, ToolError):
        assert type(failure).__name__ in second["content"]
    assert finished.status == "done" and finished["tool_errors"] == 1
    assert_goes_on(finished)


def test_endless_recursion_in_a_tool_is_a_result():
    def dig(key: int = 0) -> str:
        """Dig."""
        return dig(key + 1)
    finished = run([[call("dig")], "done"], registry(dig))
    assert "RecursionError" in results_of(finished.history)[0]["content"] and finished.status == "done"


def test_an_exception_that_cannot_be_told():
    class Mum(Exception):
        def __str__(self):
            raise self

    def tool() -> str:
        """Tool."""
        raise Mum()
    finished = run([[call("tool")], "done"], registry(tool), Limits(wall_seconds=3))
    assert finished.status == "done" and "Mum" in results_of(finished.history)[0]["content"] and finished["seconds"] < 1


def test_unknown_tool_is_told_what_there_is():
    finished = run([[call("no_such_tool", a=1)], "done"])
    assert "look, change" in results_of(finished.history)[0]["content"] and finished.status == "done"


@pytest.mark.parametrize("wrong", ["text", 5, None, [1], True])
def test_arguments_that_are_no_object(wrong):
    finished = run(None, model=Mute([{**use("look"), "input": wrong}, use("look", "b", key=1)], [say("done")]))
    first, second = results_of(finished.history)
    assert first["is_error"] and "not a JSON object" in first["content"] and second["content"] == "seen 1"
    assert_goes_on(finished)


@pytest.mark.parametrize("output", ["", "\r\n", " \t ", None])
def test_empty_result_becomes_words(output):
    def quiet():
        """Quiet."""
        return output
    finished = run([[call("quiet")], "done"], registry(quiet))
    assert results_of(finished.history)[0]["content"] == "(no output)" and finished.status == "done"


IDS = st.one_of(st.sampled_from(["", "a", "a_1", "toolu:1", "a b", "é", "\ud99c", None, 5, "x|y", "x_y", "call"]), st.text(max_size=5))


@SMALL
@given(st.lists(st.lists(IDS, min_size=1, max_size=4), min_size=1, max_size=3))
def test_duplicate_empty_and_illegal_ids(turns):
    """Every call runs, and what enters the history can be sent back."""
    ran, key = [], 0

    def note(key: int) -> str:
        """Note."""
        ran.append(key)
        return str(key)
    replies = []
    for ids in turns:
        replies.append([])
        for id in ids:
            replies[-1].append({**use("note", key=key), "id": id})
            key += 1
    finished = run(None, registry(note), model=Mute(*replies, [say("done")]))
    assert ran == list(range(key)) and [block["content"] for block in results_of(finished.history)] == [str(n) for n in ran]
    assert_goes_on(finished)


@pytest.mark.parametrize("name", ["", None, "read file", "a" * 300, "näme", 7, "look\n", "\ud99c"])
def test_illegal_tool_names(name):
    finished = run(None, model=Mute([{**use("x"), "name": name}], [say("done")]))
    assert finished.status == "done" and len(results_of(finished.history)) == 1
    assert_goes_on(finished)


# ------------------------------------------------------------------ text and numbers that JSON cannot carry
@pytest.mark.parametrize("value", ["\ud99c", {"\udc00": "\ud800"}, float("nan"), float("inf"), [float("-inf"), "\udfff\ud800"], 10**4_000, "\x00", "\u2028"])
def test_hostile_values_go_in_and_come_out(value):
    """In the arguments, in the result and in the text of one run; every later request is still served."""
    def same(key: object = None) -> object:
        """Give it back."""
        return value
    finished = run(None, registry(same), model=Mute([say("so \ud99c"), use("same", key=value)], [say("done")]))
    assert finished.status == "done" and not results_of(finished.history)[0]["is_error"]
    finished.history.json().decode("utf-8")
    assert_goes_on(finished)


def test_bytes_of_a_surrogate_in_a_file_do_not_end_a_session(tmp_path):
    (tmp_path / "odd.txt").write_bytes(b"a \xed\xa0\x80 b\n")
    finished = run([[call("read_file", path="odd.txt")], "done"], Registry(tmp_path, file_tools()))
    assert "\ufffd" in results_of(finished.history)[0]["content"] and finished.status == "done"
    assert_goes_on(finished)


def test_tools_see_no_lone_surrogates():
    seen = []

    def note(key: object) -> str:
        """Note."""
        seen.append(key)
        return "x"
    run(None, registry(note), model=Mute([use("note", key=["\ud99c", {"\ud99c": 1}])], [say("done")]))
    assert seen == [["\ufffd", {"\ufffd": 1}]]


@pytest.mark.parametrize("depth", [50, 400, 900])
def test_deeply_nested_arguments(depth):
    value = json.loads("[" * depth + "]" * depth)
    finished = run(None, model=Mute([use("look", key=value)], [say("done")]))
    assert finished.status == "done"
    assert_taken(finished.history)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=3), max_leaves=6)


@given(JSON)
def test_encoded_json_is_always_valid(value):
    text = encode_json(value).decode("utf-8")
    loaded = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert encode_json(loaded) == text.encode() and encode_json(mend(value)) == text.encode()


# ------------------------------------------------------------------ append-only bytes
WORDS = st.text(st.characters(), max_size=20)
BLOCKS = st.one_of(
    st.builds(say, WORDS),
    st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: {"type": "thinking", "thinking": text, "signature": sign(text)}),
    st.builds(lambda name, key: use(name, "same", key=key), st.sampled_from(["look", "change", "fail", "none"]), JSON),
)


@SMALL
@given(st.lists(st.lists(BLOCKS, max_size=4), max_size=6), WORDS.filter(str.strip))
def test_each_request_is_a_byte_prefix_of_the_next(turns, result):
    """Up to the closing brackets; with thinking, unicode, surrogates and failing tools. Every request is one that the strict API takes."""
    def fail(key: object = None) -> str:
        """Fail."""
        raise ValueError(result)

    def none(key: object = None) -> str:
        """Give something odd."""
        return result
    bodies, model = [], Mute(*[[*turn, use("look", "", key=number)] for number, turn in enumerate(turns)], [say("done")])

    def spy(history, max_tokens, on_wait=None):
        bodies.append(messages_body(history, "scripted-general", 100, {"cache_control": {"type": "ephemeral"}}))
        return model(history, max_tokens)
    spy.facts = model.facts
    finished = run(None, registry(Tool(look, read_only=True), change, fail, none), Limits(repeat_stop=40), model=spy, task=result)
    assert finished.status == "done" and len(bodies) == len(turns) + 1
    for before, after in zip(bodies, bodies[1:]):
        assert before.endswith(b"]}") and after.startswith(before[:-2])
    for body in bodies:
        check_request(json.loads(body.decode("utf-8")))


def test_a_run_that_goes_on_keeps_the_prefix():
    finished = run([[call("look", key=1)], "done"])
    before = finished.history.json()
    assert_goes_on(finished)
    assert finished.history.json().startswith(before) and len(finished.history.json()) > len(before)


def test_no_step_encodes_more_than_is_new(monkeypatch):
    """The work of a step does not grow with the history: as many calls of the encoder, and as many bytes, at step 10 as at step 50."""
    sizes, plain = [], loop.encode_json

    def counted(value):
        encoded = plain(value)
        sizes.append(len(encoded))
        return encoded
    monkeypatch.setattr(loop, "encode_json", counted)
    work, model = [], Mute(*[[say("step"), use("look", key=f"{number:04}")] for number in range(60)])

    def spy(history, max_tokens, on_wait=None):
        work.append((len(sizes), sum(sizes)))
        return model(history, max_tokens)
    spy.facts = model.facts
    run(None, limits=Limits(max_steps=60), model=spy)
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in zip(work[12:], work[13:])}       # the ids have two digits from here on
    assert len(steps) == 1 and next(iter(steps))[0] <= 2, steps


# ------------------------------------------------------------------ repeats
def pattern(letters):
    return [[call("look", key=letter)] for letter in letters] + ["done"]


@pytest.mark.parametrize("letters, status, ran", [
    ("AAAAA", "repeat", 4), ("AAAA", "done", 4), ("ABABABABA", "repeat", 8), ("ABABABAB", "done", 8), ("ABCABCABCABCA", "repeat", 12),
    ("AABBAABBAAB", "repeat", 8), ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "done", 26)])
def test_repeats(letters, status, ran):
    finished = run(pattern(letters), limits=Limits(max_steps=1_000))
    assert (finished.status, sum(not block["is_error"] for block in results_of(finished.history))) == (status, ran)
    assert_goes_on(finished)


def test_forty_identical_reads_stop_at_five():
    finished = run(pattern("A" * 40), limits=Limits(max_steps=1_000))
    assert (finished.status, finished["steps"]) == ("repeat", 5)
    nudged = [NUDGE in block["content"] for block in results_of(finished.history)]
    assert nudged == [False, False, True, True, False]


def test_failing_and_unknown_calls_are_counted_too():
    for bad in (call("look", wrong=1), call("nothing_such"), call("change")):
        finished = run([[bad]] * 9, registry(Tool(look, read_only=True), change))
        assert (finished.status, finished["steps"]) == ("repeat", 5)


def test_malformed_calls_are_repeats_too():
    finished = run(None, model=Mute(*[[{**use("look"), "input": "nope"}]] * 9, [say("x")]))
    assert (finished.status, finished["steps"]) == ("repeat", 5)


def test_order_of_arguments_does_not_hide_a_repeat():
    def two(a: int, b: int) -> str:
        """Two."""
        return "x"
    replies = [[{**use("two"), "input": {"a": 1, "b": 2} if number % 2 else {"b": 2, "a": 1}}] for number in range(9)]
    assert run(None, registry(two), model=Mute(*replies))["steps"] == 5


def test_nudge_and_stop_can_be_set():
    finished = run(pattern("A" * 9), limits=Limits(repeat_nudge=1, repeat_stop=2))
    assert finished["steps"] == 2 and NUDGE in results_of(finished.history)[0]["content"]
    assert run(pattern("AAAAAAA"), limits=Limits(repeat_stop=8)).status == "done"


def test_the_window_forgets():
    letters = "ABCDEF" * 5
    assert run(pattern(letters), limits=Limits(max_steps=99, repeat_window=5)).status == "done"
    assert run(pattern(letters), limits=Limits(max_steps=99)).status == "repeat"


def test_repeats_inside_one_turn():
    finished = run([[call("look", key=1)] * 6, "done"])
    assert finished.status == "repeat" and [block["is_error"] for block in results_of(finished.history)] == [False] * 4 + [True] * 2
    assert_goes_on(finished)


def test_nudge_holds_nothing_to_copy():
    for words in (NUDGE, CALL_AS_TEXT):
        assert not any(character in words for character in "{}()<>=:\"'`0123456789") and "look" not in words


def editing():
    return registry(Tool(look, read_only=True), Tool(change, changes="key"))


def test_a_new_edit_makes_old_reads_new():
    turns = [turn for number in range(6) for turn in ([call("look", key="test")], [call("change", key=str(number))], [call("look", key="file")])]
    assert run([*turns, "done"], editing(), Limits(max_steps=99)).status == "done"


def test_edits_to_and_fro_are_a_repeat():
    """Each of the two edits changes the file, but only the first time is it news; the test run between them does not get a pass either."""
    turns = [turn for number in range(20) for turn in ([call("change", key="ab"[number % 2])], [call("look", key="test")])]
    finished = run([*turns, "done"], editing(), Limits(max_steps=99))
    assert finished.status == "repeat" and finished["steps"] <= 18


def test_a_failed_edit_is_no_news():
    def broken(key: str) -> str:
        """Broken."""
        raise ToolError("no")
    turns = [turn for number in range(6) for turn in ([call("look", key="test")], [call("broken", key=str(number))])]
    assert run(turns, registry(Tool(look, read_only=True), Tool(broken, changes="key")), Limits(max_steps=99)).status == "repeat"


# ------------------------------------------------------------------ calls in words
AS_TEXT = ['<tool_call>{"name": "look"}</tool_call>', '```json\n{"name": "look", "arguments": {"key": 1}}\n```', '{"tool": "look", "input": {"key": 1}}',
           '[{"name": "look", "parameters": {}}]', '{"function": {"name": "look", "arguments": "{}"}}', '[TOOL_CALLS] [{"name": "look"}]',
           "look(key=1)", "```\nlook(key=1)\n```", '```tool_code\nlook(key="a")\n```', "<function=look>{}</function>", '<|python_tag|>{"name": "look"}',
           '  {"name":"look","args":{}}\n', '{"function": "look", "parameters": {}}']
NO_CALL = ["", "The function look(key) shows a thing.", "{}", "[]", '{"name": "Anna", "age": 3}', "[1, 2]", "I called look and it said: seen 1.", "{not json",
           "```python\nprint(1)\n```", "other(key=1)", '{"total": 3}', "Use `look(1)` for that.", "```\n{}\n```", "[" * 5_000, "(look)"]


@pytest.mark.parametrize("text", AS_TEXT)
def test_a_call_in_words_is_told_once(text):
    finished = run([text, [call("look", key=1)], "Done now."])
    assert finished.status == "done" and finished.answer == "Done now." and finished["call_as_text"] == 1
    assert CALL_AS_TEXT in [message["content"] for message in messages_of(finished.history)]
    again = run([text, text, "never asked for"])
    assert again.status == "done" and again.answer == text and again["steps"] == 2 and again["call_as_text"] == 2
    assert_goes_on(again)


@pytest.mark.parametrize("text", NO_CALL)
def test_an_answer_is_no_call(text):
    assert not looks_like_call(text, {"look"})


@pytest.mark.parametrize("text", ["The parser in parse.py looks for `<tool_call>` tags.", "It matches <invoke and <function= in the prompt.", '{"name": "Anna", "input": "5 apples"}', "```html\n<tool_call>\n```\nis what the template writes."])
def test_talk_about_calls_is_no_call(text):
    assert not looks_like_call(text, {"look"})


@pytest.mark.parametrize("text", ['I will look at it.\n```json\n{"name": "look", "arguments": {"key": 1}}\n```', 'Let me see.\n<tool_call>{"name": "look"}</tool_call>', '```json\n{"name": "look", "arguments": {"key": 1}}\n```\nI wait for the result.', 'First:\n\n{"name": "look", "arguments": {"key": 1}}'])
def test_a_call_in_words_with_words_around_it(text):
    assert looks_like_call(text, {"look"})


@pytest.mark.parametrize("text", ["```" + "\n" * 40_000 + "x", "```\n" + " " * 40_000 + "x", "```" + " \n" * 40_000, "look(" * 40_000, "<" * 100_000, " " * 100_000 + "x"])
def test_reading_an_answer_is_quick(text):
    began = time.monotonic()
    looks_like_call(text, {"look"})
    assert time.monotonic() - began < 0.5


MORE_AS_TEXT = [
    '[TOOL_CALLS]look{"key": 1}', '[TOOL_CALLS]look[ARGS]{"key": 1}', '<|tool_call|>[{"name": "look", "arguments": {"key": 1}}]', "<|tool_call_start|>[look(key=1)]<|tool_call_end|>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{}\n```<｜tool▁call▁end｜>", "<tool_call>look\n<arg_key>key</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "[look(key=1)]",
    "```tool_code\nprint(look(key=1))\n```", '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"key":1}', 'Thought: I should.\nAction: look\nAction Input: {"key": 1}',
    "<look>\n<key>1</key>\n</look>", '{"tool_calls": [{"type": "function", "function": {"name": "look", "arguments": "{}"}}]}', '{"action": "look", "action_input": {"key": 1}}',
    '{"name": "look", "arguments": {"key": 1}}\n{"name": "look", "arguments": {"key": 2}}', '<tool_call>\n{"name": "look", "arguments": {"key": 1}', "<tool_call>{'name': 'look', 'arguments': {'key': 1}}",
    '```json\n{"name": "look", "arguments": {"key": 1,}}\n```', "<invoke name='look'><parameter name='key'>1</parameter></invoke>", 'I will look.\n{"name": "look", "arguments": {"key": 1}}',
    '{"name": "Look", "arguments": {"key": 1}}', '{"look": {"key": 1}}', "`look(key=1)`", "```python\nresult = look(key=1)\nprint(result)\n```", "functions.look(key=1)",
    '{"tool_uses": [{"recipient_name": "functions.look", "parameters": {"key": 1}}]}']
MORE_TALK = [
    'Line 12 of prompt.md documents `<invoke name="look">` as the old style.', "It exports one function:\n```python\nlook(path)\n```", "The functions are:\n\nread_file(path), look(key) and run_command(cmd)",
    '```json\n{"name": "create_user", "parameters": {"age": 3}}\n```', 'The file is\n\n{"name": "build", "args": {"node": 18}}', 'The entry point is\n\nlook("x")', "The test has this line:\n\n    s = '<tool_call>{\"name\": \"x\"}</tool_call>'",
    "Write `<tool_call>` {\"name\": ...} there", '[{"name": "a", "parameters": {"k": 1}}]', "I would call look next, if I may.", "look", "print(look)", "def look(key=1): pass"]


@pytest.mark.parametrize("text", MORE_AS_TEXT)
def test_calls_in_the_words_of_many_models(text):
    assert looks_like_call(text, {"look", "read_file"})
    assert not looks_like_call(text.replace("look", "leap").replace("Look", "Leap"), {"look", "read_file"}) or text.startswith(("{", "<tool_call>", "<|tool_call"))


@pytest.mark.parametrize("text", MORE_TALK)
def test_more_talk_about_calls_is_no_call(text):
    assert not looks_like_call(text, {"look", "read_file", "run_command"})


@given(st.text(alphabet="`<>[]{}()\"':,\n lok=1_tcaTOLCS|/-", max_size=120))
def test_any_text_is_a_call_or_none(text):
    assert looks_like_call(text, {"look"}) in (True, False)


# ------------------------------------------------------------------ gates, late answers, broken-off histories, odd models
async def _asking(name, arguments):
    return True


@pytest.mark.parametrize("gate, why", [(lambda name, arguments: "no", "type str"), (_asking, "type coroutine"), (lambda name, arguments: None, "type NoneType"), (lambda name, arguments: 1, "type int")])
def test_only_true_is_a_yes(gate, why):
    events = []
    finished = run([[call("change", key=1)], "done"], gate=gate, events=events)
    assert results_of(finished.history)[0]["content"] == DENIED and finished["denied"] == 1
    [decided] = [event["payload"] for event in events if event["type"] == "gate_decided"]
    assert decided["allowed"] is False and why in decided["why"]


@pytest.mark.parametrize("late", ["stop", "time"])
def test_a_yes_that_comes_too_late_runs_nothing(late):
    ran, stop = [], threading.Event()

    def write(key: int) -> str:
        """Write."""
        ran.append(key)
        return "written"

    def gate(name, arguments):
        stop.set() if late == "stop" else time.sleep(0.4)
        return True
    finished = run([[call("write", key=1)], "done"], registry(write), Limits(wall_seconds=0.3 if late == "time" else 60), gate=gate, cancel=stop)
    assert finished.status == ("interrupted" if late == "stop" else "wall_clock") and ran == []
    assert results_of(finished.history)[0]["content"] == (INTERRUPTED if late == "stop" else TIME_IS_UP)


ONE, TWO = use("look", "toolu_a", key=1), use("look", "toolu_b", key=2)
RESULT = {name: {"type": "tool_result", "tool_use_id": f"toolu_{name}", "content": "seen"} for name in "abz"}
BROKEN_OFF = {
    "words instead of a result": [[ONE], "Are you there?"], "one of two": [[ONE, TWO], [RESULT["a"]], "Go on."], "one of two, and words in the same message": [[ONE, TWO], [RESULT["b"], say("Go on.")]],
    "one of two, at the end": [[ONE, TWO], [RESULT["a"]]], "a strange result": [[ONE], [RESULT["z"]]], "a strange one beside the right one": [[ONE], [RESULT["a"], RESULT["z"]]], "twice": [[ONE], [RESULT["a"], RESULT["a"]]],
    "the model goes on": [[ONE], "assistant: I see.", "Go on."], "words before the result": [[ONE], [say("Here:"), RESULT["a"]]], "in two messages": [[ONE, TWO], [RESULT["a"]], [RESULT["b"]]], "a result after the words": [[ONE], "Well?", [RESULT["a"]]]}


@pytest.mark.parametrize("turns", BROKEN_OFF.values(), ids=BROKEN_OFF)
def test_a_history_from_elsewhere_is_mended(turns):
    messages = [{"role": "user", "content": "Read a."}]
    for turn in turns:
        of_model = isinstance(turn, list) and turn[0].get("type") == "tool_use" or isinstance(turn, str) and turn.startswith("assistant: ")
        messages.append({"role": "assistant" if of_model else "user", "content": turn})
    history = History(messages, "", registry().definitions)
    finished = run(None, history=history, model=offline(lambda body: [say("Done.")]))
    assert finished.status == "done" and history.open_calls() == []
    asked = {block["id"] for message in messages_of(history) if message["role"] == "assistant" for block in message["content"] if isinstance(block, dict) and block["type"] == "tool_use"}
    answered = [block["tool_use_id"] for block in results_of(history)]
    assert set(answered) == asked and len(answered) == len(asked)
    assert any(block["content"] == "seen" for block in results_of(history)) == any(block is RESULT[n] for turn in turns[1:] if isinstance(turn, list) for block in turn for n in "ab" if turns[1] != "Well?")


def test_whatever_a_model_makes_up_the_loop_does_not_raise():
    odd = [{**use("look", "a"), "input": {1: 2, "key": "x"}}, {**use("look", "b"), "input": {"key": b"x"}}, {**use("look", "c"), "input": {"key": {1, 2}}}]
    statuses = [run(None, model=Mute(Reply([block], "tool_use", Usage(1)), Reply([say("done")], "end_turn", Usage(1)))).status for block in odd]
    assert statuses == ["done", "api_error", "api_error"]


def test_a_sink_cannot_change_what_a_tool_is_given():
    def scrub(event):
        if event["type"] == "tool_called":
            event["payload"]["arguments"].clear()
    finished = run([[call("look", key="five")], "done"], sink=scrub)
    assert results_of(finished.history)[0]["content"] == "seen five"


def test_a_tool_cannot_make_up_a_status():
    def odd(key: int) -> ToolResult:
        """Odd."""
        return ToolResult("x", ends_run="banana")
    assert run([[call("odd", key=1)], "done"], registry(Tool(odd, read_only=True))).status == "done"


def test_what_nobody_knows_the_price_of_makes_the_sum_unknown():
    prices, nan = Prices(input=10, output=10, cache_read=1, cache_write=1), float("nan")

    def ask(key: int) -> ToolResult:
        """Ask."""
        return ToolResult("answer", usage=Usage(100), dollars={1: None, 2: 0.5, 3: nan}[key])
    for key, dollars in ((1, (100 + 20) * 10 / 1e6 + 100 * 10 / 1e6), (2, 0.5 + 0.0012), (3, None)):
        model = Mute(Reply([use("ask", key=key)], "tool_use", Usage(50, 0, 0, 10)), Reply([say("done")], "end_turn", Usage(50, 0, 0, 10)), facts=ModelFacts("p", prices=prices))
        events = []
        finished = run(None, registry(Tool(ask, read_only=True)), model=model, events=events)
        assert finished["dollars"] == (pytest.approx(dollars) if dollars is not None else None), key
        json.dumps(events, allow_nan=False)
    model = Mute(Reply([use("ask", key=3)], "tool_use", Usage(50)), Reply([say("done")], "end_turn", Usage(50)), facts=ModelFacts("p", prices=prices))
    assert run(None, registry(Tool(ask, read_only=True)), Limits(max_dollars=5), model=model).status == "budget"


# ------------------------------------------------------------------ at the same time, and in order
def test_neighbouring_reads_run_at_the_same_time():
    """Each waits for the others; alone none would come back."""
    meeting = threading.Barrier(3, timeout=10)

    def meet(key: int) -> str:
        """Meet."""
        meeting.wait()
        return str(key)
    finished = run([[call("meet", key=key) for key in range(3)], "done"], registry(Tool(meet, read_only=True)))
    assert [block["content"] for block in results_of(finished.history)] == ["0", "1", "2"]


class Overlaps:
    """Two tools that note when they begin and end."""

    def __init__(self):
        self.log, self.running, self.most, self.lock = [], 0, 0, threading.Lock()

    def tools(self):
        def read(key: int) -> str:
            """Read."""
            return self.note("read", key)

        def write(key: int) -> str:
            """Write."""
            return self.note("write", key)
        return registry(Tool(read, read_only=True), write)

    def note(self, kind, key):
        with self.lock:
            self.log.append(("begin", kind, key))
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.002)
        with self.lock:
            self.running -= 1
            self.log.append(("end", kind, key))
        return str(key)


@SMALL
@given(st.lists(st.sampled_from(["read", "write"]), min_size=1, max_size=10), st.integers(1, 4))
def test_writes_are_barriers(kinds, parallel):
    overlaps = Overlaps()
    finished = run([[call(kind, key=key) for key, kind in enumerate(kinds)], "done"], overlaps.tools(), Limits(parallel=parallel))
    assert [block["content"] for block in results_of(finished.history)] == [str(key) for key in range(len(kinds))]
    assert overlaps.most <= parallel
    place = {(edge, key): number for number, (edge, _, key) in enumerate(overlaps.log)}
    for key, kind in enumerate(kinds):
        for earlier in range(key):
            if "write" in (kind, kinds[earlier]):
                assert place["end", earlier] < place["begin", key]


def test_no_thread_is_left():
    before = threading.active_count()
    for _ in range(5):
        run([[call("look", key=key) for key in range(8)], "done"])
    end = time.monotonic() + 2
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_threads_are_reused():
    names = set()

    def who(key: int) -> str:
        """Who."""
        names.add(threading.get_ident())
        return "x"
    run([[call("who", key=key)] for key in range(25)] + ["done"], registry(who))
    assert len(names) <= 3


def test_a_call_that_fails_its_check_never_runs_and_never_asks():
    asked = []
    finished = run([[call("change", wrong=1), call("change", key=2)], "done"], gate=lambda name, arguments: asked.append(arguments) or True)
    assert asked == [{"key": 2}] and [block["is_error"] for block in results_of(finished.history)] == [True, False]


# ------------------------------------------------------------------ the gate
def raises(error):
    def gate(name, arguments):
        raise error
    return gate


@pytest.mark.parametrize("gate", [lambda name, arguments: False, lambda name, arguments: None, raises(EOFError()), raises(ValueError("closed"))])
def test_a_no_of_the_gate_is_data(gate):
    events = []
    finished = run([[call("change", key=1), call("look", key=2)], "done"], gate=gate, events=events)
    denied, seen = results_of(finished.history)
    assert (denied["content"], denied["is_error"], seen["content"]) == (DENIED, True, "seen 2")
    assert finished["denied"] == 1 and types(events).count("gate_decided") == 1
    assert_goes_on(finished)


@pytest.mark.parametrize("where", ["gate", "model"])
def test_exit_in_a_gate_or_a_model(where):
    """It may end the program, but it leaves a good history behind."""
    tools = registry()
    history = History("The task.", "", tools.definitions)
    model = Mute([use("change")], SystemExit(1) if where == "model" else [say("done")])
    try:
        run_loop(history, model, tools, gate=raises(SystemExit(1)) if where == "gate" else lambda name, arguments: True)
    except SystemExit:
        pass
    assert_taken(history)


# ------------------------------------------------------------------ interrupts
def interrupting(key: object = None) -> str:
    """Press Ctrl-C."""
    raise KeyboardInterrupt


def test_interrupt_inside_a_tool_answers_every_call():
    finished = run([[call("look", key=1), call("interrupting"), call("change", key=3)], "never"], registry(Tool(look, read_only=True), interrupting, change))
    first, second, third = results_of(finished.history)
    assert finished.status == "interrupted" and first["content"] == "seen 1"
    assert (second["content"], third["content"]) == (INTERRUPTED, INTERRUPTED) and second["is_error"] and third["is_error"]
    assert_goes_on(finished)


def test_interrupt_in_the_gate_runs_nothing_more():
    finished = run([[call("look", key=1), call("change", key=2), call("look", key=3)], "never"], gate=raises(KeyboardInterrupt()))
    assert finished.status == "interrupted"
    assert [block["content"] for block in results_of(finished.history)] == ["seen 1", INTERRUPTED, INTERRUPTED]
    assert_goes_on(finished)


def test_interrupt_in_the_model():
    finished = run(None, model=Mute([use("look")], KeyboardInterrupt()))
    assert finished.status == "interrupted" and finished["steps"] == 1
    assert_goes_on(finished)


def test_interrupt_in_the_sink_at_every_event():
    def steps():
        return Mute([use("look", "a"), use("change", "b")], [use("change", "c")], [say("done")])
    events = []
    run(None, model=steps(), events=events)
    count = len(events)
    for broken in range(count):
        def sink(event):
            if event["n"] == broken:
                raise KeyboardInterrupt
        tools = registry()
        history = History("The task.", "", tools.definitions)
        try:
            finished = run_loop(history, steps(), tools, sink=sink)
            assert finished.status == ("interrupted" if broken < count - 1 else "done")
        except KeyboardInterrupt:
            assert broken in (0, count - 1), f"event {broken} of {count}"
        assert_taken(history)


class Press:
    """Raises KeyboardInterrupt at the nth line that runs in the loop's module, as Ctrl-C may."""

    def __init__(self, nth):
        self.left, self.where = nth, None

    def __call__(self, frame, event, arg):
        return self.line if frame.f_code.co_filename == loop.__file__ else None

    def line(self, frame, event, arg):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self.line


def interrupted_at(nth):
    """(where it was interrupted, or None; what was wrong afterwards, or "")."""
    press, events, tools = Press(nth), [], registry()
    history = History("The task.", "", tools.definitions)
    model = Mute([use("look", "a", key=1), use("look", "b", key=2), use("change", "c", key=3)], [say("x"), use("look", "d")], [say("done")])
    before = sys.gettrace()
    sys.settrace(press)
    try:
        contextvars.copy_context().run(run_loop, history, model, tools, sink=events.append)
    except KeyboardInterrupt:
        pass
    except Exception as error:
        return press.where, f"raised {error!r}"
    finally:
        sys.settrace(before)
    if messages_of(history) != history.messages:
        return press.where, "bytes and messages differ"
    back = [event["payload"]["id"] for event in events if event["type"] == "tool_returned"]
    if len(back) != len(set(back)):
        return press.where, "a call came back twice in the trace"
    try:
        assert_taken(history)
    except Exception as error:
        return press.where, str(error)
    return press.where, ""


def test_interrupt_at_every_line_of_the_loop():
    nth, problems = 0, []
    while nth == 0 or where:
        nth += 1
        where, problem = interrupted_at(nth)
        problems += [(where, problem)] if problem else []
    assert nth > 500 and problems == []


def test_stop_from_another_thread_ends_tools_that_listen():
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    began = time.monotonic()
    finished = run([[call("stuck"), call("change", key=1)], "never"], registry(stuck, change), cancel=cancel)
    assert finished.status == "interrupted" and time.monotonic() - began < 1.5
    assert [block["content"] for block in results_of(finished.history)] == ["gave up", INTERRUPTED]
    assert_goes_on(finished)


def deaf(seconds: float = 30) -> str:
    """Sleep and hear nothing."""
    time.sleep(seconds)
    return "slept"


def test_stop_does_not_wait_for_a_tool_that_is_deaf(monkeypatch):
    monkeypatch.setattr(loop, "GRACE", 0.4)
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    began = time.monotonic()
    finished = run([[call("deaf", seconds=4)], "never"], registry(deaf), cancel=cancel)
    assert finished.status == "interrupted" and time.monotonic() - began < 2
    assert results_of(finished.history)[0]["content"] == INTERRUPTED
    assert_goes_on(finished)


def test_stop_gives_one_grace_to_all(monkeypatch):
    monkeypatch.setattr(loop, "GRACE", 0.4)
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    began = time.monotonic()
    run([[call("deaf", seconds=3 + number / 100) for number in range(4)], "x"], registry(Tool(deaf, read_only=True)), cancel=cancel)
    assert time.monotonic() - began < 1.8


def test_stop_reaches_a_run_inside_a_run():
    asked = []

    def model(history, max_tokens, on_wait=None):
        asked.append(time.monotonic())
        time.sleep(0.05)
        return Reply([use("look", key=len(asked))], "tool_use", Usage(1))
    model.facts = ModelFacts("inner")

    def inner() -> str:
        """Start a run of its own."""
        return run(None, limits=Limits(max_steps=500), model=model).status
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    finished = run([[call("inner")], "x"], registry(inner), cancel=cancel)
    ended = time.monotonic()
    assert finished.status == "interrupted" and results_of(finished.history)[0]["content"] == "interrupted"
    time.sleep(0.2)
    assert max(asked) < ended


SIGINT_SCRIPT = """
    import json, os, sys, threading, time
    sys.path.insert(0, {tests!r})
    from parts import *
    from harnesslab.fake_api import FakeApi, Fault
    from harnesslab.loop import *
    from harnesslab.providers import AnthropicModel, make_client, offline
    from harnesslab.tools import Registry, Tool

    def ready():
        print("ready", flush=True)

    def listen() -> str:
        "Listen."
        ready()
        while not cancelled():
            pause(1)
        return "heard"

    def deaf() -> str:
        "Deaf."
        ready()
        time.sleep(30)
        return "x"

    def change() -> str:
        "Change."
        return "x"

    def gate(name, arguments):
        if where == "gate":
            ready()
            time.sleep(30)
        return True

    where = {where!r}
    tools = Registry(".", [Tool(listen, read_only=True), deaf, change])
    calls = {{"tool": ["listen", "change"], "deaf": ["listen", "deaf"], "gate": ["change", "change"]}}.get(where, ["change"])
    faults = {{"model": [Fault("hang", at=2)], "wait": [Fault("overloaded", at=2, times=9)]}}.get(where, [])
    api = FakeApi(lambda body: [call(name) for name in calls], faults=faults)
    with api.serve() as server:
        model = AnthropicModel(ModelFacts("scripted-general"), make_client(), server.url, "k", retry=Retry(first=20, longest=20))
        def sink(event):
            if where == "model" and event["type"] == "model_called" and event["step"] == 2:
                threading.Timer(0.3, ready).start()
            if where == "wait" and event["type"] == "model_waited":
                threading.Timer(0.1, ready).start()
        finished = run_loop(History("t", "", tools.definitions), model, tools, Limits(repeat_stop=40), gate, sink)
    assert_goes_on(finished)
    print(json.dumps([finished.status, [block["content"] for block in results_of(finished.history)]]), flush=True)
"""


@pytest.mark.parametrize("where", ["tool", "deaf", "gate", "model", "wait"])
def test_real_ctrl_c(where):
    script = textwrap.dedent(SIGINT_SCRIPT).format(tests=str(Path(__file__).parent), where=where)
    child = subprocess.Popen([sys.executable, "-c", script], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert child.stdout.readline() == "ready\n", child.stderr.read()
        time.sleep(0.05)
        os.kill(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=15)
    finally:
        child.kill()
    lines = [line for line in out.splitlines() if line != "ready"]
    assert len(lines) == 1, err
    status, contents = json.loads(lines[0])
    assert status == "interrupted"
    if where == "tool":
        assert contents == ["heard", INTERRUPTED]
    if where in ("deaf", "gate"):
        assert INTERRUPTED in contents


# ------------------------------------------------------------------ time
def test_deadline_cuts_into_a_tool():
    began = time.monotonic()
    finished = run([[call("stuck")], "never"], registry(stuck), Limits(wall_seconds=0.3))
    assert finished.status == "wall_clock" and time.monotonic() - began < 1.5
    assert_goes_on(finished)


def test_deadline_does_not_wait_for_a_deaf_tool(monkeypatch):
    monkeypatch.setattr(loop, "GRACE", 0.4)
    began = time.monotonic()
    finished = run([[call("deaf", seconds=4)], "never"], registry(deaf), Limits(wall_seconds=0.3))
    assert finished.status == "wall_clock" and time.monotonic() - began < 2
    assert "time is up" in results_of(finished.history)[0]["content"]
    assert_goes_on(finished)


@pytest.mark.parametrize("read_only", [True, False])
def test_deadline_starts_no_more_calls_and_gives_one_grace(read_only, monkeypatch):
    monkeypatch.setattr(loop, "GRACE", 0.4)
    started = []

    def note(number: int) -> str:
        """Note, and sleep."""
        started.append(number)
        time.sleep(3)
        return "x"
    began = time.monotonic()
    finished = run([[call("note", number=number) for number in range(4)], "x"], registry(Tool(note, read_only=read_only)), Limits(wall_seconds=0.2))
    assert finished.status == "wall_clock" and time.monotonic() - began < 1.8
    assert len(started) == (4 if read_only else 1) and [block["is_error"] for block in results_of(finished.history)] == [True] * 4


def test_tools_see_the_clock_of_the_run():
    seen = []

    def clock() -> str:
        """Clock."""
        seen.append((time_left(), cancelled()))
        return "x"
    run([[call("clock")], "done"], registry(Tool(clock, read_only=True)), Limits(wall_seconds=50))
    assert 40 < seen[0][0] <= 50 and seen[0][1] is False
    assert time_left() == float("inf") and not cancelled()


def test_an_inner_run_never_has_more_time_than_the_outer_one():
    with run_clock(5):
        with run_clock(50):
            assert time_left() <= 5
        with run_clock(1):
            assert time_left() <= 1
        assert 4 < time_left() <= 5


# ------------------------------------------------------------------ sinks
def shape(finished):
    changing = ("run", "seconds", "model_seconds", "tool_seconds", "events_lost", "waits")
    return {key: value for key, value in finished.items() if key not in changing}, finished.history.json()


def test_a_sink_that_breaks_changes_nothing():
    """At its nth event for every n, and at all of them."""
    replies = [[call("look", key=1), call("change", key=2)], [call("look", wrong=1)], "done"]
    events = []
    good = run(replies, events=events)
    for broken in [*range(len(events)), None]:
        def sink(event):
            if broken in (None, event["n"]):
                raise OSError(28, "No space left on device")
        finished = run(replies, sink=sink)
        assert shape(finished) == shape(good)
        assert finished["events_lost"] == (len(events) if broken is None else 1)


# ------------------------------------------------------------------ the event log
def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip(b"\x00")]


@pytest.mark.parametrize("tail, readable", [(b"", 0), (b'{"type": "x"}\n', 1), (b'{"type": "x"}\n{"type": "ha', 1), (b'{"type": "x"}\n' + bytes(300), 1), (b"\x00", 0)])
def test_log_goes_on_behind_a_torn_tail(tmp_path, tail, readable):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(tail)
    with EventLog(path) as log:
        log({"type": "next"})
    lines = path.read_bytes().split(b"\n")
    assert json.loads(lines[-2]) == {"type": "next"} and lines[-1] == b"" and path.read_bytes().startswith(tail)
    assert len(lines) - 2 == (1 if tail and not tail.endswith(b"\n") else 0) + readable


def test_log_makes_folders_and_keeps_old_lines(tmp_path):
    path = tmp_path / "a" / "b" / "trace.jsonl"
    for number in range(2):
        with EventLog(path) as log:
            log({"number": number})
    assert [line["number"] for line in lines_of(path)] == [0, 1]


@pytest.mark.parametrize("path", ["folder", "file/trace.jsonl", "fifo"])
def test_log_that_cannot_be_written(tmp_path, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="choose another path") as caught:
        EventLog(tmp_path / path)
    assert "\n" not in str(caught.value)


def test_full_disk_does_not_end_a_run():
    if not os.path.exists("/dev/full"):
        pytest.skip("optional: this system has no /dev/full")
    with EventLog("/dev/full") as log:
        finished = run([[call("look", key=1)], "done"], sink=log)
    assert finished.status == "done" and finished["events_lost"] > 0


FULL_SCRIPT = """
    import resource
    from harnesslab.loop import EventLog
    log = EventLog({path!r})
    log({{"a": "x" * 50}})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (80, hard))
    for _ in range(2):
        try:
            log({{"b": "y" * 50}})
        except OSError:
            print("told")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log({{"c": 1}})
"""


def test_a_line_cut_by_a_full_disk_does_not_swallow_the_next(tmp_path):
    """The disk takes half a line, then nothing, then has room again."""
    path = tmp_path / "trace.jsonl"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(FULL_SCRIPT).format(path=str(path))], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["told", "told"], done.stderr
    lines = path.read_text().split("\n")
    assert json.loads(lines[0]) and json.loads(lines[-2]) == {"c": 1}


@pytest.mark.parametrize("path", ["a\0b", "\ud99c", ""])
def test_a_trace_path_that_is_none(tmp_path, path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="choose another path"):
        EventLog(path)


def test_closed_log_loses_events_not_the_run(tmp_path):
    log = EventLog(tmp_path / "trace.jsonl")
    log.close()
    finished = run(["done"], sink=log)
    assert finished.status == "done" and finished["events_lost"] > 0


def test_log_scrubs_every_line(tmp_path):
    path = tmp_path / "trace.jsonl"
    with EventLog(path, scrub=lambda text: text.replace("hunter2", "[secret]")) as log:
        run([[say("hunter2"), call("look", key="hunter2")], "hunter2"], sink=log, task="hunter2")
    assert b"hunter2" not in path.read_bytes() and path.read_bytes().count(b"[secret]") >= 6
    assert lines_of(path)[-1]["type"] == "run_ended"


@pytest.mark.parametrize("status", ["done", "repeat", "truncated", "budget", "api_error", "interrupted", "sandbox_lost"])
def test_totals_folded_from_the_file_are_the_run(tmp_path, status):
    path, events = tmp_path / "trace.jsonl", []
    with EventLog(path) as log:
        sink = type("Both", (), {"append": staticmethod(lambda event: (log(event), events.append(event)))})
        finished = ENDINGS[status](sink)
    totals = Totals()
    for event in lines_of(path):
        totals.add(event)
    assert totals.as_dict() == {key: value for key, value in finished.items() if key != "events_lost"}
    assert lines_of(path) == json.loads(json.dumps(events))


def test_totals_count_each_thing_once(tmp_path):
    finished = run([[call("look", key=1), call("look", wrong=1)], [call("change", key=1)], "done"], gate=lambda name, arguments: False,
                   faults=[Fault("overloaded", at=2)], name="claude-haiku-4-5")
    usage = Usage(finished["fresh"], finished["cache_read"], finished["cache_write"], finished["output"])
    assert (finished["steps"], finished["tool_calls"], finished["tool_errors"], finished["denied"], finished["tries"]) == (3, 3, 2, 1, 4)
    assert finished["tok_in"] == usage.input and finished["tok_out"] == usage.output and finished["scripted"] is True
    assert finished["dollars"] == pytest.approx((usage.fresh + 5 * usage.output + 0.1 * usage.cache_read + 1.25 * usage.cache_write) / 1e6)


KILL_SCRIPT = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    from parts import *
    from harnesslab.loop import EventLog, Limits
    from harnesslab.tools import Tool

    def step(number: int) -> str:
        "Step."
        if number == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return "x" * 1_000

    with EventLog({path!r}) as log:
        run([[call("step", number=number)] for number in range(30)], registry(step), Limits(max_steps=99), sink=log)
"""


def test_a_killed_run_leaves_whole_lines(tmp_path):
    path = tmp_path / "trace.jsonl"
    script = textwrap.dedent(KILL_SCRIPT).format(tests=str(Path(__file__).parent), path=str(path))
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, timeout=60)
    assert done.returncode == -signal.SIGKILL
    events = lines_of(path)
    assert path.read_bytes().endswith(b"\n")
    assert [event["payload"]["content"] for event in events if event["type"] == "tool_returned"] == ["x" * 1_000] * 17
    assert [event["payload"]["arguments"] for event in events if event["type"] == "tool_called"][-1] == {"number": 17}


def test_no_events_is_an_empty_run():
    assert Totals().as_dict()["status"] == "" and Totals().as_dict()["steps"] == 0


def test_totals_take_events_that_lack_fields():
    events = []
    run([[call("look", key=1)], "done"], events=events, name="claude-haiku-4-5")
    for number, event in enumerate(events):
        for missing in [*event["payload"], "payload", "type", "time", "run"]:
            totals = Totals()
            for other, whole in enumerate(events):
                damaged = {**whole, "payload": {**whole["payload"]}}
                if other == number:
                    damaged.pop(missing, None)
                    damaged.get("payload", {}).pop(missing, None)
                totals.add(damaged)
            totals.as_dict()


def test_totals_take_events_with_odd_fields():
    events, broken = [], set()
    run([[call("look", key=1)], "done"], events=events, name="claude-haiku-4-5")
    for number, event in enumerate(events):
        for field in event["payload"]:
            for odd in (None, 5, "x", [], {}, {"fresh": "x"}, {"new": 1}):
                totals = Totals()
                try:
                    for other, whole in enumerate(events):
                        totals.add({**whole, "payload": {**whole["payload"], field: odd}} if other == number else whole)
                    totals.as_dict()
                except Exception as error:
                    broken.add((event["type"], field, type(error).__name__))
    assert broken == set()


# ------------------------------------------------------------------ prices
@given(*[st.integers(0, 10**7)] * 4)
def test_each_token_is_priced_once(fresh, read, write, output):
    usage = Usage(fresh, read, write, output)
    prices = Prices(input=2, output=10, cache_read=0.2, cache_write=2.5, long_prompt_over=1_000_000, long_factor=5)
    factor = 5 if fresh + read + write > 1_000_000 else 1
    assert prices.cost(usage) == pytest.approx(factor * (2 * fresh + 0.2 * read + 2.5 * write + 10 * output) / 1e6)
    assert usage.input == fresh + read + write and (usage + usage).output == 2 * output


# ------------------------------------------------------------------ a model that breaks
@pytest.mark.parametrize("failure", [ValueError("odd"), ModelError("no", "rate_limited", 429), RecursionError(), MemoryError("much")], ids=lambda failure: type(failure).__name__)
def test_a_model_that_raises_ends_the_run_with_a_status(failure):
    events = []
    finished = run(None, model=Mute([use("look")], failure), events=events)
    assert finished.status == getattr(failure, "status", "api_error") and finished["error"] and events[-1]["type"] == "run_ended"
    assert_goes_on(finished)


ODD_REPLIES = [Reply([{"type": "text", "text": 5}], "end_turn"), Reply([{"type": "text", "text": None}], "end_turn"), Reply(None, "end_turn"), Reply([{"text": "x"}], "end_turn"),
               Reply([{"type": "text", "text": ["x"]}, use("look")], "tool_use"), None, "text"]


@pytest.mark.parametrize("reply", ODD_REPLIES)
def test_replies_of_an_odd_shape(reply):
    asked, events = [], []

    def model(history, max_tokens, on_wait=None):
        asked.append(1)
        return reply if len(asked) == 1 else Reply([say("done")], "end_turn")
    model.facts = ModelFacts("odd")
    finished = run(None, model=model, events=events)
    assert finished.status in ("done", "api_error") and events[-1]["type"] == "run_ended"
    assert_goes_on(finished)


def test_calls_that_the_budget_forbids_are_not_made():
    model = Mute([use("look", key=1)], [use("look", key=2)], [say("done")])
    assert run(None, limits=Limits(max_steps=2), model=model).status == "max_steps" and model.asked == 2


def test_adding_a_tool_touches_no_loop_code():
    def shout(word: str, times: int = 1) -> str:
        """Say a word loudly."""
        return word.upper() * times
    finished = run([[call("shout", word="hey", times=2)], "done"], registry(shout))
    assert results_of(finished.history)[0]["content"] == "HEYHEY"


def test_deep_arguments_with_a_surrogate():
    """Deep enough for the plain encoder, too deep for the one that mends: it must not end the run with an exception."""
    value = json.loads("[" * 900 + '"\\ud99c"' + "]" * 900)
    finished = run(None, model=Mute([use("look", key=value)], [say("done")]))
    assert finished.status == "done" and finished["tool_errors"] == 1
    assert_goes_on(finished)
