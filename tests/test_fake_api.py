"""The strict local API: what it serves and refuses, what it bills, how it fails, and that both doors are the same."""
import copy
import json
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from harnesslab.api_rules import MAX_BODY, MODELS, ModelRules, Refused, check_request
from harnesslab.chat_api import check_chat
from harnesslab.fake_api import FAULTS, FakeApi, Fault, _read_prompt, estimate_tokens, sign

CASES = json.loads((Path(__file__).parent / "data" / "wire_cases.json").read_text(encoding="utf-8"))
HEADERS = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
TOOL = {"name": "show_line", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
OLD, NEW = "claude-haiku-4-5", "claude-opus-5-5"


def says(*blocks, **more):
    "A policy that always gives the same reply."
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    return lambda body: {"content": copy.deepcopy(content), **more}


def call(id="toolu_a", **input):
    return {"type": "tool_use", "id": id, "name": "show_line", "input": input or {"n": 1}}


def result(id="toolu_a", content="first line", **more):
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def text(words="Go on.", **more):
    return {"type": "text", "text": words, **more}


def thought(words="I will look.", signature=None):
    return {"type": "thinking", "thinking": words, "signature": sign(words) if signature is None else signature}


def user(*blocks):
    return {"role": "user", "content": blocks[0] if len(blocks) == 1 and isinstance(blocks[0], str) else list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def system(words="Be brief."):
    return {"role": "system", "content": words}


def body(*messages, model=OLD, **more):
    whole = {"model": model, "max_tokens": 256, "tools": [TOOL], "messages": list(messages) or [user("Hi.")], **more}
    return {key: value for key, value in whole.items() if value is not ...}


def client_of(api, **more):
    return httpx.Client(transport=api.transport(), base_url="http://fake", headers=HEADERS, **more)


@contextmanager
def door(api, kind, **more):
    "A client of the API, in process or over a socket."
    if kind == "in process":
        with client_of(api, **more) as client:
            yield client
    else:
        with api.serve() as server, httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False, **more) as client:
            yield client


def ask(request, headers=None, path="/v1/messages", **fake):
    fake.setdefault("policy", says("Fine."))
    with client_of(FakeApi(**fake)) as client:
        head = {**HEADERS, **(headers or {})}
        client.headers = {key: value for key, value in head.items() if value is not None}
        return client.post(path, json=request)


def check(response, status, *fragments, kind="invalid_request_error"):
    told = response.json()
    assert response.status_code == status, told
    if status != 200:
        assert told["type"] == "error" and told["error"]["type"] == kind
        assert told["request_id"] == response.headers["request-id"]
        for fragment in fragments:
            assert fragment in told["error"]["message"]


# ---- the case file, and more cases of the same kinds

def expand(value):
    if isinstance(value, dict) and set(value) == {"$repeat"}:
        return value["$repeat"][0] * value["$repeat"][1]
    if isinstance(value, dict) and set(value) == {"$sign"}:
        return sign(value["$sign"])
    if isinstance(value, dict):
        return {key: expand(inner) for key, inner in value.items()}
    return [expand(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES, ids=[case["title"] for case in CASES])
def test_case_file(case):
    check(ask(expand(case["request"]), case.get("headers")), case["status"], *case["contains"], kind=case["type"])


NEW_VERSION = {"anthropic-version": "2026-10-21"}
LONG_NAME = {**TOOL, "name": "x" * 129}
ANSWERED = (user("Hi."), assistant(call()), user(result()))
SCHEMA = lambda **schema: body(tools=[{**TOOL, "input_schema": schema}])
MARK, HOUR = {"cache_control": {"type": "ephemeral"}}, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}

REFUSED = [   # (title, request, fragments of the message)
    ("results: a list of strings", body(*ANSWERED[:2], user(result(content=["a", "b"]))), ["tool_result.content.0", "Input should be an object"]),
    ("results: a number", body(*ANSWERED[:2], user(result(content=3))), ["tool_result.content", "Input should be a valid"]),
    ("results: given twice", body(*ANSWERED[:2], user(result(), result())), ["each tool_use must have a single result"]),
    ("results: given again later", body(*ANSWERED, assistant(call("toolu_b")), user(result("toolu_b"), result())), ["unexpected `tool_use_id`"]),
    ("results: for the turn before the last", body(*ANSWERED, assistant(call("toolu_b")), user(result())), ["unexpected `tool_use_id`"]),
    ("results: one message too late", body(*ANSWERED[:2], user("Wait."), assistant(text()), user(result())), ["without `tool_result`"]),
    ("results: after other words, split", body(*ANSWERED[:2], user("Wait."), user(result())), ["without `tool_result`"]),
    ("results: words between two", body(user("Hi."), assistant(call(), call("toolu_b")), user(result(), text(), result("toolu_b"))), ["toolu_b"]),
    ("results: a bad id", body(*ANSWERED[:2], user(result("a:b"))), ["tool_use_id: String should match pattern"]),
    ("results: an empty text inside", body(*ANSWERED[:2], user(result(content=[text("")]))), ["text content blocks must be non-empty"]),
    ("results: only a line break inside", body(*ANSWERED[:2], user(result(content=[text("\r\n")]))), ["non-whitespace"]),
    ("results: a call inside", body(*ANSWERED[:2], user(result(content=[call()]))), ["Input tag 'tool_use'"]),
    ("results: is_error as a string", body(*ANSWERED[:2], user(result(is_error="true"))), ["is_error: Input should be a valid boolean"]),
    ("results: an unknown key", body(*ANSWERED[:2], user(result(name="x"))), ["tool_result.name: Extra inputs are not permitted"]),
    ("results: an open call in the middle", body(*ANSWERED[:2], user("Well?"), assistant(text()), user("Hm.")), ["messages.1: `tool_use` ids"]),
    ("calls: an id used in two turns", body(*ANSWERED, assistant(call()), user(result())), ["`tool_use` ids must be unique"]),
    ("calls: in a user message", body(user(call())), ["`tool_use` blocks can only be in `assistant` messages"]),
    ("calls: no input", body(user("Hi."), assistant({"type": "tool_use", "id": "a", "name": "x"}), user(result("a"))), ["tool_use.input: Field required"]),
    ("calls: an empty id", body(user("Hi."), assistant(call("")), user(result(""))), ["tool_use.id: String should match pattern"]),
    ("calls: in the history, but no tools", body(*ANSWERED, tools=...), ["must define tools"]),
    ("calls: in the history, tools empty", body(*ANSWERED, tools=[]), ["must define tools"]),
    ("blocks: no type", body(user({"text": "Hi."})), ["messages.0.content.0.type: Field required"]),
    ("blocks: an unknown type", body(user({"type": "audio"})), ["messages.0.content.0: Input tag 'audio'"]),
    ("blocks: a bare string in the list", body({"role": "user", "content": ["Hi."]}), ["messages.0.content.0: Input should be an object"]),
    ("blocks: an unknown key", body(user(text(colour="red"))), ["messages.0.content.0.text.colour: Extra inputs are not permitted"]),
    ("blocks: an image of an unknown kind", body(user({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "aa"}})), ["media_type"]),
    ("blocks: a breakpoint on empty text", body(user(text("", **MARK), text())), ["cache_control cannot be set for empty text blocks"]),
    ("blocks: an unknown lifetime", body(user(text(cache_control={"type": "ephemeral", "ttl": "2h"}))), ["cache_control.ttl"]),
    ("messages: not a list", body(messages="Hi."), ["messages: Input should be a valid array"]),
    ("messages: no content", body({"role": "user"}), ["messages.0.content: Field required"]),
    ("messages: content null", body({"role": "user", "content": None}), ["messages.0.content: Input should be a valid array"]),
    ("messages: an empty list", body({"role": "user", "content": []}), ["messages.0: user messages must have non-empty content"]),
    ("messages: an unknown key", body({**user("Hi."), "name": "Ada"}), ["messages.0.name: Extra inputs are not permitted"]),
    ("messages: an empty answer in the middle", body(user("Hi."), assistant(), user("Well?")), ["messages.1", "non-empty"]),
    ("messages: role developer", body(user("Hi."), {"role": "developer", "content": "x"}), ["role"]),
    ("messages: white space before a call", body(user("Hi."), assistant(text("\n\n"), call()), user(result())), ["non-whitespace"]),
    ("system: role on an old model", body(user("Hi."), system()), ["role 'system' is not supported on this model"]),
    ("system: first", body(system(), user("Hi."), model=NEW), ["messages.0: use the top-level 'system' parameter"]),
    ("system: before a user message", body(user("Hi."), system(), user("So?"), model=NEW), ["role 'system'", "must precede an 'assistant' message"]),
    ("system: between a call and its result", body(*ANSWERED[:2], system(), ANSWERED[2], model=NEW), ["messages.2: role 'system'"]),
    ("system: after an answer", body(user("Hi."), assistant(text()), system(), model=NEW), ["messages.2: role 'system'"]),
    ("system: blank", body(user("Hi."), system("  "), model=NEW), ["non-whitespace"]),
    ("system: a number", body(system=7), ["system: Input should be a valid array"]),
    ("system: an empty block", body(system=[text("")]), ["system: text content blocks must be non-empty"]),
    ("tools: a name too long", body(tools=[LONG_NAME]), ["tools.0.custom.name: String should match pattern"]),
    ("tools: no name", body(tools=[{"input_schema": {"type": "object"}}]), ["tools.0.custom.name: Field required"]),
    ("tools: not an object", body(tools=[7]), ["tools.0: Input should be an object"]),
    ("tools: an unknown key", body(tools=[{**TOOL, "parameters": {}}]), ["tools.0.custom.parameters: Extra inputs are not permitted"]),
    ("schema: no type", SCHEMA(properties={}), ["tools.0.custom.input_schema.type: Field required"]),
    ("schema: an array", SCHEMA(type="array"), ["tools.0.custom.input_schema.type"]),
    ("schema: anyOf at the top", SCHEMA(type="object", anyOf=[{"type": "object"}]), ["does not support oneOf, allOf, or anyOf at the top level"]),
    ("schema: a deep wrong type", SCHEMA(type="object", properties={"a": {"type": "array", "items": {"type": "str"}}}), ["JSON schema is invalid"]),
    ("schema: required is a word", SCHEMA(type="object", required="n"), ["JSON schema is invalid"]),
    ("schema: items is a list", SCHEMA(type="object", properties={"a": {"type": "array", "items": [{"type": "string"}]}}), ["JSON schema is invalid"]),
    ("schema: properties is a list", SCHEMA(type="object", properties=["n"]), ["JSON schema is invalid"]),
    ("strict: an inner object or null is open", body(tools=[{**TOOL, "strict": True, "input_schema": {
        "type": "object", "additionalProperties": False, "properties": {"a": {"type": ["object", "null"]}}}}]), ["additionalProperties"]),
    ("strict: an inner object is open", body(tools=[{**TOOL, "strict": True, "input_schema": {
        "type": "object", "additionalProperties": False, "properties": {"a": {"type": "object"}}}}]), ["additionalProperties"]),
    ("choice: a bare word", body(tool_choice="auto"), ["tool_choice: Input should be an object"]),
    ("choice: a tool, but there are none", body(tools=..., tool_choice={"type": "tool", "name": "x"}), ["may only be specified while providing tools"]),
    ("choice: a tool that is not there", body(tool_choice={"type": "tool", "name": "x"}), ["Tool 'x' not found in provided tools"]),
    ("choice: a tool without a name", body(tool_choice={"type": "tool"}), ["tool_choice.tool.name: Field required"]),
    ("choice: none takes no switch", body(tool_choice={"type": "none", "disable_parallel_tool_use": True}), ["Extra inputs are not permitted"]),
    ("choice: a named tool on a new model", body(model="claude-sonnet-5-5", tool_choice={"type": "tool", "name": "show_line"}), ["not supported for this model"]),
    ("choice: forced with manual thinking", body(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}, tool_choice={"type": "any"}), ["Thinking"]),
    ("limits: negative", body(max_tokens=-1), ["max_tokens: Input should be greater than or equal to 0"]),
    ("limits: a fraction", body(max_tokens=2.5), ["max_tokens: Input should be a valid integer"]),
    ("limits: true", body(max_tokens=True), ["max_tokens: Input should be a valid integer"]),
    ("limits: zero while streaming", body(max_tokens=0, stream=True), ["max_tokens"]),
    ("limits: above a new model", body(model=NEW, max_tokens=128_001), ["max_tokens: 128001 > 128000"]),
    ("sampling: temperature on a new model", body(model="claude-opus-4-7", temperature=0.2), ["`temperature` is deprecated for this model"]),
    ("sampling: top_k on a new model", body(model=NEW, top_k=40), ["`top_k`"]),
    ("sampling: two at once", body(temperature=0.2, top_p=0.9), ["cannot both be specified"]),
    ("sampling: too hot", body(temperature=2), ["temperature"]),
    ("thinking: too small a budget", body(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1023}), ["thinking.enabled.budget_tokens", "1024"]),
    ("thinking: no budget", body(max_tokens=2000, thinking={"type": "enabled"}), ["thinking.enabled.budget_tokens: Field required"]),
    ("thinking: adaptive on an old model", body(thinking={"type": "adaptive"}), ["adaptive thinking is not supported on this model"]),
    ("thinking: off where it is always on", body(model=NEW, thinking={"type": "disabled"}), ['"thinking.type.disabled" is not supported']),
    ("thinking: off at high effort", body(model="claude-opus-5", thinking={"type": "disabled"}, output_config={"effort": "max"}), ["disabled"]),
    ("thinking: between_tools elsewhere", body(model=NEW, thinking={"type": "between_tools"}), ["between_tools"]),
    ("thinking: an unknown type", body(thinking={"type": "deep"}), ["thinking: Input tag 'deep'"]),
    ("thinking: no signature", body(user("Hi."), assistant({"type": "thinking", "thinking": "x"}, text()), user("So?")), ["thinking.signature: Field required"]),
    ("thinking: a made-up signature", body(user("Hi."), assistant(thought(signature="abcd"), text()), user("So?")), ["Invalid `signature` in `thinking` block"]),
    ("thinking: edited in an old turn", body(user("Hi."), assistant(thought("I edit.", sign("I look.")), text()), user("So?"), assistant(text()), user("Oh.")), ["Invalid `signature`"]),
    ("thinking: in a user message", body(user(thought())), ["can only be in `assistant` messages"]),
    ("thinking: words before the call", body(*ANSWERED[:1], assistant(text(), call()), ANSWERED[2], max_tokens=2000,
                                              thinking={"type": "enabled", "budget_tokens": 1024}), ["but found `text`"]),
    ("end: a started answer on 4.6", body(user("Hi."), assistant(text("So")), model="claude-opus-4-6"), ["does not support assistant message prefill"]),
    ("cache: five with the automatic one", body(user(*[text(str(n), **MARK) for n in range(4)]), **MARK), ["Found 5"]),
    ("cache: five with one inside a result", body(*ANSWERED[:2], user(result(content=[text(**MARK)], **MARK), text(**MARK)), system=[text(**MARK)],
                                                    tools=[{**TOOL, **MARK}]), ["Found 5"]),
    ("cache: an hour after five minutes", body(user(text(**HOUR)), system=[text(**MARK)]), ["a ttl='1h' cache_control block must not come after a ttl='5m'"]),
    ("cache: an automatic hour at the end", body(user(text(**MARK)), **HOUR), ["a ttl='1h'"]),
    ("settings: an unknown effort", body(output_config={"effort": "huge"}), ["output_config.effort"]),
    ("settings: an unknown tier", body(service_tier="gold"), ["service_tier: Input should be 'auto' or 'standard_only'"]),
    ("settings: an unknown key in metadata", body(metadata={"name": "x"}), ["metadata.name: Extra inputs are not permitted"]),
    ("settings: a beta field", body(context_management={}), ["context_management: Extra inputs are not permitted"]),
    ("settings: stop_sequences as a word", body(stop_sequences="stop"), ["stop_sequences: Input should be a valid array"]),
    ("model: missing", body(model=...), ["model: Field required"]),
    ("model: a number", body(model=7), ["model: Input should be a valid string"]),
]


