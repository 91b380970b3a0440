"""The tools under attack: hostile paths, hostile files, hostile trees and arguments; always a bounded result that the model can act on."""
import codecs
import dataclasses
import datetime
import decimal
import enum
import errno
import json
import os
import random
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pydantic
import pytest
from hypothesis import HealthCheck, assume, example, given, settings, strategies as st
from parts import call, registry, results_of, run

from harnesslab import tools
from harnesslab.api_rules import check_request
from harnesslab.loop import ToolResult, UsageError
from harnesslab.tools import MAX_FILES, MAX_OUT, Registry, Tool, ToolError, as_text, clip, edit_file, file_tools, list_dir, read_file, safe_path, search

IN_PLACE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def as_user():
    """A folder of an ordinary user, who runs the test: root would be allowed everything."""
    with tempfile.TemporaryDirectory() as folder:
        if os.getuid() == 0:
            os.chown(folder, 65_534, 65_534)
            os.seteuid(65_534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(os.getuid())


def write(root, name, data):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def refused(function, *arguments, **named):
    """The text of the ToolError: short, one that can be sent, and not empty."""
    with pytest.raises(ToolError) as caught:
        function(*arguments, **named)
    text = str(caught.value)
    assert text.strip() and len(text) <= MAX_OUT
    text.encode("utf-8")
    return text


def left_over(root):
    return sorted(name for name in os.listdir(root) if name.endswith(".tmp"))


# ------------------------------------------------------------------ clip
@given(st.text(), st.integers(100, 400))
@example("x" * 101, 100)
@example("é" * 10_000, 100)
def test_clip(text, limit):
    short = clip(text * 20, limit)
    assert len(short) <= limit
    if len(text) * 20 <= limit:
        assert short == text * 20
    else:
        head, _, rest = short.partition("\n[... ")
        count, _, tail = rest.partition(" characters cut here ...]\n")
        assert (text * 20).startswith(head) and (text * 20).endswith(tail) and len(head) >= len(tail) > 0
        assert int(count.replace(",", "")) + len(head) + len(tail) == len(text) * 20


# ------------------------------------------------------------------ paths
PARTS = st.sampled_from(["..", ".", "", "a", "b.txt", ".git", ".GIT", "...", " ", "-x", "~", "a\nb", "é", "link", "up", "\\", "C:"])


@IN_PLACE
@given(st.lists(PARTS, max_size=6).map("/".join))
def test_no_path_leads_outside(tmp_path, path):
    root = tmp_path / "repo"
    (root / "a").mkdir(parents=True, exist_ok=True)
    write(tmp_path, "secret.txt", "secret")
    for name, target in (("link", "a"), ("up", "..")):
        if not (root / name).is_symlink():
            (root / name).symlink_to(target)
    try:
        full = safe_path(root, path)
    except ToolError:
        pass
    else:
        assert full.is_relative_to(root.resolve()) and ".git" not in [part.lower() for part in path.split("/")]
    for tool in (lambda: read_file(root, f"{path}/secret.txt"), lambda: search(root, "secret", path=path or "x"), lambda: list_dir(root, path)):
        try:
            assert "secret" not in tool().replace(f"{path}/secret", "")
        except ToolError:
            pass


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "..", "x\0y", ".git/config", "a/.Git/x", "//x", "a" * 5_000, "a" * 256, "é" * 200,
                                  "../repo-evil/x"])
@pytest.mark.parametrize("tool", [read_file, list_dir, lambda root, path: edit_file(root, path, "", "new"), lambda root, path: edit_file(root, path, "a", "b"),
                                  lambda root, path: search(root, "x", path=path), safe_path])
def test_paths_that_are_refused(tmp_path, tool, path):
    refused(tool, tmp_path, path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", [None, 5, b"a", ["a"], "\x00"])
def test_paths_that_are_no_text(tmp_path, path):
    refused(safe_path, tmp_path, path)


def test_links_are_named_not_followed(tmp_path):
    write(tmp_path, "real/file.txt", "text\n")
    write(tmp_path.parent, "outside.txt", "outside\n")
    (tmp_path / "inner").symlink_to("real/file.txt")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "outer").symlink_to("../outside.txt")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    for tool in (read_file, lambda root, path: edit_file(root, path, "text", "new")):
        assert "real/file.txt. Use that path" in refused(tool, tmp_path, "inner")
        assert "is a link to real" in refused(tool, tmp_path, "folder/file.txt")
        assert "outside the repo" in refused(tool, tmp_path, "outer")
        refused(tool, tmp_path, "dangling")
        assert "loop" in refused(tool, tmp_path, "loop")
    for name in ("inner", "outer", "dangling", "loop", "folder"):
        refused(edit_file, tmp_path, name, "", "new")
    assert (tmp_path / "real/file.txt").read_text() == "text\n" and (tmp_path.parent / "outside.txt").read_text() == "outside\n"
    assert not (tmp_path / "nothing").exists()


def test_a_wrong_name_gets_the_right_one(tmp_path):
    write(tmp_path, "src/core.py", "x")
    assert "src/core.py" in refused(read_file, tmp_path, "core.py")
    assert "src/core.py" in refused(read_file, tmp_path, "src/cores.py")
    assert "list_dir" in refused(read_file, tmp_path, "zzzzzz")
    assert "list_dir" in refused(read_file, tmp_path, "src") and "list_dir" in refused(read_file, tmp_path, ".")
    assert "is a file" in refused(list_dir, tmp_path, "src/core.py") and "is a file" in refused(read_file, tmp_path, "src/core.py/x")


@pytest.mark.parametrize("tool", [read_file, list_dir, safe_path, lambda root, path: edit_file(root, path, "", "new"), lambda root, path: edit_file(root, path, "a", "b"), lambda root, path: search(root, "x", path=path)])
def test_surrogates_in_paths(tmp_path, tool):
    for path in ("\ud99c", "a/\ud99c/b", "\udc80x"):
        refused(tool, tmp_path, path)


@pytest.fixture
def odd_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(tmp_path)                                            # the path of a socket may only be short
        listener.bind("socket")
        os.chdir(here)
        write(tmp_path, "plain.txt", "plain\n")
        yield tmp_path


@pytest.mark.parametrize("name", ["fifo", "socket"])
def test_what_is_no_file_is_never_waited_for(odd_files, name):
    began = time.monotonic()
    refused(read_file, odd_files, name)
    refused(edit_file, odd_files, name, "a", "b")
    refused(edit_file, odd_files, name, "", "b")
    assert search(odd_files, "plain") == "plain.txt:1:plain"
    assert f"{name} (not a regular file)" in list_dir(odd_files)
    assert time.monotonic() - began < 10


# ------------------------------------------------------------------ read_file
def numbered(data):
    """What reading should show, line by line, told in the plainest way."""
    lines = data.split(b"\n")
    return [line.decode("utf-8", "replace") for line in (lines[:-1] if lines[-1] == b"" else lines)]


@IN_PLACE
@given(st.lists(st.binary(max_size=30).filter(lambda line: not set(line) & {0, 10, 13}) | st.just(b"x" * 700), max_size=40), st.booleans(),
       st.integers(-2, 45), st.none() | st.integers(-2, 45))
