"""Four translators: what goes out is taken by the strict APIs, what comes back is whole, and nothing is written twice."""
import functools
import gc
import itertools
import json
import random
import re

import httpx
import pytest
from hypothesis import given, settings, strategies as st
from parts import registry, results_of, spoiled

from harnesslab import wires
from harnesslab.api_rules import sign
from harnesslab.fake_api import Fault
from harnesslab.loop import History, Limits, ModelFacts, Prices, Retry, Usage, UsageError, result_block, run_loop
from harnesslab.providers import Model, make_client, offline
from harnesslab.scripted import call, canned, say, scripted_api
from harnesslab.traces import requests as rebuilt
from harnesslab.wires import SERVER_CHAT, WIRES, Answer, NotThisShape, Pairs, request_body

LIST = {"anthropic": "messages", "openai": "input", "openai-chat": "messages", "gemini": "contents"}
NAMES = list(WIRES)
TOOLS = registry().definitions


def body_of(name, history, model="scripted-general", **request):
    return json.loads(request_body(WIRES[name], history, model, 1_000, request))


# ------------------------------------------------------------------ replies in the shape of each provider
NUMBERS = itertools.count()


def reply(name, *calls, text="", thought="", stop=None):
    """A reply with these calls, each (id, name, arguments as a string); ids and arguments may be anything."""
    unique = next(NUMBERS)
    if name == "anthropic":
        content = [{"type": "thinking", "thinking": thought, "signature": sign(thought)}] if thought else []
        content += [{"type": "text", "text": text}] if text else []
        content += [{"type": "tool_use", "id": i, "name": n, "input": wires._parse(a)} for i, n, a in calls]
        return {"content": content, "stop_reason": stop or ("tool_use" if calls else "end_turn"), "usage": {"input_tokens": 1, "output_tokens": 1}}
    if name == "openai-chat":
        listed = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
        message = {"role": "assistant", "content": text or None} | ({"tool_calls": listed} if listed else {})
        message |= {"reasoning_content": thought} if thought == "shown" else {}
        return {"choices": [{"index": 0, "message": message, "finish_reason": stop or ("tool_calls" if calls else "stop")}], "usage": None}
    if name == "openai":
        output = [{"type": "reasoning", "id": f"rs_{unique}", "summary": [], "encrypted_content": "b3BhcXVl"}] if thought and (calls or text) else []
        said = {"type": "message", "id": f"msg_{unique}", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}
        output += [said] if text else []
        output += [{"type": "function_call", "id": f"fc_{unique}_{k}", "call_id": i, "name": n, "arguments": a, "status": "completed"} for k, (i, n, a) in enumerate(calls)]
        return {"output": output, "status": stop or "completed", "usage": None}
    parts = [{"text": text}] if text else []
    for i, n, a in calls:
        args = wires._parse(a)
        inner = {"name": n, "args": args if isinstance(args, dict) else {}} | ({"id": i} if i else {})
        parts.append({"functionCall": inner} | ({} if any("thoughtSignature" in part for part in parts) else {"thoughtSignature": "b3BhcXVl"}))
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": stop or "STOP"}]}


def converse(name, *replies, task="The task.", history=None):
    """A history over this wire: each reply, and a result for each of its calls, every second one failed."""
    history = history or History(task, "Be brief.", TOOLS)
    for raw in replies:
        calls = history.add_reply(WIRES[name].answer(raw))
        history.add_results([result_block(call.id, f"result {n}", bool(n % 2)) for n, call in enumerate(calls)])
        if history.messages[-1]["role"] == "assistant":
            history.add_user("And then?")
    return history


@functools.cache
def strict(name):
    """A client of the strict API that speaks this wire, and what it would answer."""
    api = type(scripted_api(wire=name))(lambda body: [say("fine")])
    return make_client(api.transport())


def taken(name, history):
    """The strict API takes the next request over this wire."""
    if history.messages[-1]["role"] == "assistant":
        history.add_user("Go on.")
    wire = WIRES[name]
    body = request_body(wire, history, "scripted-general", 1_000, {})
    response = strict(name).post(wire.url("http://strict", "scripted-general"), content=body, headers=wire.headers("a-good-key-0123"))
    assert response.status_code == 200, (response.text, json.loads(body)[LIST[name]])
    return json.loads(body)


# ------------------------------------------------------------------ any conversation, any wire
IDS = st.sampled_from(["call_0", "call_1", "a:b|c", "x" * 40, "é", "y" * 30]) | st.text("abc_-", min_size=1, max_size=8)
ARGUMENTS = st.sampled_from(['{"key":1}', '{"key": 1.0}', '{ "key" : [1, {"a": null}] }', "{}", '{"key": ', "[1]", "null", "nothing", '"text"', '{"key":"\\ud83d\\ude00é"}'])
CALLS = st.lists(st.tuples(IDS, st.sampled_from(["look", "change", "nobody"]), ARGUMENTS), max_size=4)
TURNS = st.lists(st.tuples(CALLS, st.sampled_from(["", "Some words.", "é \u2028 \U0001f600"]), st.sampled_from(["", "shown"])), min_size=1, max_size=5)


