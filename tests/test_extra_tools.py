"""find_definition, the list of things to do, and the tools of MCP servers: well-behaved ones and others."""
import importlib.util
import json
import secrets
import subprocess
import sys
import threading
import time

import pytest

from harnesslab import extra_tools
from harnesslab.extra_tools import McpServer, TodoList, find_definition
from harnesslab.loop import UsageError, run_clock
from harnesslab.tools import MAX_OUT, Registry, ToolError, file_tools

needs_mcp = pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="optional: needs the mcp package")


def write(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


# ------------------------------------------------------------------ find_definition
def test_one_file_that_cannot_be_written_back_does_not_hide_the_others(tmp_path):
    """A default value nested so deeply that Python parses it and cannot print it."""
    write(tmp_path, "a.py", f"def wanted(x={'-' * 900}1): pass\n")
    write(tmp_path, "b.py", "def wanted(y): pass\n")
    found = find_definition(tmp_path, "wanted").splitlines()
    assert [line.split()[0] for line in found] == ["a.py:1-1", "b.py:1-1"] and found[1].endswith("def wanted(y):")


@pytest.mark.parametrize("odd", ["\x0c", "\x0b", "\x1c", "\x85", "\u2028"])
def test_line_numbers_of_marks_that_only_look_like_line_breaks(tmp_path, odd):
    write(tmp_path, "a.py", f"text = 'one{odd}two'\n{odd if odd == chr(12) else ''}\nLIMIT = 10\n")
    assert find_definition(tmp_path, "LIMIT") == "a.py:3-3 LIMIT = 10"


def test_old_line_ends(tmp_path):
    (tmp_path / "a.py").write_bytes(b"x = 1\rLIMIT = 10\r\ny = 2\n")
    assert find_definition(tmp_path, "LIMIT") == "a.py:2-2 LIMIT = 10"


@pytest.mark.parametrize("line", ["NAME, other = 1, 2", "[other, (NAME, _)] = f()", "*NAME, last = f()", "x = NAME = 1", "NAME: int = 1", "for NAME in f(): pass", "for _, NAME in f(): pass",
                                  "with f() as NAME: pass", "with f() as (a, NAME), g(): pass", "if NAME := f(): pass"])
def test_every_way_to_give_a_name_a_value(tmp_path, line):
    write(tmp_path, "a.py", f"\n{line}\n")
    assert find_definition(tmp_path, "NAME") == f"a.py:2-2 {line}"


@pytest.mark.parametrize("line", ["NAME.x = 1", "NAME[0] = 1", "print(NAME)", "NAME += 1", "del NAME", "x = [1 for NAME in y]", "f(NAME=1)"])
def test_what_is_no_definition(tmp_path, line):
    write(tmp_path, "a.py", f"{line}\n")
    with pytest.raises(ToolError, match="No Python definition of NAME"):
        find_definition(tmp_path, "NAME")


def test_the_end_of_the_walk_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(extra_tools, "_MOST_ENTRIES", 50)
    for number in range(60):
        write(tmp_path, f"f{number:03}.py", "x = 1\n" if number else "wanted = 1\n")
    with pytest.raises(ToolError, match="Only the first 50 files and folders"):
        find_definition(tmp_path, "nothing")
    assert find_definition(tmp_path, "wanted").endswith("[Only the first 50 files and folders were looked at.]")
    (tmp_path / "f059.py").rename(tmp_path / "z.py")
    monkeypatch.setattr(extra_tools, "_MOST_ENTRIES", 62)
    assert find_definition(tmp_path, "wanted") == "f000.py:1-1 wanted = 1"


def test_at_most_twenty_places(tmp_path):
    for number in range(30):
        write(tmp_path, f"f{number:03}.py", "wanted = 1\n")
    found = find_definition(tmp_path, "wanted").splitlines()
    assert len(found) == 21 and "may be more" in found[-1]


# ------------------------------------------------------------------ things to do
def test_a_wrong_status_is_answered_with_all_three(tmp_path):
    result = Registry(tmp_path, [TodoList().tool]).prepare("update_todos", {"items": [{"text": "a", "status": "finished"}]})
    assert "items.0.status: wanted 'open', 'doing' or 'done', got text 'finished'" in result.text


# ------------------------------------------------------------------ MCP
SERVER = """
import json, os, sys, time
plan, mark = json.loads(sys.argv[1]), sys.argv[2]
def answer(message, **result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize" and not plan.get("deaf"):
        answer(message, protocolVersion=message["params"]["protocolVersion"], capabilities={"tools": {}}, serverInfo={"name": "x", "version": "1"})
    elif message.get("method") == "tools/list":
        pages, at = plan["pages"], int((message.get("params") or {}).get("cursor") or 0)
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in pages[at % len(pages)]]
        answer(message, tools=tools, **({"nextCursor": str(at + 1)} if at + 1 < len(pages) or plan.get("endless") else {}))
    elif message.get("method") == "tools/call":
        if "result" in plan:
            answer(message, **plan["result"])
        elif "deaf_call" not in plan:
            answer(message, content=[{"type": "text", "text": "called " + message["params"]["name"]}])
if plan.get("deaf"):
    time.sleep(60)
"""


def server(mark="", **plan):
    return [sys.executable, "-I", "-S", "-c", SERVER, json.dumps({"pages": [["go"]]} | plan), mark or secrets.token_hex(8)]


def alive(mark):
    return [line for line in subprocess.run(["ps", "-axwwo", "stat=,args="], capture_output=True, text=True).stdout.splitlines() if mark in line and not line.startswith("Z")]


@needs_mcp
def test_a_server_that_never_answers_leaves_nothing():
    mark, threads = secrets.token_hex(8), threading.active_count()
    with pytest.raises(UsageError, match="nothing within 0.5 s"):
        McpServer(server(mark, deaf=True), patience=0.5).__enter__()
    end = time.monotonic() + 5
    while (alive(mark) or threading.active_count() > threads) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(mark) and threading.active_count() == threads


@needs_mcp
def test_a_server_ends_with_its_block():
    mark, threads = secrets.token_hex(8), threading.active_count()
    with McpServer(server(mark)) as offered:
        assert offered.tools[0].function() == "called go" and alive(mark)
    assert not alive(mark) and threading.active_count() == threads
    with pytest.raises(ToolError, match="has ended"):
        offered.tools[0].function()


@needs_mcp
def test_all_pages_of_an_offer_are_read():
    with McpServer(server(pages=[["a", "b"], [], ["c"]])) as offered:
        assert [tool.name for tool in offered.tools] == ["a", "b", "c"] and offered.tools[2].function() == "called c"
    with McpServer(server(pages=[[f"t{number}" for number in range(300)]], endless=True)) as offered:
        assert len(offered.tools) == 1_200


@needs_mcp
def test_names_that_are_taken_or_odd(tmp_path):
    """Two that come out the same, and one of ours: under its own name `read_file` would run without asking, and the registry would refuse the whole server."""
    names = ["read_file", "run_command", "a.b", "a_b", "a b", "", "é", "x" * 100, "x" * 101]
    with McpServer(server(pages=[names])) as offered:
        assert [tool.name for tool in offered.tools] == ["read_file_2", "run_command_2", "a_b", "a_b_2", "a_b_3", "tool", "_", "x" * 64, "x" * 58 + "_2"]
        registry = Registry(tmp_path, [*file_tools(), *offered.tools])
        assert registry.prepare("a_b_2", {})().text == "called a_b" and registry.prepare("read_file_2", {})().text == "called read_file"
        assert not registry.read_only("read_file_2")


@needs_mcp
@pytest.mark.parametrize("result, text", [
    ({"content": [{"type": "resource", "resource": {"uri": "file:///a.txt", "text": "in the file"}}]}, "in the file"),
    ({"content": [{"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "AAAA"}}]}, "[resource file:///a.bin, not shown]"),
    ({"content": [{"type": "resource_link", "uri": "file:///b.txt", "name": "b"}]}, "[resource_link file:///b.txt, not shown]"),
    ({"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}, {"type": "text", "text": "below"}]}, "[image, not shown]\nbelow"),
    ({"content": [], "structuredContent": {"degrees": 21}}, '{"degrees": 21}'),
    ({"content": []}, ""),
])
def test_every_kind_of_result_is_shown_or_named(result, text):
    with McpServer(server(result=result)) as offered:
        assert offered.tools[0].function() == text


@needs_mcp
def test_a_call_that_hangs_has_a_limit_of_its_own():
    with McpServer(server(deaf_call=True), limit=0.3) as offered:
        began = time.monotonic()
        with pytest.raises(ToolError, match="did not answer in time"):
            offered.tools[0].function()
        assert time.monotonic() - began < 2
    with McpServer(server(deaf_call=True)) as offered, run_clock(0.3), pytest.raises(ToolError, match="did not answer in time"):
        offered.tools[0].function()


@needs_mcp
def test_a_foreign_result_is_clipped_and_carries_no_secret(tmp_path):
    result = {"content": [{"type": "text", "text": "the-key " * 5_000}]}
    with McpServer(server(result=result)) as offered:
        text = Registry(tmp_path, offered.tools, redact=lambda text: text.replace("the-key", "[key]")).prepare("go", {})().text
    assert len(text) <= MAX_OUT and "the-key" not in text