def test_read_any_bytes_in_any_range(tmp_path, lines, final, start, end):
    data = b"\n".join(lines) + (b"\n" if final and lines else b"")
    write(tmp_path, "f", data)
    expected = numbered(data)
    if start < 1 or (end is not None and end < start):
        assert "range" in refused(read_file, tmp_path, "f", start, end)
    elif not data:
        assert read_file(tmp_path, "f", start, end) == "(empty file)"
    elif start > len(expected):
        assert f"{len(expected)} lines" in refused(read_file, tmp_path, "f", start, end)
    else:
        text = read_file(tmp_path, "f", start, end)
        assert len(text) <= MAX_OUT
        wanted = [f"{number:>4} {line[:500]}" for number, line in enumerate(expected, 1) if number >= start and (end is None or number <= end)]
        shown = text.split("\n")[:len(wanted)]
        assert all(got.startswith(want) for got, want in zip(shown, wanted))
        if len(wanted) * 540 < MAX_OUT - 300:
            assert len(shown) == len(wanted) and "To go on" not in text


@pytest.mark.parametrize("line, count", [("x" * 70, 5_000), ("", 5_000), ("x" * 499, 100), ("x" * 501, 100), ("x" * 300_000, 5), ("é" * 300, 300)])
def test_reading_on_shows_every_line_once(tmp_path, line, count):
    write(tmp_path, "f", f"{line}\n" * count)
    start, seen = 1, []
    while start:
        text = read_file(tmp_path, "f", start)
        assert len(text) <= MAX_OUT and text.count("\n") <= 401
        rows = text.split("\n")
        start = int(rows.pop().split("line ")[1].rstrip(".]")) if "To go on" in rows[-1] else 0
        seen += [int(row.split()[0]) for row in rows if not row.startswith("[")]
    assert seen == list(range(1, count + 1))


def test_one_line_of_four_megabytes(tmp_path):
    write(tmp_path, "f.json", "[" + "1," * 2_000_000 + "1]")
    text = read_file(tmp_path, "f.json")
    assert len(text) < 700 and "4,000,003 bytes in all" in text


def test_memory_stays_flat_for_a_long_line(tmp_path):
    write(tmp_path, "f", b"x" * 20_000_000)
    tracemalloc.start()
    try:
        read_file(tmp_path, "f")
        search(tmp_path, "x")
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["a" + "\u20ac" * 1_000 + "\n", "ab" + "\u20ac" * 1_000 + "\n", "x \ufffd y\n", "\U0001f600" * 501])
def test_good_utf8_is_not_called_bad(tmp_path, text):
    write(tmp_path, "f", text)
    assert "not UTF-8" not in read_file(tmp_path, "f")


def test_reading_millions_of_lines_comes_soon(tmp_path):
    write(tmp_path, "f", b"\n" * (32 << 20))
    began = time.monotonic()
    assert "To go on, read from line 401" in read_file(tmp_path, "f") and time.monotonic() - began < 10


def test_bytes_that_are_no_text(tmp_path):
    write(tmp_path, "binary", bytes(range(256)) * 40)
    write(tmp_path, "latin", "caf\xe9\n".encode("latin-1"))
    assert "binary file of 10,240 bytes" in refused(read_file, tmp_path, "binary")
    assert "edit_file refuses this file" in read_file(tmp_path, "latin") and "edit_file refuses" not in read_file(write(tmp_path, "ok", "é\n").parent, "ok")
    for name in ("binary", "latin"):
        before = (tmp_path / name).read_bytes()
        assert "Nothing was changed" in refused(edit_file, tmp_path, name, "caf", "tea")
        assert (tmp_path / name).read_bytes() == before


def test_files_that_may_not_be_read(as_user):
    write(as_user, "ok.txt", "hello\n")
    write(as_user, "closed.txt", "hello\n").chmod(0)
    (as_user / "shut").mkdir()
    (as_user / "shut").chmod(0)
    try:
        assert "permission denied" in refused(read_file, as_user, "closed.txt") and "permission denied" in refused(list_dir, as_user, "shut")
        assert "permission denied" in refused(edit_file, as_user, "closed.txt", "a", "b")
        assert search(as_user, "hello") == "ok.txt:1:hello" and "ok.txt" in list_dir(as_user)
    finally:
        (as_user / "shut").chmod(0o700)


# ------------------------------------------------------------------ list_dir and search on hostile trees
NAMES = ["plain.txt", "-leading", "--help", "sp ace", "tab\there", "new\nline", "qu'o\"te", "é", "*", "[x]", "$HOME", "a:1:b", "\\n", "\x1b[31mred", b"bad\xff".decode("utf-8", "surrogateescape")]


@pytest.fixture
def odd_names(tmp_path):
    for name in NAMES:
        try:
            (tmp_path / name).write_text("needle\n")
        except OSError as error:                                      # macOS takes no name that is not UTF-8
            assert error.errno == errno.EILSEQ
    return tmp_path


def test_odd_names_are_listed_on_one_line_each(odd_names):
    lines = list_dir(odd_names).split("\n")
    assert len(lines) == len(os.listdir(odd_names)) and all(line.isprintable() for line in lines)
    list_dir(odd_names).encode("utf-8")


def test_odd_names_are_found_on_one_line_each(odd_names):
    lines = search(odd_names, "needle").split("\n")
    assert len(lines) == len(os.listdir(odd_names)) and all(line.endswith(":1:needle") for line in lines)
    "\n".join(lines).encode("utf-8")


@pytest.mark.parametrize("name", [name for name in NAMES if name.isascii()])
def test_odd_names_can_be_used(odd_names, name):
    assert read_file(odd_names, name) == "   1 needle"
    assert search(odd_names, "needle", path=name).endswith(":1:needle")
    edit_file(odd_names, name, "needle", "pin")
    assert (odd_names / name).read_text() == "pin\n" and left_over(odd_names) == []


@pytest.mark.parametrize("pattern, count", [("- [ ]", None), (r"- \[ \]", 1), ("--help", 1), ("-e", 1), ("-", 2), ("--", 1), ("^-", 2), ("(?i)HELP", 1)])
def test_patterns_with_a_leading_dash(tmp_path, pattern, count):
    write(tmp_path, "f", "- [ ] do\n--help -e\n")
    if count is not None:
        assert search(tmp_path, pattern).count("\n") + 1 == count
    else:
        search(tmp_path, pattern)


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{", r"\p{Nope}", "(?<x", "a\nb", "(a){1000000000}"])
def test_a_bad_pattern_is_an_error_not_an_empty_result(tmp_path, pattern):
    write(tmp_path, "f", "text\n")
    assert "pattern" in refused(search, tmp_path, pattern)


def in_a_process(code, *arguments, **options):
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], cwd=Path(__file__).parent.parent, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bad_pattern_where_no_exit_code_is_kept(tmp_path):
    """A harness that was started with its children's signal ignored never learns how ripgrep ended."""
    code = "import sys; from harnesslab.tools import ToolError, search\ntry: print(search(sys.argv[1], '('))\nexcept ToolError as error: print('refused', error)"
    assert in_a_process(code, tmp_path, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)).startswith("refused")


