"""One key, many runs: nobody comes too early, nobody is lost, nobody waits for ever."""
import contextlib
import http.server
import json
import random
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from parts import call, registry, run, say

from harnesslab.fake_api import FakeApi, Fault
from harnesslab.loop import History, Limits, ModelError, ModelFacts, Retry, UsageError, run_clock, run_loop
from harnesslab.providers import Model, make_client, offline
from harnesslab.throttle import Throttle


class Gateway:
    """A loopback server in front of a strict local API. It serves `limit` requests in each window of `window` seconds, and `at_once` at a time. To all others
    it says 429, and when to come back. `served`, `refused`; `too_early`: came more than `grace` seconds after it had told when, and before that time."""

    def __init__(self, api, limit, window, at_once=10_000, grace=0.2):
        self.limit, self.window, self.at_once, self.grace = limit, window, at_once, grace
        self.client, self.lock = httpx.Client(transport=api.transport()), threading.Lock()
        self.served = self.refused = self.too_early = self.inside = self.most_inside = self.in_window = 0
        self.window_ends = self.told_at = self.told_until = 0.0

    def wait_for(self):
        """Seconds that a request which comes now has to wait; 0: it is served."""
        now = time.monotonic()
        self.too_early += self.told_at + self.grace < now < self.told_until - 0.02
        if now >= self.window_ends:
            self.window_ends, self.in_window = now + self.window, 0
        if self.in_window < self.limit and self.inside < self.at_once:
            self.in_window, self.inside, self.served = self.in_window + 1, self.inside + 1, self.served + 1
            self.most_inside = max(self.most_inside, self.inside)
            return 0
        self.refused, self.told_at, self.told_until = self.refused + 1, now, self.window_ends
        return self.window_ends - now

    @contextmanager
    def serve(self):
        gateway = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                with gateway.lock:
                    wait = gateway.wait_for()
                if wait:
                    headers = {"retry-after-ms": f"{wait * 1000:.0f}"}
                    answer = httpx.Response(429, headers=headers, json={"error": {"type": "rate_limit_error", "message": "slow down"}})
                else:
                    answer = gateway.client.post(f"http://api{self.path}", content=body, headers={name: self.headers[name] for name in ("x-api-key", "anthropic-version")})
                    with gateway.lock:
                        gateway.inside -= 1
                self.send_response(answer.status_code)
                for name in ("retry-after-ms", "content-length", "content-type"):
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *arguments):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size, block_on_close = True, 256, False
        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            self.client.close()


def two_calls(body):
    """A run of three model calls; each takes a moment."""
    time.sleep(0.01)
    asked = sum(message["role"] == "assistant" for message in body["messages"])
    return [call("look", key=asked)] if asked < 2 else [say("done")]


def many(number, model):
    """So many runs at once, all with one model."""
    finished, errors = [], []

    def work():
        try:
            finished.append(run_loop(History("x", "", registry().definitions), model, registry(), Limits(wall_seconds=120)))
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert not errors and len(finished) == number
    return finished


def test_a_hundred_runs_keep_the_servers_limit():
    """The server serves 40 requests in 0.6 s and at most 12 at a time. All 300 are served, none comes while everybody was told to wait."""
    gateway = Gateway(FakeApi(two_calls), limit=40, window=0.6, at_once=12)
    with gateway.serve() as url:
        model = Model(ModelFacts("scripted-general"), make_client(), url, "key", retry=Retry(first=0.05))
        finished = many(100, model)
        model.close()
    assert {one.status for one in finished} == {"done"} and gateway.served == 300
    assert gateway.too_early == 0 and gateway.most_inside <= 12
    assert gateway.refused <= 100 and max(one["tries"] for one in finished) <= 3 + 9  # without a throttle about 400, and one run in six is lost
    assert model.throttle.inside == 0 and not model.throttle._queue


def test_injected_limits_cost_nobody_his_run():
    api = FakeApi(two_calls, faults=[Fault("rate_limit", every=7, retry_after=0.05), Fault("overloaded", at=5, every=23)], keep=2_000)
    with api.serve() as server:
        model = Model(ModelFacts("scripted-general"), make_client(), server.url, "key", retry=Retry(first=0.01))
        finished = many(100, model)
        model.close()
    assert {one.status for one in finished} == {"done"} and sum(one["steps"] for one in finished) == 300
    verdicts = [received.verdict for received in api.requests]
    assert verdicts.count("ok") == 300 and sum(one["tries"] for one in finished) == len(verdicts)


# ------------------------------------------------------------------ the four rules
def answer(status=200, **headers):
    return httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def go(throttle, ticket=None, seconds=0.0, reply=None, log=None, patience=60.0):
    """One request through the throttle; the time at which it went."""
    ticket = throttle.ticket() if ticket is None else ticket
    with throttle.turn(ticket, patience) as began:
        if log is not None:
            log.append((ticket, throttle.inside))
        time.sleep(seconds)
        throttle.answered(reply or answer(), began)
    return began


def at_once(*functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)


def test_no_more_inside_than_allowed():
    throttle, log = Throttle(3), []
    for _ in range(3):
        go(throttle)
    at_once(*[lambda: go(throttle, seconds=0.02, log=log)] * 20)
    assert max(inside for _, inside in log) == 3 and len(log) == 20 and throttle.inside == 0


def test_a_new_throttle_begins_with_a_few():
    throttle, log = Throttle(32), []
    at_once(*[lambda: go(throttle, seconds=0.05, log=log)] * 30)
    assert [inside for _, inside in log[:4]] == [1, 2, 3, 4] and max(inside for _, inside in log[:4]) <= 4 and max(inside for _, inside in log) > 4