@pytest.mark.parametrize("title, request_body, fragments", REFUSED, ids=[case[0] for case in REFUSED])
def test_more_refusals(title, request_body, fragments):
    check(ask(request_body), 400, *fragments)


ACCEPTED = [
    ("no content in a result", body(*ANSWERED[:2], user({"type": "tool_result", "tool_use_id": "toolu_a"}))),
    ("null content in a result", body(*ANSWERED[:2], user(result(content=None)))),
    ("empty string in a result", body(*ANSWERED[:2], user(result(content="")))),
    ("results in another order", body(user("Hi."), assistant(call(), call("toolu_b")), user(result("toolu_b"), result()))),
    ("a call of a tool that is gone", body(*ANSWERED, tools=[{**TOOL, "name": "other"}])),
    ("an empty final answer", body(user("Hi."), assistant(), model=NEW)),
    ("a started answer on an old model", body(user("Hi."), assistant(text("I would say")))),
    ("white space beside words", body(user(text("\n"), text()))),
    ("a paused turn is sent back", body(user("Hi."), assistant(text(), {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}), model=NEW)),
    ("system after the results", body(*ANSWERED, system(), model=NEW)),
    ("system before an answer", body(user("Hi."), system(), assistant(text()), user("So?"), model=NEW)),
    ("two answers in a row", body(user("Hi."), assistant(text()), assistant(call()), user(result()))),
    ("no tools, choice auto", body(tools=..., tool_choice={"type": "auto"})),
    ("no tools, choice none", body(tools=..., tool_choice={"type": "none"})),
    ("a forced tool on an old model", body(tool_choice={"type": "tool", "name": "show_line", "disable_parallel_tool_use": True})),
    ("a closed strict tool", body(tools=[{**TOOL, "strict": True, "input_schema": {**TOOL["input_schema"], "additionalProperties": False}}])),
    ("type custom, spelled out", body(tools=[{**TOOL, "type": "custom"}])),
    ("one of Anthropic's own tools", body(tools=[{"type": "bash_20250124", "name": "bash"}])),
    ("anyOf deeper down, and types in a list", SCHEMA(type="object", properties={"a": {"anyOf": [{"type": ["string", "null"]}, {"$ref": "#/$defs/x"}]}}, **{"$defs": {"x": True}})),
    ("temperature on an old model", body(temperature=0.2)),
    ("the default temperature on a new model", body(model=NEW, temperature=1)),
    ("thinking dropped from a closed turn", body(user("Hi."), assistant(text()), user("So?"), max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})),
    ("thinking with its text omitted", body(user("Hi."), assistant(thought("", sign("I look.")), call()), user(result()), model=NEW)),
    ("redacted thinking first", body(user("Hi."), assistant({"type": "redacted_thinking", "data": "eHg="}, call()), user(result()), max_tokens=2000,
                                     thinking={"type": "enabled", "budget_tokens": 1024})),
    ("thinking off on Haiku 5.5", body(model="claude-haiku-5-5", thinking={"type": "disabled"}, output_config={"effort": "low"})),
    ("between_tools on Sonnet 5.5", body(model="claude-sonnet-5-5", thinking={"type": "between_tools"})),
    ("an hour before five minutes", body(user(text(**MARK)), system=[text(**HOUR)])),
    ("three and the automatic one", body(user(*[text(str(n), **MARK) for n in range(3)]), **MARK)),
    ("a document and a search result", body(user({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                                                  {"type": "search_result", "source": "s", "title": "t", "content": [text()]}))),
    ("settings", body(metadata={"user_id": "u"}, service_tier="auto", stop_sequences=["END"], output_config={"format": {"type": "json_schema", "schema": {}}})),
    ("a model of our own", body(model="scripted-general", thinking={"type": "adaptive", "display": "omitted"})),
]