def distinct(calls):
    """Within one reply a provider gives each call another id; over several it may repeat itself."""
    seen = {}
    return tuple(seen.setdefault(i, (i, n, a)) for i, n, a in calls if i not in seen)


def allowed(name, thought):
    """The strict Chat API shows no reasoning, and takes none."""
    return "" if name == "openai-chat" else thought


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(turns=TURNS)
def test_any_conversation_is_taken_and_only_grows(name, turns):
    history, before = History("The task.", "Be brief.", TOOLS), b""
    for calls, text, thought in turns:
        body = request_body(WIRES[name], history, "scripted-general", 1_000, {})
        assert body.startswith(before)
        before = body[:-2]
        converse(name, reply(name, *distinct(calls), text=text, thought=allowed(name, thought)), history=history)
    taken(name, history)
    assert request_body(WIRES[name], history, "scripted-general", 1_000, {}).startswith(before)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(turns=TURNS, other=st.sampled_from(NAMES))
def test_a_conversation_goes_on_over_another_wire(name, turns, other):
    history = converse(name, *(reply(name, *distinct(calls), text=text, thought=allowed(name, thought)) for calls, text, thought in turns))
    body = taken(other, history)
    assert "theirs" not in json.dumps(body)
    again = converse(other, reply(other, ("call_0", "look", '{"key":2}'), text="More."), history=history)
    taken(name, again), taken(other, again)


@pytest.mark.parametrize("name", ["openai", "openai-chat", "gemini"])
def test_what_the_provider_needs_goes_back_as_it_came(name):
    raw = reply(name, ("a:1", "look", '{ "key": 1.50 }'), ("b|2", "change", '{"key": '), text="Words.", thought="shown")
    history = converse(name, raw)
    items = body_of(name, history)[LIST[name]]
    if name == "openai":
        assert items[1 : 1 + len(raw["output"])] == raw["output"]
        assert [item["call_id"] for item in items[-2:]] == ["a:1", "b|2"]
    elif name == "gemini":
        assert items[1]["parts"] == raw["candidates"][0]["content"]["parts"]
        assert [part["functionResponse"]["id"] for part in items[2]["parts"]] == ["a:1", "b|2"]
    else:
        assert items[2] == raw["choices"][0]["message"]
        assert [item["tool_call_id"] for item in items[3:]] == ["a:1", "b|2"]


def test_anthropic_content_goes_back_untouched():
    raw = {"content": [{"type": "thinking", "thinking": "", "signature": "c2ln"}, {"type": "redacted_thinking", "data": "eA=="},
                       {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}, "caller": {"type": "direct"}}], "stop_reason": "tool_use"}
    assert body_of("anthropic", converse("anthropic", raw))["messages"][1]["content"] == raw["content"]


def test_only_what_cannot_be_rebuilt_is_carried():
    [block] = WIRES["openai-chat"].answer(reply("openai-chat", ("call_1", "look", '{"key":1}'))).content
    assert block == {"type": "tool_use", "id": "call_1", "name": "look", "input": {"key": 1}}
    [block] = WIRES["openai-chat"].answer(reply("openai-chat", ("call_1", "look", '{"key": 1}'))).content
    assert block["theirs"]["item"]["function"]["arguments"] == '{"key": 1}'
    assert WIRES["gemini"].answer(reply("gemini", text="Hi.")).content == [{"type": "text", "text": "Hi."}]


# ------------------------------------------------------------------ arguments and names
@pytest.mark.parametrize("name", ["openai", "openai-chat"])
@pytest.mark.parametrize("arguments", ['{"key": 1', "nothing", "[1, 2]", "null", "9" * 5_000, "[" * 100_000])
def test_arguments_that_are_no_object_fail_and_go_back(name, arguments):
    answers = iter([reply(name, ("call_1", "look", arguments), ("call_2", "look", '{"key":2}')), reply(name, text="Sorry.")])
    sent = []

    def serve(request):
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=next(answers))
    model = Model(ModelFacts("m"), make_client(httpx.MockTransport(serve)), "http://127.0.0.1", wire=WIRES[name])
    finished = run_loop(History("x", "", TOOLS), model, registry())
    first, second = results_of(finished.history)
    assert (finished.status, first["is_error"], second["is_error"]) == ("done", True, False) and "not a JSON object" in first["content"]
    [item, *_] = [item for item in sent[1][LIST[name]] if item.get("tool_calls") or item.get("type") == "function_call"]
    assert (item["tool_calls"][0]["function"] if "tool_calls" in item else item)["arguments"] == arguments


