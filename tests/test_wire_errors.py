"""Every error that a person meets, provoked over real connections, for all four wires: one sentence that says what to do, and never the key."""
import datetime
import functools
import http.server
import ipaddress
import json
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import given, settings, strategies as st
from parts import assert_goes_on, registry, run, say

from harnesslab.fake_api import Fault
from harnesslab.loop import History, ModelError, ModelFacts, Retry, UsageError, run_loop
from harnesslab.providers import Model, connect, list_models, make_client
from harnesslab.scripted import canned, scripted_api
from harnesslab.wire_errors import ADVICE, error_object, explain, hidden_error, read_trouble, status_of, without_secrets
from harnesslab.wires import WIRES

NAMES, QUICK, KEY = list(WIRES), Retry(tries=2, first=0.005), "sk-very-secret-key-0123456789"


@contextmanager
def server(status=200, body=b"", headers=(), tls=None):
    """A real server that gives this one answer to everything; `.url`, and the requests that came in `.seen`."""
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version, timeout = "HTTP/1.1", 5

        def answer(self):
            length = int(self.headers.get("content-length") or 0)
            seen.append((self.command, self.path, self.rfile.read(length)))
            self.send_response(status)
            for name, value in {"content-type": "application/json", "content-length": str(len(body)), **dict(headers)}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True
        do_POST = do_GET = do_CONNECT = answer

        def log_message(self, *arguments):
            pass
    seen, listener = [], http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.seen, listener.url = seen, f"{'https' if tls else 'http'}://127.0.0.1:{listener.server_address[1]}"
    if tls:
        listener.socket = tls.wrap_socket(listener.socket, server_side=True)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join(5)


def ask(url, name, retry=QUICK, **options):
    model = Model(ModelFacts("the-model"), make_client(), url, KEY, wire=WIRES[name], retry=retry, key_name=f"{name.upper()}_KEY", **options)
    finished = run_loop(History("x", "", registry().definitions), model, registry())
    model.close()
    return finished


def told(finished, *words, status="api_error", goes_on=True):
    """The error is one sentence with these words, and the key is not in it."""
    error = finished["error"]
    assert finished.status == status and all(word in error for word in words), error
    assert "\n" not in error and KEY not in error and "very-secret" not in error and KEY not in json.dumps(finished.history.messages)
    if goes_on:
        assert_goes_on(finished)


# ------------------------------------------------------------------ what the providers say
def google(code, status, message, **detail):
    return code, {"error": {"code": code, "status": status, "message": message, "details": [{"@type": "x", **detail}] if detail else []}}


def openai(code, message, kind="invalid_request_error", mark=None, param=None):
    return code, {"error": {"message": message, "type": kind, "code": mark, "param": param}}


def claude(code, kind, message, **details):
    return code, {"type": "error", "error": {"type": kind, "message": message, **({"details": details} if details else {})}, "request_id": "req_1"}


OPENAI = {
    "key": [openai(401, f"Incorrect API key provided: sk-very-********6789 or {KEY}.", mark="invalid_api_key"), openai(401, "You didn't provide an API key.")],
    "credit": [openai(429, "You exceeded your current quota.", "insufficient_quota", "insufficient_quota"), openai(429, "No credit.", "insufficient_quota", "credit_balance_exhausted"), openai(402, "Pay.")],
    "model": [openai(404, "The model `the-model` does not exist or you do not have access to it.", mark="model_not_found"), openai(404, "model 'the-model' not found")],
    "region": [openai(403, "Country, region, or territory not supported", "request_forbidden", "unsupported_country_region_territory")],
    "permission": [openai(403, "You have insufficient permissions for this operation.")],
    "context": [openai(400, "Your input exceeds the context window of this model.", mark="context_length_exceeded"), openai(400, "This model's maximum context length is 8192 tokens."),
                (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "the request exceeds the available context size"}}), (413, {"error": "too big"})],
    "rate": [openai(429, "Rate limit reached for requests", "requests", "rate_limit_exceeded")],
    "overloaded": [openai(503, "overloaded", "service_unavailable_error", "server_is_overloaded"), openai(500, "The server had an error", "server_error"), (503, {"message": "Loading model"}), (502, b"")],
    "request": [openai(400, "Unknown parameter: 'x'.", mark="unknown_parameter", param="x"), (422, {"detail": [{"msg": "Field required"}]})], "address": [(404, {"detail": "Not Found"}), (404, b""), (307, b"")]}