@pytest.mark.parametrize("title, request_body", ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_more_accepted(title, request_body):
    check(ask(request_body), 200)


def test_new_version():
    check(ask(body(), NEW_VERSION), 200)
    check(ask(body(top_k=5), NEW_VERSION), 400, "top_k")
    document = {"type": "document", "source": {"type": "url", "url": "http://x"}}
    history = [user("Hi."), assistant(text(), document), user("So?")]
    check(ask(body(*history)), 200)
    check(ask(body(*history), NEW_VERSION), 400, "document")
    cited = user(text(citations=[{"type": "char_location"}]))
    check(ask(body(cited)), 200)
    check(ask(body(cited), NEW_VERSION), 400, "citations")


def test_headers_and_keys():
    check(ask(body(), {"anthropic-version": "1999-01-01"}), 400, "anthropic-version")
    check(ask(body(), {"x-api-key": None}), 401, "x-api-key", kind="authentication_error")
    check(ask(body(), {"x-api-key": None, "authorization": "Bearer k1"}, keys=["k1"]), 200)
    check(ask(body(), {"x-api-key": "k1"}, keys=["k1"]), 200)
    check(ask(body(), {"x-api-key": "k2"}, keys=["k1"]), 401, "invalid x-api-key", kind="authentication_error")


def test_merge_off_refuses_split_results():
    split = body(user("Hi."), assistant(call(), call("toolu_b")), user(result()), user(result("toolu_b")))
    check(ask(split), 200)
    check(ask(split, merge=False), 400, "without `tool_result`")


@pytest.mark.parametrize("lax", ["ollama", "llama.cpp", "vllm", "lmstudio"])
def test_lax_servers_check_next_to_nothing(lax):
    wrong = body(user("Hi."), assistant(call()), user(result("another")), model="anything")
    answer = ask(wrong, {"x-api-key": None, "anthropic-version": None}, lax=lax)
    assert answer.status_code == 200 and set(answer.json()["usage"]) == {"input_tokens", "output_tokens"}
    assert ask(body(max_tokens=...), lax=lax).status_code == (400 if lax in ("ollama", "vllm") else 200)
    assert ask(body(max_tokens=...), path="/v1/messages/count_tokens", lax=lax).status_code == (200 if lax == "vllm" else 404)


# ---- endpoints and bodies

@pytest.mark.parametrize("kind", ["in process", "served"])
def test_endpoints(kind):
    with door(FakeApi(says("Fine.")), kind) as client:
        check(client.post("/v1/nothing", json={}), 404, kind="not_found_error")
        check(client.get("/v1/messages"), 405)
        check(client.put("/v1/messages", json=body()), 405)
        models = client.get("/v1/models?limit=100").json()
        assert {"claude-haiku-4-5", "scripted-general"} <= {model["id"] for model in models["data"]}
        haiku = client.get("/v1/models/claude-haiku-4-5").json()
        assert (haiku["max_input_tokens"], haiku["max_tokens"]) == (200_000, 64_000)
        check(client.get("/v1/models/nobody"), 404, "model: nobody", kind="not_found_error")
        assert client.head("/v1/messages").status_code == 405
        counted = client.post("/v1/messages/count_tokens", json=body(max_tokens=...)).json()
        billed = client.post("/v1/messages", json=body()).json()["usage"]
        assert counted == {"input_tokens": billed["input_tokens"]}
        check(client.post("/v1/messages/count_tokens", json=body()), 400, "max_tokens: Extra inputs are not permitted")


@pytest.mark.parametrize("kind", ["in process", "served"])
@pytest.mark.parametrize("raw, fragment", [
    (b"", "JSON"), (b"{", "JSON"), (b"[1]", "object"), (b"null", "object"), (b'{"max_tokens": NaN}', "JSON"), (b'{"a": "\xff"}', "UTF-8"),
    (rb'{"a": "\ud800"}', "surrogate"), (rb'{"a": ["\udc00\ud800"]}', "surrogate"), (b"[" * 100_000, "JSON"), (b'{"a": ' + b"9" * 5000 + b"}", "JSON")])
def test_bad_bodies(kind, raw, fragment):
    with door(FakeApi(says("Fine.")), kind) as client:
        answer = client.post("/v1/messages", content=raw)
        check(answer, 400, fragment)
        if fragment == "UTF-8":
            assert answer.json()["error"]["details"] == {"error_code": "request_body_encoding_invalid"}


@pytest.mark.parametrize("kind", ["in process", "served"])
def test_a_body_over_the_limit_is_413(kind):
    with door(FakeApi(says("Fine.")), kind) as client:
        check(client.post("/v1/messages", content=b" " * (MAX_BODY + 3_000_000)), 413, kind="request_too_large")
        check(client.post("/v1/messages", json=body()), 200)   # the connection is still good


def test_a_deeply_nested_body_is_refused_not_raised():
    deep = '{"a":' * 800 + "1" + "}" * 800
    raw = json.dumps(body(*ANSWERED)).replace('{"n": 1}', deep).encode()
    with client_of(FakeApi(says("Fine."))) as client:
        assert client.post("/v1/messages", content=raw).status_code in (200, 400)
        schema = '{"type":"object","properties":{"a":' * 400 + '{"type":"string"}' + "}}" * 400
        raw = json.dumps(body(tools=[{"name": "x", "input_schema": 0}])).replace('"input_schema": 0', f'"input_schema": {schema}').encode()
        assert client.post("/v1/messages", content=raw).status_code in (200, 400)


# ---- properties

@st.composite
def histories(draw):
    "A valid request: rounds of calls and answers, with all the freedom that the rules leave."
    messages, number = [user("Begin.")], 0
    for _ in range(draw(st.integers(1, 4))):
        calls = [call(f"toolu_{(number := number + 1)}") for _ in range(draw(st.integers(0, 3)))]
        words = [text("I look.")] if not calls or draw(st.booleans()) else []
        lead = [thought()] if draw(st.booleans()) else []
        messages.append(assistant(*lead, *words, *calls))
        answers = [result(one["id"], content=draw(st.sampled_from(["out", "", [text("out")], None])), is_error=draw(st.booleans())) for one in calls]
        draw(st.randoms()).shuffle(answers)
        after = [text("Go on.")] if not calls or draw(st.booleans()) else []
        if len(answers) > 1 and draw(st.booleans()):
            messages += [user(answers[0]), user(*answers[1:], *after)]
        else:
            messages.append(user(*answers, *after))
    return body(*messages, model=draw(st.sampled_from([OLD, NEW, "scripted-general"])))


def of_kind(request, kind):
    return [(m, b) for m in request["messages"] if isinstance(m["content"], list) for b in m["content"] if b["type"] == kind]


def drop_result(request, draw):
    message, block = draw(of_kind(request, "tool_result"))
    message["content"].remove(block)
    if not message["content"]:
        request["messages"].remove(message)


def strange_id(request, draw):
    draw(of_kind(request, "tool_result"))[1]["tool_use_id"] = "toolu_strange"


def words_first(request, draw):
    draw(of_kind(request, "tool_result"))[0]["content"].insert(0, text("First."))


def result_twice(request, draw):
    message, block = draw(of_kind(request, "tool_result"))
    message["content"].insert(0, copy.deepcopy(block))


def same_call_id(request, draw):
    first, second = draw([(a, b) for a in of_kind(request, "tool_use") for b in of_kind(request, "tool_use") if a is not b and a[1]["id"] < b[1]["id"]])
    second[1]["id"] = first[1]["id"]


def drop_asking_turn(request, draw):
    request["messages"].remove(draw(of_kind(request, "tool_use"))[0])


def end_with_a_call(request, draw):
    request["messages"].append(assistant(call("toolu_last")))


def input_as_string(request, draw):
    draw(of_kind(request, "tool_use"))[1]["input"] = '{"n": 1}'


def content_as_object(request, draw):
    draw(of_kind(request, "tool_result"))[1]["content"] = {"ok": True}


def swap_roles(request, draw):
    draw(of_kind(request, "tool_use"))[0]["role"] = "user"


def empty_words(request, draw):
    draw(of_kind(request, "text"))[1]["text"] = ""


def extra_key(request, draw):
    draw(of_kind(request, "text") + of_kind(request, "tool_use"))[1]["note"] = 1


def edited_thought(request, draw):
    draw(of_kind(request, "thinking"))[1]["thinking"] = "Something else."


def colon_in_id(request, draw):
    draw(of_kind(request, "tool_use"))[1]["id"] = "call:1"


MUTATIONS = [drop_result, strange_id, words_first, result_twice, same_call_id, drop_asking_turn, end_with_a_call, input_as_string, content_as_object,
             swap_roles, empty_words, extra_key, edited_thought, colon_in_id]
SHARED = FakeApi(says("Fine."))     # one API for all examples: what it remembers must never change a verdict
RELAXED = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@RELAXED
@given(histories())
def test_valid_histories_are_accepted(request_body):
    with client_of(SHARED) as client:
        check(client.post("/v1/messages", json=request_body), 200)


@RELAXED
@given(histories(), st.sampled_from(MUTATIONS), st.data())
def test_one_mutation_is_refused(request_body, mutate, data):
    def draw(choices):
        assume(choices)
        return data.draw(st.sampled_from(range(len(choices))).map(lambda k: choices[k]))
    with client_of(SHARED) as client:
        check(client.post("/v1/messages", json=request_body), 200)   # so that the API remembers the good one
        mutate(request_body, draw)
        check(client.post("/v1/messages", json=request_body), 400)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5) |
                    st.sampled_from(["user", "assistant", "text", "tool_use", "tool_result", "thinking", "ephemeral"]),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
                        st.sampled_from(["type", "text", "role", "content", "id", "name", "input", "cache_control", "tool_use_id", "thinking", "x"]), inner, max_size=5),
                    max_leaves=12)