def test_search_with_more_than_a_thousand_open_files(tmp_path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 1_200:
        pytest.skip("optional: this user may not open so many files")
    write(tmp_path, "a.txt", "needle\n")
    code = ("import resource, sys; from harnesslab.tools import search; resource.setrlimit(resource.RLIMIT_NOFILE, (1_200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
            "files = [open('/dev/null') for _ in range(1_100)]; print(search(sys.argv[1], 'needle'))")
    assert in_a_process(code, tmp_path) == "a.txt:1:needle\n"


def test_a_complaint_about_gitignore_is_none_about_the_pattern(tmp_path):
    write(tmp_path, ".gitignore", "[z-a]{\n")
    write(tmp_path, "a.txt", "x\n")
    assert search(tmp_path, "needle") == "No matches."


def test_search_where_nothing_is(tmp_path):
    write(tmp_path, "src/core.py", "x\n")
    assert "There is no nope" in refused(search, tmp_path, "x", path="nope")
    assert "src/core.py" in refused(search, tmp_path, "x", path="core.py")
    assert "There is no src/nope" in refused(search, tmp_path, "x", path="src/nope")


def test_search_with_a_closed_file_and_no_match(as_user):
    write(as_user, "ok.txt", "hello\n")
    write(as_user, "closed.txt", "hello\n").chmod(0)
    assert search(as_user, "zzz").startswith("No matches.")


def test_search_below_a_path_too_long_for_the_system(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d" * 20, dir_fd=folder)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    write(tmp_path, "f", "hello\n")
    assert search(tmp_path, "zzz").startswith("No matches.") and "f:1:hello" in search(tmp_path, "hello")
    assert len(list_dir(tmp_path)) < MAX_OUT
    subprocess.run(["rm", "-rf", str(tmp_path / ("d" * 20))])      # pytest cannot remove a tree as deep as this


def test_search_in_a_fifo(odd_files):
    began = time.monotonic()
    for name in ("fifo", "socket"):
        refused(search, odd_files, "x", path=name)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("pattern", ["(" + "a" * 100_000, "a" * 200_000, "é" * 40_000 + "("])
def test_endless_patterns(tmp_path, pattern):
    write(tmp_path, "f", "x\n")
    began = time.monotonic()
    assert "pattern" in refused(search, tmp_path, pattern) and time.monotonic() - began < 8


def test_names_with_line_breaks_in_a_search(tmp_path):
    write(tmp_path, "new\nline", "needle\nneedle\n")
    write(tmp_path, "line", "needle\n")
    write(tmp_path, "x\ny\nz", "needle\n")
    assert search(tmp_path, "needle").split("\n") == ["line:1:needle", "new\\nline:1:needle", "new\\nline:2:needle", "x\\ny\\nz:1:needle"]


def test_no_match_is_a_result(tmp_path):
    write(tmp_path, "f", "text\n")
    assert search(tmp_path, "zzz") == "No matches." == search(tmp_path, "\ud99c") == search(tmp_path, "zzz", path="f")


def test_search_counts_and_shows_the_first_fifty(tmp_path):
    for number in range(300):
        write(tmp_path, f"d{number % 7}/f{number:03}.txt", f"needle {number}\nhay\nneedle again\n")
    first = search(tmp_path, "needle")
    paths = sorted(f"d{number % 7}/f{number:03}.txt" for number in range(300))
    lines = first.split("\n")
    assert [line.rsplit(":", 1)[0] for line in lines[:50]] == [f"{path}:{line}" for path in paths[:25] for line in (1, 3)]
    assert lines[50:] == ["[550 more matches. Narrow the pattern or the path.]"]
    for _ in range(5):
        assert search(tmp_path, "needle") == first


def test_search_leaves_out_git_and_what_git_ignores(tmp_path):
    for name in (".git/config", "kept/.git/config", "ignored/f", "kept/f", ".hidden"):
        write(tmp_path, name, "needle\n")
    write(tmp_path, ".gitignore", "ignored\n")
    assert search(tmp_path, "needle").split("\n") == [".hidden:1:needle", "kept/f:1:needle"]


def test_search_obeys_no_settings_of_the_user(tmp_path, monkeypatch):
    write(tmp_path, "f", "needle\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(write(tmp_path.parent, "rgrc", "--files-with-matches\n--invert-match\n")))
    assert search(tmp_path, "needle") == "f:1:needle"


def test_long_lines_and_binary_files_in_a_search(tmp_path):
    write(tmp_path, "long", "x" * 300_000 + "needle\n")
    write(tmp_path, "crlf", b"needle\r\n")
    write(tmp_path, "binary", b"needle\0" * 1_000)
    lines = search(tmp_path, "needle").split("\n")
    assert "crlf:1:needle" in lines and any(line.startswith("long:1:") for line in lines) and all(len(line) < 600 for line in lines)
    assert len(search(tmp_path, ".")) <= MAX_OUT


def deep_tree(root, levels=300):
    folder = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    leaf = os.open("leaf.txt", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=folder)
    os.write(leaf, b"needle\n")
    os.close(leaf)
    os.close(folder)
    return "d/" * levels + "leaf.txt"


def test_a_tree_three_hundred_folders_deep(tmp_path):
    path = deep_tree(tmp_path)
    assert list_dir(tmp_path).startswith("d/d/d/") and search(tmp_path, "needle").endswith(":1:needle")
    assert read_file(tmp_path, path) == "   1 needle"
    edit_file(tmp_path, path, "needle", "pin")
    assert read_file(tmp_path, path) == "   1 pin"


def test_loops_of_links_end(tmp_path):
    write(tmp_path, "a/f.txt", "needle\n")
    (tmp_path / "a/self").symlink_to(".")
    (tmp_path / "a/up").symlink_to("..")
    (tmp_path / "round").symlink_to("round")
    assert list_dir(tmp_path).split("\n") == ["round (link to round)", "a/f.txt", "a/self (link to .)", "a/up (link to ..)"]
    assert search(tmp_path, "needle") == "a/f.txt:1:needle"


def test_twenty_thousand_files(tmp_path):
    for folder in range(20):
        (tmp_path / f"d{folder:02}").mkdir()
        here = os.open(tmp_path / f"d{folder:02}", os.O_RDONLY)
        for number in range(1_010):
            os.close(os.open(f"f{number:04}", os.O_CREAT, dir_fd=here))
        os.close(here)
    write(tmp_path, "d19/last", "needle\n")
    began = time.monotonic()
    text = list_dir(tmp_path)
    assert len(text) <= MAX_OUT and text.count("\n") == MAX_FILES and text.split("\n")[-1].startswith("[at least 19,")
    assert list_dir(tmp_path, "d19").endswith("\n[811 more files. List one folder to see them.]")
    assert search(tmp_path, "needle") == "d19/last:1:needle"
    assert time.monotonic() - began < 30


def test_long_paths_are_shown_whole(tmp_path):
    path = "/".join(["component_module_name"] * 12) + "/Foo.java"
    write(tmp_path, path, "needle\n")
    assert path in list_dir(tmp_path) and path in search(tmp_path, "needle")


def test_listing_says_what_it_leaves_out(tmp_path):
    for name in (".git/x", "node_modules/a/b.js", "src/a.py", "src/.venv/x", ".env"):
        write(tmp_path, name, "x")
    assert list_dir(tmp_path).split("\n") == [".env", "node_modules/ (not listed)", "src/.venv/ (not listed)", "src/a.py"]
    assert list_dir(tmp_path, "node_modules") == "node_modules/a/b.js"
    (tmp_path / "empty").mkdir()
    assert list_dir(tmp_path, "empty") == "(no files)"


# ------------------------------------------------------------------ edit_file: exactly one, every other byte kept
def naive(text, old):
    """Start and end of every place where `old` stands, if line ends of both kinds are the same. The plainest way to say it: try them all."""
    def places(i, k):
        while k < len(old):
            if old[k] == "\n":
                i += text[i:i + 2] == "\r\n"
            if text[i:i + 1] != old[k]:
                return None
            i, k = i + 1, k + 1
        return i
    found = []
    for start in range(len(text)):
        if (end := places(start, 0)) is not None and not (old[0] == "\n" and text[start] == "\n" and text[start - 1:start] == "\r"):
            found.append((start, end))
    return found


LETTERS = st.text("ab \n", max_size=12)


@settings(IN_PLACE, max_examples=300)
@given(st.lists(st.sampled_from(["a", "b", " ", "\n", "\r\n", "é"]), max_size=14), st.text("ab \né", min_size=1, max_size=4).filter(lambda old: old[0] != "\n"), LETTERS,
       st.booleans())
def test_edit_against_a_naive_oracle(tmp_path, pieces, old, new, mark):
    """Overlaps, CRLF and mixed line ends; outside the one place that is replaced no byte changes, and a refused edit changes none."""
    text = "".join(pieces)
    data = (codecs.BOM_UTF8 if mark else b"") + text.encode("utf-8")
    path = write(tmp_path, "f", data)
    places = naive(text, old)
    try:
        edit_file(tmp_path, "f", old, new)
    except ToolError as error:
        assert path.read_bytes() == data
        if len(places) == 1:
            assert "same text" in str(error)
        else:
            assert f"old text found {len(places)} times" in str(error)
    else:
        assert len(places) == 1
        start, end = places[0]
        after = path.read_bytes().removeprefix(codecs.BOM_UTF8 if mark else b"").decode("utf-8")
        assert after.startswith(text[:start]) and after.endswith(text[end:])
        assert after[start:len(after) - len(text) + end].replace("\r\n", "\n") == new.replace("\r\n", "\n")
        kinds = set(re.findall("\r?\n", text))
        assert len(kinds) != 1 or set(re.findall("\r?\n", after)) <= kinds              # a file with one kind of line ends keeps it
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("before, old, new, after", [
    (b"a\r\nb\r\n", "a\nb", "c\nd", b"c\r\nd\r\n"), (b"a\nb\n", "a\r\nb", "c", b"c\n"), (b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n"), (b"a", "a", "b", b"b"),
    (b"\ta\n", "\ta", "\tb", b"\tb\n"), (b"a\n\n\n", "a", "b", b"b\n\n\n"), (b"x\x0cy\nz\n", "z", "w", b"x\x0cy\nw\n"), (b"a\rb\r", "a", "c", b"c\rb\r"),
    (b"a\r\nb\nc\n", "b", "B\nB", b"a\r\nB\nB\nc\n"), ("é ü\n".encode(), "ü", "\u2028", "é \u2028\n".encode()), (b"ab\n", "ab", "", b"\n"), (b"a.b*c\n", ".b*", r"\1\g<0>", b"a\\1\\g<0>c\n"),
    (b"x\\\r\ny\r\n", "x\\\ny", "z", b"z\r\n"),
    (b"a\nb\nc\n", "a\r\nb", "a\r\nB", b"a\nB\nc\n"), (b"a\nb\n", "b", "b\r\nc", b"a\nb\nc\n"), (b"a\nb\n", "a\r\n", "x\r\n", b"x\nb\n"),
    (b"a\r\nb\nc\r\nd\n", "a\nb\nc\nd", "a\nB\nc\nD", b"a\r\nB\nc\r\nD\n"), (b"a\nb\r\nc\r\nd\r\n", "a\nb", "x\ny", b"x\ny\r\nc\r\nd\r\n"),
    (b"a\r\nb\nc\r\n", "a\nb\nc\n", "a\nX\nb\nc\n", b"a\r\nX\r\nb\nc\r\n"), (b"a\r\nb\nc\n", "a\nb\nc", "c", b"c\n"),
    (b"a\nb\r\nc\n", "b\nc", "b\nc\nd\ne", b"a\nb\r\nc\r\nd\r\ne\n")])
def test_edits_byte_for_byte(tmp_path, before, old, new, after):
    path = write(tmp_path, "f", before)
    edit_file(tmp_path, "f", old, new)
    assert path.read_bytes() == after


@pytest.mark.parametrize("before, old, new, after", [(b"a\r\nb\r\n", "\nb", "\nc", b"a\r\nc\r\n"), (b"a\r\n\r\n\r\nb\r\n", "\n\n\nb", "\nb", b"a\r\nb\r\n"), (b"a\r\n\nb\n", "\n\nb", "c", b"ac\n")])
def test_old_text_that_begins_with_a_line_break(tmp_path, before, old, new, after):
    path = write(tmp_path, "f", before)
    edit_file(tmp_path, "f", old, new)
    assert path.read_bytes() == after


def test_line_numbers_of_a_file_with_form_feeds(tmp_path):
    for odd in ("\x0c", "\x0b", "\u2028", "\x85", "\r"):
        write(tmp_path, "f", f"a{odd}b\nc\nd\n")
        assert edit_file(tmp_path, "f", "c", "x") == "edited f\n-   2 c\n+   2 x"


@pytest.mark.parametrize("name", ["\u4e2d" * 85, "é" * 127, "a" * 255])
def test_long_names_can_be_edited(tmp_path, name):
    path = write(tmp_path, name, "abc\n")
    edit_file(tmp_path, name, "abc", "x")
    assert path.read_text() == "x\n"


def test_text_that_stands_everywhere(tmp_path):
    write(tmp_path, "f", "a" * 3_000_000)
    tracemalloc.start()
    try:
        began = time.monotonic()
        refused(edit_file, tmp_path, "f", "a", "b")
        refused(edit_file, tmp_path, "f", "a" * 1_000_000, "b")
        assert time.monotonic() - began < 15 and tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()
    write(tmp_path, "g", b"a" * 300_000 + b"\r\n")
    began = time.monotonic()
    refused(edit_file, tmp_path, "g", "a" * 100_000 + "b\n", "b")
    refused(edit_file, tmp_path, "g", "a" * 100_000 + "\nb", "b")
    assert time.monotonic() - began < 10


def test_empty_old_text_only_creates(tmp_path):
    path = write(tmp_path, "f", "abc")
    assert "exists already" in refused(edit_file, tmp_path, "f", "", "X") and path.read_bytes() == b"abc"
    edit_file(tmp_path, "new/folder/g.txt", "", "one\r\ntwo")
    assert (tmp_path / "new/folder/g.txt").read_bytes() == b"one\r\ntwo"
    refused(edit_file, tmp_path, "nothing.txt", "old", "new")
    assert not (tmp_path / "nothing.txt").exists()
    assert "folder" in refused(edit_file, tmp_path, ".", "", "x")
    refused(edit_file, tmp_path, "new", "", "x")
    refused(edit_file, tmp_path, "f/x", "", "x")


@pytest.mark.skipif(os.getuid() != 0, reason="optional: only root can give files away")
def test_owner_survives(tmp_path):
    path = write(tmp_path, "f", "a\n")
    os.chown(path, 65_534, 65_534)
    edit_file(tmp_path, "f", "a", "b")
    assert (path.stat().st_uid, path.stat().st_gid) == (65_534, 65_534)


@pytest.mark.parametrize("old", ["a", ""])
@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o640])
def test_mode_survives(tmp_path, mode, old):
    """Also when an empty file is filled."""
    path = write(tmp_path, "f", old)
    path.chmod(mode)
    edit_file(tmp_path, "f", old, "b")
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_text() == "b" and left_over(tmp_path) == []


def test_hard_links_are_refused(tmp_path):
    path = write(tmp_path, "f", "a\n")
    os.link(path, tmp_path / "g")
    assert "hard links" in refused(edit_file, tmp_path, "f", "a", "b") and path.read_text() == "a\n"


def test_files_too_big_to_edit(tmp_path):
    path = write(tmp_path, "f", b"a" * (10 * 1024 * 1024 + 1))
    assert "too large" in refused(edit_file, tmp_path, "f", "a", "b") and path.stat().st_size == 10 * 1024 * 1024 + 1
    write(tmp_path, "g", b"b\n" * 4_000_000 + b"a\n")
    assert "+4000001 c" in edit_file(tmp_path, "g", "a", "c")


def test_a_reader_never_sees_half_a_file(tmp_path):
    whole = {b"a" * 500_000, b"b" * 400_000}
    path = write(tmp_path, "f", min(whole))
    seen, stop = set(), threading.Event()

    def watch():
        while not stop.is_set():
            seen.add(path.read_bytes())
    reader = threading.Thread(target=watch)
    reader.start()
    try:
        for _ in range(15):
            edit_file(tmp_path, "f", "a" * 500_000, "b" * 400_000)
            edit_file(tmp_path, "f", "b" * 400_000, "a" * 500_000)
    finally:
        stop.set()
        reader.join()
    assert seen <= whole and left_over(tmp_path) == []


def test_a_reader_never_sees_half_a_new_file(tmp_path):
    sizes, stop = set(), threading.Event()

    def watch():
        while not stop.is_set():
            try:
                sizes.add(os.stat(tmp_path / "f").st_size)
            except FileNotFoundError:
                pass
    reader = threading.Thread(target=watch)
    reader.start()
    try:
        for _ in range(10):
            edit_file(tmp_path, "f", "", "x" * 8_000_000)
            os.unlink(tmp_path / "f")
    finally:
        stop.set()
        reader.join()
    assert sizes <= {8_000_000}


@pytest.mark.parametrize("in_one_turn", [True, False])
def test_two_edits_at_once_are_both_kept(tmp_path, in_one_turn):
    path = write(tmp_path, "f", "".join(f"line {number:03}\n" for number in range(100)))
    edits = [dict(path="f", old=f"line {number:03}\n", new=f"LINE {number:03}\n") for number in range(0, 100, 5)]
    if in_one_turn:
        finished = run([[call("edit_file", **edit) for edit in edits], "done"], Registry(tmp_path, file_tools()))
        assert finished["tool_errors"] == 0
    else:
        threads = [threading.Thread(target=edit_file, args=(tmp_path, *edit.values())) for edit in edits]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert path.read_text().count("LINE") == 20 and path.read_text().count("\n") == 100


def test_a_folder_that_may_not_be_written(as_user):
    path = write(as_user, "d/f", "a\n")
    path.parent.chmod(0o500)
    try:
        assert "Nothing was changed" in refused(edit_file, as_user, "d/f", "a", "b")
        refused(edit_file, as_user, "d/g", "", "b")
    finally:
        path.parent.chmod(0o700)
    assert path.read_text() == "a\n" and os.listdir(path.parent) == ["f"]


def test_a_full_disk_changes_nothing(tmp_path, monkeypatch):
    path = write(tmp_path, "f", "a\n")

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(tools.os, "fsync", full)
    assert "No space left" in refused(edit_file, tmp_path, "f", "a", "b")
    assert path.read_text() == "a\n" and left_over(tmp_path) == []


# ------------------------------------------------------------------ edit_file: what it says
def test_version_one_says_how_often_and_no_more(tmp_path):
    write(tmp_path, "f", "aa\nb\n")
    assert refused(edit_file, tmp_path, "f", "a", "x", errors="v1") == "old text found 2 times in f"
    assert refused(edit_file, tmp_path, "f", "zz", "x", errors="v1") == "old text found 0 times in f"
    tool = {tool.name: tool for tool in file_tools("v1")}["edit_file"]
    assert Registry(tmp_path, [tool]).prepare("edit_file", {"path": "f", "old": "a", "new": "x"})().text == "old text found 2 times in f"
    with pytest.raises(UsageError, match="v1"):
        file_tools("v3")


def test_version_two_gives_the_lines_of_every_match(tmp_path):
    write(tmp_path, "f", "x\na\r\nb\na\n\na a\n")
    text = refused(edit_file, tmp_path, "f", "a", "y")
    assert "found 4 times" in text and "lines 2, 4, 6, 6" in text and "Nothing was changed" in text
    write(tmp_path, "g", "a\n" * 500)
    assert "20 and more" in refused(edit_file, tmp_path, "g", "a", "y")


@pytest.mark.parametrize("real, wanted, says", [
    ("  return x", "    return x", "only white space differs"), ("\treturn x", "    return x", "The file uses tabs"), ("    return x", "\treturn x", "The file uses spaces"),
    ("print('hello you')", 'print("hello you")', "the quotes differ"), ("print(\u201chello you\u201d)", 'print("hello you")', "the quotes differ"),
    ("def Total_Count(x):", "def total_count(x):", "capital letters differ"), ("total = count + 1", "total = count + 2", "from character 17 on"),
    ("value = 1   ", "value = 1", None), ("return total", "return  total", "only white space differs")])
def test_version_two_names_what_differs(tmp_path, real, wanted, says):
    write(tmp_path, "f", f"first\nsecond line\n{real}\nlast\n")
    if says is None:
        edit_file(tmp_path, "f", wanted, "x")
        return
    text = refused(edit_file, tmp_path, "f", wanted, "x")
    assert f"closest line 3: {real!r}" in text and says in text, text


@pytest.mark.parametrize("real, wanted, says", [("total = a+b+c", "total = a + b + c", "white space"), ("f(a, b)", "f( a,b )", "white space"), ("x = 'it\u2019s'", "x = 'it's'", "quotes"), ("say 'a'  b", 'say "a" b', "quotes")])
def test_what_differs_is_named(tmp_path, real, wanted, says):
    write(tmp_path, "f", f"first\n{real}\n")
    assert (says if says != "white space" else "only white space differs") in refused(edit_file, tmp_path, "f", wanted, "x")


def test_closest_line_of_a_big_table_comes_soon(tmp_path):
    random.seed(1)
    rows = [",".join(str(random.random()) for _ in range(10)) for _ in range(20_000)]
    write(tmp_path, "f.csv", "\n".join(rows) + "\n")
    began = time.monotonic()
    text = refused(edit_file, tmp_path, "f.csv", rows[15_000][:-3] + "zz", "x")
    assert time.monotonic() - began < 10 and "closest line 15001" in text


def test_closest_of_long_equal_lines_comes_soon(tmp_path):
    write(tmp_path, "f", ("a" * 900 + "\n") * 2_000)
    began = time.monotonic()
    refused(edit_file, tmp_path, "f", "a" * 450 + "b" + "a" * 449, "x")
    assert time.monotonic() - began < 10


def test_version_two_when_only_the_neighbours_differ(tmp_path):
    write(tmp_path, "f", "one\nthe same long line\ntwo\n")
    assert "that line is the same" in refused(edit_file, tmp_path, "f", "the same long line\nthree", "x")


RECORDS = ",".join(f'{{"id": {n}, "name": "person {n}", "mail": "p{n}@example.org"}}' for n in range(5_000))


@pytest.mark.parametrize("text, old, says", [
    ("x = 1\n" + "total = compute(alpha, beta) + compute(gamma, delta) + compute(epsilon, zeta)\n", "compute( gamma,delta )", ["closest line 2: 'total", "nearest part is 'compute(gamma, delta)': only white space differs"]),
    (RECORDS, '{"id":4321,"name":"person 4321"', ["closest line 1, from character", '{"id": 4321, "name": "person 4321"', "only white space differs"]),
    (RECORDS, '"name": "person 4321", "mail": "p4321@example.net"', ["closest line 1, from character", '"name": "person 4321"', "the text differs from character 47 on"]),
    ("filler line\n" * 60_000 + "the wanted line of code\n", "the wanted  line of code", ["closest line 60001: 'the wanted line of code'", "only white space differs"]),
    ("one\rtwo\rthree\r", "one\ntwo", ["It is there in line 1, with \\r as line end"]),
    ("first\nlast line", "last line\n", ["The file ends with it, but has no line break at its end"]),
    ("def f():\n    return 1\n", "def f():\n    return 1  \n", ["line 2 of the file is '    return 1', old has '    return 1  ': only white space differs"]),
    ("def f(first, second):  \n    return 1\n", "def f(first, second):\n    return 1\n", ["line 1 of the file is 'def f(first, second):  ', old has 'def f(first, second):': only white space"]),
    ("x\ndef longest_name():\n    a = 1\n    b = 2\n", "def longest_name():\n    a = 1\n    b = 3\n", ["closest line 2", "that line is the same; line 4 of the file is '    b = 2', old has '    b = 3': the text differs from character 5"]),
    ("    return total\nA\n    return total\nB\n    return total\nC\n", "    return total\nB\n    return totals", ["closest line 3", "line 5 of the file is '    return total', old has '    return totals'"]),
    ("the only line here\n", "the only line here\n\nand more", ["that line is the same; old has 'and more' where the file has no line"]),
    ("a tail of the long line\nsecond\n", "the long line\nsecnd", ["line 2 of the file is 'second', old has 'secnd'"]),
])
def test_a_near_miss_is_found_and_its_difference_named(tmp_path, text, old, says):
    """A part of a long line, a file of one line, the end of a big file, another line end, and a line that differs where the longest does not."""
    write(tmp_path, "f", text)
    answer = refused(edit_file, tmp_path, "f", old, "x")
    assert all(words in answer for words in says) and "No line" not in answer and len(answer) < 2_000, answer


def test_how_far_the_search_for_a_near_miss_went_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "_MOST_LINES", 50)
    write(tmp_path, "f", "filler\n" * 60 + "the wanted line of code\n")
    assert "None of the first 50 of 62 lines resembles it." in refused(edit_file, tmp_path, "f", "the wanted  line of code", "x")


@IN_PLACE
@given(st.lists(st.text("abc \t=", max_size=8), min_size=2, max_size=6), st.data())
def test_one_changed_line_among_several_is_the_one_that_is_named(tmp_path, lines, data):
    """Whatever the neighbours: the two lines that are compared are a real one with its number, and one that was asked for."""
    write(tmp_path, "f", "\n".join(lines))
    at = data.draw(st.integers(0, len(lines) - 1))
    asked = [*lines[:at], lines[at] + "q", *lines[at + 1:]]
    answer = refused(edit_file, tmp_path, "f", "\n".join(asked), "x")
    if found := re.search(r"line (\d+) of the file is ('.*?'), old has ('.*?'): ", answer):
        number, real, wanted = found.groups()
        assert repr(lines[int(number) - 1]) == real and wanted in map(repr, asked) and real != wanted


@pytest.mark.parametrize("text", ["ab cd ef gh\n" * 800_000, "a" * 9_000_000, '{"key": 1, "value": 2},' * 400_000, "x\n" * 4_000_000], ids=["lines", "one letter", "one line", "short lines"])
def test_a_near_miss_in_the_largest_files_comes_soon(tmp_path, text):
    write(tmp_path, "f", text)
    began = time.monotonic()
    refused(edit_file, tmp_path, "f", '{"key": 1, "values": 2}, ab cd eg gh aaaaaaaaaaaaaaaaaaaaaaaab', "x")
    assert time.monotonic() - began < 8


def test_version_two_when_nothing_is_like_it(tmp_path):
    write(tmp_path, "f", "one\ntwo\n")
    for old in ("completely different words here", "\n\n\n\n", "    \t"):
        assert "No line of the file resembles it" in refused(edit_file, tmp_path, "f", old, "x")


@IN_PLACE
@given(st.lists(st.text("abcxyz =()", min_size=8, max_size=14), min_size=1, max_size=8), st.data())
def test_closest_line_is_a_real_line_with_its_number(tmp_path, lines, data):
    write(tmp_path, "f", "\n".join(lines) + "\n")
    wanted = data.draw(st.sampled_from(lines)) + "q"
    assume("".join(wanted.split()) != "q")
    text = refused(edit_file, tmp_path, "f", wanted, "x")
    shown = [line.removeprefix("closest line ").partition(": ") for line in text.split("\n") if line.startswith("closest line ")]
    assert shown and all(repr(lines[int(number) - 1]) == line for number, _, line in shown)


def test_edit_returns_the_changed_lines(tmp_path):
    write(tmp_path, "f.txt", "a\nb\nc\nd\n")
    assert edit_file(tmp_path, "f.txt", "b\nc", "B\nBB\nC") == "edited f.txt\n-   2 b\n-   3 c\n+   2 B\n+   3 BB\n+   4 C"
    assert edit_file(tmp_path, "f.txt", "a\n", "") == "edited f.txt\n-   1 a"
    assert len(edit_file(tmp_path, "f.txt", "d", "d\n" * 9_000)) < MAX_OUT


@IN_PLACE
@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=6), st.data())
def test_changed_lines_are_those_of_the_file(tmp_path, lines, data):
    """Take away what the report calls removed, put in what it calls added: that is the new file."""
    at = data.draw(st.integers(0, len(lines) - 1))
    marked = [*lines[:at], "MARK", *lines[at + 1:]]
    path = write(tmp_path, "f", "\n".join(marked) + "\n")
    new = data.draw(st.text("ab\n", max_size=5))
    report = edit_file(tmp_path, "f", "MARK", new).split("\n")[1:]
    removed = {int(row[1:5]): row[6:] for row in report if row[0] == "-"}
    added = {int(row[1:5]): row[6:] for row in report if row[0] == "+"}
    assert all(marked[number - 1] == line for number, line in removed.items())
    after = path.read_text().split("\n")
    assert all(after[number - 1] == line for number, line in added.items())
    assert len(marked) - len(removed) + len(added) == len(after) - 1


