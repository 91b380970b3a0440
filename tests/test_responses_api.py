"""The strict Responses API: items and their order, reasoning that must come back unchanged, memory, counts, events, faults, and the official client."""
import copy
import json
import threading
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given, settings, strategies as st

from harnesslab.local_server import FAULTS, Fault
from harnesslab.openai_rules import OpenAIRules
from harnesslab.responses_api import LAX_RESPONSES, ResponsesApi, seal

PATH = "/v1/responses"
HEADERS = {"authorization": "Bearer any"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LOOSE_CALL = {"type": "tool_use", "name": "show_line", "input": {"n": 1}}
THOUGHT = {"type": "thinking", "thinking": "I look at line one first."}


def function(**changes):
    return {"type": "function", "name": "show_line", "parameters": SCHEMA, "strict": False, **changes}


def user(content="Show line 1."):
    return {"role": "user", "content": content}


def call(key="call_a", arguments='{"n": 1}', **more):
    return {"type": "function_call", "call_id": key, "name": "show_line", "arguments": arguments, **more}


def output(key="call_a", told="first line", **more):
    return {"type": "function_call_output", "call_id": key, "output": told, **more}


def reasoning(key="rs_1", sealed="b3BhcXVl", **more):
    return {"type": "reasoning", "id": key, "summary": [], **({"encrypted_content": sealed} if sealed else {}), **more}


def said(text="Hm.", **more):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}], **more}


def body(*items, model="openai-model", **more):
    whole = {"model": model, "store": False, "tools": [function()], "input": list(items) or [user()], **more}
    return {key: value for key, value in whole.items() if value is not ...}


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
    with door(ResponsesApi(**fake), headers=headers) as client:
        return client.post(PATH, json=request)