@RELAXED
@given(st.sampled_from(list(body(system=[text()], thinking={"type": "adaptive"}, tool_choice={"type": "auto"}, output_config={}, metadata={},
                                 cache_control={"type": "ephemeral"}, stop_sequences=[]))), JSON, st.booleans())
def test_no_json_breaks_the_checks(field, value, counting):
    "Whatever is put in one place of a good request: an HTTP status comes back, and it is not a fault of ours."
    request_body = {**body(model=NEW), field: value}
    with client_of(FakeApi(says("Fine."))) as client:
        answer = client.post("/v1/messages/count_tokens" if counting else "/v1/messages", content=json.dumps(request_body))
    assert answer.status_code in (200, 400, 404)


@RELAXED
@given(JSON, st.integers(0, 2), st.data())
def test_no_json_deep_inside_breaks_the_checks(value, where, data):
    request_body = body(*copy.deepcopy(ANSWERED), system=[text()])
    target = [request_body["messages"][1]["content"][0], request_body["messages"][2]["content"][0], copy.deepcopy(TOOL)][where]
    request_body["tools"] = [target if where == 2 else TOOL]
    target[data.draw(st.sampled_from(sorted(target)))] = value
    with client_of(FakeApi(says("Fine."))) as client:
        assert client.post("/v1/messages", content=json.dumps(request_body)).status_code in (200, 400)