@pytest.mark.parametrize("status, headers, shut", [(429, {"retry_after": "0.4"}, True), (429, {"retry_after_ms": "400"}, True), (529, {"retry_after": "0.4"}, True), (503, {"retry_after": "0.4"}, True),
                                                   (429, {"retry_after": "0.4", "x_should_retry": "false"}, False), (429, {}, False), (500, {"retry_after": "0.4"}, False), (200, {"retry_after": "0.4"}, False)])
def test_when_the_server_asks_for_a_wait_everybody_waits(status, headers, shut):
    throttle = Throttle()
    began = go(throttle, reply=answer(status, **headers))
    times = []
    at_once(*[lambda: times.append(go(throttle) - began)] * 10)
    assert (min(times) >= 0.39) is shut and max(times) < 5


def test_after_a_wait_one_goes_alone_and_then_more():
    throttle, log = Throttle(16), []
    throttle._room = 16.0
    go(throttle, reply=answer(429, retry_after="0.1"))
    at_once(*[lambda: go(throttle, seconds=0.03, log=log)] * 20)
    counts = [inside for _, inside in log]
    assert counts[0] == 1 and max(counts[:2]) <= 2 and max(counts[:5]) <= 4 and 4 <= max(counts) <= 16


def test_the_same_trouble_counts_once():
    throttle = Throttle(32)
    throttle._room = 32.0
    gate = threading.Barrier(8, timeout=10)

    def refused():
        with throttle.turn(throttle.ticket()) as began:
            gate.wait()  # all are on their way before the first is refused
            throttle.answered(answer(429), began)
    at_once(*[refused] * 8)
    assert (throttle._room, throttle._calm) == (1.0, 16.0)


def test_whoever_came_first_goes_first():
    throttle, log = Throttle(1), []
    tickets = [throttle.ticket() for _ in range(12)]
    go(throttle, reply=answer(429, retry_after="0.3"))
    random.Random(1).shuffle(tickets)
    at_once(*[lambda ticket=ticket: go(throttle, ticket, log=log) for ticket in tickets])
    assert [ticket for ticket, _ in log] == sorted(tickets)


def test_a_wait_that_is_too_long_ends_the_others_too():
    """Nobody sits at a door that stays shut for an hour."""
    throttle = Throttle()
    go(throttle, reply=answer(429, retry_after="3600"))
    with pytest.raises(ModelError, match="longer than the 60 s") as caught:
        go(throttle)
    assert caught.value.status == "rate_limited" and not throttle._queue
    model = offline(["x"] * 3, faults=[Fault("rate_limit", retry_after=3600)])
    assert [run(None, model=model).status for _ in range(2)] == ["rate_limited"] * 2


@pytest.mark.parametrize("why", ["time", "stop"])
def test_a_turn_that_never_comes_is_given_up(why):
    throttle, stop = Throttle(1), threading.Event()
    with throttle.turn(throttle.ticket()):
        threading.Timer(0.2, stop.set if why == "stop" else lambda: None).start()
        with run_clock(0.2 if why == "time" else 60, stop):
            began = time.monotonic()
            with pytest.raises(httpx.PoolTimeout):
                go(throttle)
        assert time.monotonic() - began < 2
    assert not throttle._queue and go(throttle)


def test_a_run_that_waits_for_its_turn_can_be_stopped_and_ends_in_time():
    throttle, cancel = Throttle(1), threading.Event()
    model = offline([[say("hi")]], throttle=throttle)
    with throttle.turn(throttle.ticket()):
        assert run(None, model=model, limits=Limits(wall_seconds=0.3)).status == "wall_clock"
        threading.Timer(0.2, cancel.set).start()
        assert run(None, model=model, cancel=cancel).status == "interrupted"
    finished = run(None, model=model)
    assert finished.status == "done" and finished["waits"] < 1


def test_an_exception_inside_gives_the_place_back():
    throttle = Throttle(1)
    with pytest.raises(RuntimeError), throttle.turn(throttle.ticket()):
        raise RuntimeError
    assert throttle.inside == 0 and go(throttle)


@pytest.mark.parametrize("moment", range(1, 5))
def test_ctrl_c_at_any_moment_gives_the_place_back(moment):
    """Ctrl-C may come in between any two steps: here at each of those where the doorkeeper wakes the next one."""
    class Interrupted(Throttle):
        woken = 0

        def _wake(self):
            self.woken += 1
            if self.woken == moment:
                raise KeyboardInterrupt
            super()._wake()
    throttle = Interrupted(1)
    with contextlib.suppress(KeyboardInterrupt):
        go(throttle)
    assert throttle.inside == 0 and not throttle._queue and go(throttle)


def test_time_in_the_queue_is_a_wait():
    throttle = Throttle(1)
    model = offline([[say("hi")]], throttle=throttle)
    place = throttle.turn(throttle.ticket())
    place.__enter__()
    threading.Timer(0.3, lambda: place.__exit__(None, None, None)).start()
    reply = model(History("x"), 100)
    assert 0.25 < reply.waits <= reply.seconds and reply.tries == 1


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "3", None])
def test_a_throttle_needs_a_number(wrong):
    with pytest.raises(UsageError):
        Throttle(wrong)


def test_all_threads_of_a_model_share_one_and_models_do_not():
    one, two = offline(["x"]), offline(["x"])
    assert one.throttle is not two.throttle
    shared = Throttle(5)
    assert offline(["x"], throttle=shared).throttle is offline(["x"], throttle=shared).throttle
    assert json.dumps(one.request)