@pytest.mark.parametrize("given", ["", "  ", None])
def test_no_arguments_are_an_empty_object(given):
    assert WIRES["openai-chat"].answer(reply("openai-chat", ("call_1", "look", given))).content[0]["input"] == {}
    assert WIRES["gemini"].answer({"candidates": [{"content": {"parts": [{"functionCall": {"name": "look"}}]}}]}).content[0]["input"] == {}


def test_arguments_that_came_as_an_object_go_back_as_a_string():
    history = converse("openai-chat", reply("openai-chat", ("call_1", "look", {"key": 1})))
    assert history.messages[1]["content"][0]["input"] == {"key": 1}
    assert body_of("openai-chat", history)["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"key":1}'


@pytest.mark.parametrize("name", ["openai", "openai-chat", "gemini"])
@pytest.mark.parametrize("missing", [None, ""])
def test_calls_without_an_id_get_one(name, missing):
    history = converse(name, *(reply(name, (missing, "look", '{"key":1}'), (missing, "look", '{"key":2}')) for _ in range(2)))
    ids = [block["tool_use_id"] for block in results_of(history)]
    assert len(set(ids)) == 4 and all(ids)
    if name == "gemini":  # what came without an id goes back without one
        assert "id" not in json.dumps([part for turn in body_of(name, history)["contents"] for part in turn["parts"]])
    taken(name, history)


def test_an_id_that_comes_again_and_again():
    history = converse("openai-chat", *(reply("openai-chat", ("call_0", "look", f'{{"key":{n}}}')) for n in range(3)))
    messages = body_of("openai-chat", history)["messages"]
    asked = [message["tool_calls"][0]["id"] for message in messages if "tool_calls" in message]
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert asked == answered and len(set(asked)) == 3 and asked[0] == "call_0"


def test_pairs_say_the_same_when_asked_again():
    pairs, block = Pairs(), {"id": "z" * 100, "name": "look"}
    assert pairs.call(block) == pairs.call(block) == pairs.result({"tool_use_id": "z" * 100}) and len(pairs.call(block)) <= 40
    assert pairs.result({"tool_use_id": "never asked"}) == "never asked"


def test_a_name_that_is_not_legal_comes_back_legal():
    for name in ("openai", "openai-chat"):
        body = body_of(name, converse(name, reply(name, ("call_1", "functions.look it", "{}"))))
        assert "functions_look_it" in json.dumps(body) and "functions.look" not in json.dumps(body)


# ------------------------------------------------------------------ stop reasons and usage
@pytest.mark.parametrize("name, raw, stop", [
    ("openai-chat", reply("openai-chat", text="x", stop="stop"), "end_turn"), ("openai-chat", reply("openai-chat", text="x", stop="length"), "max_tokens"),
    ("openai-chat", reply("openai-chat", ("a", "look", "{}"), stop="stop"), "tool_use"), ("openai-chat", reply("openai-chat", ("a", "look", "{}"), stop="length"), "max_tokens"),
    ("openai-chat", reply("openai-chat", text="x", stop="content_filter"), "refusal"), ("openai-chat", reply("openai-chat", ("a", "look", "{}"), stop="function_call"), "tool_use"),
    ("openai-chat", {"choices": [{"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}]}, "refusal"), ("openai-chat", {"choices": [{"message": {}}]}, "end_turn"),
    *(("openai-chat", reply("openai-chat", *calls, text="x", stop=stop), "max_tokens") for stop in ("model_length", "max_tokens") for calls in ([], [("a", "look", "{}")])),
    *(("anthropic", reply("anthropic", *calls, text="x", stop=stop), "max_tokens") for stop in ("length", "model_length") for calls in ([], [("a", "look", "{}")])),
    *(("openai", reply("openai", *calls, text="x", stop=stop), "max_tokens") for stop in ("in_progress", "queued") for calls in ([], [("a", "look", "{}")])),
    ("openai", reply("openai", text="x"), "end_turn"), ("openai", reply("openai", ("a", "look", "{}")), "tool_use"),
    ("openai", reply("openai", ("a", "look", "{}"), stop="incomplete") | {"incomplete_details": {"reason": "max_output_tokens"}}, "max_tokens"),
    ("openai", reply("openai", text="x", stop="incomplete") | {"incomplete_details": {"reason": "content_filter"}}, "refusal"),
    ("openai", {"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}], "status": "completed"}, "refusal"),
    ("gemini", reply("gemini", text="x"), "end_turn"), ("gemini", reply("gemini", ("a", "look", "{}")), "tool_use"), ("gemini", reply("gemini", text="x", stop="MAX_TOKENS"), "max_tokens"),
    *(("gemini", reply("gemini", text="x", stop=stop), "refusal") for stop in ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE")),
    ("gemini", {"promptFeedback": {"blockReason": "SAFETY"}}, "refusal"), ("gemini", {"candidates": [{"finishReason": "STOP"}]}, "end_turn"),
    *(("anthropic", {"content": [], "stop_reason": stop}, stop) for stop in ("end_turn", "tool_use", "max_tokens", "pause_turn", "refusal", "model_context_window_exceeded"))])
def test_stop_reasons(name, raw, stop):
    assert WIRES[name].answer(raw).stop_reason == stop


@pytest.mark.parametrize("name, raw, usage", [
    ("openai-chat", {"prompt_tokens": 100, "completion_tokens": 7}, Usage(100, 0, 0, 7)),
    ("openai-chat", {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}}, Usage(10, 60, 30, 7)),
    ("openai-chat", {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60}}, Usage(0, 10, 0, 0)), ("openai-chat", None, Usage()), ("openai-chat", [1], Usage()),
    ("openai-chat", {"prompt_tokens": True, "completion_tokens": "7", "prompt_tokens_details": None}, Usage()), ("openai-chat", {"prompt_tokens": -5}, Usage()),
    ("openai", {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 5}}, Usage(10, 60, 30, 9)),
    ("gemini", {"promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 7, "thoughtsTokenCount": 5, "toolUsePromptTokenCount": 3}, Usage(43, 60, 0, 12)), ("gemini", None, Usage())])
def test_usage_has_one_normal_form(name, raw, usage):
    whole = reply(name, text="x") | {"usage": raw, "usageMetadata": raw}
    assert WIRES[name].answer(whole).usage == usage


@pytest.mark.parametrize("name, raw", [("anthropic", {}), ("anthropic", {"content": "x"}), ("openai-chat", {}), ("openai-chat", {"choices": []}), ("openai-chat", {"choices": [{}]}), ("openai-chat", {"choices": [1]}),
                                       ("openai", {}), ("openai", {"output": None}), ("gemini", {}), ("gemini", {"candidates": []}), ("gemini", {"candidates": ["x"]})])
def test_a_reply_of_another_shape_is_named(name, raw):
    with pytest.raises(NotThisShape):
        WIRES[name].answer(raw)


JSON = st.recursive(st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
    ["choices", "message", "content", "tool_calls", "function", "arguments", "id", "name", "output", "type", "candidates", "parts", "functionCall", "text", "usage", "finish_reason", "refusal", "summary"]), inner, max_size=4), max_leaves=12)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(raw=st.dictionaries(st.sampled_from(["choices", "output", "candidates", "content", "usage", "usageMetadata", "status", "stop_reason"]), JSON, max_size=3))
def test_whatever_comes_is_an_answer_or_named(name, raw):
    try:
        answer = WIRES[name].answer(raw)
    except NotThisShape:
        return
    history = History("x")
    history.add_reply(answer)  # and the loop can take it
    request_body(WIRES[name], history, "m", 10, {})


@pytest.mark.parametrize("name", NAMES)
def test_a_good_reply_with_one_odd_part_is_an_answer_or_named(name):
    """Every part of a good reply is left out or replaced, one at a time. What is understood can be sent back, and can be paid for."""
    good = reply(name, ("call_1", "look", '{"key":1}'), ("call_2", "change", '{"key":2}'), text="Some words.", thought="shown")
    good |= {"usage": {"prompt_tokens": 9, "input_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}, "output_tokens": 3, "completion_tokens": 3}, "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 3}}
    good |= {"id": "r_1", "incomplete_details": None}
    for raw in spoiled(good):
        try:
            answer = WIRES[name].answer(raw)
        except NotThisShape:
            continue
        assert answer.usage.input >= 0 and Prices(1, 2, 0.1, 1.2).cost(answer.usage) >= 0
        for other in NAMES:
            history = converse(name, task="x")
            history.add_results([result_block(call.id, "fine") for call in history.add_reply(answer)])
            json.loads(request_body(WIRES[other], history, "m", 10, {}))


@pytest.mark.parametrize("counted, tokens", [(12.0, 12), (1.5, 0), (-3.0, 0), (float("inf"), 0), (float("nan"), 0), (10**400, 10**12), (1e300, 10**12), ("12", 0)])
def test_odd_counts(counted, tokens):
    assert wires._count({"n": counted}, "n") == tokens


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", [5, True, [{"type": "text"}], [{"type": "text", "text": None}], [{"type": "tool_result", "content": "x"}], [{"type": "tool_result", "tool_use_id": "a", "content": 5}],
                                     [{"type": "tool_result", "tool_use_id": "a", "content": {"a": 1}}], [{"type": "tool_result", "tool_use_id": "a", "content": ["x"]}], [{"type": "tool_use", "name": "look"}]])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_messages_written_by_hand_and_wrongly_are_sent_or_named(name, content, role):
    """The Messages API says itself what is wrong with a message; the other wires cannot translate it, and say so."""
    try:
        json.loads(request_body(WIRES[name], History([{"role": role, "content": content}]), "m", 10, {}))
    except UsageError as error:
        assert re.match(r"Message \d of the history", str(error)) and "\n" not in str(error)


@pytest.mark.parametrize("theirs", [5, "x", [], {"wire": None}, *({"wire": name, "item": item} for name in NAMES for item in ("x", [1], 5, True, {"function": "x"}, {"functionCall": "x"}, {"functionCall": None}))])
def test_a_history_from_a_strange_trace_is_sent_or_named(theirs):
    blocks = [{"type": "thinking", "thinking": "x", "theirs": theirs}, {"type": "text", "text": "x", "theirs": theirs}, {"type": "tool_use", "id": "a", "name": "look", "input": {}, "theirs": theirs}]
    for name in NAMES:
        for block in blocks:
            history = History([{"role": "user", "content": "x"}, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result_block("a", "x")]}])
            try:
                json.loads(request_body(WIRES[name], history, "m", 10, {}))
            except UsageError as error:
                assert "Message " in str(error)


def test_a_conversation_may_change_its_wire_at_every_turn():
    """Each turn over another wire; after each of them all four strict APIs take what there is, it has only grown, and a copy says the same."""
    for seed in range(6):
        rng, history, last = random.Random(seed), History("The task.", "Be brief.", TOOLS), {}
        for turn in range(5):
            name = NAMES[(seed + turn * (1 + seed % 3)) % 4]
            ids = rng.sample([f"call_{turn % 2}", "a:b|c", "x" * 40, f"y{turn}" * 20, "\u00e9"], 3)
            calls = [(i, rng.choice(["look", "change", "n" * 70, "a.b-c"]), rng.choice(['{"key":1}', '{"key":', "[1]", "", '{"key":"\\ud83d"}', "[" * 5_000])) for i in ids[: rng.randrange(4)]]
            converse(name, reply(name, *calls, text=rng.choice(["", "Some words"]), thought=allowed(name, "shown")), history=history)
            for other in NAMES:
                taken(other, history)
                body = request_body(WIRES[other], history, "scripted-general", 1_000, {})
                assert body.startswith(last.get(other, b"")[:-2]) and body == request_body(WIRES[other], History(history.messages, history.system, TOOLS), "scripted-general", 1_000, {})
                last[other] = body


# ------------------------------------------------------------------ what each shape asks for
def test_several_results_each_have_their_place():
    calls = (("a", "look", '{"key":1}'), ("b", "change", '{"key":2}'))
    chat = body_of("openai-chat", converse("openai-chat", reply("openai-chat", *calls)))["messages"]
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "tool", "tool"] and chat[2]["content"] is None
    assert chat[3]["content"] == "result 0" and chat[4]["content"] == "Error: result 1"
    gemini = body_of("gemini", converse("gemini", reply("gemini", *calls)))["contents"]
    assert [turn["role"] for turn in gemini] == ["user", "model", "user"]
    assert [part["functionResponse"]["response"] for part in gemini[2]["parts"]] == [{"output": "result 0"}, {"error": "result 1"}]
    assert [part["functionResponse"]["name"] for part in gemini[2]["parts"]] == ["look", "change"]


def test_tools_in_four_shapes():
    history = History("x", "", [{"name": "t", "description": "d", "input_schema": {"type": "object", "additionalProperties": False}, "strict": True}])
    schema = {"type": "object", "additionalProperties": False}
    assert body_of("openai-chat", history)["tools"] == [{"type": "function", "function": {"name": "t", "description": "d", "parameters": schema, "strict": True}}]
    assert body_of("openai", history)["tools"] == [{"type": "function", "name": "t", "description": "d", "parameters": schema, "strict": True}]
    assert body_of("gemini", history)["tools"] == [{"functionDeclarations": [{"name": "t", "description": "d", "parametersJsonSchema": schema}]}]
    assert body_of("openai", History("x", "", TOOLS))["tools"][0]["strict"] is False


def test_settings_about_tools_stay_out_when_there_are_none():
    for name in ("openai", "openai-chat"):
        assert "parallel_tool_calls" not in body_of(name, History("x"), parallel_tool_calls=False)
        assert body_of(name, History("x", "", TOOLS), parallel_tool_calls=False)["parallel_tool_calls"] is False
    assert "toolConfig" not in body_of("gemini", History("x"), toolConfig={})
    assert body_of("gemini", History("x"), generationConfig={"temperature": 0})["generationConfig"] == {"maxOutputTokens": 1_000, "temperature": 0}


def test_the_output_limit_has_many_names():
    names = {"anthropic": "max_tokens", "openai": "max_output_tokens", "openai-chat": "max_completion_tokens"}
    assert all(body_of(name, History("x"))[field] == 1_000 for name, field in names.items())
    assert json.loads(request_body(SERVER_CHAT, History("x"), "m", 7, {}))["max_tokens"] == 7


def test_nothing_is_left_with_the_server():
    body = body_of("openai", History("x"), model="some-model")
    assert body["store"] is False and body["include"] == ["reasoning.encrypted_content"]
    assert "include" not in body_of("openai", History("x"), model="gpt-4o-mini")


def test_reasoning_of_a_compatible_server_goes_back_in_its_turn():
    raw = reply("openai-chat", ("a", "look", "{}"), thought="shown")
    history = converse("openai-chat", raw)
    assert history.messages[1]["content"][0]["thinking"] == "shown" and body_of("openai-chat", history)["messages"][2]["reasoning_content"] == "shown"


def test_extra_fields_of_a_call_go_back():
    raw = reply("openai-chat", ("a", "look", "{}"))
    raw["choices"][0]["message"]["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "eA=="}}
    assert body_of("openai-chat", converse("openai-chat", raw))["messages"][2]["tool_calls"] == raw["choices"][0]["message"]["tool_calls"]


def test_gemini_signatures_stay_on_their_part():
    parts = [{"text": "Thinking.", "thought": True}, {"text": "Words.", "thoughtSignature": "YQ=="}, {"text": "", "thoughtSignature": "Yg=="},
             {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "Yw=="}, {"executableCode": {"code": "x"}}]
    raw = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    assert WIRES["gemini"].answer(raw).content[1]["text"] == "Words."
    assert body_of("gemini", converse("gemini", raw))["contents"][1]["parts"] == parts


def test_a_call_that_gemini_itself_could_not_read():
    broken = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "call:look{key:'a'"}], "usageMetadata": {}}
    answers, sent = iter([broken, reply("gemini", text="Done.")]), []

    def serve(request):
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=next(answers))
    model = Model(ModelFacts("m"), make_client(httpx.MockTransport(serve)), "http://127.0.0.1", wire=WIRES["gemini"])
    finished = run_loop(History("x", "", TOOLS), model, registry())
    assert finished.status == "done" and results_of(finished.history)[0]["is_error"]
    assert [turn["parts"][0]["text"][:20] for turn in sent[1]["contents"]] == ["x", "call:look{key:'a'", "Error: The arguments"]


