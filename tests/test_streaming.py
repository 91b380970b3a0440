"""Streams under attack: cut anywhere, spoiled, slow, broken off. What comes out is the reply that would have come in one piece, or the same failure."""
import contextlib
import gzip
import io
import json
import socket
import threading
import time
import zlib
from contextlib import contextmanager, suppress

import httpx
import pytest
from hypothesis import example, given, settings, strategies as st
from parts import assert_goes_on, call, registry, run, say, spoiled

from harnesslab import providers, streaming
from harnesslab.fake_api import Fault
from harnesslab.loop import History, Limits, ModelError, ModelFacts, Retry, run_clock, run_loop
from harnesslab.providers import Model, make_client, offline
from harnesslab.scripted import canned, scripted_api
from harnesslab.streaming import BUILDERS, ChatBuilder, EventReader, MessagesBuilder, collect, print_text
from harnesslab.wires import WIRES, NotThisShape

STREAMED = list(BUILDERS)
QUICK = Retry(tries=3, first=0.005)
TOOLS = registry().definitions


# ------------------------------------------------------------------ server-sent events
def events_in(data, *cuts):
    reader, at, got = EventReader(), 0, []
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        got += reader.feed(data[at:end])
        at = end
    return [*got, *reader.end()]


LINES = st.lists(st.sampled_from(["data: x", "data:y", "data:  z", "data", ": note", "event: e", "id: 7", "retry: 9", "nonsense", "data: é\u2028\U0001f600", "", "", "dataset: no"]), max_size=12)


@settings(max_examples=200, deadline=None)
@given(lines=LINES, ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=1), cuts=st.lists(st.integers(0, 400), max_size=8))
@example(lines=["data: x", "", "data: x", ""], ends=["\r\n"], cuts=list(range(60)))
def test_events_cut_anywhere_are_the_same_events(lines, ends, cuts):
    data = "".join(line + ends[n % len(ends)] for n, line in enumerate(lines)).encode()
    assert events_in(data, *cuts) == events_in(data)


@pytest.mark.parametrize("data, events", [
    ("data: a\n\n", ["a"]), ("data: a\ndata: b\n\n", ["a\nb"]), ("data:a\r\n\r\ndata:b\r\n\r\n", ["a", "b"]), ("data: a\r\rdata: b\r\r", ["a", "b"]), (": only a note\n\n", []), ("event: ping\n\n", []),
    ("data: a", ["a"]), ("data\n\n", [""]), ("data:  two\n\n", [" two"]), ("\ufeffdata: a\n\n", ["a"]), ("", []), ("\n\n\n", []), ("data: a\n\n\n\ndata: b\n\n", ["a", "b"]), ("datax: a\n\n", [])])
def test_forms_of_events(data, events):
    assert events_in(data.encode()) == events_in(data.encode(), *range(len(data.encode()))) == events


def test_bytes_that_are_no_letters_spoil_one_event_only():
    assert events_in(b"data: \xff\xfe\n\ndata: ok\n\n")[1] == "ok"


def test_a_long_event_in_many_pieces_is_read_in_time():
    """Work that grows with the square of an event's length would take minutes here."""
    data, began = b"data: " + b"x" * 3_000_000 + b"\n\n", time.monotonic()
    reader = EventReader()
    got = [text for at in range(0, len(data), 1_000) for text in reader.feed(data[at : at + 1_000])]
    assert len(got[0]) == 3_000_000 and time.monotonic() - began < 5


# ------------------------------------------------------------------ whole replies, in pieces
VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2), max_leaves=5)
INPUTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=3)
BLOCKS = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(min_size=1, max_size=30))
    | st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "c2ln"}, st.text(max_size=20))
    | st.builds(lambda n, value: {"type": "tool_use", "id": f"toolu_{n}", "name": "look", "input": value}, st.integers(0, 99), INPUTS)
    | st.just({"type": "redacted_thinking", "data": "eA=="}), max_size=4)


def chunks(draw_size, text):
    """A text in pieces; an empty one is one empty piece."""
    size = max(1, draw_size)
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def message_events(blocks, stop, size):
    yield {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "stop_reason": None, "usage": {"input_tokens": 5, "output_tokens": 1}}}
    yield {"type": "ping"}
    for index, block in enumerate(blocks):
        kind = block["type"]
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}.get(kind, {})
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        if kind == "text":
            yield from ({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": piece}} for piece in chunks(size, block["text"]))
        if kind == "thinking":
            yield from ({"type": "content_block_delta", "index": index, "delta": {"type": "thinking_delta", "thinking": piece}} for piece in chunks(size, block["thinking"]))
            yield {"type": "content_block_delta", "index": index, "delta": {"type": "signature_delta", "signature": block["signature"]}}
        if kind == "tool_use":
            text = json.dumps(block["input"]) if block["input"] else ""
            yield from ({"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": piece}} for piece in ["", *chunks(size, text)])
        yield {"type": "something_new", "index": index}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 9}}
    yield {"type": "message_stop"}


