"""The strict Gemini API: names, parts, schemas, signatures and turns; counts, pieces, faults, and the official client."""
import copy
import json
import threading
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given, settings, strategies as st

from harnesslab.gemini_api import GeminiApi
from harnesslab.gemini_rules import GEMINI_MODELS, GeminiRules, thought_signature
from harnesslab.local_server import FAULTS, Fault

MODEL = "gemini-3-model"
HEADERS = {"x-goog-api-key": "any"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LOOSE_CALL = {"type": "tool_use", "name": "show_line", "input": {"n": 1}}
THOUGHT = {"type": "thinking", "thinking": "I look at line one first."}


def declaration(**changes):
    return {"name": "show_line", "description": "Show one line.", "parameters": SCHEMA, **changes}


def user(*parts):
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts or ("Show line 1.",)]}


def model(*parts):
    return {"role": "model", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def call(key=None, signature="b3BhcXVl", name="show_line", **args):
    part = {"functionCall": {"name": name, "args": args or {"n": 1}, **({"id": key} if key else {})}}
    return {**part, **({"thoughtSignature": signature} if signature else {})}


def result(key=None, response=..., name="show_line"):
    response = {"output": "first line"} if response is ... else response
    return {"functionResponse": {"name": name, "response": response, **({"id": key} if key else {})}}


def body(*contents, **more):
    whole = {"contents": list(contents) or [user()], "tools": [{"functionDeclarations": [declaration()]}], **more}
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


def path(method="generateContent", name=MODEL):
    return f"/v1beta/models/{name}:{method}"


def ask(request, headers=HEADERS, to=MODEL, method="generateContent", **fake):
    fake.setdefault("policy", says("Fine."))
    with door(GeminiApi(**fake), headers=headers) as client:
        return client.post(path(method, to), json=request)


def check(answer, status, *fragments, word="INVALID_ARGUMENT"):
    told = answer.json()
    assert answer.status_code == status, told
    if status == 200:
        return told
    error = told["error"]
    assert (error["code"], error["status"]) == (status, word)
    for fragment in fragments:
        assert fragment in error["message"], error["message"]
    return error


def declares(*declarations, **more):
    return body(tools=[{"functionDeclarations": list(declarations)}], **more)


def config(**more):
    return body(generationConfig=more)


SCHEMAS = lambda **schema: declares(declaration(parameters=schema))
MISSING = "Function call is missing a thought_signature in functionCall parts."
COUNT = "number of function response parts is equal to the number of function call parts of the function call turn"
AFTER_CALL = "Please ensure that function response turn comes immediately after a function call turn."
AFTER_USER = "Please ensure that function call turn comes immediately after a user turn or after a function response turn."

REFUSED = [   # (title, request, fragments of the message)
    ("results: one for two calls", body(user(), model(call(), call(signature=None)), user(result())), [COUNT]),
    ("results: two for one call", body(user(), model(call()), user(result(), result())), [COUNT]),
    ("results: none", body(user(), model(call()), user("Well?")), [COUNT]),
    ("results: none yet", body(user(), model(call())), [COUNT]),
    ("results: split over two turns", body(user(), model(call(), call(signature=None)), user(result()), user(result())), [COUNT]),
    ("results: after other words", body(user(), model(call()), user("Wait."), user(result())), [COUNT]),
    ("results: without a call", body(user(), user(result())), [AFTER_CALL]),
    ("results: after an answer", body(user(), model("Hm."), user(result())), [AFTER_CALL]),
    ("results: again later", body(user(), model(call()), user(result()), model("Hm."), user(result())), [AFTER_CALL]),
    ("results: a text", body(user(), model(call()), user(result(response="first line"))), ["Invalid value at 'contents[2].parts[0].function_response.response' (type.googleapis.com/google.protobuf.Struct), \"first line\""]),
    ("results: a list", body(user(), model(call()), user(result(response=["first line"]))), ["Proto field is not repeating, cannot start list."]),
    ("results: null", body(user(), model(call()), user(result(response=None))), ["function_response.response"]),
    ("results: no name", body(user(), model(call()), user(result(name=""))), ["function_response.name: Name cannot be empty"]),
    ("results: another name", body(user(), model(call()), user(result(name="other"))), ["function response names"]),
    ("results: of another id", body(user(), model(call("a")), user(result("b"))), ["function response ids"]),
    ("results: in the order of no call", body(user(), model(call(name="one"), call(name="two", signature=None)), user(result(name="two"), result(name="one"))), ["in their order"]),
    ("results: role function", body(user(), model(call()), {"role": "function", "parts": [result()]}), ["Please use a valid role: user, model."]),
    ("results: from the model", body(user(), model(call()), model(result())), [""]),
    ("calls: first of all", body(model(call()), user(result())), [AFTER_USER]),
    ("calls: after an answer", body(user(), model("I look."), model(call()), user(result())), [AFTER_USER]),
    ("calls: from the user", body(user(call()), user(result())), [AFTER_USER]),
    ("calls: arguments as text", body(user(), model({"functionCall": {"name": "show_line", "args": '{"n": 1}'}}), user(result())), ["Invalid value at 'contents[1].parts[0].function_call.args'"]),
    ("calls: no name", body(user(), model({"functionCall": {"args": {}}, "thoughtSignature": "eA=="}), user(result())), ["function_call.name: Name cannot be empty"]),
    ("calls: in the shape of OpenAI", body(user(), {"role": "assistant", "tool_calls": []}), ["Unknown name \"tool_calls\" at 'contents[1]': Cannot find field."]),
    ("signature: missing", body(user(), model(call(signature=None)), user(result())), [MISSING, "`default_api:show_line` , position 2"]),
    ("signature: on the second call only", body(user(), model(call(signature=None), call()), user(result(), result())), [MISSING]),
    ("signature: missing in a later step", body(user(), model(call()), user(result()), model(call(signature=None)), user(result())), [MISSING, "position 4"]),
    ("signature: on a part of its own", body(user(), model({"text": "", "thoughtSignature": "eA=="}, call(signature=None)), user(result())), [MISSING]),
    ("signature: altered", body(user(), model(call(signature=thought_signature("x")[:-4] + "AAAA")), user(result())), ["Corrupted thought signature."]),
    ("signature: cut off", body(user(), model(call(signature=thought_signature("x")[:40])), user(result())), ["Corrupted thought signature."]),
    ("signature: not a text", body(user(), model({**call(), "thoughtSignature": 7}), user(result())), ["(TYPE_BYTES), 7"]),
    ("contents: missing", body(contents=...), ["* GenerateContentRequest.contents: contents is not specified"]),
    ("contents: none", body(contents=[]), ["contents is not specified"]),
    ("contents: a text", body(contents="Hi."), ["Invalid value at 'contents[0]'"]),
    ("contents: role assistant", body({"role": "assistant", "parts": [{"text": "x"}]}), ["Please use a valid role: user, model."]),
    ("contents: role system", body({"role": "system", "parts": [{"text": "x"}]}), ["Please use a valid role: user, model."]),
    ("contents: no parts", body({"role": "user"}), ["* GenerateContentRequest.contents[0].parts: contents.parts must not be empty."]),
    ("contents: parts empty", body({"role": "user", "parts": []}), ["contents.parts must not be empty"]),
    ("contents: a part of nothing", body(user({})), ["contents[0].parts[0].data: required oneof field 'data' must have one initialized field"]),
    ("contents: a part of two things", body(user({"text": "x", "inlineData": {"mimeType": "image/png", "data": "aa"}})), ["oneof field 'data' is already set. Cannot set 'inlineData'"]),
    ("contents: content as a field", body({"role": "user", "content": "x"}), ["Unknown name \"content\" at 'contents[0]'"]),
    ("contents: a block of Anthropic", body(user({"type": "text", "text": "x"})), ["Unknown name \"type\" at 'contents[0].parts[0]'"]),
    ("contents: the model last", body(user(), model("I would say")), ["end with a user role"]),
    ("declarations: additionalProperties", SCHEMAS(**SCHEMA, additionalProperties=False), ["Unknown name \"additionalProperties\" at 'tools[0].function_declarations[0].parameters': Cannot find field."]),
    ("declarations: $schema", SCHEMAS(**{**SCHEMA, "$schema": "x"}), ["Unknown name \"$schema\""]),
    ("declarations: deep inside", SCHEMAS(type="object", properties={"a": {"type": "string", "const": "x"}}), ["Unknown name \"const\" at 'tools[0].function_declarations[0].parameters.properties[0].value'"]),
    ("declarations: a list of types", SCHEMAS(type="object", properties={"a": {"type": ["string", "null"]}}), ["Unknown name \"type\"", "Proto field is not repeating, cannot start list."]),
    ("declarations: a type that does not exist", SCHEMAS(type="object", properties={"a": {"type": "str"}}), ["Invalid value at", "\"str\""]),
    ("declarations: an enum of numbers", SCHEMAS(type="object", properties={"a": {"type": "integer", "enum": [1]}}), ["enum[0]' (TYPE_STRING), 1"]),
    ("declarations: an enum that is no string", SCHEMAS(type="object", properties={"a": {"type": "integer", "enum": ["1"]}}), ["enum: only allowed for STRING type"]),
    ("declarations: no properties", SCHEMAS(type="object", properties={}), ["parameters.properties: should be non-empty for OBJECT type"]),
    ("declarations: an array of nothing", SCHEMAS(type="object", properties={"a": {"type": "array"}}), ["properties[a].items: missing field."]),
    ("declarations: required, not there", SCHEMAS(type="object", properties={"a": {"type": "string"}}, required=["b"]), ["required[0]: property is not defined"]),
    ("declarations: a format of JSON Schema", SCHEMAS(type="object", properties={"a": {"type": "string", "format": "uri"}}), ["only 'enum' and 'date-time' are supported"]),
    ("declarations: both schemas", declares(declaration(parametersJsonSchema=SCHEMA)), ["only one of"]),
    ("declarations: a name with a space", declares(declaration(name="show line")), ["function_declarations[0].name: Invalid function name"]),
    ("declarations: a long name", declares(declaration(name="x" * 65)), ["maximum length of 64"]),
    ("declarations: no name", declares({"description": "x"}), ["Invalid function name"]),
    ("declarations: two of one name", declares(declaration(), declaration()), ["Duplicate function declaration found: show_line"]),
    ("declarations: of OpenAI", body(tools=[{"type": "function", "function": {}}]), ["Unknown name \"type\" at 'tools[0]'"]),
    ("declarations: of Anthropic", declares({"name": "x", "input_schema": SCHEMA}), ["Unknown name \"input_schema\""]),
    ("calling: without declarations", body(tools=..., toolConfig={"functionCallingConfig": {"mode": "ANY"}}), ["Function calling config is set without function_declarations."]),
    ("calling: names without ANY", body(toolConfig={"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["show_line"]}}), ["should only be set when function calling mode is ANY"]),
    ("calling: a name that is not there", body(toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["x"]}}), ["not declared: x"]),
    ("calling: a mode that does not exist", body(toolConfig={"functionCallingConfig": {"mode": "REQUIRED"}}), ["\"REQUIRED\""]),
    ("settings: too many tokens", config(maxOutputTokens=10**6), ["supported range is from 1 (inclusive) to 65537 (exclusive)"]),
    ("settings: no tokens", config(maxOutputTokens=0), ["maxOutputTokens value of 0"]),
    ("settings: a number as text", config(maxOutputTokens="many"), ["Invalid value at 'generation_config.max_output_tokens' (TYPE_INT32), \"many\""]),
    ("settings: too hot", config(temperature=3), ["temperature must be in the range [0.0, 2.0]"]),
    ("settings: six stops", config(stopSequences=list("abcdef")), ["at most 5"]),
    ("settings: level and budget", config(thinkingConfig={"thinkingLevel": "LOW", "thinkingBudget": 100}), ["You can only set only one of thinking budget and thinking level."]),
    ("settings: no thinking where it cannot stop", config(thinkingConfig={"thinkingBudget": 0}), ["Budget 0 is invalid. This model only works in thinking mode."]),
    ("settings: max_tokens", body(max_tokens=50), ["Invalid JSON payload received. Unknown name \"max_tokens\": Cannot find field."]),
    ("settings: in the wrong place", body(temperature=0.2), ["Unknown name \"temperature\""]),
    ("settings: system as a text", body(systemInstruction="Be brief."), ["Invalid value at 'system_instruction'"]),
]


@pytest.mark.parametrize("title, request_body, fragments", REFUSED, ids=[case[0] for case in REFUSED])
def test_refusals(title, request_body, fragments):
    check(ask(request_body), 400, *fragments)


ACCEPTED = [
    ("two calls, two results", body(user(), model(call(), call(signature=None)), user(result(), result()))),
    ("ids on both sides", body(user(), model(call("a"), call("b", None)), user(result("b"), result("a")))),
    ("ids on one side", body(user(), model(call("a")), user(result()))),
    ("a word beside the results", body(user(), model(call()), user(result(), "Hurry."))),
    ("words beside the call", body(user(), model("I look.", call()), user(result()))),
    ("no role", body({"parts": [{"text": "Hi."}]})),
    ("two user turns", body(user(), user("Please."))),
    ("one thing where a list is wanted", body(contents={"parts": {"text": "Hi."}}, systemInstruction={"parts": {"text": "Be brief."}})),
    ("names with underscores", {"contents": [user()], "system_instruction": {"parts": [{"text": "x"}]}, "generation_config": {"max_output_tokens": 9, "stop_sequences": ["END"]},
                                "tools": [{"function_declarations": [declaration()]}], "tool_config": {"function_calling_config": {"mode": "any", "allowed_function_names": ["show_line"]}}}),
    ("no signature in a turn that is closed", body(user(), model(call(signature=None)), user(result()), model("It is this."), user("And?"))),
    ("a word in place of a signature", body(user(), model(call(signature="skip_thought_signature_validator")), user(result()))),
    ("an error as result", body(user(), model(call()), user(result(response={"error": "no such line"})))),
    ("a result of nothing", body(user(), model(call()), user(result(response={})))),
    ("a call of a function that is gone", body(user(), model(call(name="gone")), user(result(name="gone")))),
    ("no declarations, calls in the history", body(user(), model(call()), user(result()), tools=...)),
    ("JSON Schema in its own field", declares({"name": "x", "parametersJsonSchema": {**SCHEMA, "additionalProperties": False}})),
    ("a function without parameters", declares({"name": "now"})),
    ("types in capitals", SCHEMAS(type="OBJECT", properties={"a": {"type": "ARRAY", "items": {"type": "STRING", "enum": ["x"]}}})),
    ("calling off, no declarations", body(tools=..., toolConfig={"functionCallingConfig": {"mode": "NONE"}})),
    ("settings", config(temperature=0, topP=0.9, topK=40, seed=7, candidateCount=1, thinkingConfig={"thinkingLevel": "low", "includeThoughts": True})),
    ("a tool of theirs", body(tools=[{"googleSearch": {}}])),
    ("null for what is not said", body(generationConfig=None, toolConfig=None)),
    ("an image", body(user("See.", {"inlineData": {"mimeType": "image/png", "data": "eHg="}}))),
]


@pytest.mark.parametrize("title, request_body", ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_accepted(title, request_body):
    check(ask(request_body), 200)


def test_older_models():
    bare = body(user(), model(call(signature=None)), user(result()))
    check(ask(bare, to="gemini-2.5-flash"), 200)
    check(ask(bare, to="gemini-3.8-flash"), 400, MISSING)
    check(ask(config(thinkingConfig={"thinkingLevel": "LOW"}), to="gemini-2.5-flash"), 400, "Thinking level is not supported")
    check(ask(config(thinkingConfig={"thinkingBudget": 0}), to="gemini-2.5-flash"), 200)
    check(ask(config(thinkingConfig={"thinkingBudget": 512}), to="gemini-4-neon"), 400, "Use thinking level instead")
    check(ask(config(responseMimeType="application/json"), to="gemini-2.5-flash"), 400, "Function calling with a response mime type")
    reply = check(ask(body(), to="gemini-2.5-flash", policy=says(LOOSE_CALL)), 200)
    assert reply["candidates"][0]["content"]["parts"] == [{"functionCall": {"name": "show_line", "args": {"n": 1}}}]      # no id, no signature


def test_unknown_model_long_prompt_and_keys():
    check(ask(body(), to="nobody"), 404, "models/nobody is not found for API version v1beta", word="NOT_FOUND")
    tiny = GeminiRules("tiny", window=1000, max_output=500)
    check(ask(body(user("x" * 9000)), to="tiny", models=[tiny]), 400, "exceeds the maximum number of tokens allowed (1000)")
    check(ask(body(), {}), 403, "unregistered callers", word="PERMISSION_DENIED")
    wrong = check(ask(body(), keys=["k"]), 400, "API key not valid. Please pass a valid API key.")
    assert wrong["details"][0]["reason"] == "API_KEY_INVALID"
    with door(GeminiApi(says("x"), keys=["k"]), headers={}) as client:
        assert client.post(path() + "?key=k", json=body()).status_code == 200
        assert client.post(path(), json=body(), headers={"authorization": "Bearer k"}).status_code == 403


@pytest.mark.parametrize("kind", ["in process", "served"])
def test_endpoints(kind):
    with door(GeminiApi(says("Fine.")), kind) as client:
        listed = client.get("/v1beta/models?pageSize=50").json()["models"]
        assert {"models/gemini-3.8-flash", "models/scripted-general"} <= {entry["name"] for entry in listed}
        assert client.get("/v1beta/models/gemini-3.8-flash").json()["inputTokenLimit"] == 1_048_576
        check(client.get("/v1beta/models/nobody"), 404, word="NOT_FOUND")
        counted = client.post(path("countTokens"), json=body()).json()
        assert counted["totalTokens"] == client.post(path(), json=body()).json()["usageMetadata"]["promptTokenCount"]
        for wrong in ("/v1beta/nothing", path("embedContent"), "/v1beta/models:generateContent"):
            check(client.post(wrong, json=body()), 404, word="NOT_FOUND")
        assert client.get(path()).status_code == 405
        for raw in (b"", b"{", b"[1]", b"[" * 100_000):
            check(client.post(path(), content=raw), 400, "Invalid JSON payload received.")


@settings(max_examples=80, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["role", "parts", "text", "functionCall", "functionResponse", "name", "args", "response", "id", "thoughtSignature", "type", "properties", "items", "mode", "thought"]), inner), max_leaves=20),
    st.sampled_from(["contents", "tools", "toolConfig", "generationConfig", "systemInstruction"]))