SAID = {
    "anthropic": {
        "key": [claude(401, "authentication_error", "invalid x-api-key"), claude(401, "authentication_error", f"bad key {KEY}")], "credit": [claude(402, "billing_error", "no"),
        claude(400, "invalid_request_error", "Your credit balance is too low to access the API."), claude(429, "rate_limit_error", "x", error_code="enforced_spend_limit_reached")],
        "model": [claude(404, "not_found_error", "model: the-model")], "region": [claude(403, "forbidden", "Request not allowed")], "permission": [claude(403, "permission_error", "no rights")],
        "context": [claude(400, "invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum"), claude(413, "request_too_large", "Request exceeds the maximum size")],
        "rate": [claude(429, "rate_limit_error", "slow down")], "overloaded": [claude(529, "overloaded_error", "Overloaded"), claude(500, "api_error", "oops"), claude(504, "timeout_error", "late")],
        "request": [claude(400, "invalid_request_error", "tools.0: Extra inputs are not permitted")], "address": [claude(404, "not_found_error", "Not Found")]},
    "openai": OPENAI, "openai-chat": OPENAI,
    "gemini": {
        "key": [google(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", reason="API_KEY_INVALID"), google(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers."), google(401, "UNAUTHENTICATED", "no")],
        "credit": [google(400, "FAILED_PRECONDITION", "Please enable billing on your project.")], "model": [google(404, "NOT_FOUND", "models/the-model is not found for API version v1beta.")],
        "region": [google(400, "FAILED_PRECONDITION", "User location is not supported for the API use."), google(400, "FAILED_PRECONDITION", "The free tier is not available in your country.")],
        "permission": [google(403, "PERMISSION_DENIED", "no rights")], "context": [google(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8).")],
        "rate": [google(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, please check your plan.")], "overloaded": [google(503, "UNAVAILABLE", "The model is overloaded."), google(500, "INTERNAL", "oops")],
        "request": [google(400, "INVALID_ARGUMENT", "Invalid JSON payload received.")], "address": [(404, b"")]}}
STATUS = {"context": "context_full", "rate": "rate_limited"}


@pytest.mark.parametrize("name, kind, code, body", [(name, kind, code, body) for name, kinds in SAID.items() for kind, answers in kinds.items() for code, body in answers])
def test_every_error_says_what_to_do(name, kind, code, body):
    with server(code, body if isinstance(body, bytes) else json.dumps(body).encode()) as listener:
        finished = ask(listener.url, name)
        status = "rate_limited" if code == 429 else STATUS.get(kind, "api_error")
        told(finished, ADVICE[kind].format(key=f"{name.upper()}_KEY", model="the-model"), str(code), status=status)
        assert len(listener.seen) == (2 if code >= 500 or kind == "rate" else 1)  # what waiting cannot help is not tried again


@pytest.mark.parametrize("name", NAMES)
def test_a_web_page_an_empty_and_a_spoiled_body(name):
    for code, kind, body, headers, word in ((200, "page", b"<html>login</html>", {"content-type": "text/html"}, "check the base URL"), (502, "page", b"<!doctype html><p>Bad gateway", {}, "a proxy is in the way"),
                                            (403, "page", b"<html>blocked", {}, "a proxy is in the way"), (200, "empty", b"", {}, "try again"), (200, "empty", b"[1]", {}, "check the base URL"),
                                            (200, "cut", b'{"choices": [{"mess', {}, "try again"), (200, "cut", b"no JSON at all", {}, "try again"), (407, "proxy", b"<html>login", {}, "HTTPS_PROXY")):
        with server(code, body, headers) as listener:
            told(ask(listener.url, name), word, ADVICE[kind][:40])


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_of_another_service(name):
    with server(200, b'{"hello": "world"}') as listener:
        told(ask(listener.url, name), "not in the shape of", "is the base URL right?")
        assert len(listener.seen) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_body_that_is_cut_in_the_middle(name):
    with server(200, b'{"content": [', {"content-length": "500"}) as listener:
        told(ask(listener.url, name), "broke")
        assert len(listener.seen) == 2


@pytest.mark.parametrize("name", NAMES)
def test_the_strict_apis_say_it_too(name):
    """The same errors from the strict local APIs: a wrong key, an unknown model, no credit, a prompt that is too long."""
    def served(**options):
        return type(scripted_api(wire=name))(canned([[say("hi")]] * 9), **options).serve()

    def told_by(listener, word, *, model="scripted-general", task="x", status="api_error"):
        made = Model(ModelFacts(model, window=10**9), make_client(), listener.url, KEY, wire=WIRES[name], retry=QUICK)
        finished = run(None, model=made, task=task)
        told(finished, word, status=status, goes_on=len(task) < 1_000)
        made.close()
    with served(keys={"another-key-0123"}) as listener:
        told_by(listener, "The key was not accepted: check")
    with served() as listener:
        told_by(listener, "There is no model 'nobody-9' here", model="nobody-9")
        told_by(listener, "larger window", task="word " * 300_000, status="context_full")
    with served(faults=[Fault("rate_limit", times=99)]) as listener:
        told_by(listener, "run fewer at the same time", status="rate_limited")
    with served(faults=[Fault("overloaded", times=99)]) as listener:
        told_by(listener, "try again later")


# ------------------------------------------------------------------ no connection
@pytest.mark.parametrize("name", NAMES)
def test_nobody_listens(name):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    told(ask(url, name), "is the server running", "base URL")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_nobody_knows(name):
    told(ask("http://nowhere.invalid", name), "could not be found", "base URL")


def certificate(folder):
    """A certificate that nobody has signed but itself, for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.timezone.utc)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    signed = (x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(1)
              .not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(hours=1))
              .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
              .add_extension(x509.BasicConstraints(ca=True, path_length=None), True).sign(key, hashes.SHA256()))
    pem = signed.public_bytes(serialization.Encoding.PEM)
    (folder / "public.pem").write_bytes(pem)
    (folder / "both.pem").write_bytes(pem + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context


@pytest.mark.parametrize("name", NAMES)
def test_a_certificate_that_is_not_accepted(name, tmp_path):
    with server(200, b"{}", tls=certificate(tmp_path)) as listener:
        told(ask(listener.url, name), "certificate", "SSL_CERT_FILE")
        assert listener.seen == []


def test_a_certificate_of_ones_own_can_be_named(tmp_path, monkeypatch):
    body = {"content": [say("hi")], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
    with server(200, json.dumps(body).encode(), tls=certificate(tmp_path)) as listener:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "public.pem"))
        assert ask(listener.url, "anthropic").status == "done"


def test_a_server_without_encryption_behind_https():
    with server(200, b"{}") as listener:
        told(ask(listener.url.replace("http:", "https:"), "openai"), "base URL")


# ------------------------------------------------------------------ a proxy in the way
@pytest.fixture
def proxied(monkeypatch):
    def through(url):
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "")
    return through


@pytest.mark.parametrize("name", NAMES)
def test_a_proxy_that_wants_a_login(name, proxied):
    with server(407, b"<html>Who are you?</html>") as proxy:
        proxied(proxy.url)
        told(ask("https://192.0.2.1", name), "proxy", "HTTPS_PROXY")
        told(ask("http://192.0.2.1", name), "proxy", "HTTPS_PROXY")
        assert {command for command, _, _ in proxy.seen} == {"CONNECT", "POST"}


@pytest.mark.parametrize("name", NAMES)
def test_a_proxy_that_does_not_answer(name, proxied):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        proxied(f"http://user:proxy-password-0123@127.0.0.1:{taken.getsockname()[1]}")
    finished = ask("https://192.0.2.1", name)
    told(finished, "proxy", "HTTPS_PROXY")
    assert "proxy-password" not in finished["error"]


@pytest.mark.parametrize("name", NAMES)
def test_a_proxy_that_refuses_or_shows_its_own_page(name, proxied):
    with server(503, b"<html>Blocked by the office</html>") as proxy:
        proxied(proxy.url)
        told(ask("https://192.0.2.1", name), "proxy")
        told(ask("http://192.0.2.1", name), "a proxy is in the way")


def test_a_server_at_home_is_not_asked_through_the_proxy(proxied):
    with server(200, b"{}") as proxy, server(200, b'{"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}') as listener:
        proxied(proxy.url)
        assert ask(listener.url, "anthropic").status == "done" and proxy.seen == []


# ------------------------------------------------------------------ waits that stand in odd places
def test_gemini_says_in_the_body_how_long_to_wait():
    code, body = google(429, "RESOURCE_EXHAUSTED", "slow", retryDelay="0.3s")
    answers = iter([httpx.Response(code, json=body), httpx.Response(200, json={"candidates": [{"content": {"parts": [{"text": "hi"}]}}]})])
    waits = []
    model = Model(ModelFacts("m"), make_client(httpx.MockTransport(lambda request: next(answers))), "http://127.0.0.1", wire=WIRES["gemini"], retry=QUICK)
    assert model(History("x"), 10, waits.append).text == "hi" and 0.3 <= waits[0]["seconds"] < 0.5


def test_a_daily_quota_is_final():
    code, body = google(429, "RESOURCE_EXHAUSTED", "quota", retryDelay="30s", violations=[{"quotaId": "GenerateRequestsPerDayPerProject"}])
    with server(code, json.dumps(body).encode()) as listener:
        told(ask(listener.url, "gemini"), "wait a while", status="rate_limited")
        assert len(listener.seen) == 1


@pytest.mark.parametrize("kind, code, message, mark", [
    ("credit", 400, "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.", None),
    ("credit", 429, "Your account is not active, please check your billing details on our website.", "billing_not_active"), ("credit", 429, "Please check your billing details.", None), ("credit", 429, "?", "billing_not_active"),
    ("rate", 429, "You exceeded your current quota, please check your plan and billing details.", None), ("rate", 429, "Too many requests with a large context window; slow down", None),
    ("region", 400, "User location is not supported for the API use.", None), ("region", 403, "Country, region, or territory not supported", None), ("region", 400, "Your region is not supported", None),
    ("region", 403, "Grok is not available in your region", None), ("region", 403, "This model: region not available", None),
    ("request", 400, "Invalid schema for function 'set_region': region 'enum' is not supported", None), ("request", 400, "In context=('properties', 'country'), 'format' is not supported", None),
    ("request", 400, "The model called a function that does not exist: foo", None), ("request", 400, "messages.1: tool 'find_model' was not found", None),
    ("model", 404, "The model `x` does not exist or you do not have access to it.", None), ("model", 404, "models/x is not found for API version v1beta", None), ("model", 404, 'model "x" not found, try pulling it first', None),
    ("model", 400, "Model Not Exist", None), ("model", 404, "model: claude-x", None), ("model", 400, "The requested model was not found", None), ("context", 400, "the image exceeds the context length", None)])
def test_sentences_are_read_with_care(kind, code, message, mark):
    trouble = read_trouble(httpx.Response(code, json={"error": {"message": message, "code": mark}}))
    assert (trouble.kind, trouble.final) == (kind, kind in ("credit", "region"))


# ------------------------------------------------------------------ errors that look like replies
@pytest.mark.parametrize("name, raw, tries, word", [
    ("openai-chat", {"error": {"message": "upstream broke", "code": 502}}, 2, "try again later"), ("openai-chat", {"choices": [{"message": {"content": "half"}, "finish_reason": "error"}]}, 2, "broke the reply off"),
    ("openai", {"output": [], "status": "failed", "error": {"code": "server_error", "message": "oops"}}, 2, "oops"), ("openai", {"output": [], "status": "failed", "error": None}, 2, "status failed"),
    ("openai", {"output": [], "status": "failed", "error": {"code": "rate_limit_exceeded", "message": "slow"}}, 2, "fewer"), ("gemini", {"candidates": [{"finishReason": "OTHER"}]}, 2, "finishReason OTHER"),
    ("gemini", {"candidates": [{"finishReason": "MISSING_THOUGHT_SIGNATURE"}]}, 2, "MISSING_THOUGHT"), ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 2, "try again later"),
    ("openai-chat", {"error": "the model is gone"}, 2, "the model is gone"), ("gemini", {"error": ["odd"]}, 2, "odd"),
    ("openai-chat", {"object": "error", "message": "flat and wrong", "type": "BadRequestError", "param": None, "code": 400}, 1, "flat and wrong"),
    ("openai", {"message": "no such thing", "code": "404"}, 1, "no such thing"), ("anthropic", {"type": "overloaded_error", "message": "Busy"}, 2, "Busy"), ("anthropic", {"type": "error"}, 2, "without words")])
def test_errors_with_status_200(name, raw, tries, word):
    with server(200, json.dumps(raw).encode()) as listener:
        finished = ask(listener.url, name)
        told(finished, word, status="rate_limited" if "slow" in str(raw) else "api_error")
        assert len(listener.seen) == tries


@pytest.mark.parametrize("raw", [{"error": None, "output": [], "status": "completed"}, {"choices": [{"finish_reason": "stop"}]}, {"content": []}, {"candidates": [{"finishReason": "STOP"}]}, {"error": {}}, {"candidates": [{"finishReason": ["x"]}]},
    {"type": "message", "content": []}, {"message": "hello"}, {"message": {"role": "assistant"}, "code": 500}, {"message": "hello", "code": 7, "type": 5}])
def test_replies_are_no_errors(raw):
    assert hidden_error(raw) is None


def test_a_status_for_errors_that_have_none():
    assert [status_of(error) for error in ({"code": 418}, {"code": "503"}, {"type": "overloaded_error"}, {"code": 7}, {}, {"status": "RESOURCE_EXHAUSTED"}, {"code": True}, {"code": "4" * 5_000})] == [418, 503, 529, 500, 500, 429, 500, 500]


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
    ["error", "message", "type", "code", "details", "reason", "status", "param", "retryDelay", "detail"]), inner, max_size=4), max_leaves=12)


@settings(max_examples=300, deadline=None)
@given(status=st.sampled_from([200, 204, 301, 400, 401, 404, 429, 500, 529]), body=JSON)
def test_any_body_means_something(status, body):
    trouble = read_trouble(httpx.Response(status, json=body))
    assert trouble.kind in ADVICE and len(trouble.words) <= 500
    told = explain(ModelError("It failed.", http_status=status), trouble, "SOME_KEY", "some-model", (KEY,))
    assert str(told).endswith(".") and "{" not in ADVICE[trouble.kind].format(key="", model="") and isinstance(error_object(body), dict)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 100_000, b"{" * 10, b"9" * 5_000, b"null", b"\x00"])
def test_bodies_that_are_no_json(body):
    assert read_trouble(httpx.Response(400, content=body)).kind in ADVICE


# ------------------------------------------------------------------ the key
def test_keys_are_taken_out():
    assert without_secrets(f"a {KEY} b {KEY}!", (KEY,)) == "a [key] b [key]!"
    assert without_secrets("sk-ab********6789 and sk-1***", ()) == "[key] and [key]"
    assert without_secrets("none of this", ("none", "")) == "none of this" and without_secrets("2 ** 3", ()) == "2 ** 3"


LETTERS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789-_", min_size=16, max_size=60)


def longest_piece(key, text):
    """Letters of the longest piece of a key that stands in a text."""
    return max((n for n in range(1, len(key) + 1) for at in range(len(key) - n + 1) if key[at : at + n] in text), default=0)


@settings(max_examples=150, deadline=None)
@given(key=LETTERS, before=st.text(max_size=30), after=st.text(max_size=30), start=st.integers(0, 60), end=st.integers(0, 60))
def test_no_piece_of_a_key_is_shown_however_it_was_cut(key, before, after, start, end):
    assert longest_piece(key, without_secrets(f"{before} {key[start:end]}\n{after}", (key, "short"))) < 8


def test_a_key_that_is_shortened_with_dots_is_taken_out():
    assert without_secrets(f"Incorrect API key: {KEY[:12]}...{KEY[-4:]}. Bye...", (KEY,)) == "Incorrect API key: [key]. Bye..."
    assert without_secrets("sk-x...1234 and some...thing", (KEY,)) == "sk-x...1234 and some...thing"


def echoed(room, *, status=401, split=0, kind="application/json"):
    """An error with the key in it, so that the limit of 500 characters (of 200, without JSON) falls into the key."""
    shown = f"{KEY[:split]}\n{KEY[split:]}" if split else KEY
    told = "x " * (room // 2 - 10) + f"Bearer {shown} was sent"
    return status, json.dumps({"error": {"message": told}}).encode() if kind.endswith("json") else told.encode(), {"content-type": kind}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", [echoed(500), echoed(500, status=503), echoed(200, status=502, kind="text/plain"), echoed(90, split=14), echoed(90, status=503, split=14)])
def test_a_key_across_the_end_of_what_is_told_is_shown_nowhere(name, answer):
    events = []
    with server(*answer) as listener:
        model = Model(ModelFacts("m"), make_client(), listener.url, KEY, wire=WIRES[name], retry=QUICK)
        finished = run_loop(History("x"), model, registry(), sink=events.append)
        model.close()
        with pytest.raises(UsageError) as caught:
            list_models(name, base_url=listener.url, key=KEY)
    told = json.dumps([events, finished, str(caught.value)])
    assert "[key]" in told and longest_piece(KEY, told) < 8


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_is_echoed_is_in_no_event(name):
    """Some servers repeat the whole header in their error, also in those that are tried again."""
    events = []
    with server(503, json.dumps({"error": {"message": f"no: Bearer {KEY}"}}).encode()) as listener:
        model = Model(ModelFacts("m"), make_client(), f"http://user:pass-word-0123@127.0.0.1:{listener.server_address[1]}", KEY, wire=WIRES[name], retry=QUICK)
        run_loop(History("x"), model, registry(), sink=events.append)
        model.close()
    assert any(event["type"] == "model_waited" for event in events)
    assert KEY not in json.dumps(events) and "pass-word" not in json.dumps(events) and "[key]" in json.dumps(events)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("body", [b"{}", b"<html>", b"", b'{"error": "no"}', b'{"data": 5}'])
@pytest.mark.parametrize("login", ["user:pass%40very-secret", "very-secret", "user:very-secret:2"])
def test_a_password_in_a_url_is_said_to_the_server_and_to_nobody_else(name, body, login):
    events, seen = [], []
    with server(200, body) as listener:
        url = listener.url.replace("//", f"//{login}@")
        model = Model(ModelFacts("m"), make_client(), url, KEY, wire=WIRES[name], retry=QUICK)
        model.client.event_hooks = {"request": [seen.append]}
        finished = run_loop(History("x"), model, registry(), sink=events.append)
        model.close()
        with pytest.raises(UsageError) as caught:
            list_models(name, base_url=url, key=KEY)
    told = json.dumps([events, finished, str(caught.value)])
    assert "very-secret" not in told and "127.0.0.1" in told and KEY not in told
    name, _, password = unquote(login).partition(":")
    assert seen[0].headers["authorization"] == httpx.BasicAuth(name, password)._build_auth_header(name, password) if password else seen[0].headers["authorization"].startswith("Basic ")


@pytest.mark.parametrize("url", ["ftp://user:very-secret@h", "http://user:very-secret/x@h", "http://user:very-secret@h:99999", "http://h/v1?key=very-secret", "http://user:very-secret@h?x"])
def test_a_bad_url_is_told_without_what_is_secret_in_it(url):
    for ask_it in (lambda: connect("openai-chat/m", base_url=url), lambda: list_models("openai", base_url=url, key=KEY)):
        with pytest.raises(UsageError, match="base URL") as caught:
            ask_it()
        assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize("code", [400, 503])
def test_the_words_of_a_server_stay_on_one_line_and_steer_no_terminal(code):
    events = []
    with server(code, json.dumps({"error": {"message": "one\ntwo\r\n\x1b[31mred\x00\u202eback \ud83d"}}).encode()) as listener:
        model = Model(ModelFacts("m"), make_client(), listener.url, KEY, wire=WIRES["openai"], retry=QUICK)
        finished = run_loop(History("x"), model, registry(), sink=events.append)
        model.close()
    reasons = [event["payload"]["reason"] for event in events if event["type"] == "model_waited"]
    assert len(reasons) == (1 if code == 503 else 0) and all(text.isprintable() and "one two" in text for text in [finished["error"], *reasons])


def test_a_hidden_error_may_hold_anything():
    with server(200, b'{"error": {"message": "half \\ud83d a pair", "code": 401, "x": 1e999}}') as listener:
        finished = ask(listener.url, "openai-chat")
        told(finished, "The key was not accepted")
        assert len(listener.seen) == 1


def test_a_model_does_not_show_its_key():
    model = Model(ModelFacts("m"), make_client(), "http://127.0.0.1:9", KEY)
    assert KEY not in repr(model) and KEY not in str(vars(model.facts)) and KEY not in json.dumps(model.request)


# ------------------------------------------------------------------ listing and connecting
@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-chat", "gemini", "ollama"])
def test_errors_of_listing_say_what_to_do(provider):
    with server(401, b'{"error": {"message": "no"}}') as listener:
        with pytest.raises(UsageError, match="The key was not accepted: check") as caught:
            list_models(provider, base_url=listener.url, key=KEY)
        assert KEY not in str(caught.value) and listener.seen[0][0] == "GET"
    with server(200, b'{"hello": 1}') as listener, pytest.raises(UsageError, match="not with a list of models"):
        list_models(provider, base_url=listener.url, key=KEY)
    with pytest.raises(UsageError, match="is the server running"):
        list_models(provider, base_url=listener.url, key=KEY)


def test_a_run_from_the_command_line_says_it_too(tmp_path):
    (tmp_path / "repo").mkdir()
    with server(402, json.dumps(openai(402, "quota", "insufficient_quota", "insufficient_quota")[1]).encode()) as listener:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "AGENT_MODEL": "openai-chat/some-model", "AGENT_BASE_URL": listener.url, "AGENT_API_KEY": KEY}
        done = subprocess.run([sys.executable, "-m", "harnesslab", "run", "repo", "task"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no credit left" in done.stderr and KEY not in done.stdout + done.stderr and done.stderr.count("\n") == 1


def test_connecting_needs_no_network():
    assert functools.reduce(lambda ok, name: ok and bool(connect(f"{name}/m", key=KEY).url), ("anthropic", "openai", "openai-chat", "gemini", "ollama"), True)
