"""The gate, secrets, commands and the whole agent put together."""
import asyncio
import json
import os
import shlex
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from harnesslab import keeper, sandbox
from harnesslab.fences import CommandResult, ProcessFence, choose_fence
from harnesslab.loop import DENIED, Limits, ToolResult, UsageError, run_clock
from harnesslab.providers import offline
from harnesslab.sandbox import (IMPL, Gate, allowed_by_list, describe_call, execute, make_redactor, make_tools, permit, run_agent, run_agent_in_notebook, run_command,
                                secret_values, visible)
from harnesslab.scripted import call, make_repo, say
from harnesslab.tools import READ_ONLY, ToolError, clip


@pytest.fixture
def repo(tmp_path):
    return make_repo(tmp_path / "repo")


class Broken:
    """A fence that does not start; after `until` tries it does."""
    name, probe, network = "namespace", {"escapes": []}, False

    def __init__(self, until=10**9):
        self.tries, self.until = 0, until

    def run(self, root, command, timeout=30.0):
        self.tries += 1
        if self.tries < self.until:
            return CommandResult(None, "", 0.0, not_run="no such wall")
        return CommandResult(0, "fine", 0.01)


def test_the_lessons_names():
    assert set(IMPL) == {"read_file", "list_dir", "search", "edit_file", "run_command"} and READ_ONLY == {"read_file", "list_dir", "search"}


# ---- the gate

@given(st.text(max_size=40))
def test_whatever_has_shell_syntax_is_not_allowed(tail):
    """Behind an allowed beginning, only plain words pass; the shell itself would see nothing but words."""
    if allowed_by_list("ls " + tail, ["ls"]):
        assert shlex.split("ls " + tail) == ("ls " + tail).split(" ") and not set(tail) & set(";&|<>$`\"'\\*?[](){}~#!\n\r\t=")


@given(st.text(alphabet="abcdef. -", max_size=20))
def test_the_first_words_are_compared_as_words(command):
    if allowed_by_list(command, ["abc def"]):
        assert command.split(" ")[:2] == ["abc", "def"]


@pytest.mark.parametrize("arguments", [{}, {"cmd": 5}, {"cmd": None}, {"cmd": ["ls"]}])
def test_odd_arguments_are_asked_about(arguments):
    assert not permit("run_command", arguments, "no", allow=["ls"])


@pytest.mark.parametrize("typed, allowed", [("y", True), ("YES ", True), ("a", True), ("n", False), ("", False), ("no y", False), ("yy", False), ("ja", False)])
def test_only_a_clear_yes_is_a_yes(typed, allowed):
    assert Gate("ask", ask=lambda question: typed)("edit_file", {"path": "x"}) is allowed


def test_always_means_this_exact_call():
    asked = []
    gate = Gate("ask", ask=lambda question: asked.append(question) or "a")
    for command in ("make", "make", "make test", "make"):
        assert gate("run_command", {"cmd": command})
    assert len(asked) == 2


@pytest.mark.parametrize("failure", [EOFError, OSError])
def test_a_prompt_that_fails_means_no(failure):
    def ask(question):
        raise failure
    assert not Gate("ask", ask=ask)("run_command", {"cmd": "ls"})


def test_an_unknown_mode_is_refused():
    with pytest.raises(UsageError, match="ask, yes, no"):
        Gate("maybe")


@given(st.text(max_size=60))
def test_what_is_shown_sends_nothing_to_the_terminal(text):
    shown = visible(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown) and (visible(shown) == shown)


def test_an_edit_is_shown_as_a_difference():
    shown = describe_call("edit_file", {"path": "a.py", "old": "x = 1\ny = 2", "new": "x = 3\x1b[2K"})
    assert shown == "edit_file a.py\n  - x = 1\n  - y = 2\n  + x = 3\\x1b[2K"
    assert describe_call("run_command", {"cmd": "one\ntwo\r"}) == "run_command\n  one\n  two\\r"
    assert describe_call("edit_file", {"path": 5}) == 'edit_file {"path": 5}'