def test_a_foreign_call_tells_gemini_that_it_has_no_signature():
    history = converse("openai", reply("openai", ("a", "look", "{}"), ("b", "look", "{}")))
    parts = body_of("gemini", history)["contents"][1]["parts"]
    assert ["thoughtSignature" in part for part in parts] == [True, False]
    own = converse("gemini", {"candidates": [{"content": {"parts": [{"functionCall": {"name": "look", "args": {}}}, {"functionCall": {"name": "look", "args": {}}}]}}]})  # an older model signs nothing
    before = json.dumps(own.messages)
    assert "thoughtSignature" not in json.dumps(body_of("gemini", own, "gemini-2.5-flash"))
    for model in ("gemini-4-neon", "gemini-2.5-pro", "gemini-3-model"):  # one history, and the model is changed in the middle of a turn
        parts = body_of("gemini", own, model)["contents"][1]["parts"]
        assert ["thoughtSignature" in part for part in parts] == [not model.startswith("gemini-2"), False]
    assert json.dumps(own.messages) == before
    taken("gemini", own)


# ------------------------------------------------------------------ what a careless server sends is mended on its way back
def responses(*items, status="completed"):
    return {"id": "resp_1", "output": list(items), "status": status}


def asked(call_id="c", arguments='{"key":1}', **more):
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": "look", "arguments": arguments, **more}


