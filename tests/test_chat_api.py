"""The strict Chat Completions API and its lax relatives: what they serve and refuse, how they count, stream and fail, and that the official client agrees."""
import copy
import json
import threading
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given, settings, strategies as st

from harnesslab.chat_api import ChatApi, check_chat
from harnesslab.lax_servers import LAX, Laxness
from harnesslab.local_server import FAULTS, Fault
from harnesslab.openai_rules import OPENAI_MODELS, OpenAIRules

PATH = "/v1/chat/completions"
HEADERS = {"authorization": "Bearer any"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CLOSED = {**SCHEMA, "additionalProperties": False}
LOOSE_CALL = {"type": "tool_use", "name": "show_line", "input": {"n": 1}}


def function(**changes):
    return {"type": "function", "function": {"name": "show_line", "parameters": SCHEMA, **changes}}


def call(key="call_a", arguments='{"n": 1}', name="show_line", **more):
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def asks(*calls, content=None):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(key="call_a", content="first line", **more):
    return {"role": "tool", "tool_call_id": key, "content": content, **more}


def user(content="Show line 1."):
    return {"role": "user", "content": content}


def body(*messages, model="openai-model", **more):
    whole = {"model": model, "tools": [function()], "messages": list(messages) or [user()], **more}
    return {key: value for key, value in whole.items() if value is not ...}


ANSWERED = (user(), asks(call()), result())


def says(*blocks, **more):
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    return lambda request: {"content": copy.deepcopy(content), **more}


@contextmanager
def door(api, kind="in process", **more):
    more = {"headers": HEADERS, **more}
    if kind == "in process":
        with httpx.Client(transport=api.transport(), base_url="http://fake", **more) as client:
            yield client
    else:
        with api.serve() as server, httpx.Client(base_url=server.url, trust_env=False, **more) as client:
            yield client


def ask(request, headers=HEADERS, **fake):
    fake.setdefault("policy", says("Fine."))
    with door(ChatApi(**fake), headers=headers) as client:
        return client.post(PATH, json=request)


def check(answer, status, *fragments, kind="invalid_request_error", param=..., code=...):
    told = answer.json()
    assert answer.status_code == status, told
    assert answer.headers["x-request-id"].startswith("req_")
    if status == 200:
        return told
    error = told["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == kind
    for fragment in fragments:
        assert fragment in error["message"]
    assert param is ... or error["param"] == param
    assert code is ... or error["code"] == code
    return error


# ---- what is refused

STRICT = lambda **schema: body(tools=[function(strict=True, parameters=schema)])
LOOSE = lambda **schema: body(tools=[function(parameters=schema)])
OBJECT = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
NEW = "gpt-6-sol"

REFUSED = [   # (title, request, fragments of the message, param, code)
    ("results: one of two is missing", body(user(), asks(call(), call("call_b")), result()), ["must be followed by tool messages", "call_b"], "messages", None),
    ("results: missing before the next word", body(user(), asks(call()), user("Well?")), ["'tool_calls' must be followed by tool messages", "call_a"], "messages.[2].role", None),
    ("results: words between two", body(user(), asks(call(), call("call_b")), result(), user("So?"), result("call_b")), ["did not have response messages: call_b"], ..., None),
    ("results: none, and the model goes on", body(user(), asks(call()), {"role": "assistant", "content": "I see."}), ["must be followed by tool messages"], ..., None),
    ("results: a system message in between", body(user(), asks(call()), {"role": "developer", "content": "Hurry."}, result()), ["must be followed by tool messages"], ..., None),
    ("results: without a call", body(user(), result()), ["messages with role 'tool' must be a response to a preceeding message with 'tool_calls'"], "messages.[1].role", None),
    ("results: after a plain answer", body(user(), {"role": "assistant", "content": "Hm."}, result()), ["must be a response to a preceeding message"], ..., None),
    ("results: of another call", body(user(), asks(call()), result("call_z")), ["'tool_call_id' of 'call_z' not found in 'tool_calls' of previous message"], "messages.[2].tool_call_id", None),
    ("results: of the turn before", body(*ANSWERED, asks(call("call_b")), result()), ["'call_a' not found in 'tool_calls'"], ..., None),
    ("results: twice", body(*ANSWERED, result()), ["Duplicate value for 'tool_call_id' of 'call_a', in messages[2] and messages[3]"], "messages.[3].tool_call_id", None),
    ("results: twice, and one is missing", body(user(), asks(call(), call("call_b")), result(), result()), ["Duplicate value for 'tool_call_id'"], ..., None),
    ("results: no id", body(user(), asks(call()), {"role": "tool", "content": "x"}), ["Missing required parameter: 'messages[2].tool_call_id'"], ..., "missing_required_parameter"),
    ("results: no content", body(user(), asks(call()), {"role": "tool", "tool_call_id": "call_a"}), ["Missing required parameter: 'messages[2].content'"], ..., "missing_required_parameter"),
    ("results: null", body(user(), asks(call()), result(content=None)), ["Invalid value for 'content': expected a string, got null."], "messages.[2].content", None),
    ("results: an object", body(user(), asks(call()), result(content={"line": 1})), ["expected one of an array of objects or string, but got an object"], "messages[2].content", "invalid_type"),
    ("results: a mark for an error", body(user(), asks(call()), result(is_error=True)), ["Unknown parameter: 'messages[2].is_error'"], ..., "unknown_parameter"),
    ("results: in the shape of Anthropic", body(user(), asks(call()), user([{"type": "tool_result", "tool_use_id": "call_a", "content": "x"}])),
     ["Invalid value: 'tool_result'. Supported values are: 'text', 'image_url', 'input_audio', and 'file'."], "messages[2].content[0].type", "invalid_value"),
    ("calls: arguments as an object", body(user(), asks(call(arguments={"n": 1})), result()), ["'messages[1].tool_calls[0].function.arguments'", "expected a string, but got an object"], ..., "invalid_type"),
    ("calls: arguments null", body(user(), asks(call(arguments=None)), result()), ["expected a string, but got null"], ..., "invalid_type"),
    ("calls: no arguments", body(user(), asks({"id": "call_a", "type": "function", "function": {"name": "x"}}), result()), ["Missing required parameter: 'messages[1].tool_calls[0].function.arguments'"], ..., ...),
    ("calls: an empty list", body(user(), {"role": "assistant", "content": "Hm.", "tool_calls": []}), ["Invalid 'messages[1].tool_calls': empty array"], ..., "empty_array"),
    ("calls: an id twice", body(user(), asks(call(), call()), result(), result()), ["Duplicate value"], ..., ...),
    ("calls: an empty id", body(user(), asks(call("")), result("")), ["Invalid 'messages[1].tool_calls[0].id': empty string"], ..., "empty_string"),
    ("calls: an id that is too long", body(user(), asks(call("c" * 41)), result("c" * 41)), ["maximum length 40, but got a string with length 41"], ..., "string_above_max_length"),
    ("calls: a name with a dot", body(user(), asks(call(name="a.b")), result()), ["does not match pattern"], "messages[1].tool_calls[0].function.name", ...),
    ("calls: no type", body(user(), asks({"id": "call_a", "function": {"name": "x", "arguments": "{}"}}), result()), ["Missing required parameter: 'messages[1].tool_calls[0].type'"], ..., ...),
    ("calls: from the user", body({**user(), "tool_calls": [call()]}, result()), ["Unknown parameter: 'messages[0].tool_calls'"], ..., ...),
    ("messages: none", body(messages=[]), ["Invalid 'messages': empty array"], "messages", "empty_array"),
    ("messages: missing", body(messages=...), ["Missing required parameter: 'messages'."], "messages", "missing_required_parameter"),
    ("messages: a text", body(messages="Hi."), ["Invalid type for 'messages': expected an array, but got a string instead."], "messages", "invalid_type"),
    ("messages: a role that does not exist", body({"role": "bot", "content": "x"}), ["Invalid value: 'bot'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'."], "messages[0].role", "invalid_value"),
    ("messages: no role", body({"content": "x"}), ["Missing required parameter: 'messages[0].role'"], ..., ...),
    ("messages: content null from the user", body(user(None)), ["expected a string, got null"], "messages.[0].content", None),
    ("messages: content empty list", body(user([])), ["Invalid 'messages[0].content': empty array"], ..., "empty_array"),
    ("messages: content a number", body(user(7)), ["but got an integer instead"], "messages[0].content", "invalid_type"),
    ("messages: an answer with nothing in it", body(user(), {"role": "assistant", "content": None}, user()), ["expected a string, got null"], "messages.[1].content", None),
    ("messages: thinking of another maker", body(user(), {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}), ["Invalid value: 'thinking'. Supported values are: 'text' and 'refusal'."], ..., ...),
    ("messages: reasoning_content of another server", body(user(), {"role": "assistant", "content": "x", "reasoning_content": "hm"}), ["Unknown parameter: 'messages[1].reasoning_content'"], ..., ...),
    ("tools: none in the list", body(tools=[]), ["Invalid 'tools': empty array"], "tools", "empty_array"),
    ("tools: 129", body(tools=[function(name=f"t{n}") for n in range(129)]), ["maximum length 128"], "tools", "array_above_max_length"),
    ("tools: flat", body(tools=[{"type": "function", "name": "x", "parameters": SCHEMA}]), ["Missing required parameter: 'tools[0].function'"], ..., ...),
    ("tools: in the shape of Anthropic", body(tools=[{"name": "x", "input_schema": SCHEMA}]), ["Missing required parameter: 'tools[0].type'"], ..., ...),
    ("tools: no name", body(tools=[{"type": "function", "function": {}}]), ["Missing required parameter: 'tools[0].function.name'"], ..., ...),
    ("tools: a name with a space", body(tools=[function(name="show line")]), ["does not match pattern", "^[a-zA-Z0-9_-]+$"], "tools[0].function.name", ...),
    ("tools: a long name", body(tools=[function(name="x" * 65)]), ["maximum length 64"], ..., ...),
    ("tools: two of one name", body(tools=[function(), function()]), ["unique"], "tools", ...),
    ("schema: no type", LOOSE(properties={}), ["Invalid schema for function 'show_line'", "got 'type: \"None\"'"], "tools[0].function.parameters", "invalid_function_parameters"),
    ("schema: an array", LOOSE(type="array"), ["got 'type: \"array\"'"], ..., "invalid_function_parameters"),
    ("schema: an array without items", LOOSE(type="object", properties={"a": {"type": "array"}}), ["In context=('properties', 'a'), array schema missing items"], ..., ...),
    ("schema: a type that does not exist", LOOSE(type="object", properties={"a": {"type": "str"}}), ["is not valid under any of the given schemas"], ..., ...),
    ("schema: deep inside", LOOSE(type="object", properties={"a": {"anyOf": [{"type": "array"}]}}), ["missing items"], ..., ...),
    ("schema: required is a word", LOOSE(type="object", required="n"), ["is not of type 'array'"], ..., ...),
    ("schema: a property is a word", LOOSE(type="object", properties={"a": "string"}), ["is not of type 'object'"], ..., ...),
    ("strict: open", STRICT(**SCHEMA), ["'additionalProperties' is required to be supplied and to be false"], ..., "invalid_function_parameters"),
    ("strict: not everything required", STRICT(**{**CLOSED, "required": []}), ["'required' is required to be supplied", "Missing 'n'"], ..., ...),
    ("strict: an inner object is open", STRICT(**{**OBJECT, "properties": {"a": {"type": "object"}}, "required": ["a"]}), ["In context=('properties', 'a')"], ..., ...),
    ("choice: of another maker", body(tool_choice={"type": "any"}), ["Invalid value: 'any'"], "tool_choice.type", "invalid_value"),
    ("choice: a word that does not exist", body(tool_choice="any"), ["Supported values are: 'none', 'auto', and 'required'"], "tool_choice", "invalid_value"),
    ("choice: without tools", body(tools=..., tool_choice="auto"), ["'tool_choice' is only allowed when 'tools' are specified"], "tool_choice", None),
    ("choice: parallel without tools", body(tools=..., parallel_tool_calls=False), ["'parallel_tool_calls' is only allowed when 'tools' are specified"], ..., ...),
    ("choice: a function that is not there", body(tool_choice={"type": "function", "function": {"name": "x"}}), ["Tool choice 'x' not found in 'tools' parameter"], ..., ...),
    ("choice: flat", body(tool_choice={"type": "function", "name": "show_line"}), ["Missing required parameter: 'tool_choice.function'"], ..., ...),
    ("limits: the old name", body(max_tokens=100), ["Unsupported parameter: 'max_tokens'", "Use 'max_completion_tokens' instead"], "max_tokens", "unsupported_parameter"),
    ("limits: both names", body(model="gpt-4.1", max_tokens=100, max_completion_tokens=100), ["at the same time"], ..., "invalid_parameter_combination"),
    ("limits: above the model", body(max_completion_tokens=200_000), ["max_tokens is too large: 200000. This model supports at most 128000"], ..., ...),
    ("limits: zero", body(max_completion_tokens=0), ["integer below minimum value"], ..., "integer_below_min_value"),
    ("limits: a fraction", body(max_completion_tokens=1.5), ["expected an integer, but got a decimal number"], ..., "invalid_type"),
    ("limits: true", body(max_completion_tokens=True), ["expected an integer, but got a boolean"], ..., "invalid_type"),
    ("settings: temperature of a model that reasons", body(temperature=0.2), ["'temperature' does not support 0.2 with this model. Only the default (1) value is supported."], "temperature", "unsupported_value"),
    ("settings: top_p of a model that reasons", body(top_p=0.5), ["Unsupported parameter: 'top_p'"], "top_p", "unsupported_parameter"),
    ("settings: stop of a model that reasons", body(stop=["END"]), ["Unsupported parameter: 'stop'"], ..., ...),
    ("settings: too hot", body(model="gpt-4.1", temperature=3), ["decimal above maximum value. Expected a value <= 2"], ..., "decimal_above_max_value"),
    ("settings: an effort that does not exist", body(reasoning_effort="huge"), ["Invalid value: 'huge'"], "reasoning_effort", ...),
    ("settings: an effort of another model", body(model="gpt-5", reasoning_effort="max"), ["'max' is not supported with the 'gpt-5' model", "'minimal', 'low', 'medium', and 'high'"], ..., "unsupported_value"),
    ("settings: effort of a model that cannot", body(model="gpt-4.1", reasoning_effort="low"), ["Unsupported parameter: 'reasoning_effort'"], ..., ...),
    ("settings: the newest cannot be told not to reason", body(model="gpt-6.2-sol", reasoning_effort="none"), ["Unsupported value: 'none' is not supported with the 'gpt-6.2-sol' model", "'low', 'medium'"], "reasoning_effort", ...),
    ("settings: functions while a new model reasons", body(model=NEW), ["Function tools with reasoning_effort are not supported for gpt-6-sol in /v1/chat/completions"], "reasoning_effort", None),
    ("settings: functions with an effort asked for", body(model="gpt-5.5", reasoning_effort="low"), ["use /v1/responses or set reasoning_effort to 'none'"], ..., ...),
    ("settings: usage of no stream", body(stream_options={"include_usage": True}), ["only allowed when 'stream' is enabled"], ..., ...),
    ("settings: JSON without the word", body(response_format={"type": "json_object"}), ["must contain the word 'json'"], ..., ...),
    ("settings: five stops", body(model="gpt-4.1", stop=list("abcde")), ["maximum length 4"], ..., ...),
    ("settings: a field of Anthropic", body(system="Be brief."), ["Unknown parameter: 'system'."], "system", "unknown_parameter"),
    ("settings: a field of Responses", body(input="x"), ["Unknown parameter: 'input'."], ..., ...),
    ("model: missing", body(model=...), ["you must provide a model parameter"], None, None),
    ("model: a number", body(model=7), ["Invalid type for 'model'"], ..., ...),
]


@pytest.mark.parametrize("title, request_body, fragments, param, code", REFUSED, ids=[case[0] for case in REFUSED])
def test_refusals(title, request_body, fragments, param, code):
    check(ask(request_body), 400, *fragments, param=param, code=code)


ACCEPTED = [
    ("two calls, a message for each result", body(user(), asks(call(), call("call_b")), result(), result("call_b"))),
    ("results in another order", body(user(), asks(call(), call("call_b")), result("call_b"), result())),
    ("a result of nothing", body(user(), asks(call()), result(content=""))),
    ("a result in parts", body(user(), asks(call()), result(content=[{"type": "text", "text": "first line"}]))),
    ("an id that comes again in a later turn", body(*ANSWERED, asks(call()), result())),
    ("arguments that are no JSON", body(user(), asks(call(arguments='{"n": ')), result())),
    ("words beside calls", body(user(), asks(call(), content="I look."), result())),
    ("the reply as the official client dumps it", body(user(), {**asks(call()), "refusal": None, "annotations": [], "audio": None, "function_call": None}, result())),
    ("a call of a tool that is gone", body(*ANSWERED, tools=[function(name="other")])),
    ("a call in the history, no tools", body(*ANSWERED, tools=...)),
    ("words after results", body(*ANSWERED, user("And?"))),
    ("two user messages", body(user(), user("Please."))),
    ("an empty word", body(user(""))),
    ("no user at all", body({"role": "system", "content": "Be brief."})),
    ("the assistant last", body(user(), {"role": "assistant", "content": "I would say"})),
    ("system under both names", body({"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, user())),
    ("nulls for what is not said", body(temperature=None, stop=None, tool_choice=None, reasoning_effort=None)),
    ("the usual temperature", body(temperature=1, top_p=1)),
    ("a temperature where nothing reasons", body(model="gpt-4.1", temperature=0.2, stop="END", max_tokens=10)),
    ("a temperature where reasoning is off", body(reasoning_effort="none", temperature=0.2)),
    ("functions of a new model that does not reason", body(model=NEW, reasoning_effort="none")),
    ("functions of 5.5, nothing said", body(model="gpt-5.5")),
    ("a new model without functions", body(model=NEW, tools=..., reasoning_effort="high")),
    ("a closed strict function", STRICT(**CLOSED)),
    ("a function without parameters", body(tools=[{"type": "function", "function": {"name": "now"}}])),
    ("anyOf, references, types in a list", LOOSE(type="object", properties={"a": {"anyOf": [{"type": ["string", "null"]}, {"$ref": "#/$defs/x"}]}}, **{"$defs": {"x": True}})),
    ("a named function", body(tool_choice={"type": "function", "function": {"name": "show_line"}})),
    ("one call only", body(parallel_tool_calls=False, tool_choice="required")),
    ("many settings", body(metadata={"a": "b"}, store=False, user="u", service_tier="auto", verbosity="low", seed=7, prompt_cache_key="k")),
    ("JSON with the word", body(user("Answer in JSON."), response_format={"type": "json_object"})),
    ("a schema for the answer", body(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})),
    ("an image", body(user([{"type": "text", "text": "See."}, {"type": "image_url", "image_url": {"url": "http://x"}}]))),
    ("a model of our own", body(model="scripted-general")),
]


@pytest.mark.parametrize("title, request_body", ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_accepted(title, request_body):
    check(ask(request_body), 200)


def test_unknown_model_and_long_prompt():
    check(ask(body(model="nobody")), 404, "The model `nobody` does not exist", code="model_not_found")
    tiny = OpenAIRules("tiny", window=2000, max_input=1000, max_output=500, chat_tools=True)
    check(ask(body(user("x" * 9000), model="tiny"), models=[tiny]), 400, "Input tokens exceed the configured limit of 1000 tokens", param="messages", code="context_length_exceeded")


def test_keys():
    check(ask(body(), {}), 401, "You didn't provide an API key")
    assert "sk-right" not in (told := check(ask(body(), {"authorization": "Bearer sk-wrong-key-1234567"}, keys=["sk-right"]), 401, "Incorrect API key provided", code="invalid_api_key"))["message"]
    assert "wrong-key" not in told["message"]          # the key is not said back
    check(ask(body(), {"authorization": "Bearer sk-right"}, keys=["sk-right"]), 200)
    check(ask(body(), {"x-api-key": "sk-right"}, keys=["sk-right"]), 401)


@pytest.mark.parametrize("kind", ["in process", "served"])
def test_endpoints(kind):
    with door(ChatApi(says("Fine.")), kind) as client:
        models = client.get("/v1/models").json()
        assert models["object"] == "list" and {"gpt-6.2-sol", "scripted-general"} <= {model["id"] for model in models["data"]}
        assert client.get("/v1/models/gpt-5").json()["object"] == "model"
        check(client.get("/v1/models/nobody"), 404, code="model_not_found")
        check(client.post("/v1/nothing", json={}), 404, "Invalid URL (POST /v1/nothing)")
        check(client.get(PATH), 405)
        check(client.post("/v1/models", json={}), 405)
        for raw in (b"", b"{", b"[1]", b'{"a": NaN}', b'{"a": "\xff"}', b"[" * 100_000):
            check(client.post(PATH, content=raw), 400, "We could not parse the JSON body of your request")
        deep = b'{"model": "gpt-5", "messages": [{"role": "user", "content": ' + b"[" * 5000 + b"]" * 5000 + b"}]}"
        assert client.post(PATH, content=deep).status_code == 400
    for lax in (None, "ollama"):      # deep enough to be read, and too deep for whoever walks through it
        schema = {"type": "object"}
        for _ in range(400):
            schema = {"type": "object", "properties": {"a": schema}}
        with door(ChatApi(says("Fine."), lax=lax), kind) as client:
            assert client.post(PATH, json=LOOSE(**schema)).status_code in (200, 400)
    broken = ask(body(), policy=lambda request: (again := lambda: again())())
    check(broken, 500, "the policy called itself too often", kind="server_error")


@settings(max_examples=80, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "id", "type", "function", "name", "arguments", "parameters", "tool_call_id", "properties", "items", "text"]), inner), max_leaves=20),
    st.sampled_from(["messages", "tools", "tool_choice", "response_format", "stop", "stream_options"]), st.sampled_from([None, "ollama", "careless", "same-ids"]))
def test_no_body_breaks_it(value, key, lax):
    api = ChatApi(says("Fine.", LOOSE_CALL), lax=lax)
    with door(api) as client:
        answer = client.post(PATH, json={**body(), key: value})
    assert answer.status_code in (200, 400) and "policy failed" not in api.requests[0].verdict
    inside = {**body(), "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": value}, {"role": "tool", "content": value, "tool_call_id": value}]}
    with door(api) as client:
        assert client.post(PATH, json=inside).status_code in (200, 400)
    assert "policy failed" not in api.requests[1].verdict


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_history_is_taken_whole_and_refused_with_a_result_gone(turns, random):
    messages, results = [user()], []
    for turn, count in enumerate(turns):
        calls = [call(f"call_{turn}_{n}") for n in range(count)]
        messages.append(asks(*calls) if calls else {"role": "assistant", "content": "Hm."})
        order = random.sample(calls, count)
        results += [len(messages) + n for n in range(count)]
        messages += [result(one["id"]) for one in order]
        messages += [user("Go on.")] if random.random() < 0.5 else []
    assert ask(body(*messages)).status_code == 200
    for gone in results:
        assert ask(body(*messages[:gone], *messages[gone + 1:])).status_code == 400


