"""The command line, as a person uses it: real processes, real exit codes, a real server on loopback."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harnesslab.fake_api import FakeApi, Fault
from harnesslab.scripted import WALKTHROUGH_TASK, call, canned, make_repo, say, scripted_api

HARNESSLAB = [sys.executable, "-m", "harnesslab"]


@pytest.fixture
def place(tmp_path):
    """A folder with a sample repo in it, and an environment in which a run leaves its traces there."""
    make_repo(tmp_path / "repo")
    environment = {k: v for k, v in os.environ.items() if k not in ("ANTHROPIC_API_KEY", "AGENT_MODEL", "AGENT_BASE_URL", "NO_COLOR")}
    return tmp_path, {**environment, "XDG_STATE_HOME": str(tmp_path / "state")}


def harnesslab(place, *arguments, **more):
    folder, environment = place
    return subprocess.run([*HARNESSLAB, *arguments], cwd=folder, env={**environment, **more.pop("env", {})}, capture_output=True, text=True,
                          timeout=60, stdin=subprocess.DEVNULL, **more)


def real_server(policy, **options):
    return FakeApi(policy, **options).serve()


def traces(place):
    return sorted((place[0] / "state").rglob("*.jsonl"))


def test_run_answers_on_a_repo_of_the_users_own(place):
    done = harnesslab(place, "run", "repo", "Which functions does this package export?")
    assert done.returncode == 0, done.stderr
    assert "exports 3 functions: tokenize, count_words, top_k" in done.stdout
    for row in ("status        done", "billed input", "cost          price unknown", "tool errors   0", "scripted"):
        assert row in done.stdout
    [trace] = traces(place)
    assert str(trace) in done.stdout
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [events[0]["type"], events[-1]["type"]] == ["run_started", "run_ended"] and events[-1]["payload"]["status"] == "done"
    assert not (place[0] / "repo" / "traces").exists()


def test_walkthrough_has_its_events_where_the_lesson_says(place):
    done = harnesslab(place, "run", "repo", WALKTHROUGH_TASK, "--model", "scripted/walkthrough", "--mode", "yes", "--i-know", env={"COLUMNS": "160"})
    assert done.returncode == 0, done.stderr
    lines = {int(m[1]): m[0] for m in re.finditer(r"^ +(\d+) (\w+) .*$", done.stdout, re.MULTILINE)}
    assert " call " in lines[8] and " call " in lines[9] and " result " in lines[10] and " result " in lines[11]
    assert "ERROR" in lines[13] and "closest line 6" in done.stdout
    assert " call " in lines[14] and "edited wordcount/core.py" in lines[15]
    assert "exit code 1" in lines[17] and " answer " in lines[18] and "left it alone" in done.stdout


def test_the_same_words_reach_a_real_server(place):
    with real_server(canned([[call("list_dir")], [say("There is a README.")]])) as server:
        done = harnesslab(place, "run", "repo", "What is here?", "--model", "claude-haiku-4-5", env={"ANTHROPIC_API_KEY": "key-of-the-test", "AGENT_BASE_URL": server.url})
    assert done.returncode == 0, done.stderr
    assert "There is a README." in done.stdout and re.search(r"cost +\$0\.\d{4}\n", done.stdout)
    assert "key-of-the-test" not in done.stdout + done.stderr + traces(place)[0].read_text()


@pytest.mark.parametrize("arguments, says", [
    (["run", "gone", "task"], "no folder gone"),
    (["run", "repo/README.md", "task"], "is a file, not a folder"),
    (["run", "repo", "  "], "task is empty"),
    (["run", "", "task"], "repo is empty"),
    (["run", "repo", "task", "--trace", "repo/t.jsonl"], "lies in the repo"),
    (["run", "repo", "task", "--allow", "pytest 'tests"], "quote that is not closed"),
    (["run", "repo", "task", "--max-steps", "-1"], "max_steps must be a whole number of at least 1"),
    (["run", "repo", "task", "--max-input-tokens", "0"], "max_input_tokens must be"),
    (["run", "repo", "task", "--wall-seconds", "nan"], "wall_seconds must be a number above 0"),
    (["run", "repo", "task", "--max-dollars", "1"], "prices of scripted-general are unknown"),
    (["run", "repo", "task", "--model", "scripted/nobody"], "no scripted model 'nobody'"),
    (["run", "repo", "task", "--model", "nonsense"], "no model known here"),
    (["run", "repo", "task", "--model", "claude-haiku-4-5"], "set ANTHROPIC_API_KEY"),
    (["run", "repo", "task", "--model", "claude-haiku-4-5", "--base-url", "localhost:80"], "not complete"),
    (["run", "repo", "task", "--model", "claude-haiku-4-5", "--base-url", "http://127.0.0.1:9"], "No server answers at 127.0.0.1:9"),
    (["run", "repo", "task", "--trace", "/dev/null/x.jsonl"], "trace cannot be written"),
    (["run", "repo", "task", "--fence", "bamboo"], "bamboo"),
    (["run", "repo", "task", "--fence", "process", "--mode", "yes"], "--i-know"),
    (["make-repo", "repo"], "not an empty folder"),
    (["serve-fake", "--port", "70000"], "choose another"),
    (["serve-fake", "--model", "nobody"], "no scripted model"),
])
def test_bad_use_is_one_sentence_and_leaves_nothing(place, arguments, says):
    before = sorted(place[0].rglob("*"))
    done = harnesslab(place, *arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert done.stderr.startswith("harnesslab: ") and done.stderr.count("\n") == 1 and "Traceback" not in done.stdout
    assert [path for path in sorted(place[0].rglob("*")) if path.is_file()] == [path for path in before if path.is_file()]


@pytest.mark.skipif(os.geteuid() == 0, reason="optional: root may read everything")
def test_folder_without_permission(place):
    (place[0] / "closed").mkdir(mode=0)
    done = harnesslab(place, "run", "closed", "task")
    assert done.returncode == 2 and "permission denied" in done.stderr


@pytest.mark.parametrize("options, says", [
    (dict(keys={"another"}), "HTTP 401"),
    (dict(faults=(Fault("html", at=1, times=9),)), "web page instead of JSON"),
])
def test_a_server_that_says_no_at_once_is_bad_use(place, options, says):
    with real_server(canned([[say("hi")]]), **options) as server:
        done = harnesslab(place, "run", "repo", "task", "--model", "claude-haiku-4-5", env={"ANTHROPIC_API_KEY": "wrong-key-0123", "AGENT_BASE_URL": server.url})
    assert done.returncode == 2 and says in done.stderr and "wrong-key-0123" not in done.stderr and traces(place) == []


def test_unknown_model_is_bad_use(place):
    with real_server(canned([[say("hi")]])) as server:
        done = harnesslab(place, "run", "repo", "task", "--model", "claude-nowhere-9", env={"AGENT_BASE_URL": server.url})
    assert done.returncode == 2 and "claude-nowhere-9" in done.stderr and traces(place) == []


def test_another_end_has_exit_code_1_and_keeps_its_trace(place):
    with real_server(lambda request: [call("list_dir", path=".")]) as server:
        done = harnesslab(place, "run", "repo", "task", "--model", "claude-haiku-4-5", "--max-steps", "2", env={"AGENT_BASE_URL": server.url})
    assert done.returncode == 1 and "status        max_steps" in done.stdout and len(traces(place)) == 1


def start(place, *arguments, **more):
    return subprocess.Popen([*HARNESSLAB, *arguments], cwd=place[0], env=place[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            stdin=subprocess.DEVNULL, **more)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "kill"])
def test_stop_signal_ends_the_run_as_interrupted(place, sent):
    policy = canned([[call("run_command", cmd="echo begun > begun; sleep 60", timeout=60)], [say("never")]])
    with real_server(policy) as server:
        process = start(place, "run", "repo", "task", "--model", "claude-haiku-4-5", "--base-url", server.url, "--mode", "yes", "--i-know")
        wait_until(lambda: (place[0] / "repo" / "begun").exists())
        process.send_signal(sent)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 130 and "status        interrupted" in out and "Traceback" not in out
    events = [json.loads(line) for line in traces(place)[0].read_text().splitlines()]
    assert events[-1]["payload"]["status"] == "interrupted"
    assert not still_running(str(place[0]))


def test_stop_signal_during_a_model_call(place):
    with real_server(canned([[say("hi")]]), faults=(Fault("hang", at=1, times=9),)) as server:
        process = start(place, "run", "repo", "task", "--model", "claude-haiku-4-5", "--base-url", server.url)
        wait_until(lambda: traces(place) and "model_called" in traces(place)[0].read_text())
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 130 and "status        interrupted" in out


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def still_running(mark):
    listing = subprocess.run(["ps", "-axww", "-o", "command="], capture_output=True, text=True).stdout
    return [line for line in listing.splitlines() if mark in line and "sleep 60" in line]


def in_terminal(place, arguments, typed, env=None):
    """Run on a pseudo terminal and type one line each time a question comes; returns (output, exit code)."""
    parent, child = pty.openpty()
    process = subprocess.Popen([*HARNESSLAB, *arguments], cwd=place[0], env={**place[1], "TERM": "xterm", **(env or {})}, stdin=child, stdout=child, stderr=child,
                               start_new_session=True)
    os.close(child)
    out, typed, end = b"", list(typed), time.monotonic() + 40
    while time.monotonic() < end:
        if select.select([parent], [], [], 0.2)[0]:
            try:
                block = os.read(parent, 65_536)
            except OSError:
                break
            out += block
            if b"Allow?" in block and typed:
                os.write(parent, typed.pop(0).encode() + b"\n")
        elif process.poll() is not None:
            break
    process.wait(timeout=10)
    os.close(parent)
    return out.decode("utf-8", "replace"), process.returncode


def test_asking_on_a_terminal(place):
    replies = [[call("edit_file", path="a.txt", old="", new="one\n")], [call("run_command", cmd="echo x >> b.txt")],
               [call("run_command", cmd="echo x >> b.txt")], [call("edit_file", path="c.txt", old="", new="no\n")], [say("Finished.")]]
    with real_server(canned(replies)) as server:
        out, code = in_terminal(place, ["run", "repo", "task", "--model", "claude-haiku-4-5", "--base-url", server.url], ["y", "a", "n"])
    assert code == 0 and "+ one" in out and "echo x >> b.txt" in out and "\x1b[" in out
    repo = place[0] / "repo"
    assert (repo / "a.txt").read_text() == "one\n" and (repo / "b.txt").read_text() == "x\nx\n" and not (repo / "c.txt").exists()
    assert "user denied this action" in out


def test_no_color_is_honoured(place):
    out, code = in_terminal(place, ["run", "repo", "Which functions are there?"], [], env={"NO_COLOR": "1"})
    assert code == 0 and "\x1b[" not in out


def test_without_a_terminal_a_question_means_no(place):
    with real_server(canned([[call("run_command", cmd="touch x")], [say("Then not.")]])) as server:
        done = harnesslab(place, "run", "repo", "task", "--model", "claude-haiku-4-5", env={"AGENT_BASE_URL": server.url})
    assert done.returncode == 0 and "1 denied" in done.stdout and not (place[0] / "repo" / "x").exists()


def test_help_and_version(place):
    assert re.fullmatch(r"harnesslab \d+\.\d+\.\d+\n", harnesslab(place, "--version").stdout)
    text = harnesslab(place, "run", "--help").stdout
    assert "--mode" in text and "--max-steps" in text and "Exit codes" in text
    assert harnesslab(place).returncode == 2


def test_reader_of_the_output_goes_away(place):
    process = start(place, "run", "repo", "Which functions are there?")
    process.stdout.close()
    assert process.wait(timeout=30) in (0, 1)


def test_serve_fake_prints_its_address_and_serves(place):
    import httpx
    process = start(place, "serve-fake")
    line = process.stdout.readline()
    url = re.search(r"http://127\.0\.0\.1:\d+", line)[0]
    reply = httpx.post(url + "/v1/messages", headers={"x-api-key": "k", "anthropic-version": "2023-06-01"},
                       json={"model": "claude-haiku-4-5", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]})
    assert reply.status_code == 200 and reply.json()["type"] == "message"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 0


def test_demo_works(place):
    from conftest import ROOT
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "demo.py")], env=place[1], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "status        done" in done.stdout and len(traces(place)) == 1


def test_view_writes_one_page_or_plain_text(place):
    assert harnesslab(place, "run", "repo", "Which functions are there?", "--trace", "a.jsonl", "--html").returncode == 0
    assert (place[0] / "a.html").read_text().startswith("<!") and "http://" not in re.sub(r"http://(www\.w3\.org|scripted)\S*", "", (place[0] / "a.html").read_text())
    done = harnesslab(place, "view", "a.jsonl", "--no-open", "--out", "page.html")
    assert done.returncode == 0 and done.stdout == "page.html\n" and (place[0] / "page.html").exists()
    text = harnesslab(place, "view", "--plain", "a.jsonl").stdout
    assert "1 task" in text and "list_dir" in text and "Which functions are there?" in text
    assert harnesslab(place, "run", "repo", "Where is tokenize?", "--trace", "b.jsonl").returncode == 0
    assert harnesslab(place, "view", "a.jsonl", "b.jsonl", "--no-open").returncode == 0 and (place[0] / "a.jsonl.html").exists()


@pytest.mark.parametrize("arguments, says", [
    (["view", "gone.jsonl"], "gone.jsonl"),
    (["view", "repo/README.md"], "README.md"),
    (["view", "t.jsonl", "t.jsonl", "t.jsonl"], "one or two"),
    (["view", "t.jsonl", "--no-open", "--out", "no/such/folder/x.html"], "no/such/folder/x.html"),
    (["doctor", "--fence", "bamboo"], "bamboo"),
])
def test_what_cannot_be_viewed_is_one_sentence(place, arguments, says):
    (place[0] / "t.jsonl").write_text('{"v":1,"run":"r","n":0,"step":0,"time":1.0,"type":"run_started","payload":{"task":"x"}}\n')
    done = harnesslab(place, *arguments)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_doctor_says_what_the_fence_stops_and_what_not(place):
    done = harnesslab(place, "doctor")
    assert done.returncode == 0 and re.search(r"^fence: (process|landlock|namespace|container)", done.stdout, re.MULTILINE)
    assert "stops: " in done.stdout and "does not stop: an attack on the kernel itself" in done.stdout and "process: works" in done.stdout