def test_edit_tells_whether_python_still_parses(tmp_path):
    write(tmp_path, "f.py", "def f():\n    return 1\n")
    assert edit_file(tmp_path, "f.py", "return 1", "return 2").endswith("The file parses as Python.")
    broken = edit_file(tmp_path, "f.py", "return 2", "return (2")
    assert "does NOT parse as Python: line 2" in broken and "It did before this edit." in broken
    assert "It did before" not in edit_file(tmp_path, "f.py", "f():", "g():")
    assert "does NOT parse" in edit_file(tmp_path, "new.py", "", "def (")
    write(tmp_path, "bom.py", b"\xef\xbb\xbfx = 1\r\n")
    assert "parses as Python" in edit_file(tmp_path, "bom.py", "1", "2")
    assert "Python" not in edit_file(tmp_path, "f.txt", "", "def (")


def test_a_big_python_file_is_not_parsed(tmp_path):
    """The parser would take gigabytes and a quarter of a minute for the largest file that can be edited."""
    write(tmp_path, "big.py", "x = [1, 2, 3]\n" * 400_000 + "y = 1\n")
    began = time.monotonic()
    assert edit_file(tmp_path, "big.py", "y = 1", "y = 2").endswith("The file is too large to check whether it parses as Python.")
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("source", ["(" * 5_000, "a" + ".b" * 50_000, "-" * 50_000 + "1", "1+" * 50_000 + "1", "x = '\\N{nothing}'", "\\"])
def test_python_that_breaks_the_parser_is_a_note(tmp_path, source):
    assert "does NOT parse" in edit_file(tmp_path, "f.py", "", source)