# ---- tokens and cache

def billed(usage):
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]


@RELAXED
@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans(), st.booleans()), min_size=1, max_size=12), st.booleans(), st.integers(0, 3), st.data())
def test_the_three_counts_add_up_to_the_prompt(steps, automatic, start, data):
    now = [0.0]
    api = FakeApi(says("Fine."), clock=lambda: now[0])
    request_body = body(model="scripted-general", system=[text("rule " * 700, **(HOUR if start == 1 else MARK if start == 2 else {}))])
    with client_of(api) as client:
        for size, marked, waits in steps:
            request_body["messages"].append(user(text("w" * (size + 1), **(MARK if marked else {}))))
            marks = [block for message in request_body["messages"] if isinstance(message["content"], list) for block in message["content"] if "cache_control" in block]
            for block in marks[:-2]:
                del block["cache_control"]
            if automatic:
                request_body["cache_control"] = {"type": "ephemeral"}
            now[0] += 400 if waits else 1
            usage = client.post("/v1/messages", json=request_body).json()["usage"]
            whole = client.post("/v1/messages/count_tokens", json={key: value for key, value in request_body.items() if key != "max_tokens"}).json()
            assert billed(usage) == whole["input_tokens"]
            assert usage["cache_creation_input_tokens"] == sum(usage["cache_creation"].values())
            assert min(usage["input_tokens"], usage["cache_read_input_tokens"], *usage["cache_creation"].values()) >= 0


def usage_of(api, request_body):
    with client_of(api) as client:
        answer = client.post("/v1/messages", json=request_body)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def test_a_growing_conversation_reads_what_it_wrote():
    api, messages = FakeApi(says("Fine.")), [user("Begin. " + "words " * 500)]
    written = 0
    for step in range(12):
        usage = usage_of(api, body(*messages, model="scripted-general", cache_control={"type": "ephemeral"}))
        assert usage["cache_read_input_tokens"] == written and usage["input_tokens"] == 0
        written += usage["cache_creation_input_tokens"]
        messages += [assistant(call(f"toolu_{step}")), user(result(f"toolu_{step}", "line " * 50))]


def test_no_breakpoint_no_cache_and_too_short_no_cache():
    api, long = FakeApi(says("Fine.")), text("rule " * 2000)
    for request_body in (body(system=[long], model="scripted-general"), body(system=[text("Short.", **MARK)], model="scripted-general"),
                         body(system=[{**long, **MARK}], model=OLD)):   # 2,858 tokens: too few for Haiku 4.5, which wants 4,096
        for _ in range(2):
            usage = usage_of(api, request_body)
            assert usage["cache_creation_input_tokens"] == usage["cache_read_input_tokens"] == 0


def test_what_drops_the_cache_and_what_does_not():
    api = FakeApi(says("Fine."))
    base = dict(model="scripted-general", system=[text("rule " * 2000, **MARK)])
    begin = [user(text("words " * 2000, **MARK))]
    usage_of(api, body(*begin, **base))
    both = usage_of(api, body(*begin, **base))["cache_read_input_tokens"]
    assert usage_of(api, body(*begin, **base, max_tokens=99))["cache_read_input_tokens"] == both
    changed = usage_of(api, body(*begin, **base, tool_choice={"type": "none"}))
    assert 2857 <= changed["cache_read_input_tokens"] < both            # tools and system are still found
    assert usage_of(api, body(*begin, **base, output_config={"effort": "low"}))["cache_read_input_tokens"] < both
    assert usage_of(api, body(*begin, **base, tools=[{**TOOL, "description": "New."}]))["cache_read_input_tokens"] == 0
    assert usage_of(api, body(*begin, **{**base, "model": "scripted-walkthrough"}))["cache_read_input_tokens"] == 0
    moved = [user(text("words " * 2000), text("more", **MARK))]         # the breakpoint moves, the words stay: still found
    assert usage_of(api, body(*moved, **base))["cache_read_input_tokens"] == both