def test_no_body_breaks_it(value, key):
    api = GeminiApi(says("Fine.", LOOSE_CALL))
    with door(api) as client:
        for request in ({**body(), key: value}, body(user(), model({"functionCall": value}), user({"functionResponse": value})), declares(declaration(parameters=value))):
            assert client.post(path(), json=request).status_code in (200, 400)
    assert all("policy failed" not in received.verdict for received in api.requests)


# ---- what comes back, and goes back

def reply_of(policy, request_body=None, **fake):
    return check(ask(request_body or body(), policy=policy, **fake), 200)


def test_replies():
    whole = reply_of(says(THOUGHT, "Reading.", LOOSE_CALL, LOOSE_CALL))
    candidate, usage = whole["candidates"][0], whole["usageMetadata"]
    words, first, second = candidate["content"]["parts"]
    assert candidate["finishReason"] == "STOP" and candidate["content"]["role"] == "model" and whole["modelVersion"] == MODEL
    assert "thoughtSignature" in first and "thoughtSignature" not in second and "thoughtSignature" not in words
    assert first["functionCall"]["id"] != second["functionCall"]["id"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"] + usage["thoughtsTokenCount"]
    shown = reply_of(says(THOUGHT, "x"), config(thinkingConfig={"includeThoughts": True}))["candidates"][0]["content"]["parts"]
    assert shown[0] == {"text": THOUGHT["thinking"], "thought": True} and shown[1]["thoughtSignature"]
    assert len(reply_of(says(LOOSE_CALL), body(toolConfig={"functionCallingConfig": {"mode": "NONE"}}))["candidates"][0]["content"]) == 1


def test_cut_refused_and_odd():
    cut = reply_of(says("I write.", {**LOOSE_CALL, "input": {"text": "word " * 500}}), config(maxOutputTokens=40))["candidates"][0]
    assert cut["finishReason"] == "MAX_TOKENS" and [list(part) for part in cut["content"]["parts"]] == [["text", "thoughtSignature"]]
    only = reply_of(says({**LOOSE_CALL, "input": {"text": "word " * 500}}), config(maxOutputTokens=40))["candidates"][0]
    assert only["content"] == {"role": "model"}                      # no parts at all
    assert reply_of(says("x"), faults=[Fault("refusal")])["candidates"] == [{"finishReason": "SAFETY", "index": 0}]
    assert reply_of(says("x"), faults=[Fault("empty")])["candidates"][0] == {"content": {"role": "model"}, "finishReason": "STOP", "index": 0}
    assert reply_of(says(stop_reason="MALFORMED_FUNCTION_CALL"))["candidates"][0]["finishReason"] == "MALFORMED_FUNCTION_CALL"
    stopped = reply_of(says("one END two"), config(stopSequences=["END"]))["candidates"][0]
    assert stopped["content"]["parts"][0]["text"] == "one "


def test_the_policy_gets_our_shape():
    seen = []
    request = body(user(), model(call("a"), call(signature=None, n=2)), user(result(), result(response={"error": "no line 2"})), systemInstruction={"parts": [{"text": "Be brief."}]},
                   generationConfig={"maxOutputTokens": 77}, toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["show_line"]}})
    ask(request, policy=lambda request: seen.append(request) or [])
    assert (seen[0]["system"], seen[0]["max_tokens"], seen[0]["tool_choice"]) == ("Be brief.", 77, {"type": "tool", "name": "show_line"})
    assert seen[0]["tools"] == [{"name": "show_line", "description": "Show one line.", "input_schema": SCHEMA}]
    asked, told = seen[0]["messages"][1]["content"], seen[0]["messages"][2]["content"]
    assert [(block["id"], block["input"]) for block in asked] == [("a", {"n": 1}), ("call_1_1", {"n": 2})]
    assert [(block["tool_use_id"], block["content"], block["is_error"]) for block in told] == [("a", "first line", False), ("call_1_1", "no line 2", True)]


