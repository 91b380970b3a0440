"""The wire under attack: retries, deadlines and stops over real connections, and what is refused before any call."""
import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
from hypothesis import given, strategies as st
from parts import assert_goes_on, call, registry, run, say

from harnesslab.fake_api import FakeApi, Fault
from harnesslab.gemini_rules import GEMINI_MODELS
from harnesslab.loop import History, Limits, ModelError, ModelFacts, Retry, Usage, UsageError, call_model, messages_body, post, retry_after, run_clock, run_loop
from harnesslab import providers
from harnesslab.api_rules import MODELS
from harnesslab.facts import HABITS, THINKING_ROOM, habits_of, known, least_room, room_for, unwelcome
from harnesslab.openai_rules import OPENAI_MODELS
from harnesslab.providers import (FACTS, PROVIDERS, AnthropicModel, Model, Offered, anthropic_usage, check_reachable, connect, list_models, make_client, model_facts,
                                  offline)
from harnesslab.scripted import canned, scripted_api
from harnesslab.throttle import Throttle
from harnesslab.wires import SERVER_CHAT, WIRES, request_body

QUICK = Retry(tries=3, first=0.005)


@pytest.fixture(autouse=True)
def no_keys_at_all(monkeypatch):
    for name in providers._SETTINGS:
        monkeypatch.delenv(name, raising=False)


def answering(*answers):
    """A client whose server gives these (status, headers, body), the last one for ever; and the list of requests that came."""
    seen = []

    def answer(request):
        status, headers, body = answers[min(len(seen), len(answers) - 1)]
        seen.append(request)
        return httpx.Response(status, headers=headers, content=body)
    return make_client(httpx.MockTransport(answer)), seen


def ask(client, retry=QUICK, on_wait=lambda info: None):
    return post(client, "http://127.0.0.1/v1/messages", {}, b"{}", retry, on_wait)


def error_body(message="no", **details):
    return json.dumps({"type": "error", "error": {"type": "x", "message": message, **({"details": details} if details else {})}}).encode()


GOOD = json.dumps({"content": [say("hi")], "stop_reason": "end_turn", "usage": {}}).encode()


@contextmanager
def served(policy=("hi",), faults=(), retry=QUICK, **options):
    """A model behind a real server on the loopback address, reached by the project's own client."""
    api = FakeApi(canned(policy) if isinstance(policy, tuple) else policy, faults=faults, **options)
    with api.serve() as server:
        model = AnthropicModel(ModelFacts("scripted-general"), make_client(), server.url, "key", retry=retry)
        try:
            yield model, api
        finally:
            model.close()


# ------------------------------------------------------------------ which answers are tried again
@pytest.mark.parametrize("status", [*range(400, 430), 431, 451, 499, *range(500, 512), 520, 524, 529, 599, 301, 302, 307, 308, 204, 100])
def test_what_is_tried_again(status):
    client, seen = answering((status, {"location": "http://127.0.0.1/elsewhere"}, error_body()))
    again = status in (408, 409, 429) or status >= 500
    with pytest.raises(ModelError) as caught:
        ask(client)
    assert len(seen) == (3 if again else 1) == caught.value.tries
    assert caught.value.http_status == status and str(status) in str(caught.value)
    assert caught.value.status == ("rate_limited" if status == 429 else "api_error")


@pytest.mark.parametrize("status, told, tries", [(400, "true", 3), (401, "TRUE", 3), (500, "false", 1), (429, "False", 1), (529, "maybe", 3), (400, "", 1)])
def test_the_server_may_say_whether_to_try_again(status, told, tries):
    client, seen = answering((status, {"x-should-retry": told}, b""))
    with pytest.raises(ModelError):
        ask(client)
    assert len(seen) == tries


def test_a_spending_cap_is_final():
    client, seen = answering((429, {"x-should-retry": "true"}, error_body("cap", error_code="enforced_spend_limit_reached")))
    with pytest.raises(ModelError, match="spending cap") as caught:
        ask(client)
    assert len(seen) == 1 and caught.value.status == "rate_limited"
    assert run(["x"], faults=[Fault("spend_limit", times=9)]).status == "rate_limited"


@pytest.mark.parametrize("body, tries", [(b"<html>login</html>", 1), (b"  <!doctype html>", 1), (b"", 3), (b"[1]", 3), (b"null", 3), (b'{"cut": ', 3), (b"plain", 3)])
def test_two_hundred_that_is_no_reply(body, tries):
    client, seen = answering((200, {}, body))
    with pytest.raises(ModelError) as caught:
        ask(client)
    assert len(seen) == tries and caught.value.status == "api_error"


def test_two_hundred_of_another_service():
    client, seen = answering((200, {}, b'{"choices": []}'))
    model = AnthropicModel(ModelFacts("m"), client, "http://127.0.0.1", retry=QUICK)
    finished = run(None, model=model)
    assert finished.status == "api_error" and "base URL" in finished["error"] and len(seen) == 1


def test_third_overload_in_a_row_does_not_end_a_run():
    finished = run(["made it"], faults=[Fault("overloaded", times=3)], events=(events := []))
    assert (finished.status, finished["tries"], finished["steps"]) == ("done", 4, 1)
    waits = [event["payload"] for event in events if event["type"] == "model_waited"]
    assert [wait["try"] for wait in waits] == [1, 2, 3] and finished["waits"] == pytest.approx(sum(wait["seconds"] for wait in waits), abs=0.01)


@pytest.mark.parametrize("kind", ["rate_limit", "timeout", "conflict", "server_error", "gateway_timeout", "overloaded", "drop", "drop_body"])
def test_passing_trouble_over_a_real_connection(kind):
    with served(faults=[Fault(kind, times=2)]) as (model, api):
        finished = run(None, model=model)
        assert (finished.status, finished.answer, finished["tries"]) == ("done", "hi", 3)
        assert len(api.requests) == 3 and len({request.body for request in api.requests}) == 1
    assert_goes_on(finished)