def test_lifetimes_follow_the_clock():
    now = [0.0]
    api = FakeApi(says("Fine."), clock=lambda: now[0])
    request_body = body(user(text("words " * 2000, **MARK)), model="scripted-general", system=[text("rule " * 2000, **HOUR)])
    first = usage_of(api, request_body)
    assert min(first["cache_creation"].values()) > 2000
    now[0] = 299
    second = usage_of(api, request_body)
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
    now[0] = 299 + 299                      # a use renews the five minutes
    assert usage_of(api, request_body)["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
    now[0] += 301
    assert usage_of(api, request_body)["cache_read_input_tokens"] == first["cache_creation"]["ephemeral_1h_input_tokens"]
    now[0] += 3601
    assert usage_of(api, request_body)["cache_read_input_tokens"] == 0


@pytest.mark.parametrize("between, found", [(18, True), (19, False)])
def test_the_look_back_is_twenty_blocks(between, found):
    api = FakeApi(says("Fine."))
    usage_of(api, body(user(text("words " * 2000, **MARK)), model="scripted-general"))
    later = [text(f"block {n}") for n in range(between)]
    usage = usage_of(api, body(user(text("words " * 2000), *later, text("last", **MARK)), model="scripted-general"))
    assert (usage["cache_read_input_tokens"] > 0) is found


def test_reading_on_from_an_earlier_prompt_gives_the_same_prompt():
    draw = random.Random(4)
    for _ in range(30):
        messages = [user("Hi.")] + [user(text("x" * draw.randint(1, 50), **(MARK if draw.random() < 0.2 else {})), text("y")) for _ in range(draw.randint(1, 9))]
        whole = body(*messages, **(MARK if draw.random() < 0.5 else {}))
        known = draw.randint(1, len(messages) - 1)
        earlier = _read_prompt(body(*messages[:draw.randint(known, len(messages))]))
        assert vars(_read_prompt(whole, earlier, known)) == vars(_read_prompt(whole))


def test_the_automatic_breakpoint_never_sits_on_thinking():
    api = FakeApi(says("Fine."))
    usage_of(api, body(user(text("words " * 4000)), **MARK))
    usage = usage_of(api, body(user(text("words " * 4000)), assistant(thought("deep " * 100)), **MARK))
    assert usage["cache_creation_input_tokens"] == 0 and usage["input_tokens"] > 100


def test_few_conversations_are_remembered():
    api = FakeApi(says("Fine."))
    for number in range(40):
        usage_of(api, body(user(f"I am {number}.")))
    assert len(api._recent) == 16


BAD_KEYWORDS = [{"exclusiveMinimum": True}, {"minimum": "0"}, {"pattern": 5}, {"$ref": 5}, {"description": 5}, {"enum": "a"}, {"title": None}, {"maxLength": -1}, {"minItems": 1.5}, {"maxItems": True},
                {"uniqueItems": 1}, {"examples": "x"}, {"format": ["date"]}, {"dependentRequired": []}, {"maximum": None}, {"allOf": {}}, {"maxLength": float("1e999")}]
GOOD_KEYWORDS = [{"exclusiveMinimum": 0}, {"minimum": -0.5}, {"pattern": "^a"}, {"description": ""}, {"enum": []}, {"maxLength": 0}, {"minItems": 2.0}, {"uniqueItems": False}, {"default": 5}, {"const": None}, {"x-own": [1]}, {"maximum": 10**400}]


@pytest.mark.parametrize("number, keywords", list(enumerate([*BAD_KEYWORDS, *GOOD_KEYWORDS])))
def test_every_keyword_of_a_schema_has_its_type(number, keywords):
    """In a property, where any schema may stand; Chat Completions says the same in its own words."""
    schema, good = {"type": "object", "properties": {"n": keywords}}, number >= len(BAD_KEYWORDS)
    shapes = [(check_request, body(tools=[{**TOOL, "input_schema": schema}])),
              (check_chat, {"model": "openai-model", "messages": [user("Hi.")], "tools": [{"type": "function", "function": {"name": "look", "parameters": schema}}]})]
    for check, whole in shapes:
        if good:
            check(whole)
        else:
            with pytest.raises(Refused, match="JSON schema is invalid|Invalid schema for function 'look': .* is not of type"):
                check(whole)


def test_what_passed_before_does_not_make_another_thing_pass():
    """In Python true and 1 are equal; a request that is refused alone is refused after one that it resembles."""
    api = FakeApi(says("Fine."))
    asked, ended = [user("Hi."), assistant(call())], [assistant(text("So.")), user("And?")]
    usage_of(api, body(*asked, user({**result(), "is_error": True}), *ended))
    for other in (1, 1.0):
        whole = body(*asked, user({**result(), "is_error": other}), *ended)
        with pytest.raises(Refused, match="is_error"):
            check_request(whole)
        with client_of(api) as client:
            assert client.post("/v1/messages", json=whole).status_code == 400


def test_what_passed_before_does_not_hide_a_later_fault():
    api = FakeApi(says("Fine."))
    with client_of(api) as client:
        check(client.post("/v1/messages", json=body(*ANSWERED, user("So?"))), 200)
        check(client.post("/v1/messages", json=body(*ANSWERED, user("So?"), user(text("")))), 400, "messages.4")
        check(client.post("/v1/messages", json=body(*ANSWERED, user("So?"), user({"type": "audio"}))), 400, "messages.4.content.0")
        check(client.post("/v1/messages", json=body(*ANSWERED, user("So?"), tools=...)), 400, "must define tools")
        check(client.post("/v1/messages", json=body(*ANSWERED, user("So?"), colour=1)), 400, "colour")


# ---- the reply

def reply_of(policy, request_body=None, **fake):
    with client_of(FakeApi(policy, **fake)) as client:
        answer = client.post("/v1/messages", json=request_body or body())
    assert answer.status_code == 200, answer.text
    return answer.json()


LOOSE_CALL = {"type": "tool_use", "name": "show_line", "input": {"n": 1}}


def test_stop_reasons():
    assert reply_of(says("Done."))["stop_reason"] == "end_turn"
    assert reply_of(says("So:", LOOSE_CALL))["stop_reason"] == "tool_use"
    assert reply_of(says("No.", stop_reason="refusal", stop_details={"type": "refusal"}))["stop_details"] == {"type": "refusal"}
    stopped = reply_of(says("one END two"), body(stop_sequences=["END", "two"]))
    assert (stopped["stop_reason"], stopped["stop_sequence"], stopped["content"]) == ("stop_sequence", "END", [text("one ")])
    filled = reply_of(says("Never."), body(max_tokens=0))
    assert (filled["stop_reason"], filled["content"], filled["usage"]["output_tokens"]) == ("max_tokens", [], 0)


def test_a_reply_is_cut_at_max_tokens():
    cut = reply_of(says("w" * 1000), body(max_tokens=100))
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 100) and 345 <= len(cut["content"][0]["text"]) <= 350
    long_call = {**LOOSE_CALL, "input": {"text": "w" * 1000}}
    cut = reply_of(says("I write.", long_call, LOOSE_CALL), body(max_tokens=100))
    assert cut["stop_reason"] == "max_tokens" and [block.get("input") for block in cut["content"]] == [None, {}]
    cut = reply_of(says("Short.", LOOSE_CALL, output_tokens=5000))
    assert cut["stop_reason"] == "max_tokens" and cut["usage"]["output_tokens"] == 256
    assert reply_of(says("Short.", output_tokens=77))["usage"]["output_tokens"] == 77


def test_a_full_window_ends_the_reply():
    small = ModelRules("small", window=1000, max_output=800)
    reply = reply_of(says("w" * 3000), body(user("w" * 3000), model="small", max_tokens=800, tools=...), models=[small])
    assert reply["stop_reason"] == "model_context_window_exceeded" and reply["usage"]["output_tokens"] < 200
    check(ask(body(user("w" * 3600), model="small", tools=...), models=[small]), 400, "prompt is too long", "> 1000 maximum")


def test_thinking_comes_back_only_when_it_is_on():
    policy = says({"type": "thinking", "thinking": "I look."}, LOOSE_CALL)
    kinds = lambda reply: [block["type"] for block in reply["content"]]
    assert kinds(reply_of(policy, body(model=OLD))) == ["tool_use"]
    assert kinds(reply_of(policy, body(model="claude-opus-5", thinking={"type": "disabled"}))) == ["tool_use"]
    assert kinds(reply_of(policy, body(model="claude-haiku-5-5", tool_choice={"type": "any"}))) == ["tool_use"]
    shown = reply_of(policy, body(model=NEW, thinking={"type": "adaptive", "display": "summarized"}))
    hidden = reply_of(policy, body(model=NEW))
    assert shown["content"][0] == {"type": "thinking", "thinking": "I look.", "signature": sign("I look.")}
    assert hidden["content"][0] == {"type": "thinking", "thinking": "", "signature": sign("I look.")}
    assert hidden["usage"] == shown["usage"] and shown["usage"]["output_tokens_details"]["thinking_tokens"] == estimate_tokens(7)
    for reply in (shown, hidden):           # either goes back as it came
        answers = [result(block["id"]) for block in reply["content"] if block["type"] == "tool_use"]
        check(ask(body(user("Hi."), assistant(*reply["content"]), user(*answers), model=NEW)), 200)


def test_the_request_limits_the_calls():
    policy = says(LOOSE_CALL, LOOSE_CALL, "  ")
    assert len(reply_of(policy)["content"]) == 2     # and the blank text is gone: nobody could send it back
    assert len(reply_of(policy, body(tool_choice={"type": "auto", "disable_parallel_tool_use": True}))["content"]) == 1
    none = reply_of(policy, body(tool_choice={"type": "none"}))
    assert none["content"] == [] and none["stop_reason"] == "end_turn"