def as_bytes(events, end="\n", done=False):
    parts = [f": note{end}{end}", *(f"event: {event.get('type', 'x')}{end}data: {json.dumps(event)}{end}{end}" for event in events)]
    return "".join(parts + ([f"data: [DONE]{end}{end}"] if done else [])).encode()


class InPieces(httpx.SyncByteStream):
    def __init__(self, data, cuts=(), fails=None):
        self.data, self.cuts, self.fails = data, cuts, fails

    def __iter__(self):
        at = 0
        for end in [*sorted(cut % (len(self.data) + 1) for cut in self.cuts), len(self.data)]:
            yield self.data[at:end]
            at = end
        if self.fails:
            raise self.fails


def response(data, cuts=(), fails=None):
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=InPieces(data, cuts, fails), request=httpx.Request("POST", "http://127.0.0.1"))


@settings(max_examples=150, deadline=None)
@given(blocks=BLOCKS, stop=st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal"]), size=st.integers(1, 9), cuts=st.lists(st.integers(0, 4_000), max_size=12), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_message_in_pieces_is_the_message(blocks, stop, size, cuts, end):
    shown = []
    whole = collect(response(as_bytes(message_events(blocks, stop, size), end), cuts), "anthropic", shown.append)
    assert whole.status_code == 200 and whole.json() == {"id": "msg_1", "type": "message", "role": "assistant", "content": blocks, "stop_reason": stop, "stop_sequence": None,
                                                         "usage": {"input_tokens": 5, "output_tokens": 9}}
    assert "".join(shown).replace("\n", "") == "".join(block.get("text", "") for block in blocks).replace("\n", "")


def chat_events(text, calls, stop, size, usage=True):
    def chunk(delta, reason=None):
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": None}
    yield chunk({"role": "assistant", "content": ""})
    yield from (chunk({"content": piece}) for piece in (chunks(size, text) if text else []))
    for index, (key, name, arguments) in enumerate(calls):
        yield chunk({"tool_calls": [{"index": index, "id": key, "type": "function", "function": {"name": name, "arguments": ""}}]})
    longest = max((len(arguments) for _, _, arguments in calls), default=0)
    for at in range(0, longest, size):  # the pieces of all calls are mixed
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + size]}} for index, (_, _, arguments) in enumerate(calls) if at < len(arguments)]})
    yield chunk({}, stop)
    if usage:
        yield {"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=30), inputs=st.lists(INPUTS, max_size=3), size=st.integers(1, 9), cuts=st.lists(st.integers(0, 4_000), max_size=12), end=st.sampled_from(["\n", "\r\n"]))
def test_a_chat_reply_in_pieces_is_the_reply(text, inputs, size, cuts, end):
    calls, shown = [(f"call_{n}", "look", json.dumps(value)) for n, value in enumerate(inputs)], []
    stop = "tool_calls" if calls else "stop"
    whole = collect(response(as_bytes(chat_events(text, calls, stop, size), end, done=True), cuts), "openai-chat", shown.append).json()
    listed = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    message = {"role": "assistant", "content": text or None} | ({"tool_calls": listed} if listed else {})
    assert whole["choices"] == [{"index": 0, "message": message, "finish_reason": stop}] and whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 9}
    assert "".join(shown).rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("wire", STREAMED)