# ------------------------------------------------------------------ arguments
def typed(path: str, start: int = 1, ratio: float = 1.0, flag: bool = False, names: list[str] | None = None, more: dict | None = None,
          kind: Literal["a", "b"] = "a") -> str:
    """Take typed arguments."""
    return repr((path, start, ratio, flag, names, more, kind))


def prepared(arguments, function=typed):
    return Registry(Path("."), [function]).prepare(function.__name__, arguments)


@pytest.mark.parametrize("arguments, words", [
    ({}, ["path", "missing"]), ({"path": 5}, ["path", "string", "an integer 5"]), ({"path": None}, ["path", "null"]), ({"path": "x", "start": "twelve"}, ["start", "integer", "twelve"]),
    ({"path": "x", "start": 1.5}, ["start", "integer", "1.5"]), ({"path": "x", "start": [1]}, ["start", "integer", "a list"]), ({"path": "x", "names": "a"}, ["names", "list", "text 'a'"]),
    ({"path": "x", "names": [1]}, ["names.0", "string", "1"]), ({"path": "x", "more": "[1]"}, ["more", "dictionary", "[1]"]), ({"path": "x", "kind": "c"}, ["kind", "'a' or 'b'", "'c'"]),
    ({"path": "x", "extra": 1}, ["extra", "not a parameter", "start"]), ({"path": "x", "flag": "perhaps"}, ["flag", "boolean", "perhaps"]), ({"path": {"a": 1}, "start": {}}, ["path", "start"]),
    ({"path": "x", "start": float("nan")}, ["start"]), ({"path": "x", "start": float("inf")}, ["start"])])