def test_ids_are_repeatable_and_never_meet():
    def run(seed):
        api, messages, ids = FakeApi(says(LOOSE_CALL, LOOSE_CALL), seed=seed), [user("Hi.")], []
        with client_of(api) as client:
            for _ in range(6):
                content = client.post("/v1/messages", json=body(*messages)).json()["content"]
                ids += [block["id"] for block in content]
                messages += [assistant(*content), user(*[result(block["id"]) for block in content])]
        return ids
    assert run(1) == run(1) != run(2) and len(set(run(1))) == 12


def test_ids_of_the_policy_are_kept():
    "A harness must cope with a model that repeats an id or leaves it empty."
    assert [block["id"] for block in reply_of(says(call("same"), call("same"), call("")))["content"]] == ["same", "same", ""]


def test_a_lone_surrogate_of_the_policy_arrives():
    reply = reply_of(says({**LOOSE_CALL, "input": {"text": "\ud99c"}}))
    assert reply["content"][0]["input"]["text"] == "\ud99c"


def test_a_failing_policy_is_told_apart_from_a_failing_network():
    def policy(request_body):
        raise KeyError("what the policy forgot")
    for broken in (policy, lambda request_body: 7, lambda request_body: [{"no": "type"}]):
        answer = ask(body(), policy=broken)
        assert answer.status_code == 500 and answer.headers["x-should-retry"] == "false" and "policy" in answer.json()["error"]["message"]


def test_signatures_are_the_same_in_another_process():
    code = "from harnesslab.fake_api import sign; print(sign('I will look.'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    assert other.stdout.strip() == sign("I will look.") != sign("I will look")


# ---- faults

def experience(client, request_body=None):
    "What a client sees of one request: an exception's name, or status, headers that matter, and content."
    try:
        answer = client.post("/v1/messages", json=request_body or body())
    except httpx.TransportError as error:
        return type(error).__name__
    heads = {name: answer.headers.get(name) for name in ("retry-after", "retry-after-ms", "x-should-retry", "content-type")}
    return answer.status_code, heads, answer.content


ALIKE = {"hang": dict(seconds=5), "slow": dict(seconds=0.1), "html": dict(status=502), "empty_body": dict(status=500), "rate_limit": dict(retry_after=3)}


@pytest.mark.parametrize("kind", FAULTS)
def test_both_doors_fail_alike(kind):
    seen = []
    for where in ("in process", "served"):
        api = FakeApi(says("Reading.", LOOSE_CALL), faults=[Fault(kind, **ALIKE.get(kind, {}))])
        with door(api, where, timeout=httpx.Timeout(20, read=0.3 if kind == "hang" else 20)) as client:
            seen.append([experience(client), experience(client)])   # the second request is served
        assert api.requests[0].verdict == f"fault: {kind}" and api.requests[1].verdict == "ok"
    assert seen[0] == seen[1]
    assert seen[0][1][0] == 200
    if kind not in ("slow", "stream_error"):
        assert seen[0][0] != seen[0][1]


@pytest.mark.parametrize("kind, name", [("drop", "RemoteProtocolError"), ("drop_body", "RemoteProtocolError"), ("hang", "ReadTimeout")])
def test_broken_connections_raise_what_httpx_raises(kind, name):
    for where in ("in process", "served"):
        with door(FakeApi(says("Fine."), faults=[Fault(kind)]), where, timeout=httpx.Timeout(20, read=0.2 if kind == "hang" else 20)) as client:
            started = time.monotonic()
            assert experience(client) == name
            assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind, status, error", [
    ("rate_limit", 429, "rate_limit_error"), ("spend_limit", 429, "rate_limit_error"), ("timeout", 408, "timeout_error"), ("conflict", 409, "conflict_error"),
    ("server_error", 500, "api_error"), ("gateway_timeout", 504, "timeout_error"), ("overloaded", 529, "overloaded_error")])
def test_status_faults(kind, status, error):
    answer = ask(body(), faults=[Fault(kind)])
    check(answer, status, kind=error)
    assert "retry-after" not in answer.headers
    assert answer.json()["error"].get("details") == ({"error_code": "enforced_spend_limit_reached"} if kind == "spend_limit" else None)


def test_retry_headers():
    assert ask(body(), faults=[Fault("rate_limit", retry_after=2.5)]).headers["retry-after"] == "2.5"
    assert ask(body(), faults=[Fault("rate_limit", retry_after=2, retry_after_as="ms")]).headers["retry-after-ms"] == "2000"
    date = parsedate_to_datetime(ask(body(), faults=[Fault("rate_limit", retry_after=60, retry_after_as="date")]).headers["retry-after"])
    assert 55 < date.timestamp() - time.time() < 65
    assert ask(body(), faults=[Fault("overloaded", should_retry=False)]).headers["x-should-retry"] == "false"
    assert ask(body(), faults=[Fault("html", status=502, should_retry=True)]).headers["x-should-retry"] == "true"


def test_spoilt_replies():
    def spoilt(kind, policy=says("Reading.", LOOSE_CALL)):
        return reply_of(policy, faults=[Fault(kind)])
    assert (spoilt("cut")["stop_reason"], spoilt("cut")["content"][1]["input"]) == ("max_tokens", {})
    assert spoilt("cut", says("abcdef"))["content"] == [text("abc")]
    assert (spoilt("empty")["stop_reason"], spoilt("empty")["content"]) == ("end_turn", [])
    assert (spoilt("refusal")["stop_reason"], spoilt("refusal")["stop_details"]["type"]) == ("refusal", "refusal")
    paused = spoilt("pause")
    assert paused["stop_reason"] == "pause_turn"
    check(ask(body(user("Hi."), assistant(*paused["content"]), model=NEW)), 200)     # sent back as it is


def test_a_bad_request_is_refused_even_when_its_reply_would_be_spoilt():
    check(ask(body(user("")), faults=[Fault("cut")]), 400, "non-empty")
    api = FakeApi(says("Fine."), faults=[Fault("overloaded", at=2, times=2)])
    with client_of(api) as client:
        statuses = [client.post("/v1/messages", json=body()).status_code for _ in range(4)]
        client.get("/v1/models")
    assert statuses == [200, 529, 529, 200]


def test_wrong_use_is_told_in_one_sentence():
    with pytest.raises(ValueError, match="there is no fault 'explode'"):
        Fault("explode")
    with pytest.raises(ValueError, match="lax='gpt' is unknown"):
        FakeApi(says("Fine."), lax="gpt")
    with pytest.raises(ValueError, match="this machine only"):
        with FakeApi(says("Fine.")).serve("0.0.0.0"):
            pass


# ---- the doors

def fake_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("fake-api")]


def test_the_server_leaves_nothing_behind():
    with FakeApi(says("Fine.")).serve() as server:
        idle = httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False)
        assert idle.post("/v1/messages", json=body()).status_code == 200      # and the connection stays open
        silent = socket.create_connection(("127.0.0.1", server.port))
        started = time.monotonic()
    assert time.monotonic() - started < 1 and fake_threads() == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
    idle.close()
    silent.close()


def test_the_server_can_stop_while_it_hangs():
    with FakeApi(says("Fine."), faults=[Fault("hang")]).serve() as server:
        client = httpx.Client(base_url=server.url, headers=HEADERS, timeout=30, trust_env=False)
        caller = threading.Thread(target=experience, args=(client,))
        caller.start()
        time.sleep(0.2)
        started = time.monotonic()
    caller.join(5)
    client.close()
    assert time.monotonic() - started < 2 and not caller.is_alive() and fake_threads() == []