# ---- what the policy sees, and what comes back

def test_the_policy_gets_our_shape():
    seen = []
    system = {"role": "developer", "content": "Be brief."}
    ask(body(system, *ANSWERED, tool_choice="required", parallel_tool_calls=False, max_completion_tokens=77), policy=lambda request: seen.append(request) or [])
    request = seen[0]
    assert (request["system"], request["max_tokens"]) == ("Be brief.", 77)
    assert request["tools"] == [{"name": "show_line", "description": "", "input_schema": SCHEMA}]
    assert request["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert request["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Show line 1."}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_a", "name": "show_line", "input": {"n": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_a", "content": "first line", "is_error": False}]}]


@pytest.mark.parametrize("told, content, failed", [
    ("Error: no such file", "no such file", True), ("error: odd", "error: odd", True), ("Errors are data.", "Errors are data.", False), ("", "", False)])
def test_a_failed_result_is_known_by_its_first_word(told, content, failed):
    seen = []
    ask(body(user(), asks(call()), result(content=told)), policy=lambda request: seen.append(request) or [])
    block = seen[0]["messages"][-1]["content"][0]
    assert (block["content"], block["is_error"]) == (content, failed)


def reply_of(policy, request_body=None, **fake):
    return check(ask(request_body or body(), policy=policy, **fake), 200)


def test_replies():
    whole = reply_of(says({"type": "thinking", "thinking": "I think of it at length."}, "Reading.", LOOSE_CALL, LOOSE_CALL))
    choice, usage = whole["choices"][0], whole["usage"]
    calls = choice["message"]["tool_calls"]
    assert whole["object"] == "chat.completion" and whole["id"].startswith("chatcmpl-") and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Reading." and [json.loads(one["function"]["arguments"]) for one in calls] == [{"n": 1}] * 2
    assert calls[0]["id"] != calls[1]["id"] and all(len(one["id"]) <= 40 for one in calls)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    assert "thinking" not in json.dumps(whole) and "at length" not in json.dumps(whole)
    named = body(tool_choice={"type": "function", "function": {"name": "show_line"}})
    assert reply_of(says(LOOSE_CALL), named)["choices"][0]["finish_reason"] == "stop"       # as the real API: look for the calls
    assert len(reply_of(says("Fine."), body(n=3))["choices"]) == 3
    assert len(reply_of(says(LOOSE_CALL, LOOSE_CALL), body(parallel_tool_calls=False))["choices"][0]["message"]["tool_calls"]) == 1


def test_cut_replies():
    cut = reply_of(says({**LOOSE_CALL, "input": {"text": "word " * 500}}), body(max_completion_tokens=40))["choices"][0]
    arguments = cut["message"]["tool_calls"][0]["function"]["arguments"]
    assert cut["finish_reason"] == "length" and arguments.startswith('{"text":"word')
    with pytest.raises(ValueError):
        json.loads(arguments)
    stopped = reply_of(says("one END two"), body(model="gpt-4.1", tools=..., stop="END"))["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("one ", "stop")


def test_the_cache_counts_in_steps():
    clock, request = [0.0], body({"role": "system", "content": "x" * 9000}, user(), model="scripted-general")
    with door(ChatApi(says("Fine."), clock=lambda: clock[0])) as client:
        first, second = (client.post(PATH, json=request).json()["usage"] for _ in range(2))
        request["messages"] += [{"role": "assistant", "content": "Fine."}, user("And?")]
        third = client.post(PATH, json=request).json()["usage"]
        clock[0] = 10_000
        late = client.post(PATH, json=request).json()["usage"]
        short = client.post(PATH, json=body(model="scripted-general")).json()["usage"]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, second, third, late, short)]
    assert cached[0] == cached[3] == cached[4] == 0 and cached[1] == cached[2] > 2000 and cached[1] % 128 == 0
    assert first["prompt_tokens"] == second["prompt_tokens"] < third["prompt_tokens"]       # what is cached is part of the prompt
    assert first["prompt_tokens_details"]["cache_write_tokens"] == cached[1]
    assert "cache_write_tokens" not in reply_of(says("x"), body(model="gpt-5"))["usage"]["prompt_tokens_details"]


# ---- streams

def build(answer):
    "The message that a stream adds up to, its finish reason, and its usage."
    lines = [line.removeprefix("data: ") for line in answer.text.strip().split("\n\n")]
    assert lines[-1] == "[DONE]"
    message, reason, usage = {"content": None}, None, None
    for event in map(json.loads, lines[:-1]):
        assert event["object"] == "chat.completion.chunk"
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            reason = choice["finish_reason"] or reason
            delta = choice["delta"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for piece in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if piece["index"] == len(calls):
                    calls.append({key: value for key, value in piece.items() if key != "index"})
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return message, reason, usage


def test_streams_add_up():
    policy = says("Reading it now, one moment please.", {**LOOSE_CALL, "input": {"n": 1, "why": "because it is there"}}, {**LOOSE_CALL, "input": {}})
    whole = reply_of(policy)
    for with_usage in (True, False):
        answer = ask(body(stream=True, stream_options={"include_usage": with_usage}), policy=policy)
        message, reason, usage = build(answer)
        assert answer.headers["content-type"] == "text/event-stream"
        assert message["tool_calls"] == whole["choices"][0]["message"]["tool_calls"] and message["content"] == whole["choices"][0]["message"]["content"]
        assert reason == "tool_calls" and usage == (whole["usage"] if with_usage else None)


def test_streams_break():
    broken = ask(body(stream=True), faults=[Fault("stream_error")])
    assert broken.status_code == 200 and '"error"' in broken.text and "[DONE]" not in broken.text
    check(ask(body(messages=[], stream=True)), 400)        # a refused request gets plain JSON


# ---- faults

ALIKE = {"hang": dict(seconds=5), "slow": dict(seconds=0.1), "html": dict(status=502), "rate_limit": dict(retry_after=3)}


def experience(client):
    try:
        answer = client.post(PATH, json=body())
    except httpx.TransportError as error:
        return type(error).__name__
    return answer.status_code, answer.headers.get("retry-after"), answer.headers.get("content-type"), answer.content


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "pause"])
def test_both_doors_fail_alike(kind):
    seen = []
    for where in ("in process", "served"):
        api = ChatApi(says("Reading.", LOOSE_CALL), faults=[Fault(kind, **ALIKE.get(kind, {}))])
        with door(api, where, timeout=httpx.Timeout(20, read=0.3 if kind == "hang" else 20)) as client:
            seen.append([experience(client), experience(client)])
    assert seen[0] == seen[1] and seen[0][1][0] == 200
    if kind not in ("slow", "stream_error"):
        assert seen[0][0] != seen[0][1]