def test_wrong_arguments_name_field_wanted_and_got(arguments, words):
    result = prepared(arguments)
    assert isinstance(result, ToolResult) and result.is_error and result.text.startswith("typed was not run")
    assert all(word in result.text for word in words), result.text
    assert len(result.text) < 2_000


@pytest.mark.parametrize("arguments, seen, note", [
    ({"path": "x", "start": "12"}, 12, "start came as text and was read as an integer"), ({"path": "x", "names": '["a", "b"]'}, ["a", "b"], "names came as text and was read as a list"),
    ({"path": "x", "more": '{"a": 1}'}, {"a": 1}, "more came as text and was read as an object"), ({"path": "x", "ratio": "0.5"}, 0.5, "ratio came as text and was read as a number"),
    ({"path": "x", "flag": "true"}, True, "flag came as text and was read as true or false")])
def test_unambiguous_text_is_read_and_noted(arguments, seen, note):
    text = prepared(arguments)().text
    assert repr(seen) in text and text.endswith(f"[{note}]")


@pytest.mark.parametrize("path", ["[1]", '{"a": 1}', "12", "true", "null"])
def test_text_that_looks_like_json_stays_text(path):
    result = prepared({"path": path})()
    assert result.text.startswith(f"({path!r},") and "came as text" not in result.text


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["path", "start", "ratio", "flag", "names", "more", "kind", "x"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2), max_leaves=4)))
def test_any_arguments_give_a_result(arguments):
    result = prepared(arguments)
    result = result if isinstance(result, ToolResult) else result()
    assert isinstance(result.text, str) and result.text