@pytest.mark.parametrize("kind", ["rate_limit", "timeout", "conflict", "server_error", "overloaded", "drop", "drop_body"])
def test_lasting_trouble_ends_with_a_status(kind):
    with served(faults=[Fault(kind, times=99)]) as (model, api):
        finished = run(None, model=model)
        assert finished.status == ("rate_limited" if kind == "rate_limit" else "api_error") and finished["error"] and len(api.requests) == 3
    assert_goes_on(finished)


def test_a_bad_request_is_sent_once():
    with served() as (model, api):
        history = History([{"role": "user", "content": "x"}], "", [{"name": "bad name!", "input_schema": {"type": "object"}}])
        finished = run_loop(history, model, registry())
        assert finished.status == "api_error" and len(api.requests) == 1 and "tools.0" in finished["error"]


def test_a_wrong_key_is_told_once():
    with served(keys={"another"}) as (model, api):
        finished = run(None, model=model)
        assert "401" in finished["error"] and "invalid x-api-key" in finished["error"] and len(api.requests) == 1


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    model = AnthropicModel(ModelFacts("m"), make_client(), url, retry=QUICK)
    finished = run(None, model=model)
    assert finished.status == "api_error" and "is the server running" in finished["error"]
    with pytest.raises(UsageError, match="start it, or check the base URL"):
        check_reachable(model)
    with served() as (model, _):
        check_reachable(model)
    check_reachable(offline(["x"]))


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "nothing", "http://"])
def test_a_url_that_cannot_be_called(url):
    model = AnthropicModel(ModelFacts("m"), make_client(), url, retry=QUICK)
    finished = run(None, model=model)
    assert finished.status == "api_error" and "base URL" in finished["error"] and finished["waits"] == 0


def body(argument):
    return b'{"content":[{"type":"tool_use","id":"a","name":"look","input":{"key":' + argument + b'}}],"stop_reason":"tool_use","usage":{"input_tokens":5,"output_tokens":1}}'


@pytest.mark.parametrize("argument", [b"1" * 5_000, b'"\xff"', b"[" * 50_000 + b"]" * 50_000])
def test_bodies_that_cannot_be_read_are_tried_again(argument):
    answers = iter([body(argument), b'{"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn"}'])
    client = make_client(httpx.MockTransport(lambda request: httpx.Response(200, content=next(answers))))
    reply, tries, _ = post(client, "http://127.0.0.1", {}, b"{}", Retry(first=0.01))
    assert tries == 2 and reply["content"]


def test_broken_compression_is_tried_again():
    answers = iter([httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"not gzip")), httpx.Response(200, content=b'{"content":[]}')])
    client = make_client(httpx.MockTransport(lambda request: next(answers)))
    assert post(client, "http://127.0.0.1", {}, b"{}", Retry(first=0.01))[1] == 2


def test_an_empty_answer_is_no_web_page():
    finished = run(["hi"], faults=[Fault("empty_body", times=2)])
    assert (finished.status, finished["tries"]) == ("done", 3)


# ------------------------------------------------------------------ how long to wait
@pytest.mark.parametrize("headers, seconds", [
    ({}, None), ({"retry-after": "7"}, 7), ({"retry-after": "0.5"}, 0.5), ({"retry-after-ms": "250"}, 0.25), ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
    ({"retry-after-ms": "soon", "retry-after": "7"}, 7), ({"retry-after": "-3"}, 0), ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0), ({"retry-after": "soon"}, None),
    ({"retry-after": ""}, None), ({"retry-after": "nan"}, None), ({"retry-after": "inf"}, None), ({"retry-after": "7, 8"}, None), ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None)])
def test_forms_of_retry_after(headers, seconds):
    assert retry_after(httpx.Headers(headers)) == seconds


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30) | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,2} [A-Z][a-z]{2} [0-9]{1,5} [0-9]{2}:[0-9]{2}:[0-9]{2} [-+A-Z0-9]{1,5}", fullmatch=True))
def test_any_retry_after_is_seconds_or_nothing(value):
    seconds = retry_after(httpx.Headers({"retry-after": value, "retry-after-ms": value}))
    assert seconds is None or 0 <= seconds < float("inf")


@pytest.mark.parametrize("form", ["seconds", "date", "ms"])
def test_what_the_server_asks_for_is_waited_for(form):
    waits = []
    with served(faults=[Fault("rate_limit", retry_after=1 if form == "date" else 0.2, retry_after_as=form)]) as (model, _):
        began = time.monotonic()
        reply = model(History("x"), 100, waits.append)
        took = time.monotonic() - began
    assert reply.text == "hi" and reply.tries == 2 and reply.waits == pytest.approx(waits[0]["seconds"], abs=0.01) and took >= waits[0]["seconds"] - 0.01
    assert (0.19 < waits[0]["seconds"] < 0.4) if form != "date" else (waits[0]["seconds"] < 1.1)


def test_waits_double_to_a_cap_with_some_spread():
    retry = Retry()
    for attempt, own in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 8)):
        waits = [retry.wait(attempt, None) for _ in range(200)]
        assert own <= min(waits) < max(waits) <= own * 1.25
        assert all(3 <= retry.wait(1, 3) <= 3.25 for _ in range(50))
    assert retry.tries == 6


@pytest.mark.parametrize("wrong", [dict(tries=0), dict(tries=-1), dict(first=-1), dict(patience=-1)])
def test_retry_needs_a_try(wrong):
    with pytest.raises(UsageError):
        Retry(**wrong)


@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "server_error"])
def test_a_wait_that_is_too_long_ends_the_run(kind):
    finished = run(["x"], faults=[Fault(kind, retry_after=3600)])
    assert finished.status == "rate_limited" and "3600 s" in finished["error"] and finished["waits"] == 0
    assert_goes_on(finished)


# ------------------------------------------------------------------ the deadline, and a stop
def timed(function):
    began = time.monotonic()
    return function(), time.monotonic() - began


def test_deadline_cuts_into_a_wait():
    with served(faults=[Fault("rate_limit", retry_after=30)]) as (model, api):
        finished, took = timed(lambda: run(None, limits=Limits(wall_seconds=1), model=model))
        assert finished.status == "wall_clock" and took < 1.5 and len(api.requests) == 1
    assert_goes_on(finished)