def said(content, **more):
    return {"type": "message", "role": "assistant", "id": "msg_1", "content": content, **more}


def gemini(*parts):
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}]}


def part(**call):
    return {"functionCall": {"name": "look", "args": {"key": 1}, **call}, "thoughtSignature": "c2ln"}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3BhcXVl"}
WORDS = {"type": "output_text", "text": "The answer.", "annotations": []}
ODD = [*((name, raw) for name, raws in {
    "openai": [*(responses(asked(arguments=value)) for value in ({"key": 1}, [1], None, 5, "")), responses({"type": "function_call", "call_id": "c", "name": "look"}), responses(asked(), asked("d")),
               *(responses(asked(id=value)) for value in ("", None, 7)), *(responses(said(content)) for content in (None, 5, [WORDS, {"type": "output_text", "text": None}, "x"], [])), responses(said([WORDS]), said([WORDS])),
               responses({"type": "message", "content": [WORDS]}), responses(THOUGHT, said(None)), responses(THOUGHT, THOUGHT, asked()), responses(THOUGHT), responses(said([WORDS]), THOUGHT)],
    "gemini": [*(gemini(part(args=value)) for value in ('{"key":1}', [1], None, 5)), *(gemini(part(name=value)) for value in ("", None, 5, ["x"], "a.b")), gemini({"functionCall": {}, "thoughtSignature": "c2ln"}), gemini({"functionCall": {"name": "look"}})]}.items() for raw in raws)]