def optional(p: Optional[str] = None) -> str:
    """Optional text."""
    return repr(p)


def anything(p: Any = None) -> str:
    """Anything."""
    return repr(p)


def either(p: dict | str = "") -> str:
    """Either."""
    return repr(p)


def pathlike(p: Path) -> str:
    """A path."""
    return str(p)


@pytest.mark.parametrize("function, value, text", [(optional, "[1]", "'[1]'"), (optional, '{"a": 1}', "'{\"a\": 1}'"), (anything, "[1]", "'[1]'"), (either, '{"a": 1}', "'{\"a\": 1}'"), (pathlike, "[1]", "[1]")])
def test_text_that_is_wanted_as_text_stays_text(function, value, text):
    result = Registry(Path("."), [function]).prepare(function.__name__, {"p": value})
    assert not isinstance(result, ToolResult), result
    assert result().text == text


def lint(root, path: str, errors: list[str] = []) -> str:
    """Lint."""
    return f"{path} {errors}"


def test_a_parameter_may_be_called_errors(tmp_path):
    assert Registry(tmp_path, [lint]).prepare("lint", {"path": "x", "errors": ["a"]})().text == "x ['a']"


def test_deep_json_in_text_is_a_result():
    def names(names: list[str]) -> str:
        """Names."""
        return "x"
    result = Registry(Path("."), [names]).prepare("names", {"names": "[" * 90_000})
    assert isinstance(result, ToolResult) and "names: wanted" in result.text


def test_defaults_stay_with_the_function():
    def gather(key: str, into: list[str] = []) -> str:
        """Gather."""
        return f"{key} {into}"
    tool = Registry(Path("."), [gather])
    assert [tool.prepare("gather", {"key": "a"})().text for _ in range(2)] == ["a []", "a []"]


# ------------------------------------------------------------------ results
class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    where: Path


class Model(pydantic.BaseModel):
    when: datetime.date
    path: Path


@pytest.mark.parametrize("value, text", [
    ("as it is", "as it is"), (None, ""), (b"caf\xc3\xa9 \xff", "café \ufffd"), ({"a": 1}, '{"a": 1}'), ([1, "é"], '[1, "é"]'), ((1, 2), "[1, 2]"), (3, "3"), (True, "true"), (1.5, "1.5"),
    ({"b", "a"}, '["a", "b"]'), (frozenset([2, 1]), "[1, 2]"), (Path("a/b"), '"a/b"'), ({"p": Path("a")}, '{"p": "a"}'), (Point(1, Path("x")), '{"x": 1, "where": "x"}'),
    (Model(when="2026-01-02", path="p"), '{"when": "2026-01-02", "path": "p"}'), (datetime.date(2026, 1, 2), '"2026-01-02"'), (decimal.Decimal("1.50"), '"1.50"'),
    (float("nan"), '"nan"'), ({"a": float("inf")}, '{"a": "inf"}'), ({"a": "\ud99c"}, '{"a": "\ufffd"}'), ({1: 2}, '{"1": 2}'), ([], "[]"), (Colour.RED, '"Colour.RED"'),
    (10**30, "1" + "0" * 30)])
def test_results_of_every_type_become_text(value, text):
    assert as_text(value) == text

    def give():
        """Give."""
        return value
    finished = run([[call("give")], "done"], registry(give))
    assert results_of(finished.history)[0] == {"type": "tool_result", "tool_use_id": results_of(finished.history)[0]["tool_use_id"], "content": text or "(no output)", "is_error": False}


@pytest.mark.parametrize("value, words", [({(1, 2): 3}, ["1, 2", "3"]), ({Path("a"): 1}, ["a"]), ({datetime.date(2026, 1, 2): 1}, ["2026-01-02"]), ([{1, 2}], ["[1, 2]"]), ([Point(1, Path('x'))], ['{"x": 1, "where": "x"}']), ({frozenset([1]): 1}, ["1"])])
def test_results_with_odd_keys(value, words):
    text = as_text(value)
    assert all(word in text for word in words), text


def test_a_result_that_holds_itself():
    value = []
    value.append(value)
    assert as_text(value)