def two_step(request):
    last = request["messages"][-1]["content"][0]
    return [{"type": "text", "text": f"It says {last['content']}."}] if last["type"] == "tool_result" else [dict(THOUGHT), dict(LOOSE_CALL), dict(LOOSE_CALL)]


def answers(content, told="print(1)"):
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    return user(*({"functionResponse": {"name": one["name"], "id": one["id"], "response": {"output": told}}} for one in calls))


def test_a_turn_goes_back_as_it_came():
    with door(GeminiApi(two_step)) as client:
        content = check(client.post(path(), json=body()), 200)["candidates"][0]["content"]
        final = check(client.post(path(), json=body(user(), content, answers(content))), 200)
        assert final["candidates"][0]["content"]["parts"][0]["text"] == "It says print(1)."
        first, second = content["parts"]
        bare = {"functionCall": first["functionCall"]}
        check(client.post(path(), json=body(user(), model(bare, second), answers(content))), 400, MISSING)
        moved = {**second, "thoughtSignature": first["thoughtSignature"]}
        check(client.post(path(), json=body(user(), model(bare, moved), answers(content))), 400, MISSING)
        for bent in (first["thoughtSignature"][:-2] + "xx", first["thoughtSignature"][:-8]):
            check(client.post(path(), json=body(user(), model({**first, "thoughtSignature": bent}, second), answers(content))), 400, "Corrupted")
        other_letters = first["thoughtSignature"].replace("+", "-").replace("/", "_")
        check(client.post(path(), json=body(user(), model({**first, "thoughtSignature": other_letters}, second), answers(content))), 200)