@pytest.mark.parametrize("name, raw", ODD, ids=str)
def test_what_a_careless_server_sends_is_mended_on_its_way_back(name, raw):
    history = converse(name, raw, raw)  # an id that was legal once comes again
    for other in NAMES:
        taken(other, History(history.messages, "Be brief.", TOOLS))
    taken(name, history)


def test_only_the_wrong_field_is_mended():
    items = body_of("openai", converse("openai", responses(THOUGHT, asked(arguments={"key": 1}, status="completed", extra=1))))["input"]
    assert items[1:3] == [THOUGHT, asked(status="completed", extra=1)]
    parts = body_of("gemini", converse("gemini", gemini(part(args=[1], id="g", willContinue=False))))["contents"][1]["parts"]
    assert parts == [part(args={}, id="g", willContinue=False)]


def test_a_message_whose_content_is_a_string_is_read():
    answer = WIRES["openai"].answer(responses(said("The answer.")))
    assert [block["text"] for block in answer.content] == ["The answer."]


def test_what_is_no_text_is_named():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
    history = History([{"role": "user", "content": [{"type": "text", "text": "See:"}, image]}])
    for name in ("openai", "openai-chat", "gemini"):
        assert "image left out" in json.dumps(body_of(name, history)) and "eA==" not in json.dumps(body_of(name, history))
    assert body_of("anthropic", history)["messages"] == history.messages