def test_a_client_that_leaves_causes_no_noise(capfd):
    api = FakeApi(lambda request_body: time.sleep(0.2) or [text("w" * 2_000_000)])
    with api.serve() as server:
        raw = json.dumps(body(max_tokens=64_000)).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nanthropic-version: 2023-06-01\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
        for sent in (head + raw, head + raw[:20], head[:30]):
            connection = socket.create_connection(("127.0.0.1", server.port))
            connection.sendall(sent)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")   # leave at once, with a reset
            connection.close()
        time.sleep(0.5)
        assert httpx.post(server.url + "/v1/messages", json=body(), headers=HEADERS, trust_env=False).status_code == 200
    assert capfd.readouterr() == ("", "")
    assert len(api.requests) <= 2 and {received.verdict for received in api.requests} == {"ok"}   # half a request is none


def test_no_stall_on_a_kept_connection():
    with FakeApi(says("Fine.")).serve() as server, httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False) as client:
        client.post("/v1/messages", json=body())
        times = []
        for _ in range(30):
            started = time.perf_counter()
            client.post("/v1/messages", json=body())
            times.append(time.perf_counter() - started)
    assert sorted(times)[15] < 0.03      # a stall would be 0.04 s, every time


def test_a_length_is_needed_over_the_socket():
    with FakeApi(says("Fine.")).serve() as server, httpx.Client(base_url=server.url, headers=HEADERS, trust_env=False) as client:
        assert client.post("/v1/messages", content=iter([b"{}"])).status_code == 411


@pytest.mark.parametrize("kind", ["in process", "served"])
def test_many_threads_at_once(kind):
    api, failures = FakeApi(says(LOOSE_CALL), faults=[Fault("overloaded", at=5, every=10)]), []
    with door(api, kind, limits=httpx.Limits(max_connections=16)) as client:
        def work(name):
            messages = [user(f"I am {name}.")]
            for step in range(8):
                answer = client.post("/v1/messages", json=body(*messages))
                if answer.status_code == 529:
                    continue
                if answer.status_code != 200:
                    failures.append(answer.text)
                    return
                content = answer.json()["content"]
                messages.extend([assistant(*content), user(*[result(block["id"]) for block in content])])
        workers = [threading.Thread(target=work, args=(name,)) for name in range(16)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
    assert failures == [] and [received.verdict for received in api.requests].count("fault: overloaded") == 13


def test_the_log_is_bounded():
    api = FakeApi(says("Fine."), keep=3)
    with client_of(api) as client:
        for number in range(5):
            client.post("/v1/messages", json=body(user(str(number))))
    assert [json.loads(received.body)["messages"][0]["content"] for received in api.requests] == ["2", "3", "4"]
    assert api.requests[0].headers["x-api-key"] == "any" and api.requests[0].status == 200
    big = FakeApi(says("Fine."))
    with client_of(big) as client:
        for _ in range(3):
            client.post("/v1/messages", content=b" " * 30_000_000)
    assert sum(len(received.body) for received in big.requests) <= 64 * 1024 * 1024


# ---- streaming

def test_streaming_builds_the_same_message():
    policy = says({"type": "thinking", "thinking": "I look at line one first, of course."}, "Reading it now, one moment please.", LOOSE_CALL, {**LOOSE_CALL, "input": {}})
    whole = reply_of(policy, body(model="scripted-general"))
    answer = ask(body(model="scripted-general", stream=True), policy=policy)
    assert answer.headers["content-type"] == "text/event-stream"
    chunks = [chunk.split("\n", 1) for chunk in answer.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in chunks]
    assert [name.removeprefix("event: ") for name, _ in chunks] == [event["type"] for event in events]
    assert events[0]["message"]["content"] == [] and events[-1] == {"type": "message_stop"}
    blocks, inputs = {}, {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = event["content_block"]
        elif event["type"] == "content_block_delta":
            kind, block, delta = event["delta"]["type"], blocks[event["index"]], event["delta"]
            if kind == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            else:
                field = kind.removesuffix("_delta")
                block[field] += delta[field]
    for index, parts in inputs.items():
        blocks[index]["input"] = json.loads(parts or "{}")
    assert list(blocks.values()) == whole["content"]
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] and events[-2]["usage"] == whole["usage"]


def test_a_stream_can_break_off_with_an_error_event():
    answer = ask(body(stream=True), faults=[Fault("stream_error")])
    assert answer.status_code == 200 and '"overloaded_error"' in answer.text and "message_stop" not in answer.text
    check(ask(body(user(""), stream=True)), 400, "non-empty")       # a refused request gets plain JSON


# ---- the official client

@pytest.fixture
def official():
    anthropic = pytest.importorskip("anthropic")

    @contextmanager
    def connect(**fake):
        with FakeApi(**fake).serve() as server:
            plain = anthropic.DefaultHttpxClient(trust_env=False)
            with anthropic.Anthropic(api_key="k1", base_url=server.url, max_retries=0, http_client=plain) as client:
                yield client, anthropic
    return connect


def test_official_client(official):
    def policy(request_body):
        last = request_body["messages"][-1]["content"]
        return [text(f"It says {last[0]['content']}.")] if isinstance(last, list) else [{"type": "thinking", "thinking": "I look."}, text("So:"), LOOSE_CALL]
    with official(policy=policy, keys=["k1"]) as (client, anthropic):
        given = dict(model="scripted-general", max_tokens=300, tools=[TOOL])
        messages = [{"role": "user", "content": "Show line 1."}]
        assert client.messages.count_tokens(model="scripted-general", messages=messages).input_tokens > 0
        reply = client.messages.create(messages=messages, **given)
        assert reply.stop_reason == "tool_use" and reply.usage.output_tokens > 0 and reply._request_id.startswith("req_")
        asked = next(block for block in reply.content if block.type == "tool_use")
        messages += [reply.to_param() if hasattr(reply, "to_param") else {"role": "assistant", "content": reply.content},
                     {"role": "user", "content": [result(asked.id, "print(1)")]}]
        assert client.messages.create(messages=messages, **given).content[0].text == "It says print(1)."
        with client.messages.stream(messages=messages, **given) as stream:
            assert stream.get_final_message().content[0].text == "It says print(1)."
        with pytest.raises(anthropic.BadRequestError, match="without `tool_result`"):
            client.messages.create(messages=messages[:2], **given)
        with pytest.raises(anthropic.NotFoundError, match="model: nobody"):
            client.messages.create(model="nobody", max_tokens=5, messages=messages[:1])
        assert "claude-opus-5-5" in [model.id for model in client.models.list()]


def test_official_client_on_a_bad_day(official):
    kinds = ["rate_limit", "overloaded", "server_error", "drop", "spend_limit"]
    faults = [Fault(kind, at=number) for number, kind in enumerate(kinds, start=1)]
    with official(policy=says("Fine."), faults=faults) as (client, anthropic):
        for error in (anthropic.RateLimitError, anthropic.APIStatusError, anthropic.InternalServerError, anthropic.APIConnectionError, anthropic.RateLimitError):
            with pytest.raises(error):
                client.messages.create(model="scripted-general", max_tokens=50, messages=[{"role": "user", "content": "Hi."}])
        assert client.messages.create(model="scripted-general", max_tokens=50, messages=[{"role": "user", "content": "Hi."}]).content[0].text == "Fine."
    with official(policy=says("Fine."), keys=["another"]) as (client, anthropic):
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(model="scripted-general", max_tokens=50, messages=[{"role": "user", "content": "Hi."}])


def test_the_table_is_sound():
    for name, rules in MODELS.items():
        assert name == rules.id and rules.max_output <= rules.window and rules.thinking