def test_the_cache_counts():
    with door(GeminiApi(says("Fine."))) as client:
        first, second = (client.post(path(), json=body(user("x" * 9000))).json()["usageMetadata"] for _ in range(2))
    assert "cachedContentTokenCount" not in first and 2000 < second["cachedContentTokenCount"] <= second["promptTokenCount"] == first["promptTokenCount"]


# ---- pieces

def test_pieces_add_up():
    policy = says("Reading it now, one moment please.", LOOSE_CALL, LOOSE_CALL)
    whole = reply_of(policy)
    sse = ask(body(), policy=policy, method="streamGenerateContent?alt=sse")
    array = ask(body(), policy=policy, method="streamGenerateContent")
    chunks = [json.loads(chunk.removeprefix("data: ")) for chunk in sse.text.strip().split("\r\n\r\n")]
    assert sse.headers["content-type"] == "text/event-stream" and array.json() == chunks
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    texts = [part["text"] for part in parts if "text" in part]
    assert len(texts) > 1 and "".join(texts) == "Reading it now, one moment please."
    assert [part for part in parts if "functionCall" in part] == whole["candidates"][0]["content"]["parts"][1:]
    assert [chunk["candidates"][0].get("finishReason") for chunk in chunks] == [None] * (len(chunks) - 1) + ["STOP"]
    assert chunks[-1]["usageMetadata"] == whole["usageMetadata"]
    signed = [json.loads(chunk.removeprefix("data: ")) for chunk in ask(body(), policy=says("Only words, and a good many of them."), method="streamGenerateContent?alt=sse").text.strip().split("\r\n\r\n")]
    assert ["thoughtSignature" in chunk["candidates"][0]["content"]["parts"][0] for chunk in signed] == [False] * (len(signed) - 1) + [True]
    empty = ask(body(), faults=[Fault("empty")], method="streamGenerateContent?alt=sse")
    assert json.loads(empty.text.removeprefix("data: "))["candidates"][0]["finishReason"] == "STOP"