@pytest.mark.parametrize("kind, status, error, code", [
    ("rate_limit", 429, "requests", "rate_limit_exceeded"), ("spend_limit", 429, "insufficient_quota", "insufficient_quota"),
    ("server_error", 500, "server_error", None), ("overloaded", 503, "service_unavailable_error", "server_is_overloaded")])
def test_bad_statuses(kind, status, error, code):
    check(ask(body(), faults=[Fault(kind)]), status, kind=error, code=code)


def test_spoilt_replies():
    cut = reply_of(says(LOOSE_CALL), faults=[Fault("cut")])["choices"][0]
    assert cut["finish_reason"] == "length" and cut["message"]["tool_calls"][0]["function"]["arguments"] != '{"n": 1}'
    empty = reply_of(says("x"), faults=[Fault("empty")])["choices"][0]
    assert (empty["message"]["content"], empty["finish_reason"]) == ("", "stop")
    refused = reply_of(says("x"), faults=[Fault("refusal")])["choices"][0]
    assert (refused["message"]["content"], refused["finish_reason"]) == (None, "content_filter")
    with pytest.raises(ValueError, match="Messages API only"):
        ChatApi(says("x"), faults=[Fault("pause")])
    broken = ask(body(), policy=lambda request: 1 / 0)
    assert broken.headers["x-should-retry"] == "false"
    check(broken, 500, "The scripted policy failed", kind="server_error")