@given(st.tuples(st.text(alphabet="ab\n\r\x0c\x1d\x85\u2028 ", max_size=8), st.text(alphabet="ab\n\r\x0c\x85", max_size=8)), st.tuples(st.text(alphabet="ab\n\r\x0c\x85", max_size=8), st.text(alphabet="ab\n", max_size=8)))
def test_two_edits_never_look_the_same(one, other):
    """Whoever says yes to an edit has seen this one: the line breaks at its end too, and marks that only look like line breaks."""
    shown = [describe_call("edit_file", {"path": "a", "old": old, "new": new}) for old, new in (one, other)]
    assert (shown[0] == shown[1]) == (one == other)


def test_the_line_breaks_at_the_end_of_an_edit_are_shown():
    shown = {describe_call("edit_file", {"path": "a", "old": "", "new": "x" + end}) for end in ("", "\n", "\n\n", "\r\n", "\x0c", "\x85", "\u2028")}
    assert len(shown) == 7 and "edit_file a\n  + x\n  + " in shown
    assert describe_call("edit_file", {"path": "a\n  - b", "old": "", "new": "c"}).count("\n") == 1


@pytest.mark.parametrize("character", "\u115f\u1160\u3164\uffa0\u2800\u034f\ufe00\ufe0f\u200b\u00ad\u202e\u2066\ufeff\U000e0100\U000e0041")
def test_letters_that_are_drawn_as_nothing_are_shown(character):
    assert visible(f"rm{character}x") == "rm" + character.encode("unicode_escape").decode() + "x" and visible("é 日本 ñ 🙂") == "é 日本 ñ 🙂"


@pytest.mark.parametrize("allow", ["git status", "ls", ["pytest 'tests"], ['echo "x']])
def test_a_wrong_allow_list_is_told_of_at_once(allow, repo):
    """One text would be read letter by letter, and a quote that is not closed would raise in the middle of a run."""
    for use in (lambda: Gate("no", allow), lambda: allowed_by_list("ls", allow), lambda: run_agent("Look.", repo, "no", allow=allow, model=offline([[say("x")]]))):
        with pytest.raises(UsageError, match="allow-list"):
            use()


def test_an_allow_list_may_be_any_iterable():
    gate = Gate("no", (entry for entry in ["git status", "ls"]))
    assert [gate("run_command", {"cmd": command}) for command in ("ls", "ls", "git status", "git log")] == [True, True, True, False]


@pytest.mark.parametrize("answer", [None, True, 1, b"y", ["y"]])
def test_an_answer_that_is_no_text_is_a_no(answer):
    assert Gate("ask", ask=lambda question: answer)("edit_file", {"path": "a"}) is False


# ---- secrets

def test_secrets_are_found_by_name():
    found = secret_values({"ANTHROPIC_API_KEY": "value-of-a-key", "GH_TOKEN": "value-of-token", "PATH": "/usr/bin:/bin", "DB_PASSWORD": "short", "db_password": "long-enough"})
    assert set(found.values()) == {"ANTHROPIC_API_KEY", "GH_TOKEN", "db_password"}


def test_a_secret_reaches_neither_result_nor_trace_nor_history(repo, tmp_path, monkeypatch):
    monkeypatch.setenv("LESSON_API_KEY", 'canary-"9876543210"')
    (repo / "leak.txt").write_text('key = canary-"9876543210"\n')
    replies = [[call("read_file", path="leak.txt"), call("search", pattern="canary")], [say('The key is canary-"9876543210".')]]
    run = run_agent("Read.", repo, "no", model=offline(replies), trace=tmp_path / "t.jsonl", i_know=True)
    assert run.status == "done" and "9876543210" not in (tmp_path / "t.jsonl").read_text() and "9876543210" not in json.dumps(run.history.messages[:3])
    assert "[redacted LESSON_API_KEY]" in (tmp_path / "t.jsonl").read_text()