def test_streams_break():
    broken = ask(body(), faults=[Fault("stream_error")], method="streamGenerateContent?alt=sse")
    assert broken.status_code == 200 and '"UNAVAILABLE"' in broken.text
    check(ask(body(contents=[]), method="streamGenerateContent?alt=sse"), 400)


# ---- faults, threads

def experience(client):
    try:
        answer = client.post(path(), json=body())
    except httpx.TransportError as error:
        return type(error).__name__
    return answer.status_code, answer.content


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "pause"])
def test_both_doors_fail_alike(kind):
    seen, more = [], {"hang": dict(seconds=5), "slow": dict(seconds=0.1), "html": dict(status=502), "rate_limit": dict(retry_after=3)}.get(kind, {})
    for where in ("in process", "served"):
        with door(GeminiApi(says("Reading.", LOOSE_CALL), faults=[Fault(kind, **more)]), where, timeout=httpx.Timeout(20, read=0.3 if kind == "hang" else 20)) as client:
            seen.append([experience(client), experience(client)])
    assert seen[0] == seen[1] and seen[0][1][0] == 200
    if kind not in ("slow", "stream_error"):
        assert seen[0][0] != seen[0][1]


@pytest.mark.parametrize("kind, status, word", [
    ("rate_limit", 429, "RESOURCE_EXHAUSTED"), ("spend_limit", 429, "RESOURCE_EXHAUSTED"), ("server_error", 500, "INTERNAL"), ("gateway_timeout", 504, "DEADLINE_EXCEEDED"), ("overloaded", 503, "UNAVAILABLE")])