def test_many_threads():
    api, failures = ChatApi(says(LOOSE_CALL)), []
    with door(api, "served", limits=httpx.Limits(max_connections=12)) as client:
        def work(name):
            messages = [user(f"I am {name}.")]
            for _ in range(6):
                answer = client.post(PATH, json=body(*messages))
                if answer.status_code != 200:
                    return failures.append(answer.text)
                message = answer.json()["choices"][0]["message"]
                messages += [message, *(result(one["id"]) for one in message["tool_calls"])]
        workers = [threading.Thread(target=work, args=(name,)) for name in range(12)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    assert failures == [] and len(api.requests) == 72


# ---- the lax ones

TWO = says("Reading.", LOOSE_CALL, {**LOOSE_CALL, "input": {"n": 2}})


def lax_choice(lax, request_body=None, policy=TWO):
    answer = ask(request_body or body(), {}, policy=policy, lax=lax)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.parametrize("lax", LAX)
def test_presets_take_a_broken_history(lax):
    broken = body(user(), asks(call()), result("another"), {"role": "bot"}, model="anything", temperature=9, nonsense=True, tool_choice="none")
    answer = ask(broken, {}, lax=lax)
    assert answer.status_code == 200 and answer.json()["model"] == "anything"
    assert ask({"model": "x"}, {}, lax=lax).status_code == 400


@pytest.mark.parametrize("lax, quiet", [("llama.cpp-no-tools", True), ("llama.cpp", False), ("ollama", False), ("vllm", False)])
def test_tools_dropped_in_silence(lax, quiet):
    seen = []
    counts = [ask(request, {}, policy=lambda request: seen.append(request) or [], lax=lax).json()["usage"]["prompt_tokens"] for request in (body(), body(tools=...))]
    assert (counts[0] == counts[1]) is quiet and ("tools" not in seen[0]) is quiet


def test_choice_ignored():
    seen = []
    for lax in ("ollama", "vllm"):
        ask(body(tool_choice="required", parallel_tool_calls=False), {}, policy=lambda request: seen.append(request["tool_choice"]) or [], lax=lax)
    assert seen == [{"type": "auto"}, {"type": "any", "disable_parallel_tool_use": True}]


def test_tools_without_flags():
    told = ask(body(), {}, lax="vllm-no-flags")
    assert told.status_code == 400 and told.json()["error"] == {
        "message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "type": "BadRequestError", "param": None, "code": 400}
    assert ask(body(tools=...), {}, lax="vllm-no-flags").status_code == ask(body(tool_choice="none"), {}, lax="vllm-no-flags").status_code == 200


def test_names_only():
    named = body(tool_choice={"type": "function", "function": {"name": "show_line"}})
    told = ask(named, {}, lax="lmstudio")
    assert told.status_code == 400 and told.json() == {"error": "Invalid tool_choice type: 'object'. Supported string values: none, auto, required"}
    assert ask(body(tool_choice="required"), {}, lax="lmstudio").status_code == 200


def test_calls_as_text():
    for shape, begin in (("json", '{"name": "show_line"'), ("tags", "<tool_call>\n{")):
        choice = lax_choice(Laxness(calls_as_text=shape))
        assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]
        assert choice["message"]["content"].startswith("Reading.\n" + begin)


def test_bad_ids_are_paired_by_order():
    for lax, ids in (("careless", ["", ""]), ("same-ids", ["call_0", "call_0"])):
        seen = []
        calls = lax_choice(lax)["message"]["tool_calls"]
        assert [one["id"] for one in calls] == ids
        history = body(user(), {"role": "assistant", "content": None, "tool_calls": calls}, *(result(key, f"line {n}") for n, key in enumerate(ids, 1)))
        lax_choice(lax, history, policy=lambda request: seen.append(request) or [])
        asked, told = seen[0]["messages"][1]["content"], seen[0]["messages"][2]["content"]
        assert [block["id"] for block in asked if block["type"] == "tool_use"] == [block["tool_use_id"] for block in told]
        assert len({block["tool_use_id"] for block in told}) == 2 and [block["content"] for block in told] == ["line 1", "line 2"]


def test_other_carelessness():
    careless = ask(body(), {}, policy=TWO, lax="careless").json()
    assert "usage" not in careless and careless["choices"][0]["finish_reason"] == "stop"
    assert careless["choices"][0]["message"]["tool_calls"][1]["function"]["arguments"] == {"n": 2}
    assert lax_choice("careless", policy=says(LOOSE_CALL))["message"]["content"] is None
    assert lax_choice("ollama", policy=says(LOOSE_CALL))["message"]["content"] == ""
    assert lax_choice("vllm-old")["finish_reason"] == "stop" and lax_choice("vllm")["finish_reason"] == "tool_calls"
    assert set(ask(body(), {}, lax="ollama").json()["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert lax_choice("llama.cpp")["message"]["tool_calls"][0]["id"].isalnum()
    cut = lax_choice("vllm-old", body(max_tokens=3), policy=says({**LOOSE_CALL, "input": {"text": "word " * 50}}))
    assert cut["finish_reason"] == "length"


@pytest.mark.parametrize("lax, status, shape", [("llama.cpp", 500, "numbered"), ("ollama", 400, "openai"), ("lmstudio", 400, "text"), ("vllm-old", 400, "flat")])
def test_bodies_that_are_no_json(lax, status, shape):
    with door(ChatApi(says("x"), lax=lax), headers={}) as client:
        answer = client.post(PATH, content=b'{"model": ')
    told = answer.json()
    assert answer.status_code == status
    assert {"numbered": lambda: told["error"]["code"] == 500, "openai": lambda: told["error"]["code"] is None,
            "text": lambda: isinstance(told["error"], str), "flat": lambda: told["object"] == "error" and told["code"] == 400}[shape]()


def test_paths_and_pages():
    with door(ChatApi(says("x"), lax="lmstudio"), headers={}) as client:
        lost = client.post("/chat/completions", json=body())
        assert lost.status_code == 200 and lost.json() == {"error": "Unexpected endpoint or method. (POST /chat/completions)"}
    for lax, able in (("llama.cpp", True), ("llama.cpp-no-tools", False)):
        with door(ChatApi(says("x"), lax=lax), headers={}) as client:
            assert client.get("/props").json()["chat_template_caps"]["supports_tools"] is able
            assert client.get("/health").json() == {"status": "ok"} and client.get("/v1/models").status_code == 200
            assert client.post("/chat/completions", json=body()).status_code == 404
    with door(ChatApi(says("x"), lax="llama.cpp", keys=["k"]), headers={}) as client:
        assert client.post(PATH, json=body()).status_code == 401
        assert client.post(PATH, json=body(), headers={"authorization": "Bearer k"}).status_code == 200
    with door(ChatApi(says("x"), lax="ollama", keys=["k"]), headers={}) as client:
        assert client.post(PATH, json=body()).status_code == 200


def test_small_windows():
    long = [user("Remember the word cat."), asks(call()), result(content="x" * 20_000)]
    seen = []
    policy = lambda request: seen.append(request) or [{"type": "text", "text": "Hm."}]
    told = ask(body(*long), {}, policy=policy, lax="llama.cpp-4k")
    assert told.status_code == 400 and told.json()["error"]["type"] == "exceed_context_size_error" and not seen
    told = ask(body(*long), {}, policy=policy, lax="ollama-4k")
    assert told.status_code == 500 and "no user query found" in told.text and not seen
    told = ask(body(*long, user("Which word?")), {}, policy=policy, lax="ollama-4k")
    assert told.status_code == 200 and "cat" not in json.dumps(seen[0]) and "Which word?" in json.dumps(seen[0])
    assert told.json()["usage"]["prompt_tokens"] < 4096
    told = ask(body(*long), {}, policy=policy, lax="lmstudio-4k")
    assert told.status_code == 200 and told.json()["choices"][0]["message"]["content"] == ""


def test_lax_streams():
    deltas = []
    for lax in ("ollama", "careless"):
        answer = ask(body(stream=True), {}, policy=TWO, lax=lax)
        events = [json.loads(line.removeprefix("data: ")) for line in answer.text.strip().split("\n\n")[:-1]]
        deltas.append([piece for event in events for choice in event["choices"] for piece in choice["delta"].get("tool_calls", [])])
    assert [(piece["index"], piece["function"]["arguments"]) for piece in deltas[0]] == [(0, '{"n": 1}'), (1, '{"n": 2}')]
    assert [(piece["index"], piece["id"], piece["function"]["arguments"]) for piece in deltas[1]] == [(0, "", {"n": 1}), (0, "", {"n": 2})]


def test_the_scripted_door():
    from harnesslab.scripted import scripted_api
    names = {wire: type(scripted_api(wire=wire)).__name__ for wire in ("anthropic", "openai", "openai-chat", "gemini")}
    assert names == {"anthropic": "FakeApi", "openai": "ResponsesApi", "openai-chat": "ChatApi", "gemini": "GeminiApi"}
    with door(scripted_api(wire="openai-chat", lax="ollama")) as client:
        reply = client.post(PATH, json=body(model="scripted-general", tools=...)).json()
    assert "No tool was offered" in reply["choices"][0]["message"]["content"]
    with pytest.raises(ValueError, match="There is no wire 'smoke'"):
        scripted_api(wire="smoke")


def test_wrong_use():
    with pytest.raises(ValueError, match="lax='gpt' is unknown: choose one of ollama"):
        ChatApi(says("x"), lax="gpt")


# ---- the official client

@pytest.fixture
def official():
    openai = pytest.importorskip("openai")

    @contextmanager
    def connect(**fake):
        with ChatApi(**fake).serve() as server:
            plain = openai.DefaultHttpxClient(trust_env=False)
            with openai.OpenAI(api_key="sk-k1", base_url=server.url + "/v1", max_retries=0, http_client=plain) as client:
                yield client, openai
    return connect


def two_step(request):
    last = request["messages"][-1]["content"][0]
    return [{"type": "text", "text": f"It says {last['content']}."}] if last["type"] == "tool_result" else [{"type": "text", "text": "So:"}, LOOSE_CALL, LOOSE_CALL]


def test_official_client(official):
    with official(policy=two_step, keys=["sk-k1"]) as (client, openai):
        create, given = client.chat.completions.create, dict(model="gpt-5", tools=[function()], messages=[user()])
        first = create(**given)
        calls = first.choices[0].message.tool_calls
        assert first.choices[0].finish_reason == "tool_calls" and first.usage.completion_tokens > 0 and first._request_id.startswith("req_")
        history = [user(), first.choices[0].message, *(result(one.id, "print(1)") for one in calls)]
        assert create(**{**given, "messages": history}).choices[0].message.content == "It says print(1)."
        with client.chat.completions.stream(**given, stream_options={"include_usage": True}) as stream:
            streamed = [event for event in stream] and stream.get_final_completion()
        assert [one.function.arguments for one in streamed.choices[0].message.tool_calls] == [one.function.arguments for one in calls]
        assert streamed.usage.total_tokens == first.usage.total_tokens
        with pytest.raises(openai.BadRequestError, match="must be followed by tool messages") as told:
            create(**{**given, "messages": history[:-1]})
        assert told.value.param == "messages" and told.value.type == "invalid_request_error"
        with pytest.raises(openai.NotFoundError) as told:
            create(**{**given, "model": "nobody"})
        assert told.value.code == "model_not_found"
        assert "gpt-6.2-sol" in [model.id for model in client.models.list()]


def test_replies_and_requests_have_the_official_types():
    chat, pydantic = pytest.importorskip("openai.types.chat"), pytest.importorskip("pydantic")
    policy = says({"type": "thinking", "thinking": "hm"}, "Reading it now, one moment please.", LOOSE_CALL)
    for fault in ([], [Fault("cut")], [Fault("empty")], [Fault("refusal")]):
        chat.ChatCompletion.model_validate(reply_of(policy, body(model="scripted-general"), faults=fault))
        stream = ask(body(model="scripted-general", stream=True, stream_options={"include_usage": True}), policy=policy, faults=fault)
        for line in stream.text.strip().split("\n\n")[:-1]:
            chat.ChatCompletionChunk.model_validate_json(line.removeprefix("data: "))
    request_type = pydantic.TypeAdapter(chat.completion_create_params.CompletionCreateParamsNonStreaming)
    for _, request_body in ACCEPTED:
        request_type.validate_python({key: value for key, value in request_body.items() if value is not None})


def test_official_client_on_a_bad_day(official):
    kinds = ["rate_limit", "overloaded", "server_error", "drop", "conflict"]
    with official(policy=two_step, faults=[*(Fault(kind, at=n) for n, kind in enumerate(kinds, 1)), Fault("stream_error", at=6)]) as (client, openai):
        create = lambda **more: client.chat.completions.create(model="gpt-5", messages=[user()], **more)
        for error in (openai.RateLimitError, openai.InternalServerError, openai.InternalServerError, openai.APIConnectionError, openai.ConflictError):
            with pytest.raises(error):
                create()
        with pytest.raises(openai.APIError, match="had an error"):
            list(create(stream=True))
        assert create().choices[0].message.content == "So:"
    with official(policy=two_step, keys=["another"]) as (client, openai):
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(model="gpt-5", messages=[user()])


@pytest.mark.parametrize("lax", sorted(LAX))
def test_official_client_at_a_lax_server(official, lax):
    with official(policy=two_step, lax=lax) as (client, openai):
        choice = client.chat.completions.create(model="any", messages=[user()], tools=[function()], tool_choice="none" if lax == "vllm-no-flags" else "auto").choices[0]
        assert choice.message.content or choice.message.tool_calls
        chunks = list(client.chat.completions.create(model="any", messages=[user()], stream=True))
        assert chunks[-1].choices[0].finish_reason


def test_the_table_is_sound():
    for name, rules in OPENAI_MODELS.items():
        assert name == rules.id and rules.max_output <= rules.window and rules.max_input <= rules.window
        assert rules.effort in (*rules.efforts, "none")
        if rules.chat_tools:
            assert check_chat(body(model=name))[0] is rules
