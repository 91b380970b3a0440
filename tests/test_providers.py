"""The wire under attack: retries, deadlines and stops over real connections, and what is refused before any call."""
import json
import os
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from hypothesis import given, strategies as st
from parts import assert_goes_on, call, registry, run, say

from harnesslab.fake_api import FakeApi, Fault
from harnesslab.loop import History, Limits, ModelError, ModelFacts, Retry, Usage, UsageError, call_model, post, retry_after, run_clock, run_loop
from harnesslab.providers import FACTS, AnthropicModel, messages_body, anthropic_usage, check_reachable, connect, make_client, model_facts, offline
from harnesslab.scripted import canned

QUICK = Retry(tries=3, first=0.005)


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
    (dict(name="gpt-9"), "no model known"), (dict(name="other/claude-haiku-4-5"), "no model known"), (dict(name="claude-haiku-4-5"), "needs a key"), (dict(name="scripted/nobody"), "scripted/general"),
    (dict(name="claude-haiku-4-5", key="k", base_url="ftp://127.0.0.1"), "not complete"), (dict(name="claude-haiku-4-5", base_url="127.0.0.1:80"), "base URL"),
    (dict(name="claude-haiku-4-5", base_url="http://"), "not complete"), (dict(name="claude-haiku-4-5", base_url="http://[::1"), "base URL")])
def test_bad_settings_are_told_in_one_sentence(arguments, word):
    with pytest.raises(UsageError, match=word) as caught:
        connect(**arguments)
    assert "\n" not in str(caught.value)


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
        assert facts.prices is None or (facts.prices.cache_read < facts.prices.input < facts.prices.cache_write < facts.prices.output and facts.prices.source and facts.prices.date)


def test_call_model_without_a_model_asks_the_scripted_one():
    from harnesslab.providers import call_model as with_default
    reply = with_default("", [], [{"role": "user", "content": "Say something."}])
    assert reply["type"] == "message" and reply["content"]
    with pytest.raises(ModelError):
        with_default("", [], [{"role": "assistant", "content": "x"}])