def test_bad_statuses(kind, status, word):
    assert "details" not in check(ask(body(), faults=[Fault(kind)]), status, word=word)
    waiting = ask(body(), faults=[Fault(kind, retry_after=3.5)])
    assert "retry-after" not in waiting.headers       # the wait stands in the body
    assert check(waiting, status, word=word)["details"] == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}]


def test_many_threads():
    api, failures = GeminiApi(lambda request: [LOOSE_CALL]), []
    with door(api, "served", limits=httpx.Limits(max_connections=12)) as client:
        def work(name):
            contents = [user(f"I am {name}.")]
            for _ in range(6):
                answer = client.post(path(), json=body(*contents))
                if answer.status_code != 200:
                    return failures.append(answer.text)
                content = answer.json()["candidates"][0]["content"]
                contents += [content, answers(content)]
        workers = [threading.Thread(target=work, args=(name,)) for name in range(12)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    assert failures == [] and len(api.requests) == 72


def test_a_failing_policy_and_wrong_use():
    check(ask(body(), policy=lambda request: 1 / 0), 500, "The scripted policy failed", word="INTERNAL")
    with pytest.raises(ValueError, match="Messages API only"):
        GeminiApi(says("x"), faults=[Fault("pause")])
    with pytest.raises(ValueError, match="unknown"):
        GeminiApi(says("x"), lax="ollama")


# ---- the official client

@pytest.fixture
def official():
    genai = pytest.importorskip("google.genai")

    @contextmanager
    def connect(key="k1", **fake):
        with GeminiApi(**fake).serve() as server:
            options = genai.types.HttpOptions(base_url=server.url, client_args={"trust_env": False})
            yield genai.Client(api_key=key, http_options=options), genai
    return connect


def settings_of(types, **more):
    schema = {**SCHEMA, "additionalProperties": False}
    tools = [types.Tool(function_declarations=[types.FunctionDeclaration(name="show_line", parameters_json_schema=schema)])]
    by_hand = types.AutomaticFunctionCallingConfig(disable=True)
    return types.GenerateContentConfig(tools=tools, max_output_tokens=500, system_instruction="Be brief.", automatic_function_calling=by_hand, **more)


def test_official_client(official):
    with official(policy=two_step, keys=["k1"]) as (client, genai):
        types, errors = genai.types, pytest.importorskip("google.genai.errors")
        given = dict(model="gemini-3.8-flash", config=settings_of(types, thinking_config=types.ThinkingConfig(include_thoughts=True)))
        question = types.Content(role="user", parts=[types.Part(text="Show line 1.")])
        first = client.models.generate_content(contents=[question], **given)
        reply = first.candidates[0].content
        assert first.usage_metadata.thoughts_token_count > 0 and len(first.function_calls) == 2 and any(part.thought for part in reply.parts)
        told = [types.Part(function_response=types.FunctionResponse(name=one.name, id=one.id, response={"output": "print(1)"})) for one in first.function_calls]
        history = [question, reply, types.Content(role="user", parts=told)]
        assert client.models.generate_content(contents=history, **given).text == "It says print(1)."
        chunks = list(client.models.generate_content_stream(contents=[question], **given))
        assert [one.args for chunk in chunks for one in chunk.function_calls or []] == [{"n": 1}, {"n": 1}]
        assert client.models.count_tokens(model="gemini-3.8-flash", contents="Hi.").total_tokens > 0
        assert "models/gemini-3.8-flash" in [model.name for model in client.models.list()]
        for wrong, status in ((dict(contents=history[:2]), "INVALID_ARGUMENT"), (dict(contents=[question], model="nobody"), "NOT_FOUND")):
            with pytest.raises(errors.ClientError) as refused:
                client.models.generate_content(**{**given, **wrong})
            assert refused.value.status == status
        reply.parts = [types.Part(function_call=part.function_call) for part in reply.parts if part.function_call]
        with pytest.raises(errors.ClientError, match="missing a thought_signature"):
            client.models.generate_content(contents=history, **given)


def test_replies_have_the_official_types():
    types = pytest.importorskip("google.genai.types")
    for fault in ([], [Fault("cut")], [Fault("refusal")], [Fault("empty")]):
        types.GenerateContentResponse.model_validate(reply_of(says(THOUGHT, "Reading.", LOOSE_CALL), config(thinkingConfig={"includeThoughts": True}), faults=fault))
    for _, request_body in ACCEPTED:
        for content in request_body["contents"] if isinstance(request_body["contents"], list) else []:
            types.Content.model_validate(content)


def test_official_chat_calls_functions_by_itself(official):
    def show_line(n: int) -> str:
        """Show one line."""
        return f"line {n}"

    with official(policy=two_step) as (client, genai):
        chat = client.chats.create(model="gemini-3.8-flash", config=genai.types.GenerateContentConfig(tools=[show_line]))
        assert chat.send_message("Show line 1.").text == "It says line 1."


def test_official_client_on_a_bad_day(official):
    faults = [Fault("rate_limit", retry_after=3), Fault("overloaded", at=2), Fault("stream_error", at=3), Fault("refusal", at=4)]
    with official(policy=two_step, faults=faults) as (client, genai):
        errors = pytest.importorskip("google.genai.errors")
        ask_it = lambda: client.models.generate_content(model="gemini-3.8-flash", contents="Hi.")
        with pytest.raises(errors.ClientError) as limited:
            ask_it()
        assert limited.value.code == 429 and "3s" in str(limited.value.details)
        with pytest.raises(errors.ServerError):
            ask_it()
        with pytest.raises(errors.APIError, match="overloaded"):
            list(client.models.generate_content_stream(model="gemini-3.8-flash", contents="Hi."))
        assert ask_it().candidates[0].finish_reason.name == "SAFETY"
    with official(key="wrong", policy=two_step, keys=["k1"]) as (client, genai):
        with pytest.raises(errors.ClientError, match="API key not valid"):
            client.models.generate_content(model="gemini-3.8-flash", contents="Hi.")


def test_the_table_is_sound():
    for name, rules in GEMINI_MODELS.items():
        assert name == rules.id and rules.max_output <= rules.window
