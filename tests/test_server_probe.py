"""What a probe finds out about servers: the lax presets of the two fakes, and a server of a few lines with every bad habit, one at a time."""
import contextlib
import json
import socket
import threading
import time
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from harnesslab.chat_api import LAX, ChatApi, Laxness
from harnesslab.fake_api import FakeApi
from harnesslab.loop import UsageError
from harnesslab.providers import make_client
from harnesslab.scripted import call, say
from harnesslab.server_probe import Capabilities, bound_to, probe_server


def obedient(request):
    """Calls a tool when it has to, and otherwise counts."""
    if (request.get("tool_choice") or {}).get("type") in ("any", "tool"):
        return [call("report", word="honorificabilitudinitatibus" * 5)]
    return [say("one two three four five six seven eight nine ten " * 9)]


def chat(lax, policy=obedient, **options):
    with ChatApi(policy, lax=lax).serve() as api:
        return probe_server(api.url, **options)


# ---- the two fakes


def test_the_strict_messages_api_gives_nothing_to_complain_about():
    with FakeApi(obedient, keys=["k"]).serve() as api:
        found = probe_server(api.url + "/v1/", "scripted-general", "k", "anthropic")
    assert found.tools and found.tokens[1] > found.tokens[0] > 0 and found.forced_by == ("tool_choice",)
    assert found.keeps_limit and found.tells_cut and found.checks_history and found.bad_body == 400 and found.ids == "usable"
    assert found.window == 200_000 and "scripted-general" in found.models and not found.base_url.endswith("/v1")
    assert [w for w in found.warnings() if "looks whole" not in w] == []


def test_the_strict_chat_api_gives_nothing_to_complain_about():
    with ChatApi(obedient, keys=["k"]).serve() as api:
        found = probe_server(api.url, "scripted-general", "k")
    assert found.tools and found.forced_by == ("tool_choice",) and found.cut_call, found
    assert found.checks_history and found.bad_body == 400 and [w for w in found.warnings() if "looks whole" not in w] == []


@pytest.mark.parametrize("preset, words", [
    ("llama.cpp-no-tools", ["Tools are dropped without a word", "gets 500 instead of 400"]),
    ("llama.cpp", ["gets 500 instead of 400"]),
    ("ollama", ["tool_choice is not obeyed"]),
    ("weak-model", ["tool_choice is not obeyed"]),
    ("vllm-no-flags", ["Tools are refused: ", "--enable-auto-tool-choice and --tool-call-parser."]),
    ("careless", ["Prompt tokens are not counted", "Ids of calls are missing", "gets 500"]),
    ("same-ids", ["Ids of calls are used twice"])])
def test_every_lax_server_is_named_in_words(preset, words):
    said = "\n".join(chat(preset).lines())
    for each in words:
        assert each in said, said


@pytest.mark.parametrize("preset", sorted(set(LAX) - {"ollama-4k"}))
def test_no_lax_server_breaks_the_probe_and_none_checks_the_history(preset):
    found = chat(preset)
    assert found.checks_history is False and found.bad_body in (400, 500) and found.model


@pytest.mark.parametrize("server", ["ollama", "llama.cpp", "vllm", "lmstudio"])
def test_the_messages_endpoints_of_local_servers(server):
    with FakeApi(obedient, lax=server).serve() as api:
        found = probe_server(api.url, "any-model", "", "anthropic")
    assert found.checks_history is False and found.tells_cut and found.tools
    assert any("A result that answers no call is accepted" in sentence for sentence in found.warnings())


def test_a_bare_text_is_understood_as_an_error():
    assert chat(Laxness(needs_flags=True, error_shape="text")).words.startswith('"auto" tool choice requires')