def test_a_stream_that_ends_anywhere_is_whole_or_broken(wire):
    events = message_events([say("Good day é."), {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": {}}}], "tool_use", 4) if wire == "anthropic" else \
        chat_events("Good day é.", [("call_1", "look", '{"a": {}}')], "tool_calls", 4)
    data = as_bytes(events, done=wire == "openai-chat")
    whole, broken = collect(response(data), wire).json(), 0
    for end in range(len(data)):
        try:
            assert collect(response(data[:end]), wire).json() == whole
        except httpx.RemoteProtocolError:
            broken += 1
    assert broken > len(data) * 0.9


@pytest.mark.parametrize("wire", STREAMED)
@settings(max_examples=150, deadline=None)
@given(events=st.lists(st.dictionaries(st.sampled_from(["type", "index", "delta", "message", "content_block", "choices", "usage", "error"]), VALUES | st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", {"type": "text_delta", "text": 5}, [{"delta": {"tool_calls": [{"index": {}}]}}]]), max_size=4), max_size=5))
def test_whatever_is_streamed_is_a_reply_or_a_broken_connection(wire, events):
    try:
        collect(response(as_bytes(events)), wire)
    except httpx.RemoteProtocolError:
        pass


ALL = {"anthropic": list(message_events([{"type": "thinking", "thinking": "abc", "signature": "xyz"}, {"type": "text", "text": "Good day", "citations": None}, {"type": "tool_use", "id": "a", "name": "look", "input": {"n": 1}}], "tool_use", 4)),
       "openai-chat": [*chat_events("Good", [("a", "look", '{"n":1}')], "tool_calls", 4)]}


@pytest.mark.parametrize("wire", STREAMED)
def test_a_good_stream_with_one_odd_part_is_a_reply_or_a_broken_connection(wire):
    for events in spoiled(ALL[wire], odd=(None, True, 0, -1, 1.5, "", "x", "\ud83d", [], [None], ["x"], {}, {"a": 1})):
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if wire == "openai-chat" else "")
        with contextlib.suppress(httpx.RemoteProtocolError):
            raw = collect(response(data.encode()), wire, lambda text: text.encode("utf-8", "replace")).json()
            with contextlib.suppress(NotThisShape):
                history = History("x")
                history.add_reply(WIRES[wire].answer(raw))


@pytest.mark.parametrize("wire", STREAMED)
@pytest.mark.parametrize("more", [b'data: {"error": {"message": "too late"}, "type": "error"}\n\n', b"data: nonsense\n\n", b"data: [DONE]\n\n", b"data: half", b'data: {"choices": [{"delta": {"content": "more"}}]}\n\n', b"\x00\xff"])
def test_what_comes_after_the_end_is_not_looked_at(wire, more):
    data = as_bytes(ALL[wire], done=wire == "openai-chat")
    whole = collect(response(data), wire)
    for cuts in ((), (len(data),), tuple(range(len(data) + len(more)))):
        after = collect(response(data + more, cuts), wire)
        assert (after.status_code, after.json()) == (200, whole.json())


def test_a_line_that_stays_open_after_the_end_holds_up_nobody():
    with raw_server(WHOLE, pause=0.05, repeat=b": still here\n\n") as (url, taken):
        began = time.monotonic()
        assert run(None, limits=Limits(wall_seconds=20), model=streaming_model(url, [])).answer == "Good day." and time.monotonic() - began < 5


@pytest.mark.parametrize("wire", STREAMED)
def test_signs_of_life_are_no_events(wire):
    data = as_bytes(ALL[wire], done=wire == "openai-chat")
    assert collect(response(b"data:\n\ndata\n\ndata:  \n\n" + data), wire).json() == collect(response(data), wire).json()


@pytest.mark.parametrize("wire", STREAMED)
def test_a_stream_with_nothing_but_its_end_is_no_reply(wire):
    with pytest.raises(httpx.RemoteProtocolError, match="before the reply was whole"):
        collect(response(b"data: [DONE]\n\n"), wire)


def test_a_count_that_is_null_at_the_end_is_the_count_of_the_beginning():
    events = [{**event, "usage": {"input_tokens": None, "output_tokens": 9}} if event["type"] == "message_delta" else event for event in ALL["anthropic"]]
    assert collect(response(as_bytes(events)), "anthropic").json()["usage"] == {"input_tokens": 5, "output_tokens": 9}


# ------------------------------------------------------------------ too much
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("packing", ["", "gzip", "deflate", "gzip, gzip", "br", "x"])
def test_no_answer_fills_the_memory(stream, packing, monkeypatch):
    """A body without end, and a small one that unpacks to a large one: given up at the limit, once, and said in one sentence."""
    monkeypatch.setattr(streaming, "LARGEST_REPLY", 3_000_000)
    body, asked = b'data: {"a":"' + b"x" * 5_000_000, []
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "gzip, gzip": lambda data: gzip.compress(gzip.compress(data))}.get(packing, bytes)(body)

    def serve(request):
        asked.append(request.headers["accept-encoding"])
        return httpx.Response(200, headers={"content-type": "text/event-stream"} | ({"content-encoding": packing} if packing else {}), stream=InPieces(packed, range(0, len(packed), 65_536)))
    model = Model(ModelFacts("m"), make_client(httpx.MockTransport(serve)), "http://127.0.0.1", retry=QUICK, stream=stream, on_text=lambda text: None)
    finished = run(None, model=model)
    assert finished.status == "api_error" and asked == ["gzip, deflate"]
    assert ("more than 3 MB" if packing in ("", "gzip", "deflate") else "packed in a strange way") in finished["error"]


def test_an_answer_as_large_as_allowed_is_taken(monkeypatch):
    body = json.dumps({"content": [say("hi " * 1_000)], "stop_reason": "end_turn", "usage": {}}).encode()
    for limit, status in ((len(body), "done"), (len(body) - 1, "api_error")):
        monkeypatch.setattr(streaming, "LARGEST_REPLY", limit)
        client = make_client(httpx.MockTransport(lambda request: httpx.Response(200, content=body)))
        assert run(None, model=Model(ModelFacts("m"), client, "http://127.0.0.1")).status == status


# ------------------------------------------------------------------ arguments
def built(*pieces, stop="tool_use"):
    builder = MessagesBuilder()
    builder.add({"type": "message_start", "message": {"usage": {}}})
    builder.add({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "look", "input": {}}})
    for piece in pieces:
        builder.add({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}})
        assert builder._blocks[-1]["input"] == {}  # half a text may be valid JSON, and mean something else
    builder.add({"type": "content_block_stop", "index": 0})
    builder.add({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {}})
    builder.add({"type": "message_stop"})
    return builder.reply()["content"][0]["input"]


def started(index, block):
    return {"type": "content_block_start", **({} if index is None else {"index": index}), "content_block": block}


def delta(index, **piece):
    return {"type": "content_block_delta", **({} if index is None else {"index": index}), "delta": piece}


def message(*events):
    """The content of the message that has these events in it."""
    whole = list(message_events([], "tool_use", 9))
    builder = MessagesBuilder()
    shown = "".join([builder.add(event) for event in [*whole[:2], *events, *whole[2:]]])
    return builder.reply()["content"], shown


CALL = {"type": "tool_use", "id": "a", "name": "look", "input": {}}


@settings(max_examples=80, deadline=None)
@given(blocks=BLOCKS, index=st.sampled_from([0, 1, None, "x"]), stops=st.booleans())
def test_blocks_that_share_a_number_are_all_kept(blocks, index, stops):
    events = [{**event, "index": index} for event in message_events(blocks, "tool_use", 9) if "index" in event]
    assert message(*(event for event in events if stops or event["type"] != "content_block_stop"))[0] == blocks


def test_arguments_that_came_with_the_start_stay_when_nothing_follows():
    given_ones = {**CALL, "input": {"key": "important"}}
    nothing = delta(0, type="input_json_delta", partial_json="")
    assert message(started(0, given_ones), nothing)[0] == message(started(0, given_ones))[0] == [given_ones]
    assert message(started(0, given_ones), nothing, delta(0, type="input_json_delta", partial_json='{"key":1}'))[0] == [{**CALL, "input": {"key": 1}}]
    bare = {key: value for key, value in CALL.items() if key != "input"}
    assert message(started(0, bare), nothing)[0] == [CALL]


def test_a_piece_of_the_wrong_kind_is_passed_over():
    pieces = [delta(0, type="text_delta", text="lost"), delta(0, type="thinking_delta", thinking="x"), delta(0, type="citations_delta", citation={}), delta(0, type="new_delta")]
    assert message(started(0, CALL), *pieces) == ([CALL], "")
    said = {"type": "text", "text": ""}
    assert message(started(0, said), delta(0, type="input_json_delta", partial_json="{}"), delta(0, type="signature_delta", signature="x"), delta(0, type="text_delta", text="hi"),
                   delta(0, type="citations_delta", citation={"n": 1})) == ([{"type": "text", "text": "hi", "citations": [{"n": 1}]}], "hi")


def test_arguments_are_parsed_when_their_block_ends():
    assert built("", '{"n": 1', "2}") == {"n": 12} and built() == built("") == {}
    assert built('{"n": NaN}') == {"n": "NaN"} and built('{"n": ') == '{"n": ' and built('{"n": ', stop="max_tokens") == {}
    assert built("9" * 5_000) == "9" * 5_000


def test_arguments_that_are_no_json_fail_like_any_others():
    bodies = iter([as_bytes([*list(message_events([{"type": "tool_use", "id": "a", "name": "look", "input": {}}], "tool_use", 9))[:3],
                             {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"key": '}},
                             *list(message_events([{"type": "tool_use", "id": "a", "name": "look", "input": {}}], "tool_use", 9))[-4:]]), as_bytes(message_events([say("Sorry.")], "end_turn", 9))])
    client = make_client(httpx.MockTransport(lambda request: response(next(bodies))))
    finished = run_loop(History("x", "", TOOLS), Model(ModelFacts("m"), client, "http://127.0.0.1", stream=True, on_text=lambda text: None), registry())
    assert finished.status == "done" and finished["tool_errors"] == 1


# ------------------------------------------------------------------ the habits of chat servers
def chat(*deltas, reason="tool_calls", done=True):
    builder = ChatBuilder()
    for delta in deltas:
        builder.add({"choices": [{"index": 0, "delta": delta}]})
    builder.add({"choices": [{"delta": {}, "finish_reason": reason}]})
    builder.done = done
    return builder.reply()["choices"][0]["message"]


def piece(arguments, **more):
    return {"tool_calls": [{**{key: value for key, value in more.items() if key != "name"}, "function": {"arguments": arguments, **({"name": more["name"]} if "name" in more else {})}}]}


@pytest.mark.parametrize("deltas", [
    [piece('{"a"', index=0, id="x", name="look"), piece(":1}", index=0), piece("{}", index=1, id="y", name="change")],
    [piece('{"a"', index=0, id="x", name="look"), piece(":1}", index=0, id="x", name="look"), piece("{}", index=1, id="y", name="change")],  # id and name with every piece
    [piece('{"a":1}', index=0, id="x", name="look"), piece("{}", index=0, id="y", name="change")],  # one index for all
    [piece('{"a"', id="x", name="look"), piece(":1}"), piece("{}", id="y", name="change")],  # no index at all
    [piece('{"a"', index=1, id="x", name="look"), piece(":1}", index=1), piece("{}", index=2, id="y", name="change")]])  # not from 0
def test_each_server_counts_calls_in_its_own_way(deltas):
    assert [(c["id"], c["function"]) for c in chat(*deltas)["tool_calls"]] == [("x", {"name": "look", "arguments": '{"a":1}'}), ("y", {"name": "change", "arguments": "{}"})]


def test_arguments_as_an_object_extra_fields_and_reasoning():
    message = chat({"reasoning_content": "Let "}, {"reasoning_content": "me see."}, {"reasoning_details": [{"a": 1}]}, {"reasoning_details": [{"b": 2}]},
                   piece({"a": 1}, index=0, id="x", name="look", extra_content={"google": 1}))
    assert message["reasoning_content"] == "Let me see." and message["reasoning_details"] == [{"a": 1}, {"b": 2}]
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1} and message["tool_calls"][0]["extra_content"] == {"google": 1}


def whole_message(*choices):
    builder = ChatBuilder()
    shown = "".join(builder.add({"choices": [choice]}) for choice in choices)
    builder.done = True
    return builder.reply()["choices"][0]["message"], shown


def test_a_message_in_place_of_deltas_is_the_message_and_after_them_a_repetition():
    said = {"role": "assistant", "content": "The answer is 4.", "tool_calls": [{"id": "a", "function": {"name": "look", "arguments": "{}"}}]}
    got, shown = whole_message({"delta": {"role": "assistant", "content": ""}}, {"message": said, "finish_reason": "stop"})
    assert shown == got["content"] == said["content"] and [call["id"] for call in got["tool_calls"]] == ["a"]
    got, shown = whole_message({"delta": {"content": "The answer "}}, {"delta": {"content": "is 4."}}, {"delta": {}, "message": said, "finish_reason": "stop"})
    assert shown == got["content"] == said["content"] and "tool_calls" not in got


def test_a_chat_stream_is_whole_with_its_last_line_or_its_counts():
    builder = ChatBuilder()
    builder.add({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]})
    assert builder.reply() is None
    builder.add({"choices": [], "usage": {"prompt_tokens": 1}})
    assert builder.reply()["usage"] == {"prompt_tokens": 1}


# ------------------------------------------------------------------ the loop does not notice
def trace_of(stream, script, wire, **options):
    events, limits, shown = [], options.pop("limits", Limits(max_tokens=1_000)), []
    model = offline(script, wire=wire, stream=stream, on_text=shown.append, retry=Retry(tries=3, first=0.001), **options)
    finished = run_loop(History("The task.", "Be brief.", TOOLS), model, registry(), limits, sink=events.append)
    for event in events:
        event.pop("time"), event.pop("run")
        for key in ("seconds", "waits"):
            event["payload"].pop(key, None)
    return events, finished, "".join(shown)


SCRIPT = [[{"type": "thinking", "thinking": "Hm."}, say("I look é."), call("look", key="\U0001f600"), call("nobody", a=[1, {}])], [call("change", key=1)], [say("Done.")], [say("Again.")]]
CASES = {"plain": {}, "overloaded": dict(faults=[Fault("overloaded", at=2)]), "rate": dict(faults=[Fault("rate_limit", at=1, retry_after=0.01)]), "dropped": dict(faults=[Fault("drop", at=2)]),
         "cut reply": dict(faults=[Fault("cut", at=1)]), "refusal": dict(faults=[Fault("refusal", at=2)]), "empty": dict(faults=[Fault("empty", at=2)]), "dead": dict(faults=[Fault("server_error", times=99)]),
         "html": dict(faults=[Fault("html")]), "nothing": dict(faults=[Fault("empty_body", at=1)]), "steps": dict(limits=Limits(max_steps=2))}


@pytest.mark.parametrize("wire", STREAMED)
@pytest.mark.parametrize("case", CASES)
def test_the_trace_is_the_same_with_and_without(wire, case):
    options = CASES[case]
    (plain, one, silent), (streamed, two, shown) = (trace_of(stream, SCRIPT, wire, **dict(options)) for stream in (False, True))
    assert streamed == plain and one.status == two.status and not silent
    assert ("I look é." in shown) == any("I look" in json.dumps(event["payload"].get("content", "")) for event in plain)


@pytest.mark.parametrize("wire", STREAMED)
def test_an_error_in_a_stream_is_the_error_without_one(wire):
    """Both are retried in the same way, and told in the same words when it does not help."""
    ends = {}
    for stream, kind in ((False, "overloaded"), (True, "stream_error")):
        events, finished, shown = trace_of(stream, SCRIPT, wire, faults=[Fault(kind, at=2, times=2)])
        waits = [event["payload"]["try"] for event in events if event["type"] == "model_waited"]
        ends[kind] = finished.status, finished["tries"], waits
        events, finished, shown = trace_of(stream, SCRIPT, wire, faults=[Fault(kind, times=99)])
        ends[kind] += finished.status, finished["tries"], finished["error"].partition("(")[0]
    assert ends["overloaded"] == ends["stream_error"] and "overloaded" in ends["stream_error"][-1]


@pytest.mark.parametrize("error, tries, status, word", [
    ({"type": "overloaded_error", "message": "Overloaded"}, 3, "api_error", "try again later"), ({"type": "rate_limit_error", "message": "slow"}, 3, "rate_limited", "fewer"),
    ({"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}, 1, "context_full", "larger window"), ({"type": "api_error", "message": "?"}, 3, "api_error", "later"),
    ({"code": 502, "message": "upstream"}, 3, "api_error", "later"), ({"code": "400", "message": "bad"}, 1, "api_error", "second time"), ({"type": "insufficient_quota", "message": "pay"}, 1, "rate_limited", "credit"), ("just words", 3, "api_error", "just words")])
@pytest.mark.parametrize("wire", STREAMED)
def test_errors_in_a_stream_have_a_status(wire, error, tries, status, word):
    events = [*list(message_events([say("He")], "end_turn", 9))[:4], {"type": "error", "error": error}] if wire == "anthropic" else [*list(chat_events("He", [], "stop", 9))[:2], {"error": error}]
    client = make_client(httpx.MockTransport(lambda request: response(as_bytes(events))))
    shown = []
    finished = run_loop(History("x", "", TOOLS), Model(ModelFacts("m"), client, "http://127.0.0.1", wire=WIRES[wire], retry=QUICK, stream=True, on_text=shown.append), registry())
    assert finished.status == status and word in finished["error"] and shown.count("He") == tries
    assert all("broke off here" in text for text in shown if text != "He")
    assert_goes_on(finished)


def streamed_once(wire, data, kind="text/event-stream"):
    """(how a run with this one answer ends, how often it was asked for)"""
    asked = []

    def answer(request):
        asked.append(request)
        return httpx.Response(200, headers={"content-type": kind}, content=data)
    client = make_client(httpx.MockTransport(answer))
    model = Model(ModelFacts("m"), client, "http://127.0.0.1", "a-good-key-0123", wire=WIRES[wire], retry=QUICK, stream=True, on_text=lambda text: None)
    return run_loop(History("x", "", TOOLS), model, registry()), len(asked)


@pytest.mark.parametrize("wire", STREAMED)
@pytest.mark.parametrize("error, tries, status, word", [
    ({"object": "error", "message": "maximum context length is 9", "type": "BadRequestError", "param": None, "code": 400}, 1, "context_full", "maximum context length"),
    ({"type": "overloaded_error", "message": "Too busy"}, 3, "api_error", "Too busy"), ({"message": "not with that key", "code": "401"}, 1, "api_error", "not with that key"), ({"type": "error"}, 3, "api_error", "without words")])
def test_an_error_with_nothing_around_it_is_an_error(wire, error, tries, status, word):
    """As an event, and as the whole body of what calls itself a stream."""
    for data in (f"event: error\ndata: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode(), json.dumps(error).encode(), b"\xef\xbb\xbf" + json.dumps(error, indent=1).encode()):
        finished, asked = streamed_once(wire, data)
        assert (finished.status, asked) == (status, tries) and word in finished["error"], finished["error"]


def test_a_reply_that_calls_itself_a_stream_is_a_reply():
    body = {"content": [say("hi")], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
    assert streamed_once("anthropic", json.dumps(body).encode())[0]["answer"] == "hi"
    wrong_key = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
    finished, asked = streamed_once("anthropic", json.dumps(wrong_key).encode())
    assert asked == 1 and "The key was not accepted" in finished["error"]
    for data in (json.dumps(body).encode()[:-1], b"[1]", b"", b"{" * 9_000, b'{"a": 1}\ndata: x\n\n'):
        assert "broke" in streamed_once("anthropic", data)[0]["error"]


def test_a_server_that_does_not_stream_is_fine():
    body = {"content": [say("hi")], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
    client = make_client(httpx.MockTransport(lambda request: httpx.Response(200, json=body)))
    assert Model(ModelFacts("m"), client, "http://127.0.0.1", stream=True)(History("x"), 10).text == "hi"


@pytest.mark.parametrize("wire", STREAMED)
def test_a_refused_request_is_told_without_a_stream(wire):
    api = type(scripted_api(wire=wire))(lambda body: [say("hi")], keys={"another-key-0123"})
    model = Model(ModelFacts("scripted-general"), make_client(api.transport()), "http://127.0.0.1", "wrong-key-0123", wire=WIRES[wire], stream=True)
    finished = run(None, model=model)
    assert "401" in finished["error"] and len(api.requests) == 1


def test_the_switch_is_not_counted_and_the_body_only_grows():
    api = type(scripted_api())(canned(SCRIPT))
    model = Model(ModelFacts("scripted-general"), make_client(api.transport()), "http://127.0.0.1", "key", stream=True, on_text=lambda text: None)
    run(None, model=model)
    bodies = [received.body for received in api.requests]
    assert all(later.startswith(earlier[:-2]) for earlier, later in zip(bodies, bodies[1:])) and all(body.startswith(b'{"stream":true,') for body in bodies)


def test_what_goes_wrong_while_showing_spoils_nothing():
    def fails(text):
        raise OSError("the terminal is gone")
    assert offline(SCRIPT[2:], stream=True, on_text=fails)(History("x"), 100).text == "Done."


def test_ctrl_c_while_showing_stops_the_run():
    def stops(text):
        raise KeyboardInterrupt
    finished = run(None, model=offline(SCRIPT[2:], stream=True, on_text=stops))
    assert finished.status == "interrupted"


@pytest.mark.parametrize("wire", ["openai", "gemini"])
def test_a_wire_that_is_not_streamed_says_so(wire):
    with pytest.raises(ValueError, match="cannot be streamed"):
        offline(SCRIPT, wire=wire, stream=True)


# ------------------------------------------------------------------ real connections
def read_request(connection):
    """All of a request: whoever shuts a connection with something unread in it spoils what he has sent."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(1 << 16)


@contextmanager
def raw_server(*answers, pause=0.0, repeat=b""):
    """Each connection gets the next of these answers, then `repeat` every `pause` seconds for as long as it stays, and is shut."""
    stopping, taken = threading.Event(), []

    def serve(connection, data):
        with connection:
            read_request(connection)
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + data)
                while repeat and not stopping.wait(pause):
                    connection.sendall(repeat)
            except OSError:
                pass

    def listen():
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            taken.append(1)
            threading.Thread(target=serve, args=(connection, answers[min(len(taken), len(answers)) - 1]), daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", taken
        stopping.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the next connection


def streaming_model(url, shown, retry=QUICK):
    return Model(ModelFacts("m"), make_client(), url, "key", retry=retry, stream=True, on_text=shown.append)


WHOLE = as_bytes(message_events([say("Good day.")], "end_turn", 4))


def test_a_connection_that_breaks_in_the_stream_is_tried_again():
    half = WHOLE[: WHOLE.index(b'"ood "') + 20] if b'"ood "' in WHOLE else WHOLE[: len(WHOLE) * 2 // 3]
    shown = []
    with raw_server(half, WHOLE) as (url, taken):
        finished = run(None, model=streaming_model(url, shown))
    assert (finished.status, finished.answer, finished["tries"], len(taken)) == ("done", "Good day.", 2, 2)
    text = "".join(shown)
    assert text.index("Good") < text.index("broke off here") < text.rindex("Good day.")


@pytest.mark.parametrize("trickle", [b": ping\n\n", b'data: {"type": "ping"}\n\n', b"x", b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"o"}}\n\n'])
def test_a_trickle_does_not_outlast_the_run(trickle):
    start = as_bytes(list(message_events([say("x")], "end_turn", 4))[:3])
    with raw_server(start, pause=0.02, repeat=trickle) as (url, taken):
        began = time.monotonic()
        finished = run(None, limits=Limits(wall_seconds=0.6), model=streaming_model(url, []))
        assert finished.status == "wall_clock" and time.monotonic() - began < 3 and len(taken) == 1
    assert_goes_on(finished)


def test_a_trickle_ends_also_outside_a_run(monkeypatch):
    """Each try has a limit of its own, so a server that is never quite silent is left in the end."""
    monkeypatch.setattr(providers, "LONGEST_CALL", 0.3)
    with raw_server(b"", pause=0.02, repeat=b": ping\n\n") as (url, taken):
        began = time.monotonic()
        with pytest.raises(ModelError, match="did not answer in time"):
            streaming_model(url, [])(History("x"), 10)
        assert len(taken) == 3 and time.monotonic() - began < 5


def test_stop_cuts_into_a_stream():
    cancel = threading.Event()
    with raw_server(b"", pause=0.02, repeat=b": ping\n\n") as (url, _):
        threading.Timer(0.3, cancel.set).start()
        began = time.monotonic()
        assert run(None, model=streaming_model(url, []), cancel=cancel).status == "interrupted" and time.monotonic() - began < 3


@pytest.mark.parametrize("wire", STREAMED)
@pytest.mark.parametrize("kind", ["drop_body", "slow", "hang"])
def test_faults_of_a_stream_over_a_real_connection(wire, kind):
    api = type(scripted_api(wire=wire))(canned([[say("hi")]] * 3), faults=[Fault(kind, seconds=0.3)])
    with api.serve() as server:
        model = Model(ModelFacts("scripted-general"), make_client(), server.url, "a-good-key-0123", wire=WIRES[wire], retry=QUICK, stream=True, on_text=lambda text: None)
        finished = run(None, model=model)
        assert (finished.status, finished.answer) == ("done", "hi") and len(api.requests) == (1 if kind == "slow" else 2)
        model.close()


def test_the_text_comes_while_the_reply_is_being_written():
    times = []
    pieces = as_bytes(list(message_events([say("abcdefghijkl")], "end_turn", 4)))
    head, tail = pieces[: pieces.index(b"efgh") + 40], pieces[pieces.index(b"efgh") + 40 :]
    go = threading.Event()

    def serve(connection):
        with connection:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + head)
            go.wait(10)
            connection.sendall(tail)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: serve(listener.accept()[0]), daemon=True).start()

        def on_text(text):
            times.append(text)
            go.set()  # the rest is sent only after the first piece was shown
        with run_clock(20):
            reply = Model(ModelFacts("m"), make_client(), f"http://127.0.0.1:{listener.getsockname()[1]}", "key", stream=True, on_text=on_text)(History("x"), 10)
    assert reply.text == "abcdefghijkl" and times[:2] == ["abcd", "efgh"]


# ------------------------------------------------------------------ showing
@given(st.text(max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_what_is_printed_cannot_steer_a_terminal(text, cuts):
    import contextlib
    import io
    text, out, at = "a\x1b[31m\x07\x9b" + text, io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        for end in [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]:
            print_text(text[at:end])
            at = end
    assert not any(ord(letter) < 32 and letter not in "\n\t" or 127 <= ord(letter) < 160 for letter in out.getvalue()) and "\\x1b[31m" in out.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_letters_that_a_terminal_does_not_know_stop_nothing(encoding):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with contextlib.redirect_stdout(out):
        for text in ("caf\u00e9 \ud83d", " \U0001f600 and on"):
            print_text(text)
    assert out.buffer.getvalue().endswith(b" and on")