def test_a_tool_may_return_a_tool_result():
    def give() -> ToolResult:
        """Give."""
        return ToolResult("it failed, in words", True, ("a.py",), "sandbox_lost")
    result = Registry(Path("."), [give]).prepare("give", {})()
    assert (result.text, result.is_error, result.changed, result.ends_run) == ("it failed, in words", True, ("a.py",), "sandbox_lost")


def test_an_edit_without_its_file_is_no_failure():
    def touch(path: str = "default.txt") -> str:
        """Touch."""
        return "touched"
    result = Registry(Path("."), [Tool(touch, changes="path")]).prepare("touch", {})()
    assert not result.is_error and result.text == "touched"


def test_results_and_errors_are_bounded():
    def flood(fail: bool) -> str:
        """Flood."""
        if fail:
            raise ToolError("e" * 1_000_000)
        return "x" * 1_000_000
    for fail in (True, False):
        result = Registry(Path("."), [flood]).prepare("flood", {"fail": fail})()
        assert len(result.text) <= MAX_OUT and result.is_error is fail and "characters cut here" in result.text


def leaves(path: str = "") -> str:
    """Leave."""
    raise SystemExit("the-secret " * 300_000)


def interrupts() -> str:
    """Be interrupted."""
    raise KeyboardInterrupt


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def unsayable() -> str:
    """Fail without words."""
    raise Unsayable


def closed(path: Literal["open", "doing", "done"]) -> str:
    """Take one of three."""
    return path


@pytest.mark.parametrize("name, arguments, words", [
    ("leaves", {}, "SystemExit: [key] [key]"), ("unsayable", {}, "Unsayable"), ("leaves", {"the-secret" * 100_000: 1}, "not a parameter"),
    ("leaves", {"path": ["the-secret"] * 100_000}, "path: wanted string, got a list ['[key]"), ("leaves", {f"the-secret{n}" * 30_000: 1 for n in range(9)}, "leaves was not run"),
    ("the-secret", {}, "There is no tool [key]"), ("the-secret" * 100_000, {}, "There is no tool [key]")])
def test_whatever_leaves_a_registry_is_short_and_without_secrets(tmp_path, name, arguments, words):
    """What went wrong before the tool ran as well, and a tool that ends the program."""
    registry = Registry(tmp_path, [leaves, unsayable], redact=lambda text: text.replace("the-secret", "[key]"))
    result = registry.prepare(name, arguments)
    result = result if isinstance(result, ToolResult) else result()
    assert result.is_error and words in result.text and len(result.text) <= MAX_OUT and "the-secret" not in result.text, result.text[:300]


def test_wrong_names_of_arguments_are_cut():
    result = Registry(Path("."), [closed]).prepare("closed", {"x" * 1_000_000: 1, "y\n\x1b" * 9: 1, "path": "done"})
    assert len(result.text) < 600 and "\x1b" not in result.text and "y\\n\\x1b" in result.text


def test_ctrl_c_in_a_tool_is_the_persons():
    with pytest.raises(KeyboardInterrupt):
        Registry(Path("."), [interrupts]).prepare("interrupts", {})()


def test_all_allowed_values_are_named():
    assert "path: wanted 'open', 'doing' or 'done', got text 'finished'." in Registry(Path("."), [closed]).prepare("closed", {"path": "finished"}).text
    result = registry(Tool(typed)).prepare("typed", {"path": "a", "start": "abc"})
    assert "start: wanted integer, got text 'abc'." in result.text


# ------------------------------------------------------------------ schemas and registries
def test_schema_is_made_from_the_function_and_taken_by_the_api():
    class Place(pydantic.BaseModel):
        x: int
        y: int | None = None

    def go(place: Place, ways: list[Place], how: Annotated[Literal["fast", "slow"], "How to go"] = "fast", title: Optional[str] = None, default: int | str = 3) -> str:
        """Go to a place.

        The rest of this is for people."""
        return "gone"
    definitions = Registry(Path("."), [go, *file_tools()]).definitions
    check_request({"model": "scripted-general", "max_tokens": 10, "tools": definitions, "messages": [{"role": "user", "content": "x"}]})
    schema = definitions[0]["input_schema"]
    assert definitions[0]["description"] == "Go to a place." and schema["required"] == ["place", "ways"] and schema["additionalProperties"] is False
    assert schema["properties"]["how"] == {"enum": ["fast", "slow"], "type": "string", "default": "fast", "description": "How to go"}
    assert schema["properties"]["title"] == {"type": "string"} and set(schema["properties"]) == {"place", "ways", "how", "title", "default"}
    json.dumps(definitions)


def test_file_tools_do_not_show_what_is_not_asked_for():
    shown = {tool.name: set(tool.definition["input_schema"]["properties"]) for tool in file_tools()}
    assert shown == {"list_dir": {"path"}, "read_file": {"path", "start", "end"}, "search": {"pattern", "path"}, "edit_file": {"path", "old", "new"}}


def undocumented(x: int):
    pass


def untyped(x):
    """Something."""


def star(*x: int):
    """Something."""


@pytest.mark.parametrize("function, word", [(undocumented, "docstring"), (untyped, "type"), (star, "type")])
def test_a_function_that_cannot_be_a_tool(function, word):
    with pytest.raises(UsageError, match=word):
        Tool(function)


def hidden(_x: int) -> str:
    """Hidden."""


def placed(x: int, /) -> str:
    """Placed."""


async def later(x: int) -> str:
    """Later."""


@pytest.mark.parametrize("function", [hidden, placed, later])
def test_functions_that_cannot_be_tools(function):
    with pytest.raises(UsageError):
        Tool(function)


def test_names_of_tools(tmp_path):
    tools_here = Registry(tmp_path, [typed])
    with pytest.raises(UsageError, match="taken"):
        tools_here.add(typed)
    for name in ("a b", "é", "x" * 65):
        with pytest.raises(UsageError):
            tools_here.add(Tool(typed, name=name))


def test_two_registries_share_nothing(tmp_path):
    first, second = Registry(tmp_path / "a", file_tools()), Registry(tmp_path / "b", file_tools())
    first.add(typed)
    assert len(first.definitions) == 5 and len(second.definitions) == 4
    for place in ("a", "b"):
        write(tmp_path, f"{place}/f.txt", place)
    assert [tools_here.prepare("read_file", {"path": "f.txt"})().text for tools_here in (first, second)] == ["   1 a", "   1 b"]


def test_an_edit_says_which_file_it_changed(tmp_path):
    write(tmp_path, "f", "a\n")
    edit = Registry(tmp_path, file_tools())
    assert edit.prepare("edit_file", {"path": "f", "old": "a", "new": "b"})().changed == ("f",)
    assert edit.prepare("edit_file", {"path": "f", "old": "zz", "new": "b"})().changed == ()
    assert edit.prepare("read_file", {"path": "f"})().changed == ()
    assert [tool["name"] for tool in edit.definitions if edit.read_only(tool["name"])] == ["list_dir", "read_file", "search"]


def test_a_notice_of_ripgrep_is_no_part_of_a_name(tmp_path):
    for number in range(8):
        write(tmp_path, f"{number}.bin", b"needle here\n" + b"x" * 200_000 + b"\nneedle\n" + bytes(10))
        write(tmp_path, f"{number}.txt", "needle\n")
    for _ in range(5):
        lines = search(tmp_path, "needle").split("\n")
        assert [line for line in lines if line.endswith(".txt:1:needle")] == [f"{number}.txt:1:needle" for number in range(8)]
        assert "WARNING" not in "".join(lines)