@pytest.mark.parametrize("room, message", [(230, "flat {} end"), (0, "no tools \x1b[31m for\n{}"), (250, None)])
def test_the_words_of_a_refusal_show_no_key_and_steer_no_terminal(room, message):
    """In a message, and as a text that is cut in the middle of the key."""
    key = "sk-very-secret-key-0123456789-abcdefgh"

    def answer(request):
        if b'"tools"' not in request.content:
            return httpx.Response(200, json={"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
        echo = "x " * (room // 2) + request.headers["authorization"]
        return httpx.Response(400, json={"error": {"message": message.format(echo)}}) if message else httpx.Response(400, text=echo + " was sent")
    client = make_client(httpx.MockTransport(lambda request: answer(request) if request.method == "POST" else httpx.Response(200, json={"data": [{"id": "m\x1b[2J\nm"}, {"id": 5}, {}]})))
    found = probe_server("http://127.0.0.1:9", key=key, client=client)
    told = "".join(found.lines()) + found.words
    assert found.tools is False and found.models == ("m\x1b[2J\nm",) and told.isprintable()
    assert "[key]" in found.words and not any(key[at : at + 8] in told for at in range(len(key) - 7))


# ---- where servers tell their window


@pytest.mark.parametrize("pages, window", [
    ({"/v1/models": {"data": [{"id": "m", "max_model_len": 32768}]}}, 32768),
    ({"/v1/models": {"data": [{"id": "m", "meta": {"n_ctx": 8192, "n_ctx_train": 99999}}]}}, 8192),
    ({"/v1/models": {"data": [{"id": "m"}]}, "/api/ps": {"models": [{"name": "m", "context_length": 4096}]}}, 4096),
    ({"/v1/models": {"data": [{"id": "m"}]}, "/api/v0/models": {"data": [{"id": "m", "loaded_context_length": 16384, "max_context_length": 131072}]}}, 16384),
    ({"/v1/models": {"data": [{"id": "m"}]}}, None),
    ({"/v1/models": {"data": [{"id": "m", "max_model_len": "many"}, 7]}, "/api/ps": [], "/api/v0/models": {"data": 3}}, None)])
def test_the_window_is_found_where_this_kind_of_server_tells_it(pages, window):
    found = chat(replace(LAX["ollama"], pages=pages), model="m")
    assert found.window == window
    assert any("small for an agent" in sentence for sentence in found.warnings()) == bool(window and window < 16_000)


# ---- bad habits, one at a time


class Habits:
    """A Chat server in a few lines. Every reply is `reply(body)`: (status, object or text)."""

    def __init__(self, reply, models=(200, {"data": [{"id": "m"}]})):
        self.reply, self.models, self.bodies = reply, models, []

    @contextlib.contextmanager
    def serve(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(*(outer.models if self.path == "/v1/models" else (404, {"error": "no such page"})))

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["content-length"]))
                try:
                    body = json.loads(raw)
                except ValueError:
                    return self.answer(400, {"error": {"message": "that is no JSON"}})
                outer.bodies.append(body)
                self.answer(*outer.reply(body))

            def answer(self, status, value):
                data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(data)

            def log_message(self, *ignored):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def reply(text="", calls=(), stop="stop", prompt=20, output=5):
    message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [{"id": id, "type": "function", "function": {"name": "report", "arguments": arguments}} for id, arguments in calls]
    return 200, {"choices": [{"message": message, "finish_reason": stop}], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def prompt_of(body):
    return 120 if body.get("tools") else 20


def test_a_limit_that_is_not_kept():
    with Habits(lambda body: reply("word " * 300, prompt=prompt_of(body), output=300)).serve() as url:
        found = probe_server(url)
    assert found.keeps_limit is False and found.tells_cut is None
    assert any("limit on a reply is not kept" in sentence for sentence in found.warnings())


def test_a_cut_that_is_not_told():
    with Habits(lambda body: reply("one two", prompt=prompt_of(body), output=body["max_tokens"])).serve() as url:
        found = probe_server(url)
    assert found.keeps_limit and found.tells_cut is False
    assert any("is not marked as cut" in sentence for sentence in found.warnings())


def test_a_model_that_stops_early_is_asked_again_and_accuses_nobody():
    left = ["one", "one two", "one two three four five six seven eight"]

    def answer(body):
        long = "two hundred" in body["messages"][-1]["content"] and left
        text = left.pop(0) if long else "Hello!"
        return reply(text, prompt=prompt_of(body), output=len(text.split()), stop="length" if len(text.split()) == 8 else "stop")

    with Habits(answer).serve() as url:
        found = probe_server(url)
    assert found.keeps_limit and found.tells_cut and not left
    with Habits(lambda body: reply("one", prompt=prompt_of(body), output=1)).serve() as url:
        found = probe_server(url)
    assert found.keeps_limit is None and found.tells_cut is None


def test_a_model_that_needs_its_reply_to_be_begun():
    def answer(body):
        if body["messages"][-1]["role"] == "assistant":
            small = body["max_tokens"] < 50
            return reply(calls=[("a1" if small else "b2", "{}" if small else '{"word": "hello"}')], stop="length" if small else "tool_calls", prompt=120)
        return reply("Hello!", prompt=prompt_of(body), stop="length")

    habits = Habits(answer)
    with habits.serve() as url:
        found = probe_server(url)
    assert found.forced_by == ("beginning",) and found.cut_call == "looks whole" and found.ids == "usable"
    assert {"tool_choice is not obeyed: the model answered with text where a call was demanded."} <= set(found.warnings())
    begun = [body for body in habits.bodies if body["messages"][-1]["role"] == "assistant"]
    assert all(body["messages"][-1]["content"] == "<tool_call>\n" and body["tool_choice"] == "required" for body in begun) and begun


def test_a_model_that_keeps_to_a_schema():
    habits = Habits(lambda body: reply('{"word": "hello"}' if "response_format" in body else "Hello!", prompt=prompt_of(body), stop="length"))
    with habits.serve() as url:
        assert probe_server(url).forced_by == ("schema",)
    [bound] = [body for body in habits.bodies if "response_format" in body]
    assert bound["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
    assert bound_to({"type": "object"}, "anthropic") == {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}


@pytest.mark.parametrize("ids, judged", [(["a:1", "b|2"], "illegal"), (["", ""], "missing"), ([None, "x"], "missing"), (["call_0", "call_0"], "used twice"), (["a", "b"], "usable")])
def test_ids(ids, judged):
    left = list(ids)

    def answer(body):
        if body.get("tool_choice") and left:
            return reply(calls=[(left.pop(0), '{"word": "hi"}')], stop="tool_calls", prompt=120)
        return reply("Hello!", prompt=prompt_of(body), stop="length")

    with Habits(answer).serve() as url:
        assert probe_server(url).ids == judged


def test_a_cut_call_that_becomes_a_server_error():
    def answer(body):
        if body.get("tool_choice"):
            return (500, {"error": {"message": "does not match the format"}}) if body["max_tokens"] < 50 else reply(calls=[("a", "{}")], prompt=120)
        return reply("Hello!", prompt=prompt_of(body), stop="length")

    with Habits(answer).serve() as url:
        found = probe_server(url)
    assert found.cut_call == "server error" and any("comes back as a server error" in sentence for sentence in found.warnings())


def test_a_server_that_reads_nothing_with_care():
    found = Capabilities("http://x", "openai-chat", "m", tools=True, forced_by=("tool_choice",), bad_body=200)
    assert found.warnings() == ["A body that is no JSON gets 200: nothing is read with care here."]
    assert Capabilities("http://x", "openai-chat", "m", tools=True, forced_by=("tool_choice",)).lines()[-1] == "- nothing to complain about"


# ---- when there is nothing to ask


def test_nobody_answers():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    with pytest.raises(UsageError, match=f"No server answers at http://127.0.0.1:{port}/v1: start it, or check the URL"):
        probe_server(f"http://127.0.0.1:{port}")
    with pytest.raises(UsageError, match="No server answers at"):
        probe_server("no url at all")


@pytest.mark.parametrize("models, sentence", [
    ((401, {"error": "who are you?"}), "refuses the key"), ((403, "no"), "refuses the key"),
    ((200, "<html>Welcome</html>"), "a web page: is the URL right"), ((200, {"data": []}), "lists no model: name one"),
    ((404, "not found"), "lists no model: name one"), ((200, "[["), "lists no model: name one"), ((200, "7"), "lists no model: name one")])
def test_a_list_of_models_that_is_none(models, sentence):
    with Habits(lambda body: reply("Hello!"), models=models).serve() as url:
        with pytest.raises(UsageError, match=sentence):
            probe_server(url)


@pytest.mark.parametrize("answer", [
    (404, {"error": {"message": "the model nosuch does not exist"}}), (400, {"error": "the model nosuch does not exist"}),
    (500, "the model nosuch does not exist"), (200, {"error": {"message": "the model nosuch does not exist"}}), (200, "the model nosuch does not exist")])
def test_a_model_that_does_not_answer(answer):
    with Habits(lambda body: answer).serve() as url:
        with pytest.raises(UsageError, match="does not answer a short question to 'nosuch' .*: is this the right model, and the right wire"):
            probe_server(url, "nosuch")


def test_a_wire_that_is_not_known():
    with pytest.raises(UsageError, match="anthropic or openai-chat, not 'morse'"):
        probe_server("http://127.0.0.1:1", wire="morse")


def test_a_server_that_falls_asleep_costs_no_more_than_the_time_given():
    asleep = threading.Event()

    def answer(body):
        if body.get("tools"):
            asleep.wait(20)
        return reply("Hello!", prompt=prompt_of(body), stop="length")

    with Habits(answer).serve() as url:
        began = time.monotonic()
        found = probe_server(url, seconds=1.5)
        took = time.monotonic() - began
        asleep.set()
    assert took < 8 and found.tools is None and found.forced_by == () and found.bad_body is None


def test_the_key_is_in_no_report():
    with FakeApi(obedient, keys=["very-secret-key"]).serve() as api:
        found = probe_server(api.url, "scripted-general", "very-secret-key", "anthropic")
        with pytest.raises(UsageError) as error:
            probe_server(api.url, "scripted-general", "another-secret-key", "anthropic")
    assert "secret" not in str(error.value) + repr(found) + "".join(found.lines())
    assert {field.name for field in fields(Capabilities)}.isdisjoint({"key", "headers"})