def check(answer, status, *fragments, kind="invalid_request_error", param=..., code=...):
    told = answer.json()
    assert answer.status_code == status, told
    if status == 200:
        return told
    error = told["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == kind
    for fragment in fragments:
        assert fragment in error["message"]
    assert param is ... or error["param"] == param
    assert code is ... or error["code"] == code
    return error


WRAPPED = {"type": "function", "function": {"name": "show_line", "parameters": SCHEMA}}
CHAT_REPLY = {"role": "assistant", "content": None, "tool_calls": []}

REFUSED = [   # (title, request, fragments of the message, param, code)
    ("outputs: missing", body(user(), call()), ["No tool output found for function call call_a."], "input", None),
    ("outputs: missing before the next word", body(user(), call(), user("Well?")), ["No tool output found for function call call_a."], "input", None),
    ("outputs: one of two is missing", body(user(), call(), call("call_b"), output()), ["No tool output found for function call call_b."], ..., ...),
    ("outputs: without a call", body(user(), output()), ["No tool call found for function call output with call_id call_a."], "input", None),
    ("outputs: before the call", body(user(), output(), call()), ["No tool call found"], ..., ...),
    ("outputs: of another call", body(user(), call(), output("call_z")), ["No tool call found", "call_z"], ..., ...),
    ("outputs: under the id of the item", body(user(), call(id="fc_1"), output("fc_1")), ["No tool call found", "fc_1"], ..., ...),
    ("outputs: twice", body(user(), call(), output(), output()), ["call_a"], "input", ...),
    ("outputs: an object", body(user(), call(), output(told={"line": 1})), ["Invalid type for 'input[2].output': expected one of an array of objects or string, but got an object instead."], "input[2].output", "invalid_type"),
    ("outputs: a list of words", body(user(), call(), output(told=["a"])), ["input[2].output[0]", "expected an object, but got a string"], ..., ...),
    ("outputs: none", body(user(), call(), {"type": "function_call_output", "call_id": "call_a"}), ["Missing required parameter: 'input[2].output'"], ..., "missing_required_parameter"),
    ("outputs: a mark for an error", body(user(), call(), output(is_error=True)), ["Unknown parameter: 'input[2].is_error'"], ..., ...),
    ("calls: two with one id", body(user(), call(), call(), output()), ["call_a"], "input", ...),
    ("calls: an object as arguments", body(user(), call(arguments={"n": 1}), output()), ["Invalid type for 'input[1].arguments': expected a string, but got an object instead."], ..., "invalid_type"),
    ("calls: no call_id", body(user(), {"type": "function_call", "name": "x", "arguments": "{}"}), ["Missing required parameter: 'input[1].call_id'"], ..., ...),
    ("calls: the call id as item id", body(user(), call(id="call_a"), output()), ["Invalid 'input[1].id': 'call_a'. Expected an ID that begins with 'fc'."], "input[1].id", "invalid_value"),
    ("calls: an empty id", body(user(), call(""), output("")), ["empty string"], ..., "empty_string"),
    ("calls: an id that is too long", body(user(), call("c" * 65), output("c" * 65)), ["maximum length 64"], ..., "string_above_max_length"),
    ("calls: an item twice", body(user(), call(id="fc_1"), output(), call("call_b", id="fc_1"), output("call_b")), ["Duplicate item found with id fc_1."], ..., ...),
    ("reasoning: alone at the end", body(user(), reasoning()), ["Item 'rs_1' of type 'reasoning' was provided without its required following item."], "input", None),
    ("reasoning: its call was dropped", body(user(), reasoning(), user("Well?")), ["without its required following item"], ..., ...),
    ("reasoning: before the output", body(user(), call(), reasoning(), output()), ["without its required following item"], ..., ...),
    ("reasoning: two, and nothing", body(user(), reasoning(), reasoning("rs_2")), ["'rs_2' of type 'reasoning'"], ..., ...),
    ("reasoning: no summary", body(user(), {"type": "reasoning", "id": "rs_1"}, call(), output()), ["Missing required parameter: 'input[1].summary'"], ..., ...),
    ("reasoning: no id", body(user(), {"type": "reasoning", "summary": []}, call(), output()), ["Missing required parameter: 'input[1].id'"], ..., ...),
    ("reasoning: another id", body(user(), reasoning("msg_1"), call(), output()), ["begins with 'rs'"], ..., ...),
    ("reasoning: altered", body(user(), reasoning(sealed=seal("x")[:-4] + "AAAA"), call(), output()), ["could not be verified"], None, "invalid_encrypted_content"),
    ("reasoning: cut off", body(user(), reasoning(sealed=seal("x")[:30]), call(), output()), ["The encrypted content gAAA...", "could not be verified"], ..., ...),
    ("messages: a tool", body(user(), {"role": "tool", "content": "x"}), ["Invalid value: 'tool'. Supported values are: 'assistant', 'system', 'developer', and 'user'."], "input[1].role", "invalid_value"),
    ("messages: calls inside", body(user(), CHAT_REPLY), ["Unknown parameter: 'input[1].tool_calls'"], ..., ...),
    ("messages: a part of Chat Completions", body(user([{"type": "text", "text": "x"}])), ["Invalid value: 'text'. Supported values are: 'input_text'"], "input[0].content[0].type", ...),
    ("messages: the model's words as input_text", body(user(), {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}), ["'output_text' and 'refusal'"], ..., ...),
    ("messages: content null", body(user(None)), ["but got null instead"], ..., "invalid_type"),
    ("messages: an id of another kind", body(user(), said(id="rs_1")), ["begins with 'msg'"], ..., ...),
    ("items: a type that does not exist", body(user(), {"type": "tool_result", "content": "x"}), ["Invalid value: 'tool_result'"], "input[1].type", ...),
    ("items: a word in the list", body("Hi."), ["Invalid type for 'input[0]': expected an object, but got a string instead."], ..., ...),
    ("items: none", body(input=[]), ['One of "input" or "previous_response_id"'], ..., "missing_required_parameter"),
    ("items: no input", body(input=...), ['One of "input"'], ..., ...),
    ("memory: a response that is not there", body(previous_response_id="resp_x"), ["Previous response with id 'resp_x' not found."], "previous_response_id", "previous_response_not_found"),
    ("memory: an id of another kind", body(previous_response_id="msg_x"), ["Expected an ID that begins with 'resp'"], ..., ...),
    ("tools: wrapped as in Chat Completions", body(tools=[WRAPPED]), ["Missing required parameter: 'tools[0].name'."], "tools[0].name", "missing_required_parameter"),
    ("tools: of Anthropic", body(tools=[{"name": "x", "input_schema": SCHEMA}]), ["Missing required parameter: 'tools[0].type'"], ..., ...),
    ("tools: two of one name", body(tools=[function(), function()]), ["unique"], ..., ...),
    ("tools: strict and open", body(tools=[function(strict=True)]), ["Invalid schema for function 'show_line'", "'additionalProperties' is required"], "tools[0].parameters", "invalid_function_parameters"),
    ("tools: a schema without type", body(tools=[function(parameters={"properties": {}})]), ["type: \"None\""], ..., ...),
    ("choice: wrapped as in Chat Completions", body(tool_choice={"type": "function", "function": {"name": "show_line"}}), ["Missing required parameter: 'tool_choice.name'"], ..., ...),
    ("choice: a function that is not there", body(tool_choice={"type": "function", "name": "x"}), ["Tool choice 'x' not found in 'tools' parameter."], ..., ...),
    ("choice: required, no tools", body(tools=..., tool_choice="required"), ["must be specified with 'tools' parameter"], "tool_choice", ...),
    ("settings: messages", body(messages=[user()]), ["Unsupported parameter: 'messages'", "moved to 'input'"], "messages", "unsupported_parameter"),
    ("settings: max_tokens", body(max_tokens=50), ["moved to 'max_output_tokens'"], ..., ...),
    ("settings: response_format", body(response_format={"type": "json_object"}), ["moved to 'text.format'"], ..., ...),
    ("settings: reasoning_effort", body(reasoning_effort="low"), ["moved to 'reasoning.effort'"], ..., ...),
    ("settings: stop", body(stop=["END"]), ["Unknown parameter: 'stop'."], ..., "unknown_parameter"),
    ("settings: an old helper of the client", body(output_text="x"), ["Unknown parameter: 'output_text'."], ..., ...),
    ("settings: too small a limit", body(max_output_tokens=5), ["Expected a value >= 16, but got 5"], ..., "integer_below_min_value"),
    ("settings: too large a limit", body(max_output_tokens=10**6), ["integer above maximum value"], ..., "integer_above_max_value"),
    ("settings: temperature of a model that reasons", body(temperature=0.2), ["Unsupported parameter: 'temperature' is not supported with this model."], "temperature", ...),
    ("settings: an effort that does not exist", body(reasoning={"effort": "huge"}), ["Invalid value: 'huge'"], "reasoning.effort", ...),
    ("settings: effort of a model that cannot", body(model="gpt-4.1", reasoning={"effort": "low"}), ["not supported with this model"], ..., ...),
    ("settings: include of nothing known", body(include=["reasoning"]), ["Invalid value: 'reasoning'"], "include[0]", ...),
    ("model: missing", body(model=...), ["Missing required parameter: 'model'."], ..., ...),
]


@pytest.mark.parametrize("title, request_body, fragments, param, code", REFUSED, ids=[case[0] for case in REFUSED])
def test_refusals(title, request_body, fragments, param, code):
    check(ask(request_body), 400, *fragments, param=param, code=code)


ACCEPTED = [
    ("reasoning, two calls, two outputs", body(user(), reasoning(), call(), call("call_b"), output(), output("call_b"))),
    ("outputs in another order", body(user(), call(), call("call_b"), output("call_b"), output())),
    ("call, output, call, output", body(user(), call(), output(), call("call_b"), output("call_b"))),
    ("a word between call and output", body(user(), call(), user("Hurry."), output())),
    ("two pieces of reasoning", body(user(), reasoning(), reasoning("rs_2"), call(), output())),
    ("reasoning before words", body(user(), reasoning(), said(), user())),
    ("calls without their reasoning", body(user(), call(), output())),
    ("arguments that are no JSON", body(user(), call(arguments="{"), output())),
    ("an output in parts", body(user(), call(), output(told=[{"type": "input_text", "text": "x"}]))),
    ("an output of nothing", body(user(), call(), output(told=""))),
    ("item ids of both kinds", body(user(), call(id="fc_1", status="completed"), output(id="fc_2"))),
    ("just a text", body(input="Hi.")),
    ("the model's words as text", body(user(), {"role": "assistant", "content": "Hm."}, user())),
    ("no tools", body(tools=..., tool_choice="auto")),
    ("tools empty", body(tools=[])),
    ("tools of theirs", body(tools=[{"type": "web_search"}, function()])),
    ("a function without strict", body(tools=[{"type": "function", "name": "x", "parameters": SCHEMA}])),
    ("a function forced", body(tool_choice={"type": "function", "name": "show_line"}, parallel_tool_calls=False)),
    ("settings", body(instructions="Be brief.", include=["reasoning.encrypted_content"], reasoning={"effort": "low", "summary": "auto"}, truncation="disabled",
                      text={"verbosity": "low", "format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, metadata={"a": "b"}, max_output_tokens=500)),
    ("functions while a new model reasons", body(model="gpt-6.2-sol", reasoning={"effort": "high"})),
    ("a temperature where nothing reasons", body(model="gpt-4.1", temperature=0.2)),
    ("a model of our own", body(model="scripted-general")),
]


@pytest.mark.parametrize("title, request_body", ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_accepted(title, request_body):
    check(ask(request_body), 200)


def test_unknown_model_long_prompt_and_keys():
    check(ask(body(model="nobody")), 404, "does not exist", code="model_not_found")
    tiny = OpenAIRules("tiny", window=2000, max_input=1000, max_output=500)
    check(ask(body(user("x" * 9000), model="tiny"), models=[tiny]), 400, "exceeds the context window of this model", param="input", code="context_length_exceeded")
    check(ask(body(), {}), 401, "You didn't provide an API key")
    check(ask(body(), keys=["k"]), 401, "Incorrect API key provided", code="invalid_api_key")


@pytest.mark.parametrize("kind", ["in process", "served"])
def test_endpoints(kind):
    with door(ResponsesApi(says("Fine.")), kind) as client:
        counted = client.post(PATH + "/input_tokens", json=body()).json()
        assert counted == {"object": "response.input_tokens", "input_tokens": client.post(PATH, json=body()).json()["usage"]["input_tokens"]}
        assert "gpt-6.2-sol" in [model["id"] for model in client.get("/v1/models").json()["data"]]
        kept = client.post(PATH, json=body(store=True)).json()
        assert client.get(f"{PATH}/{kept['id']}").json() == kept
        check(client.get(PATH + "/resp_x"), 404, "Response with id 'resp_x' not found.")
        check(client.get(PATH), 405)
        check(client.post("/v1/messages", json={}), 404)
        for raw in (b"", b"[1]", b"[" * 100_000):
            check(client.post(PATH, content=raw), 400, "could not parse the JSON body")


@settings(max_examples=80, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["role", "content", "type", "call_id", "id", "name", "arguments", "output", "summary", "encrypted_content", "parameters", "text"]), inner), max_leaves=20),
    st.sampled_from(["input", "tools", "tool_choice", "reasoning", "text", "instructions"]), st.sampled_from([None, "ollama", "lmstudio"]))
def test_no_body_breaks_it(value, key, lax):
    api = ResponsesApi(says("Fine.", LOOSE_CALL), lax=lax)
    item = {"type": "function_call_output", "output": value, "call_id": value}
    with door(api) as client:
        for request in ({**body(), key: value}, {**body(), "input": [user(), {"type": "reasoning", "summary": value, "id": value}, item]}):
            assert client.post(PATH, json=request).status_code in (200, 400)
    assert all("policy failed" not in received.verdict for received in api.requests)


# ---- what comes back, and goes back

def reply_of(policy, request_body=None, **fake):
    return check(ask(request_body or body(), policy=policy, **fake), 200)


def test_replies():
    whole = reply_of(says(THOUGHT, "Reading.", LOOSE_CALL, LOOSE_CALL))
    kinds = [item["type"] for item in whole["output"]]
    calls = [item for item in whole["output"] if item["type"] == "function_call"]
    assert (whole["object"], whole["status"], kinds) == ("response", "completed", ["reasoning", "message", "function_call", "function_call"])
    assert whole["output"][0]["summary"] == [] and "line one" not in json.dumps(whole)      # the thought itself is not shown unless asked for
    assert all(one["id"].startswith("fc_") and one["call_id"].startswith("call_") and one["id"] != one["call_id"] for one in calls)
    shown = reply_of(says(THOUGHT, "x"), body(reasoning={"summary": "auto"}))
    assert shown["output"][0]["summary"] == [{"type": "summary_text", "text": THOUGHT["thinking"]}]
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] and 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    assert [item["type"] for item in reply_of(says("x"), body(model="gpt-4.1"))["output"]] == ["message"]
    assert [item["type"] for item in reply_of(says(THOUGHT, "x"), body(reasoning={"effort": "none"}))["output"]] == ["message"]


def test_cut_refused_and_empty():
    cut = reply_of(says({**LOOSE_CALL, "input": {"text": "word " * 500}}), body(max_output_tokens=40))
    last = cut["output"][-1]
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert last["status"] == "incomplete" and last["arguments"].startswith('{"text":"word') and not last["arguments"].endswith("}")
    refused = reply_of(says("x"), faults=[Fault("refusal")])
    assert (refused["status"], refused["incomplete_details"], refused["output"]) == ("incomplete", {"reason": "content_filter"}, [])
    empty = reply_of(says("x"), faults=[Fault("empty")])
    assert (empty["status"], empty["output"]) == ("completed", [])


def test_the_policy_gets_our_shape():
    seen = []
    request = body({"role": "developer", "content": "Be kind."}, user(), reasoning(), call(), call("call_b"), output(), output("call_b", "Error: no line 2"), user("So?"), instructions="Be brief.", max_output_tokens=99)
    ask(request, policy=lambda request: seen.append(request) or [])
    assert (seen[0]["system"], seen[0]["max_tokens"]) == ("Be brief.\n\nBe kind.", 99)
    assert [(message["role"], [block["type"] for block in message["content"]]) for message in seen[0]["messages"]] == [
        ("user", ["text"]), ("assistant", ["thinking", "tool_use", "tool_use"]), ("user", ["tool_result", "tool_result"]), ("user", ["text"])]
    assert [(block["content"], block["is_error"]) for block in seen[0]["messages"][2]["content"]] == [("first line", False), ("no line 2", True)]


def two_step(request):
    last = request["messages"][-1]["content"][0]
    return [{"type": "text", "text": f"It says {last['content']}."}] if last["type"] == "tool_result" else [dict(THOUGHT), dict(LOOSE_CALL), dict(LOOSE_CALL)]


def outputs(response, told="print(1)"):
    return [output(item["call_id"], told) for item in response["output"] if item["type"] == "function_call"]


def test_a_turn_goes_back_as_it_came():
    api = ResponsesApi(two_step)
    with door(api) as client:
        first = check(client.post(PATH, json=body()), 200)
        whole = [user(), *first["output"], *outputs(first)]
        assert check(client.post(PATH, json=body(*whole)), 200)["output"][-1]["content"][0]["text"] == "It says print(1)."
        sealed = first["output"][0]["encrypted_content"]
        for other in (seal("something else"), sealed[:-1], sealed.lower()):      # sealed by us, but not under this id; cut; bent
            bent = [user(), {**first["output"][0], "encrypted_content": other}, *whole[2:]]
            check(client.post(PATH, json=body(*bent)), 400, "could not be verified", code="invalid_encrypted_content")
        bare = [user(), {key: value for key, value in first["output"][0].items() if key != "encrypted_content"}, *whole[2:]]
        check(client.post(PATH, json=body(*bare)), 404, "Items are not persisted when `store` is set to false", param="input")
        check(client.post(PATH, json=body(user(), *whole[2:])), 200)      # not stored: nobody knows what led to the calls


def test_memory():
    api = ResponsesApi(two_step)
    with door(api) as client:
        post = lambda request: client.post(PATH, json=request)
        first = check(post(body(store=...)), 200)
        second = check(post(body(*outputs(first), store=..., previous_response_id=first["id"])), 200)
        third = check(post(body(user("Again."), store=..., previous_response_id=second["id"])), 200)
        assert second["output"][-1]["content"][0]["text"] == "It says print(1)." and second["previous_response_id"] == first["id"]
        assert first["usage"]["input_tokens"] < second["usage"]["input_tokens"] < third["usage"]["input_tokens"]      # all of it is read again
        check(post(body(user("Well?"), store=..., previous_response_id=first["id"])), 400, "No tool output found for function call")
        named = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        check(post(body(user(), *named, *outputs(first), store=...)), 200)
        bare = [{key: value for key, value in first["output"][0].items() if key != "encrypted_content"}]
        check(post(body(user(), *bare, *first["output"][1:], *outputs(first), store=...)), 200)
        check(post(body(user(), *first["output"][1:], *outputs(first), store=...)), 400, "was provided without its required 'reasoning' item", first["output"][0]["id"])
        check(post(body(user(), first["output"][0], *outputs(first), store=...)), 400)
        check(post(body({"type": "item_reference", "id": "fc_x"}, store=...)), 404, "Item with id 'fc_x' not found.")
        gone = check(post(body()), 200)
        check(post(body(*outputs(gone), previous_response_id=gone["id"])), 400, code="previous_response_not_found")


def test_the_cache_counts():
    request = body(user("x" * 9000), model="scripted-general")
    with door(ResponsesApi(says("Fine."))) as client:
        first, second = (client.post(PATH, json=request).json()["usage"] for _ in range(2))
    assert first["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": second["input_tokens_details"]["cached_tokens"]}
    assert second["input_tokens_details"]["cached_tokens"] % 128 == 0 and first["input_tokens"] == second["input_tokens"]


# ---- events

def test_events_add_up():
    policy = says(THOUGHT, "Reading it now, one moment please.", {**LOOSE_CALL, "input": {"n": 1, "why": "because it is there"}})
    request = body(reasoning={"summary": "auto"})
    whole = reply_of(policy, request)
    answer = ask({**request, "stream": True}, policy=policy)
    chunks = [chunk.split("\n", 1) for chunk in answer.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in chunks]
    assert [name.removeprefix("event: ") for name, _ in chunks] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created" and events[-1] == {"type": "response.completed", "response": whole, "sequence_number": len(events) - 1}
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == whole["output"]
    joined = {kind: "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
              for kind in ("output_text", "function_call_arguments", "reasoning_summary_text")}
    assert joined == {"output_text": "Reading it now, one moment please.", "function_call_arguments": whole["output"][-1]["arguments"], "reasoning_summary_text": THOUGHT["thinking"]}
    broken = ask(body(stream=True), faults=[Fault("stream_error")])
    assert broken.status_code == 200 and "event: error" in broken.text and "response.completed" not in broken.text
    cut = ask(body(stream=True), policy=policy, faults=[Fault("cut")])
    assert "event: response.incomplete" in cut.text


# ---- faults, threads, lax servers

def experience(client):
    try:
        answer = client.post(PATH, json=body())
    except httpx.TransportError as error:
        return type(error).__name__
    return answer.status_code, answer.headers.get("retry-after"), answer.content


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "pause"])
def test_both_doors_fail_alike(kind):
    seen, more = [], {"hang": dict(seconds=5), "slow": dict(seconds=0.1), "html": dict(status=502), "rate_limit": dict(retry_after=3)}.get(kind, {})
    for where in ("in process", "served"):
        with door(ResponsesApi(says("Reading.", LOOSE_CALL), faults=[Fault(kind, **more)]), where, timeout=httpx.Timeout(20, read=0.3 if kind == "hang" else 20)) as client:
            seen.append([experience(client), experience(client)])
    assert seen[0] == seen[1] and seen[0][1][0] == 200
    if kind not in ("slow", "stream_error"):
        assert seen[0][0] != seen[0][1]