@pytest.mark.parametrize("kind", ["hang", "slow"])
def test_deadline_cuts_into_a_call(kind):
    with served(faults=[Fault(kind, seconds=30)]) as (model, api):
        finished, took = timed(lambda: run(None, limits=Limits(wall_seconds=0.5), model=model))
        assert finished.status == "wall_clock" and took < 1.5 and len(api.requests) == 1
    assert_goes_on(finished)


@contextmanager
def silent_server():
    """It takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("size", [10, 30_000_000])
def test_deadline_with_a_server_that_never_reads(size):
    with silent_server() as url:
        client = make_client()
        with run_clock(0.5), pytest.raises(ModelError) as caught:
            _, took = None, time.monotonic()
            post(client, url, {}, b"x" * size, QUICK)
        assert caught.value.status == "wall_clock" and time.monotonic() - took < 2


@pytest.mark.parametrize("kind", ["hang", "slow"])
def test_stop_cuts_into_a_call(kind):
    cancel = threading.Event()
    with served(faults=[Fault(kind, seconds=30)]) as (model, _):
        threading.Timer(0.3, cancel.set).start()
        finished, took = timed(lambda: run(None, model=model, cancel=cancel))
    assert finished.status == "interrupted" and took < 1.5
    assert_goes_on(finished)


def test_stop_cuts_into_a_wait():
    cancel = threading.Event()
    with served(faults=[Fault("overloaded")], retry=Retry(first=20, longest=20)) as (model, _):
        threading.Timer(0.3, cancel.set).start()
        finished, took = timed(lambda: run(None, model=model, cancel=cancel))
    assert finished.status == "interrupted" and took < 1.5


def test_outside_a_run_nothing_is_cut():
    with served(faults=[Fault("slow", seconds=0.5)]) as (model, _):
        assert call_model("", [], [{"role": "user", "content": "x"}], model=model)["content"] == [say("hi")]


def test_every_connection_of_the_client_keeps_the_deadline(monkeypatch):
    """The client reaches into httpx for this: it must also hold for a connection through a proxy."""
    with silent_server() as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        monkeypatch.setenv("NO_PROXY", "")
        client = make_client()
        with run_clock(0.5), pytest.raises(ModelError) as caught:
            began = time.monotonic()
            post(client, "http://192.0.2.1/v1/messages", {}, b"{}", QUICK)
        assert caught.value.status == "wall_clock" and time.monotonic() - began < 1.5


def test_a_run_over_a_real_connection_leaves_nothing():
    before, files = threading.active_count(), len(os.listdir("/dev/fd"))
    with served(policy=([call("look", key=1), call("look", key=2)], "done")) as (model, api):
        assert run(None, model=model).status == "done" and len(api.requests) == 2
    assert threading.active_count() <= before and len(os.listdir("/dev/fd")) <= files


# ------------------------------------------------------------------ bodies and usage
def test_body_has_what_was_asked_for():
    history = History("hé", "system \ud800", [{"name": "t", "input_schema": {"type": "object"}}])
    body = json.loads(messages_body(history, "m", 5, {"thinking": {"type": "adaptive"}}))
    assert body == {"model": "m", "max_tokens": 5, "thinking": {"type": "adaptive"}, "system": "system \ufffd", "tools": history.tools,
                    "messages": [{"role": "user", "content": "hé"}]}
    assert set(json.loads(messages_body(History("x"), "m", 5, {}))) == {"model", "max_tokens", "messages"}


@pytest.mark.parametrize("raw, usage", [
    ({"input_tokens": 1, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 300, "output_tokens": 4_000}, Usage(1, 20, 300, 4_000)),
    ({"input_tokens": 5, "output_tokens": 6}, Usage(5, 0, 0, 6)), ({}, Usage()), (None, Usage()), ([1], Usage()), ({"input_tokens": "5", "output_tokens": None}, Usage())])
def test_usage_has_one_normal_form(raw, usage):
    assert anthropic_usage(raw) == usage


def test_cache_is_read_because_the_prefix_stays():
    with served(policy=lambda body: [call("look", key=len(body["messages"]))]) as (model, _):
        finished = run(None, limits=Limits(max_steps=5), model=model, task="words " * 2_000)
    assert finished["cache_read"] > 4 * finished["fresh"] and finished["tok_in"] == finished["fresh"] + finished["cache_read"] + finished["cache_write"]


# ------------------------------------------------------------------ connect
@pytest.mark.parametrize("arguments, word", [
    (dict(name="gpt-9"), "no model known"), (dict(name="other/claude-haiku-4-5"), "no model known"), (dict(name="openai/"), "no model known"), (dict(name="openai"), "no model known"), (dict(name="/x"), "no model known"),
    (dict(name="openai/x"), "set OPENAI_API_KEY"), (dict(name="openai-chat/x"), "needs a key"), (dict(name="gemini/x"), "GEMINI_API_KEY or GOOGLE_API_KEY"),
    (dict(name="gemini/x", key="k", parallel_tool_calls=False), "no switch for one call"), (dict(name="openai/x", key="k", stream=True), "cannot be streamed"),
    (dict(name="claude-opus-5-5", key="k", request={"temperature": 0}), "refuses"), (dict(name="scripted/"), "no model known"), (dict(name="claude-haiku-4-5"), "needs a key"), (dict(name="scripted/nobody"), "scripted/general"),
    (dict(name="claude-haiku-4-5", key="k", base_url="ftp://127.0.0.1"), "not complete"), (dict(name="claude-haiku-4-5", base_url="127.0.0.1:80"), "base URL"),
    (dict(name="claude-haiku-4-5", base_url="http://"), "not complete"), (dict(name="claude-haiku-4-5", base_url="http://[::1"), "base URL"),
    (dict(name="openai-chat/\ud83d", key="k"), "no model known"), (dict(name="gemini/\udcff", key="k"), "no model known"), (dict(name="openai/a\nb", key="k"), "no model known"), (dict(name="openai-chat/ ", key="k"), "no model known"),
    (dict(name="openai-chat/m", base_url="http://h/v1?x=1"), "goes on with"), (dict(name="openai-chat/m", base_url="http://h/#x"), "goes on with"), (dict(name="claude-haiku-4-5", key=5), "copy it again"),
    *((dict(name=f"{wire}/m", key="k", request={field: 1}), field) for wire in ("anthropic", "openai", "openai-chat", "gemini") for field in ("model", "messages", "input", "contents", "stream", "max_tokens"))])
def test_bad_settings_are_told_in_one_sentence(arguments, word):
    with pytest.raises(UsageError, match=word) as caught:
        connect(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("levels", [150, 250, 330, 480, 900, 3_000])
@pytest.mark.parametrize("wire", WIRES)
def test_what_is_nested_too_deeply_crashes_nothing(wire, levels):
    """Wherever it stands in a reply, also with half a pair in it, which makes our own functions walk through it."""
    for end in ('"x"', '"\\ud83d"'):
        for deep in ('{"a":' * levels + end + "}" * levels, "[" * levels + end + "]" * levels):
            call_ = {"anthropic": '{"content":[{"type":"tool_use","id":"a","name":"look","input":%s},{"type":"thinking","thinking":"x","signature":%s},{"type":"tool_use","id":%s,"name":%s,"input":{}}]}',
                     "openai": '{"output":[{"type":"function_call","call_id":"a","name":"look","arguments":%s},{"type":"reasoning","summary":%s},{"type":%s,"x":%s}]}',
                     "openai-chat": '{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"look","arguments":%s}},{"id":%s,"function":{"name":%s}}],"reasoning":%s}}]}',
                     "gemini": '{"candidates":[{"content":{"parts":[{"functionCall":{"name":"look","args":%s}},{"thought":%s},{"functionCall":{"name":%s,"id":%s}}]}}]}'}[wire]
            bodies = iter([(call_ % (deep, "1", '"b"', '"look"')), (call_ % ("{}", deep, '"c"', '"look"')), (call_ % ("{}", "1", deep, deep))])
            client = make_client(httpx.MockTransport(lambda request: httpx.Response(200, content=next(bodies, "{}"))))
            finished = run(None, model=Model(ModelFacts("m"), client, "http://127.0.0.1", wire=WIRES[wire], retry=Retry(tries=1)))
            assert finished.status in ("api_error", "repeat") and "Error" not in finished["error"] and json.dumps(finished.history.messages)


@pytest.mark.parametrize("headers, body", [({"retry-after": "1e308"}, b"{}"), ({"retry-after-ms": "9" * 300}, b"{}"), ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, b"{}"), ({}, b'{"error": {"details": [{"retryDelay": "999999s"}]}}')])
def test_a_wait_without_end_is_told_as_a_long_one(headers, body):
    client, seen = answering((429, headers, body))
    with pytest.raises(ModelError, match=r"wait 604800 s") as caught:
        AnthropicModel(ModelFacts("m"), client, "http://127.0.0.1")(History("x"), 10)
    assert caught.value.status == "rate_limited" and len(seen) == 1


@pytest.mark.parametrize("name, model", [("openai-chat/org/model:tag", "org/model:tag"), (" openai / gpt-x ", "gpt-x"), ("gemini/models/gemini-x", "gemini-x"), ("openai-chat/\u043c\u043e\u0434\u0435\u043b\u044c", "\u043c\u043e\u0434\u0435\u043b\u044c")])
def test_names_as_people_write_them(name, model):
    assert connect(name, key="k").facts.name == model
    assert connect("openai-chat/m", base_url=" http://h/v1\n").url == "http://h/v1/chat/completions"


@pytest.mark.parametrize("name, value, word", [
    ("HTTPS_PROXY", "socks5://user:secret-word-1@127.0.0.1:1", "proxy"), ("ALL_PROXY", "ftp://user:secret-word-1@h", "proxy"), ("NO_PROXY", "[::1", "proxy"), ("HTTPS_PROXY", "http://user:secret-word-1/x@h", "proxy"),
    ("SSL_CERT_FILE", "/there/is/none", "SSL_CERT_FILE"), ("SSL_CERT_FILE", __file__, "SSL_CERT_FILE")])
def test_variables_that_make_no_sense_are_told_in_one_sentence(name, value, word, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=word) as caught:
        connect("openai/x", key="k")
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf" + GOOD, b" \r\n" + GOOD + b"\n\n"])
def test_a_mark_or_white_space_around_a_reply_spoils_nothing(body):
    client, _ = answering((200, {}, body))
    assert AnthropicModel(ModelFacts("m"), client, "http://127.0.0.1")(History("x"), 10).text == "hi"


@pytest.mark.parametrize("key", ["sk-very-secret-1\n", " sk-very-secret-1 \r\n"])
def test_a_key_read_from_a_file(key):
    """It often comes with a line break."""
    with served(keys={"sk-very-secret-1"}) as (model, _):
        assert run(None, model=connect("claude-haiku-4-5", base_url=f"http://{httpx.URL(model.url).netloc.decode()}", key=key)).status == "done"


@pytest.mark.parametrize("key", ["sk-very-secret\u20261", "sk\x00very-secret", "sk-very\nsecret"])
def test_a_key_that_cannot_be_sent(key):
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY") as caught:
        connect("claude-haiku-4-5", key=key)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-very\nsecret", "sk-very-secret\x00", "sk-very-secret\u2026"])
def test_an_error_never_shows_the_key(key):
    with pytest.raises(UsageError) as caught:
        AnthropicModel(ModelFacts("m"), make_client(), "http://127.0.0.1:9", key)
    assert "secret" not in str(caught.value)
    with served() as (model, api):
        with pytest.raises(ModelError) as caught:
            post(model.client, model.url, {"x-api-key": key}, b"{}", QUICK)
        assert "secret" not in str(caught.value) and not api.requests


@pytest.mark.parametrize("name", ["anthropic/", "claude-"])
def test_a_model_without_a_name(name):
    with pytest.raises(UsageError):
        connect(name, key="k")


def test_base_url_with_a_port_that_cannot_be():
    with pytest.raises(UsageError):
        connect("claude-haiku-4-5", base_url="http://127.0.0.1:99999", key="k")


def test_settings_come_from_the_environment(monkeypatch):
    assert connect().facts.name == "scripted-general" and connect().facts.scripted
    monkeypatch.setenv("AGENT_MODEL", "anthropic/claude-haiku-4-5")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("AGENT_BASE_URL", "http://127.0.0.1:9/")
    model = connect()
    assert (model.facts.name, model.url, model.facts.scripted) == ("claude-haiku-4-5", "http://127.0.0.1:9/v1/messages", False)
    assert connect("scripted/walkthrough").facts.name == "scripted-walkthrough"


def test_one_call_a_turn_can_be_asked_for():
    model = connect(parallel_tool_calls=False)
    assert model.request["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    finished = run([[call("look", key=1), call("look", key=2)], "done"], request=model.request)
    assert finished["tool_calls"] == 1


def test_facts_of_models():
    assert model_facts("claude-haiku-4-5-20251001") is FACTS["claude-haiku-4-5"]
    unknown = model_facts("claude-new-9")
    assert unknown.prices is None and unknown.window == 200_000 and model_facts("claude-fable-5-2").prices is None
    for facts in FACTS.values():
        assert facts.prices is None or (facts.prices.cache_read < facts.prices.input <= facts.prices.cache_write < facts.prices.output and facts.prices.source and facts.prices.date)


def test_call_model_without_a_model_asks_the_scripted_one():
    from harnesslab.providers import call_model as with_default
    reply = with_default("", [], [{"role": "user", "content": "Say something."}])
    assert reply["type"] == "message" and reply["content"]
    with pytest.raises(ModelError):
        with_default("", [], [{"role": "assistant", "content": "x"}])


# ------------------------------------------------------------------ four providers and any server
@pytest.mark.parametrize("name, settings, url, wire, header", [
    ("anthropic/claude-haiku-4-5", {"ANTHROPIC_API_KEY": "k-1"}, "https://api.anthropic.com/v1/messages", "anthropic", ("x-api-key", "k-1")),
    ("claude-haiku-4-5", {"ANTHROPIC_API_KEY": "k-1"}, "https://api.anthropic.com/v1/messages", "anthropic", ("x-api-key", "k-1")),
    ("openai/some-model", {"OPENAI_API_KEY": "k-2"}, "https://api.openai.com/v1/responses", "openai", ("authorization", "Bearer k-2")),
    ("openai-chat/some-model", {"OPENAI_API_KEY": "k-2"}, "https://api.openai.com/v1/chat/completions", "openai-chat", ("authorization", "Bearer k-2")),
    ("gemini/some-model", {"GEMINI_API_KEY": "k-3", "GOOGLE_API_KEY": "k-4"}, "https://generativelanguage.googleapis.com/v1beta/models/some-model:generateContent", "gemini", ("x-goog-api-key", "k-3")),
    ("gemini/some-model", {"GOOGLE_API_KEY": "k-4"}, "https://generativelanguage.googleapis.com/v1beta/models/some-model:generateContent", "gemini", ("x-goog-api-key", "k-4")),
    ("ollama/qwen3:8b", {"OPENAI_API_KEY": "k-2"}, "http://localhost:11434/v1/chat/completions", "openai-chat", ("authorization", "Bearer none")),
    ("ollama/hf.co/team/model:Q4", {"AGENT_API_KEY": "k-5"}, "http://localhost:11434/v1/chat/completions", "openai-chat", ("authorization", "Bearer k-5")),
    ("ollama/m", {"AGENT_BASE_URL": "http://127.0.0.1:9/v1"}, "http://127.0.0.1:9/v1/chat/completions", "openai-chat", ("authorization", "Bearer none")),
    ("openai-chat/Team/Model-7B", {"AGENT_BASE_URL": "http://127.0.0.1:8000/v1", "AGENT_API_KEY": "k-5", "OPENAI_API_KEY": "k-2"}, "http://127.0.0.1:8000/v1/chat/completions", "openai-chat", ("authorization", "Bearer k-5")),
    ("openai/m", {"AGENT_BASE_URL": "http://127.0.0.1:8000", "OPENAI_API_KEY": "k-2"}, "http://127.0.0.1:8000/v1/responses", "openai", ("authorization", "Bearer k-2")),
    ("anthropic/any-name", {"AGENT_BASE_URL": "http://127.0.0.1:8000"}, "http://127.0.0.1:8000/v1/messages", "anthropic", ("x-api-key", "none"))])
def test_names_keys_and_addresses(name, settings, url, wire, header, monkeypatch):
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    for model in (connect(name), (monkeypatch.setenv("AGENT_MODEL", name), connect())[1]):
        assert (model.url, model.wire.name, model._headers[header[0]]) == (url, wire, header[1])
        assert model.facts.name == (name.split("/", 1)[1] if "/" in name else name) and not model.facts.scripted
        assert header[1].removeprefix("Bearer ") not in json.dumps(model.request)


def test_only_the_real_one_gets_the_newer_name_of_the_limit(monkeypatch):
    assert connect("openai-chat/m", key="k").wire is WIRES["openai-chat"]
    assert connect("openai-chat/m", base_url="http://127.0.0.1:9").wire is connect("ollama/m").wire is SERVER_CHAT


@pytest.mark.parametrize("name, field", [("anthropic", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "cache_control": {"type": "ephemeral"}}), ("openai", {"parallel_tool_calls": False}),
                                         ("openai-chat", {"parallel_tool_calls": False}), ("ollama", {"parallel_tool_calls": False})])
def test_one_call_a_turn_in_each_ones_words(name, field):
    assert connect(f"{name}/m", key="k", parallel_tool_calls=False).request == field
    assert connect(f"{name}/m", key="k", request={"x": 1}).request == {**({"cache_control": {"type": "ephemeral"}} if name == "anthropic" else {}), "x": 1}


@pytest.mark.parametrize("wire", ["anthropic", "openai", "openai-chat"])
def test_one_call_a_turn_is_kept(wire):
    model = offline([[call("look", key=1), call("look", key=2)], "done"], wire=wire, request={**(WIRES[wire].defaults or {}), **WIRES[wire].one_call})
    assert run(None, model=model)["tool_calls"] == 1


def test_a_server_that_stands_for_the_real_one_teaches_the_newer_name():
    """Reasoning models refuse `max_tokens`; the request is sent again with the newer name, and from then on at once."""
    api = type(scripted_api(wire="openai-chat"))(canned([[call("look", key=1)], [say("hi")]]))
    with api.serve() as server:
        model = connect("openai-chat/gpt-5", base_url=server.url, key="a-good-key-0123", request={"reasoning_effort": "minimal"})
        finished = run(None, model=model)
        model.close()
    assert finished.status == "done" and [received.status for received in api.requests] == [400, 200, 200]


def test_nothing_set_is_said_once_when_it_matters(capsys, monkeypatch):
    monkeypatch.setattr(providers, "_said", set())
    first, second = connect(), connect()
    assert capsys.readouterr().err == ""
    for model in (first, first, second):
        model(History("x"), 100)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no model and no key are set, so the scripted model answers" in said and "AGENT_MODEL" in said
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    connect()(History("x"), 100)
    assert "OPENAI_API_KEY is set, but no model" in capsys.readouterr().err
    connect("scripted/general")(History("x"), 100)
    monkeypatch.setenv("AGENT_MODEL", "scripted/general")
    connect()(History("x"), 100)
    assert capsys.readouterr().err == ""


def test_call_model_follows_the_settings(monkeypatch):
    with served(keys={"sk-right-0123"}) as (model, _):
        monkeypatch.setenv("AGENT_MODEL", "anthropic/scripted-general")
        monkeypatch.setenv("AGENT_BASE_URL", model.url.removesuffix("/v1/messages"))
        monkeypatch.setenv("AGENT_API_KEY", "sk-wrong-0123")
        with pytest.raises(ModelError, match="check AGENT_API_KEY"):
            call_model("", [], [{"role": "user", "content": "x"}])
        monkeypatch.setenv("AGENT_API_KEY", "sk-right-0123")
        assert call_model("", [], [{"role": "user", "content": "x"}])["content"]


@pytest.mark.parametrize("wire", WIRES)
def test_call_model_gives_one_shape_whoever_answers(wire):
    reply = call_model("", [], [{"role": "user", "content": "x"}], model=offline([[say("hi")]], wire=wire))
    assert reply["content"][-1]["text"] == "hi" and reply["stop_reason"] == "end_turn" and reply["usage"]["output_tokens"] > 0 and reply["role"] == "assistant"


# ------------------------------------------------------------------ facts and habits
def test_habits_are_those_of_the_strict_api():
    """Two tables that were written apart say the same."""
    plain = {name for name, rules in OPENAI_MODELS.items() if not rules.efforts}  # these do not reason, and refuse nothing of this
    made_up = {name for name in (*MODELS, *OPENAI_MODELS, *GEMINI_MODELS) if name.startswith("scripted") or name.endswith("-model")}
    assert set(HABITS) == {*MODELS, *OPENAI_MODELS, *GEMINI_MODELS} - plain - made_up - {"claude-haiku-4-5-20251001"} >= set(FACTS) - {"smollm2-135m-instruct"}
    for name, habits in HABITS.items():
        rules, refuses = next(table[name] for table in (MODELS, OPENAI_MODELS, GEMINI_MODELS) if name in table), habits.refuses
        if name in OPENAI_MODELS:
            assert habits.thinks == (rules.effort != "none") and ("no thinking" in refuses) == ("none" not in rules.efforts) and "sampling with thinking" in refuses
        elif name in GEMINI_MODELS:
            assert habits.thinks and ("thinking budget" in refuses) == name.startswith("gemini-4") and ("no thinking" in refuses) != rules.can_rest
        else:
            assert habits.thinks == rules.thinks_unasked and ("prefill" in refuses) != rules.prefill and ("sampling" in refuses) != rules.sampling and ("forced tools" in refuses) != rules.forced_tools
            for kind, word in (("enabled", "thinking budget"), ("adaptive", "adaptive thinking"), ("disabled", "no thinking")):
                assert (word in refuses) == (kind not in rules.thinking)
        if name in FACTS:
            assert (FACTS[name].window, FACTS[name].max_output) == (rules.window, rules.max_output)
    assert known(FACTS, "gpt-6.2-sol-2026-10-01") is FACTS["gpt-6.2-sol"] and known(HABITS, "gpt-6.2-sol-20261001") is HABITS["gpt-6.2-sol"] and known(FACTS, "gpt-6.2-sol-2026-10-1") is None
    assert known(HABITS, "claude-haiku-4-5-20251001") is HABITS["claude-haiku-4-5"] and known(HABITS, "some-model") is None


@pytest.mark.parametrize("name", [name for name in HABITS if name.startswith("claude")])
@pytest.mark.parametrize("request_", [{"temperature": 0}, {"top_p": 1}, {"top_k": 5}, {"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "tool", "name": "look"}}, {"tool_choice": {"type": "auto"}},
                                      {"thinking": {"type": "enabled", "budget_tokens": 1_024}}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}}, {}], ids=str)
def test_what_a_model_refuses_is_never_sent(name, request_):
    """Whatever goes out is taken by the strict API; whatever would be refused is told before."""
    api, history = FakeApi(canned(["hi"])), History("x", "", registry().definitions)
    try:
        model = Model(model_facts(name), make_client(api.transport()), "http://127.0.0.1", "key", request=request_)
    except UsageError as error:
        assert name in str(error) and "leave it out" in str(error)
        field = unwelcome(request_, HABITS[name])
        body = {"model": name, "max_tokens": 4_000, "messages": [{"role": "user", "content": "x"}], "tools": history.tools, **request_}
        refused = make_client(api.transport()).post("http://127.0.0.1/v1/messages", json=body, headers={"x-api-key": "key", "anthropic-version": "2023-06-01"})
        assert field in request_ and (refused.status_code == 400 or request_.get("top_p") == 1)  # its own default is taken
        return
    model(history, 1_000)


SETTINGS = [{}, {"temperature": 0}, {"temperature": 1}, {"top_p": 0.5}, {"top_p": None}]
REASONING = [{}, *({"reasoning": {"effort": effort}} for effort in ("none", "low"))]
BUDGETS = [{}, *({"generationConfig": {"thinkingConfig": {"thinkingBudget": budget}}} for budget in (0, 500))]


@pytest.mark.parametrize("name", [name for name in HABITS if not name.startswith("claude")])
def test_what_a_model_refuses_is_never_sent_on_the_other_wires(name):
    """The strict API and the habits agree on every request: one is told before, the other is taken."""
    for wire in ("openai", "openai-chat") if name in OPENAI_MODELS else ("gemini",):
        api = type(scripted_api(wire=wire))(lambda body: [say("hi")])
        for more in [one | two for one in SETTINGS for two in REASONING] if name in OPENAI_MODELS else BUDGETS:
            if wire == "openai-chat" and "reasoning" in more:
                more = {**{key: value for key, value in more.items() if key != "reasoning"}, "reasoning_effort": more["reasoning"]["effort"]}
            told = unwelcome(more, HABITS[name])
            if told:
                with pytest.raises(UsageError, match=told):
                    Model(model_facts(name), make_client(api.transport()), "http://127.0.0.1", "a-good-key-0123", wire=WIRES[wire], request=more)
            body = request_body(WIRES[wire], History("x"), name, 1_000, more)
            answer = make_client(api.transport()).post(WIRES[wire].url("http://127.0.0.1", name), content=body, headers=WIRES[wire].headers("a-good-key-0123"))
            assert (answer.status_code == 400) == bool(told) and answer.status_code in (200, 400), (more, told, answer.text)


@pytest.mark.parametrize("name", [name for name in FACTS if name.startswith("claude")])
def test_a_history_that_ends_with_the_models_words(name):
    model = Model(FACTS[name], make_client(FakeApi(lambda body: [say("hi")]).transport()), "http://127.0.0.1", "key")
    history = History([{"role": "user", "content": "x"}, {"role": "assistant", "content": [say("I was")]}])
    if name == "claude-haiku-4-5":
        assert model(history, 100).text == "hi"
    else:
        with pytest.raises(UsageError, match="ends with its own words"):
            model(history, 100)
    paused = History([{"role": "user", "content": "x"}, {"role": "assistant", "content": [say("I was"), {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}]}])
    assert not providers._is_prefill(paused)  # a turn that was paused has to go back


def test_thoughts_have_room():
    sent = []

    def answer(request):
        sent.append(json.loads(request.content)["max_tokens"])
        return httpx.Response(200, json={"content": [say("hi")], "stop_reason": "end_turn"})
    for name, request_ in (("claude-opus-5-5", None), ("claude-haiku-4-5", None), ("claude-opus-5", {"thinking": {"type": "disabled"}}), ("claude-haiku-4-5", {"thinking": {"type": "enabled", "budget_tokens": 4_000}})):
        model = Model(FACTS[name], make_client(httpx.MockTransport(answer)), "http://127.0.0.1", "key", request=request_)
        call_model("", [], [{"role": "user", "content": "x"}], model=model)
        model(History("x"), 1_000)
    assert sent == [THINKING_ROOM, 1_000, 2_048, 1_000, 2_048, 1_000, THINKING_ROOM, 5_000]
    assert room_for(1_000, {"thinking": {"type": "enabled", "budget_tokens": 4_000}}, 4_500) == 4_500 and least_room(HABITS["claude-opus-4-8"], {}) == 0


@pytest.mark.parametrize("name, wire, request_, refused, room", [
    ("gpt-6.2-sol", "openai", {}, "", THINKING_ROOM), ("gpt-6.2-sol", "openai", {"reasoning": {"effort": "none"}}, "'reasoning': leave it out", 0),
    ("gpt-6.2-sol", "openai-chat", None, "'reasoning_effort': use openai/gpt-6.2-sol", 0), ("gpt-6-sol", "openai-chat", None, "", 0),
    ("gpt-6-sol", "openai", {"reasoning": {"effort": "none"}}, "", 0), ("gpt-6-luna", "openai", {"reasoning": {"effort": "low"}}, "", THINKING_ROOM),
    ("o4-mini", "openai", {}, "", THINKING_ROOM), ("gpt-4.1", "openai", {}, "", 0), ("gpt-5.9-new", "openai", {}, "", THINKING_ROOM),
    ("gemini-4-neon", "gemini", {}, "", THINKING_ROOM), ("gemini-4-neon", "gemini", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 9}}}, "'thinkingBudget': leave it out", 0),
    ("gemini-2.5-flash", "gemini", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}, "", 0), ("gemini-1.5-pro", "gemini", {}, "", 0),
    ("omni", "openai-chat", {}, "", 0), ("qwen3:8b", "openai-chat", {}, "", 0)])
def test_habits_on_the_other_wires(name, wire, request_, refused, room):
    def model():
        return Model(model_facts(name), make_client(httpx.MockTransport(lambda request: httpx.Response(500))), "http://127.0.0.1", "key", wire=WIRES[wire], request=request_)
    if refused:
        with pytest.raises(UsageError) as caught:
            model()
        assert name in str(caught.value) and refused in str(caught.value)
    else:
        assert model().least_room == room


def test_an_hour_in_the_cache_costs_twice_the_input_price():
    hour, written = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}, Usage(cache_write=100_000)
    for name, request_, dollars in (("claude-opus-5", hour, 1), ("claude-opus-5-20260724", hour, 1), ("claude-opus-5", None, 0.625), ("claude-opus-5", {"cache_control": None}, 0.625), ("gpt-6-sol", hour, 0.25)):
        facts = replace(model_facts(name), name=name)
        model = Model(facts, make_client(httpx.MockTransport(lambda request: httpx.Response(500))), "http://127.0.0.1", "key", request=request_)
        assert model.facts.prices.cost(written) == pytest.approx(dollars) and (model.facts is facts) == (dollars != 1)
    assert connect("anthropic/claude-unknown-9", key="k" * 9, request=hour).facts.prices is None
    assert FACTS["claude-opus-5"].prices.cost(written) == 0.625


def test_long_prompts_raise_input_and_output_by_their_own_factors():
    for name in ("gpt-6.2-sol", "gpt-6-luna"):
        prices = FACTS[name].prices
        usage = Usage(fresh=200_000, cache_read=72_000, cache_write=1, output=10)
        assert prices.cost(usage) == pytest.approx((200_000 * prices.input + 72_000 * prices.cache_read + prices.cache_write) * 2 / 1e6 + 10 * prices.output * 1.5 / 1e6)
    assert habits_of("claude-haiku-4-5-20251001") is HABITS["claude-haiku-4-5"]


# ------------------------------------------------------------------ which models are there
def paged(*pages):
    """A client whose server hands out these pages; and the addresses that were asked for."""
    asked = []

    def answer(request):
        asked.append(str(request.url))
        return httpx.Response(200, json=pages[len(asked) - 1])
    return httpx.MockTransport(answer), asked


@pytest.mark.parametrize("provider, pages, offered, second", [
    ("anthropic", [{"data": [{"id": "claude-b", "max_input_tokens": 200_000, "max_tokens": 64_000}], "has_more": True, "last_id": "claude b&limit=1#"}, {"data": [{"id": "claude-a"}], "has_more": False}],
     [Offered("claude-a"), Offered("claude-b", 200_000, 64_000)], "after_id=claude%20b%26limit%3D1%23"),
    ("openai", [{"object": "list", "data": [{"id": "z"}, {"id": "a", "owned_by": "x"}]}], [Offered("a"), Offered("z")], None),
    ("openai-chat", [{"data": [{"id": "Team/Model", "max_model_len": 32_768}, "nonsense"]}], [Offered("Team/Model", 32_768)], None), ("ollama", [{"object": "list", "data": []}], [], None),
    ("ollama", [{"data": [{"id": "evil\x1b[2J\nsecond"}, {"id": None}, {"id": 5}, {"id": ""}, {}, {"name": "n", "max_tokens": True, "max_model_len": -5}]}], [Offered("evil?[2J second"), Offered("n")], None),
    ("gemini", [{"models": [{"name": "models/gemini-b", "inputTokenLimit": 1_000, "outputTokenLimit": 10, "supportedGenerationMethods": ["generateContent"]},
                            {"name": "models/embed", "supportedGenerationMethods": ["embedContent"]}], "nextPageToken": "t1"}, {"models": [{"name": "models/gemini-a"}]}],
     [Offered("gemini-a"), Offered("gemini-b", 1_000, 10)], "pageToken=t1")])
def test_lists_of_models(provider, pages, offered, second, monkeypatch):
    transport, asked = paged(*pages)
    monkeypatch.setattr(providers, "make_client", lambda: httpx.Client(transport=transport))
    assert list_models(provider, base_url="http://127.0.0.1:9", key="k") == offered and len(asked) == len(pages)
    assert second is None or second in asked[1]


@pytest.mark.parametrize("wire", WIRES)
def test_the_strict_apis_list_their_models(wire):
    with type(scripted_api(wire=wire))(canned([]), keys={"a-good-key-0123"}).serve() as server:
        names = [offered.name for offered in list_models(wire, base_url=server.url, key="a-good-key-0123")]
    assert "scripted-general" in names and names == sorted(names)


def test_lists_that_cannot_be_had():
    for provider in ("anthropic", "openai", "openai-chat", "gemini"):
        with pytest.raises(UsageError, match="needs a key: set " + PROVIDERS[provider].keys[0]):
            list_models(provider)
    with pytest.raises(UsageError, match="There is no provider 'nobody'"):
        list_models("nobody")
    assert [offered.name for offered in list_models("scripted")] == ["general", "walkthrough"]


# ------------------------------------------------------------------ any server of one's own
@pytest.mark.parametrize("lax", ["ollama", "lmstudio", "llama.cpp", "vllm", "careless", "same-ids"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_on_lax_chat_servers(lax, stream):
    """No ids, one id for all, arguments as an object, a finish reason that says nothing, no counts: the run is the same."""
    def policy(body):
        asked = sum(message["role"] == "assistant" for message in body["messages"])
        return [call("look", key=1), call("look", key=2)] if not asked else [say("Both seen.")]
    api = type(scripted_api(wire="openai-chat"))(policy, lax=lax)
    with api.serve() as server:
        model = connect("openai-chat/some-model", base_url=server.url, stream=stream, on_text=lambda text: None)
        finished = run(None, model=model)
        model.close()
    assert finished.status == "done" and finished.answer == "Both seen." and finished["tool_errors"] == 0
    assert finished["tool_calls"] == 2
    finished.history.add_user("Go on.")  # and the strict API takes it from here
    assert run_loop(finished.history, offline(lambda body: [say("went on")]), registry()).answer == "went on"


@pytest.mark.parametrize("lax", ["ollama", "lmstudio", "llama.cpp", "vllm"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_on_lax_messages_servers(lax, stream):
    with FakeApi(canned([[call("look", key=1)], [say("Seen.")]]), lax=lax).serve() as server:
        finished = run(None, model=connect("anthropic/some-model", base_url=server.url, stream=stream, on_text=lambda text: None))
    assert (finished.status, finished.answer, finished["dollars"]) == ("done", "Seen.", None)


def test_a_shared_throttle_can_be_given():
    throttle = Throttle(3)
    assert connect("ollama/m", throttle=throttle).throttle is throttle is connect("scripted/general", throttle=throttle).throttle


@pytest.mark.parametrize("name", ["gpt-6-sol", "gpt-5.6-sol", "gpt-5.5", "gpt-5", "o3", "gpt-4o"])
def test_models_of_openai_take_functions_in_chat_completions(name, tmp_path):
    """Those that reason refuse functions there, unless reasoning is switched off. (The newest cannot switch it off.)"""
    from harnesslab.sandbox import run_agent
    from harnesslab.scripted import make_repo
    model = offline(None, name=name, wire="openai-chat")
    assert run_agent("Which functions does this package export?", make_repo(tmp_path / "repo"), "no", model=model).status == "done"
    assert ("reasoning_effort" in model.request) == name.startswith(("gpt-6", "gpt-5.6"))