@pytest.mark.parametrize("wire, base, url", [
    ("anthropic", "http://h:1", "http://h:1/v1/messages"), ("anthropic", "http://h:1/", "http://h:1/v1/messages"), ("anthropic", "http://h:1/v1", "http://h:1/v1/messages"),
    ("anthropic", "http://h:1/own", "http://h:1/own/v1/messages"), ("openai", "https://h", "https://h/v1/responses"), ("openai-chat", "http://h/v1/", "http://h/v1/chat/completions"),
    ("openai-chat", "http://h/api/v1", "http://h/api/v1/chat/completions"), ("openai-chat", "http://h/v1beta/openai", "http://h/v1beta/openai/chat/completions"),
    ("gemini", "https://h", "https://h/v1beta/models/a%2Fb:generateContent"), ("gemini", "https://h/v1", "https://h/v1/models/a%2Fb:generateContent"),
    *(("gemini", f"https://h/v1beta{end}", "https://h/v1beta/models/a%2Fb:generateContent") for end in ("/models", "/models/", "/models/gemini-x:generateContent", "/models/gemini-x")),
    ("gemini", "https://h/models", "https://h/v1beta/models/a%2Fb:generateContent"), ("gemini", "https://h/my/models/of/v1", "https://h/my/models/of/v1/models/a%2Fb:generateContent"),
    ("openai-chat", "http://h/v1/chat/completions/", "http://h/v1/chat/completions"), ("anthropic", "http://h/v1/messages", "http://h/v1/messages"), ("openai", "http://h/api/v1/responses", "http://h/api/v1/responses")])
def test_base_urls(wire, base, url):
    assert WIRES[wire].url(base, "a/b") == url


# ------------------------------------------------------------------ work and memory
@pytest.mark.parametrize("name", NAMES)
def test_each_message_is_translated_once(name, monkeypatch):
    import dataclasses
    seen, wire = [], WIRES[name]
    counting = dataclasses.replace(wire, items=lambda message, pairs: seen.append(1) or wire.items(message, pairs))
    history = History("x", "", TOOLS)
    for n in range(50):
        request_body(counting, history, "m", 10, {})
        converse(name, reply(name, (f"c{n}", "look", f'{{"key":{n}}}')), history=history)
    assert len(seen) == len(history.messages) - 2  # the last two were not sent yet


def test_what_was_written_goes_with_its_history():
    history = History("x")
    request_body(WIRES["gemini"], history, "m", 10, {})
    assert history in wires._WRITTEN
    before = len(wires._WRITTEN)
    del history
    gc.collect()
    assert len(wires._WRITTEN) < before