def test_the_longer_secret_wins():
    redact = make_redactor({"A_KEY": "secret-value", "B_KEY": "secret-value-longer"})
    assert redact("secret-value-longer secret-value") == "[redacted B_KEY] [redacted A_KEY]"


def test_a_line_break_at_the_end_of_a_secret_does_not_hide_it():
    """As from `export A_KEY="$(cat file)\n"` in a file of settings."""
    assert make_redactor({"A_KEY": "secret-value\n"})("key = secret-value;") == "key = [redacted A_KEY];"


def test_a_secret_of_several_lines_is_found_line_by_line():
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG\nshort\nAASCBKcwggSjAgEAAoIB\n-----END PRIVATE KEY-----\n"
    redact = make_redactor({"SIGNING_KEY": key})
    assert redact("   2 MIIEvQIBADANBgkqhkiG\n   3 short") == "   2 [redacted SIGNING_KEY]\n   3 short"
    assert redact("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----" and redact(json.dumps({"k": key})).count("[redacted SIGNING_KEY]") == 1


SECRET = "canary-0123456789-abcdefghijklmnopqrstuvwxyz"


def eight_of(secret, text):
    """Eight characters of the secret in a row, anywhere in the text."""
    return [secret[at : at + 8] for at in range(len(secret) - 7) if secret[at : at + 8] in text]


@given(st.integers(0, 9_000), st.sampled_from(["x", "\n", "é"]))
def test_a_cut_in_the_middle_of_a_secret_leaves_nothing_of_it(before, filler):
    redact = make_redactor({"SOME_KEY": SECRET, "OTHER_KEY": "something-else-0123"})
    assert not eight_of(SECRET, redact(clip(filler * before + SECRET + filler * (9_000 - before))))


@given(st.text(alphabet="abc.[]\n cut", max_size=80), st.integers(8, 43))
def test_what_is_no_secret_stays_as_it_is(text, size):
    redact = make_redactor({"SOME_KEY": SECRET})
    assert redact(text) == text and redact(SECRET[:size] + " " + text) == SECRET[:size] + " " + text
    assert redact(SECRET[:7] + "...") == SECRET[:7] + "..."


@pytest.mark.parametrize("column", range(255, 301, 9))
def test_no_tool_cuts_a_secret_into_the_open(repo, monkeypatch, column):
    """Lines, outputs, matches and reports of edits are all cut somewhere, and the secret lies across the cut."""
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    tools = make_tools(repo, ProcessFence())
    line = "a" * column + SECRET + "b" * 3_000
    (repo / "long.txt").write_text(line + "\n" + "c" * (3_940 - len(line) + column - 255) + SECRET + "d" * 9_000 + "\n")
    (repo / "wide.txt").write_text("e" * (1_700 + column) + SECRET + "f" * 3_000 + "\n")
    (repo / "edit.txt").write_text("g" * (column - 100) + SECRET + "\nnext\n")
    calls = [("read_file", {"path": "long.txt"}), ("read_file", {"path": "wide.txt"}), ("search", {"pattern": "aaaa|eeee"}), ("run_command", {"cmd": "cat long.txt; cat wide.txt"}),
             ("edit_file", {"path": "long.txt", "old": line[:-5] + "x", "new": "y"}), ("edit_file", {"path": "edit.txt", "old": "g" * (column - 100), "new": "h" * (column - 100)}),
             ("edit_file", {"path": "edit.txt", "old": "h", "new": line, "more": line}), ("read_file", {line: 5, "path": [line]}), (line, {})]
    for name, arguments in calls:
        prepared = tools.prepare(name, arguments)
        text = (prepared if isinstance(prepared, ToolResult) else prepared()).text
        assert not eight_of(SECRET, text) and len(text) <= 8_000, (name, eight_of(SECRET, text), text[-500:])


# ---- commands

def test_a_fence_that_does_not_start_is_tried_once_more(tmp_path):
    assert run_command(tmp_path, "true", fence=Broken(until=2)) == "exit code 0\nfine"
    fence = Broken()
    with pytest.raises(ToolError, match="NOT RUN: no such wall") as caught:
        run_command(tmp_path, "true", fence=fence)
    assert fence.tries == 2 and caught.value.ends_run == "sandbox_lost"


def test_a_lost_sandbox_ends_the_run(repo):
    replies = [[call("run_command", cmd="true"), call("read_file", path="README.md")], [say("never")]]
    run = run_agent("Work.", repo, "yes", model=offline(replies), fence=Broken())
    assert run.status == "sandbox_lost" and run["steps"] == 1
    results = run.history.messages[-1]["content"]
    assert results[0]["content"].startswith("NOT RUN") and not results[1]["is_error"]


@pytest.mark.parametrize("command, timeout", [("", 5), ("  ", 5), ("a\0b", 5), ("true", 0), ("true", -1), ("true", float("nan")), ("true", "soon"), (["true"], 5)])
def test_impossible_commands_are_refused(tmp_path, command, timeout):
    with pytest.raises(ToolError, match="timeout must be|command is empty|NUL"):
        run_command(tmp_path, command, timeout, fence=ProcessFence())


def test_a_command_never_outlives_the_run(repo):
    began = time.monotonic()
    run = run_agent("Work.", repo, "yes", model=offline([[call("run_command", cmd="echo begun; sleep 60", timeout=60)]] * 9), limits=Limits(wall_seconds=1.0), i_know=True)
    assert run.status == "wall_clock" and time.monotonic() - began < 10
    assert "begun" in run.history.messages[-1]["content"][0]["content"]


def test_a_time_limit_says_what_it_was(tmp_path, monkeypatch):
    """The model asked for half a minute, and something else cut it short: it must not conclude that half a minute is too little."""
    monkeypatch.setattr(keeper, "MAX_TIMEOUT", 0.3)
    monkeypatch.setattr(sandbox, "MAX_TIMEOUT", 0.3)
    assert run_command(tmp_path, "sleep 9", 30, fence=ProcessFence()).startswith("TIMEOUT after 0.3 s (not 30 s: there was no more time)")
    with run_clock(0.2):
        assert run_command(tmp_path, "sleep 9", 30, fence=ProcessFence()).startswith("TIMEOUT after 0.2 s (not 30 s")
    assert run_command(tmp_path, "sleep 9", 0.2, fence=ProcessFence()).startswith("TIMEOUT after 0.2 s: the command")


@pytest.mark.parametrize("next_call", [call("run_command", cmd="ls"), call("read_file", path="README.md"), call("list_dir"), call("search", pattern="def"), call("edit_file", path="a/b.txt", old="", new="x")],
                         ids=["run_command", "read_file", "list_dir", "search", "edit_file"])
def test_a_command_that_removes_the_repo_ends_the_run(repo, next_call):
    replies = [[call("run_command", cmd='rm -rf "$PWD"')], [next_call], [say("All is well.")]]
    run = run_agent("Tidy up.", repo, "yes", model=offline(replies), fence="process", i_know=True)
    assert run.status == "sandbox_lost" and run.history.messages[-1]["content"][0]["content"].startswith("NOT RUN") and not repo.exists()


def test_the_tools_do_not_show_what_is_ours_to_settle(repo):
    properties = {d["name"]: set(d["input_schema"]["properties"]) for d in make_tools(repo).definitions}
    assert properties["run_command"] == {"cmd", "timeout"} and properties["edit_file"] == {"path", "old", "new"}


# ---- one call, and the whole agent

def test_execute_never_raises(repo):
    for block in ({}, {"id": "a"}, {"id": "a", "name": "read_file"}, {"id": "a", "name": None, "input": {}}, {"id": "a", "name": "run_command", "input": {"cmd": 5}}):
        result = execute(repo, block, "yes")
        assert result["is_error"] is True and len(result["content"]) > 8


def test_execute_runs_what_is_permitted(repo):
    result = execute(repo, {"id": "a", "name": "edit_file", "input": {"path": "n.txt", "old": "", "new": "x\n"}}, "yes")
    assert result["tool_use_id"] == "a" and result["is_error"] is False and (repo / "n.txt").read_text() == "x\n"
    assert execute(repo, {"id": "b", "name": "run_command", "input": {"cmd": "ls"}}, "no")["content"] == DENIED
    assert execute(repo, {"id": "c", "name": "run_command", "input": {"cmd": "ls"}}, "no", allow=["ls"])["content"].startswith("exit code 0")


def test_the_shape_that_scripts_rely_on(repo, tmp_path):
    """The learner's own runner: a dictionary to unpack into a row, and a trace at a path whose folder does not exist yet."""
    stats = run_agent("Which functions are there?", repo, mode="yes", trace=tmp_path / "traces" / "v1-locate-0.jsonl", i_know=True)
    row = dict(label="v1", task="locate", rep=0, **stats)
    assert {"status", "steps", "tok_in", "tok_out", "tool_errors"} <= set(row) and json.loads(json.dumps(row)) == row
    events = [json.loads(line) for line in open(tmp_path / "traces" / "v1-locate-0.jsonl")]
    started = events[0]["payload"]
    assert started["fence"] == choose_fence("auto").name and started["probe"]["works"] and len(started["commit"]) == 40 and started["mode"] == "yes"


def test_unattended_on_the_bare_process_fence_must_be_meant(repo):
    with pytest.raises(UsageError, match="i_know=True"):
        run_agent("Work.", repo, "yes", fence="process")
    assert run_agent("Work.", repo, "yes", fence="process", i_know=True).status == "done"
    assert run_agent("Work.", repo, "no", fence="process").status == "done"


@pytest.mark.parametrize("place", ["t.jsonl", "new/t.jsonl", "link/t.jsonl", "../repo/t.jsonl"])
def test_a_trace_in_the_repo_is_refused(repo, place):
    """The agent could rewrite what it did."""
    (repo / "link").symlink_to(".")
    with pytest.raises(UsageError, match="lies in the repo"):
        run_agent("Work.", repo, "no", trace=repo / place)
    assert not list(repo.rglob("t.jsonl")) and not (repo / "new").exists()


def test_a_trace_beside_the_repo_is_taken(repo, monkeypatch):
    monkeypatch.chdir(repo.parent)
    assert run_agent("Work.", "repo", "no", trace="repo.jsonl").status == "done"


def test_an_empty_repo_is_not_the_current_folder(monkeypatch, tmp_path):
    """`harnesslab run "$REPO" ...` with a variable that is not set."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="The repo is empty"):
        run_agent("Work.", "", "no")
    assert run_agent("Work.", ".", "no").status == "done"


def test_a_sink_and_a_trace_get_the_same_events(repo, tmp_path):
    events = []
    run_agent("Work.", repo, "no", sink=events.append, trace=tmp_path / "t.jsonl")
    assert [json.loads(line) for line in open(tmp_path / "t.jsonl")] == json.loads(json.dumps(events))


def test_a_broken_screen_does_not_cost_the_trace(repo, tmp_path):
    def screen(event):
        raise RuntimeError("gone")
    run = run_agent("Work.", repo, "no", sink=screen, trace=tmp_path / "t.jsonl")
    assert run.status == "done" and run["events_lost"] > 0
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[-1])["type"] == "run_ended"


def test_version_one_errors_can_be_chosen(repo):
    replies = [[call("edit_file", path="README.md", old="nothing like it", new="x")], [say("done")]]
    texts = [run_agent("Edit.", repo, "yes", model=offline(replies), edit_errors=version, i_know=True).history.messages[2]["content"][0]["content"] for version in ("v1", "v2")]
    assert texts[0] == "old text found 0 times in README.md" and texts[1].startswith(texts[0] + ". Nothing was changed.")


def test_a_run_leaves_no_thread_no_process_and_no_open_file(repo):
    def left():
        return threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    work = [[call("run_command", cmd="sleep 0.1 & echo x"), call("read_file", path="README.md"), call("search", pattern="def")], [say("done")]]
    run_agent("Work.", repo, "yes", model=offline(work), i_know=True)         # what is loaded once, is loaded now
    before = left()
    for _ in range(5):
        model = offline(work)
        assert run_agent("Work.", repo, "yes", model=model, i_know=True).status == "done"
        model.close()
    end = time.monotonic() + 3
    while left() != before and time.monotonic() < end:
        time.sleep(0.05)
    assert left() == before


def test_the_notebooks_way_to_run(repo):
    run = asyncio.run(run_agent_in_notebook("Which functions are there?", repo, "no"))
    assert run.status == "done"


def test_the_notebooks_way_can_be_stopped(repo):
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    model = offline([[call("run_command", cmd="sleep 60", timeout=60)], [say("never")]])
    run = asyncio.run(run_agent_in_notebook("Work.", repo, "yes", model=model, cancel=cancel, i_know=True))
    assert run.status == "interrupted"


def test_the_commit_is_read_from_gits_own_files(repo, tmp_path):
    from harnesslab.sandbox import _commit

    def git(*arguments, cwd=repo):
        done = subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments], cwd=cwd, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert _commit(repo) == git("rev-parse", "HEAD") == _commit(repo / "wordcount")
    git("pack-refs", "--all")
    assert _commit(repo) == git("rev-parse", "HEAD")
    git("worktree", "add", str(tmp_path / "tree"))
    git("commit", "--allow-empty", "-m", "more", cwd=tmp_path / "tree")
    assert _commit(tmp_path / "tree") == git("rev-parse", "HEAD", cwd=tmp_path / "tree") != _commit(repo)
    git("checkout", "-q", "--detach")
    assert _commit(repo) == git("rev-parse", "HEAD")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / ".git").write_text("gitdir: nowhere")
    assert _commit(tmp_path / "bare") == "" and len(_commit(tmp_path)) in (0, 40)


@pytest.mark.parametrize("head", ["ref: ../../secret.txt", "ref: refs/../../secret.txt", "ref: {secret}", "ref: refs/heads/main", "not a commit", "\xff", ""])
def test_a_planted_git_tells_nothing_of_other_files(head, tmp_path):
    """A command can make a .git that sends the reader to any file; what stands there must not come into the trace."""
    from harnesslab.sandbox import _commit
    (tmp_path / "secret.txt").write_text("the-secret")
    git = tmp_path / "repo" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").symlink_to(tmp_path / "secret.txt")
    (git / "HEAD").write_bytes(head.format(secret=tmp_path / "secret.txt").encode("latin-1") + b"\n")
    assert _commit(tmp_path / "repo") == ""


@pytest.mark.parametrize("where", ["HEAD", "commondir", "refs/heads/main", "packed-refs", ""])
def test_a_planted_pipe_does_not_hold_the_next_run(where, tmp_path):
    from harnesslab.sandbox import _commit
    git = tmp_path / ".git"
    pipe = git / where
    pipe.parent.mkdir(parents=True, exist_ok=True)
    if where:
        (git / "HEAD").write_text("ref: refs/heads/main\n")
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    helper = subprocess.Popen(["sh", "-c", 'sleep 3; exec echo x > "$0"', str(pipe)])          # lets a reader go that waits
    try:
        began = time.monotonic()
        assert _commit(tmp_path) == "" and time.monotonic() - began < 1.5
    finally:
        helper.kill()
        helper.wait()