def test_many_threads():
    api, failures = ResponsesApi(lambda request: [LOOSE_CALL]), []
    with door(api, limits=httpx.Limits(max_connections=12)) as client:
        def work(name):
            previous, new = None, [user(f"I am {name}.")]
            for _ in range(6):
                answer = client.post(PATH, json=body(*new, store=True, **({"previous_response_id": previous} if previous else {})))
                if answer.status_code != 200:
                    return failures.append(answer.text)
                previous, new = answer.json()["id"], outputs(answer.json())
        workers = [threading.Thread(target=work, args=(name,)) for name in range(12)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    assert failures == [] and len(api.requests) == 72


@pytest.mark.parametrize("lax", LAX_RESPONSES)
def test_lax_servers(lax):
    with door(ResponsesApi(two_step, lax=lax), headers={}) as client:
        check(client.post(PATH, json=body(user(), call(), model="any", nonsense=True)), 200)
        first = client.post(PATH, json=body(store=True)).json()
        assert "encrypted_content" not in json.dumps(first)
        assert (first["output"][0]["type"] == "reasoning") is LAX_RESPONSES[lax].reasons
        follow = client.post(PATH, json=body(*outputs(first), previous_response_id=first["id"]))
        remembers = LAX_RESPONSES[lax].remembers
        assert follow.status_code == (400 if remembers == "refuses" else 200)
        if remembers == "yes":
            assert follow.json()["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        if remembers == "no":      # it saw nothing but the new items
            alone = client.post(PATH, json=body(*outputs(first))).json()["usage"]["input_tokens"]
            assert follow.json()["usage"]["input_tokens"] == alone


def test_wrong_use():
    with pytest.raises(ValueError, match="unknown"):
        ResponsesApi(says("x"), lax="gpt")
    with pytest.raises(ValueError, match="Messages API only"):
        ResponsesApi(says("x"), faults=[Fault("pause")])


# ---- the official client

@pytest.fixture
def official():
    openai = pytest.importorskip("openai")

    @contextmanager
    def connect(**fake):
        with ResponsesApi(**fake).serve() as server:
            plain = openai.DefaultHttpxClient(trust_env=False)
            with openai.OpenAI(api_key="sk-k1", base_url=server.url + "/v1", max_retries=0, http_client=plain) as client:
                yield client, openai
    return connect


def test_official_client(official):
    with official(policy=two_step, keys=["sk-k1"]) as (client, openai):
        create, given = client.responses.create, dict(model="gpt-6.2-sol", tools=[function()], store=False)
        first = create(input=[user()], **given)
        assert first.status == "completed" and first.usage.output_tokens_details.reasoning_tokens > 0 and first._request_id.startswith("req_")
        calls = [item for item in first.output if item.type == "function_call"]
        history = [user(), *(item.to_dict() for item in first.output), *(output(one.call_id, "print(1)") for one in calls)]
        assert create(input=history, **given).output_text == "It says print(1)."
        with client.responses.stream(input=[user()], **given) as stream:
            streamed = [event for event in stream] and stream.get_final_response()
        assert [item.type for item in streamed.output] == [item.type for item in first.output]
        with pytest.raises(openai.BadRequestError, match="No tool output found") as told:
            create(input=history[:-1], **given)
        assert told.value.param == "input"
        bent = [history[0], {**history[1], "encrypted_content": "gAAAAABnonsense"}, *history[2:]]
        with pytest.raises(openai.BadRequestError) as told:
            create(input=bent, **given)
        assert told.value.code == "invalid_encrypted_content"
        kept = create(input="Hi.", model="gpt-6.2-sol", tools=[function()])
        after = create(input=[output(item.call_id, "print(2)") for item in kept.output if item.type == "function_call"], previous_response_id=kept.id, model="gpt-6.2-sol")
        assert after.output_text == "It says print(2)." and client.responses.retrieve(after.id).output_text == after.output_text
        assert client.responses.input_tokens.count(model="gpt-6.2-sol", input="Hi.").input_tokens > 0


def test_replies_and_events_have_the_official_types():
    types, pydantic = pytest.importorskip("openai.types.responses"), pytest.importorskip("pydantic")
    event_type = pydantic.TypeAdapter(types.ResponseStreamEvent)
    policy, request = says(THOUGHT, "Reading it now.", LOOSE_CALL), body(model="scripted-general", reasoning={"summary": "auto"})
    for fault in ([], [Fault("cut")], [Fault("refusal")], [Fault("stream_error")]):
        types.Response.model_validate(reply_of(policy, request, faults=fault))
        for chunk in ask({**request, "stream": True}, policy=policy, faults=fault).text.strip().split("\n\n"):
            event_type.validate_json(chunk.split("data: ", 1)[1])
    request_type = pydantic.TypeAdapter(types.response_create_params.ResponseCreateParamsNonStreaming)
    for title, request_body in ACCEPTED:
        if title != "reasoning before words":      # their type wants an id with the model's words, the API does not
            request_type.validate_python(request_body)


def test_official_client_on_a_bad_day(official):
    with official(policy=two_step, faults=[Fault("rate_limit"), Fault("overloaded", at=2), Fault("drop", at=3), Fault("cut", at=4), Fault("stream_error", at=5)]) as (client, openai):
        create = lambda **more: client.responses.create(model="gpt-5", input="Hi.", tools=[function()], **more)
        for error in (openai.RateLimitError, openai.InternalServerError, openai.APIConnectionError):
            with pytest.raises(error):
                create()
        cut = create()
        assert (cut.status, cut.incomplete_details.reason, cut.output[-1].status) == ("incomplete", "max_output_tokens", "incomplete")
        assert "error" in [event.type for event in create(stream=True)]