def test_a_history_that_was_cut_is_written_anew():
    history = converse("gemini", reply("gemini", ("a", "look", "{}")))
    body_of("gemini", history)
    shorter = History(history.messages[:1])
    history.messages[1:] = [{"role": "assistant", "content": [say("Hi.")]}]
    assert [turn["role"] for turn in body_of("gemini", history)["contents"]] == ["user", "model"] and len(body_of("gemini", shorter)["contents"]) == 1


# ------------------------------------------------------------------ whole runs
def in_our_words(events):
    """A trace without what may differ: names of calls, what providers carry, counts of tokens, times."""
    numbers, out = {}, []
    for event in events:
        payload = dict(event["payload"])
        for key in ("usage", "seconds", "request_bytes", "estimated_prompt", "request", "messages"):
            payload.pop(key, None)
        text = json.dumps(payload, sort_keys=True)
        for block in payload.get("content", []) if isinstance(payload.get("content"), list) else []:
            if block["type"] == "tool_use":
                numbers.setdefault(block["id"], f"call {len(numbers)}")
        if isinstance(payload.get("content"), list):
            text = json.dumps([{key: value for key, value in block.items() if key != "theirs"} for block in payload["content"] if block["type"] != "thinking"], sort_keys=True)
        if payload.get("stop_reason") == "max_tokens":
            text = "cut"  # of a call that was cut, each API shows another half
        for ours, number in numbers.items():
            text = text.replace(ours, number)
        out.append((event["step"], event["type"], text))
    return out


SCRIPT = [[{"type": "thinking", "thinking": "Hm."}, say("I look."), call("look", key="é"), call("nobody", a=1)], [call("change", key=1), call("look", wrong=2)], [say("Done.")]]


@pytest.mark.parametrize("options", [{}, dict(faults=[Fault("overloaded", at=2), Fault("rate_limit", at=3, retry_after=0.01)]), dict(faults=[Fault("cut", at=2)]), dict(faults=[Fault("refusal", at=2)]),
                                     dict(faults=[Fault("empty", at=3)]), dict(faults=[Fault("server_error", times=99)]), dict(limits=Limits(max_steps=2))], ids=str)
def test_the_same_run_over_all_four_wires(options):
    traces, limits = {}, options.get("limits", Limits(max_tokens=1_000))
    for name in NAMES:
        events = []
        script = SCRIPT if not options.get("faults") or options["faults"][0].kind != "cut" else [SCRIPT[0], *SCRIPT[1:2] * 2, SCRIPT[2]]
        model = offline(script, wire=name, faults=options.get("faults", ()), retry=Retry(tries=3, first=0.001))
        finished = run_loop(History("The task.", "Be brief.", TOOLS), model, registry(), limits, sink=events.append)
        traces[name] = [(step, kind, text) for step, kind, text in in_our_words(events) if kind not in ("run_started", "model_waited", "run_ended")], finished.status, finished["tries"], finished["steps"]
    assert traces["anthropic"] == traces["openai"] == traces["openai-chat"] == traces["gemini"]


@pytest.mark.parametrize("name", NAMES)
def test_every_request_is_rebuilt_from_the_trace(name):
    events, api = [], type(scripted_api(wire=name))(canned(SCRIPT))
    model = Model(ModelFacts("scripted-general"), make_client(api.transport()), "http://strict", "a-good-key-0123", wire=WIRES[name])
    run_loop(History("The task.", "Be brief.", TOOLS), model, registry(), sink=events.append)
    sent = [received.body for received in api.requests]
    assert rebuilt(events, functools.partial(request_body, WIRES[name])) == sent and len(sent) > 1


def test_an_answer_is_frozen():
    with pytest.raises(AttributeError):
        Answer([], "x", Usage()).stop_reason = "y"


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_what_stands_before_the_messages_follows_every_change(wire):
    """It is kept from call to call, and made anew as soon as anything in it is another, however deep."""
    history, request = History("x", "Be brief.", [{"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}}}]), {"metadata": {"user_id": "one"}}
    bodies = [request_body(wire, history, "m", 1_000, request) for _ in range(2)]
    assert bodies[0] == bodies[1]
    history.tools[0]["input_schema"]["properties"]["key"]["description"] = "The changed key."
    bodies.append(request_body(wire, history, "m", 1_000, request))
    request["metadata"]["user_id"] = "two"
    bodies.append(request_body(wire, history, "m", 1_000, request))
    bodies.append(request_body(wire, history, "m", 1_001, request))
    history.system = "Be long."
    bodies.append(request_body(wire, history, "m", 1_001, request))
    assert len(set(bodies[1:])) == 5 and b"The changed key." in bodies[2] and b'"two"' in bodies[3] and b"1001" in bodies[4] and b"Be long." in bodies[5]
    json.loads(bodies[-1])
