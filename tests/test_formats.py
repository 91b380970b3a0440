"""Other tools' traces: every trap of every format, damaged files, limits, secrets, and the way there and back."""

import gzip
import json
import re
import sys
import tracemalloc
import zipfile
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harnesslab.formats import FORMATS, MAX_BYTES, open_trace, redact, to_atif, to_otlp
from harnesslab.importers import Events, count, moment, openai_usage, status_of, text_of
from harnesslab.loop import STATUSES
from harnesslab.stepper import plain
from harnesslab.traces import Trace, UsageError, fold, prompts, summary

HERE = Path(__file__).resolve().parent
SAMPLES = HERE / "data" / "formats"
REAL = HERE.parent.parent / "shared" / "trajectories"

try:
    import zstandard  # noqa: F401

    HAS_ZSTD = True
except ImportError:
    HAS_ZSTD = sys.version_info >= (3, 14)


def usage_of(trace):
    used = fold(trace).totals.usage
    return used.fresh, used.cache_read, used.cache_write, used.output


def of(trace, type):
    return [event["payload"] for event in trace.events if event["type"] == type]


def names():
    return [p.name for p in sorted(SAMPLES.iterdir()) if HAS_ZSTD or p.name != "inspect_zstd.eval"]


def one_sentence(path, **options):
    """The text of the UsageError; it must be one sentence on one line."""
    with pytest.raises(UsageError) as caught:
        open_trace(path, **options)
    text = str(caught.value)
    assert text.endswith(".") and "\n" not in text and text.strip() == text and len(text) < 700
    return text


# (file, source, calls, results, errors, (fresh, cache read, cache write, output), status)
EXPECTED = [
    ("harnesslab.jsonl", "harnesslab", 2, 2, 1, (52, 940, 960, 50), "done"),
    ("atif.json", "ATIF", 4, 5, 1, (570, 4100, 300, 87), "done"),
    ("atif_continued.json", "ATIF", 0, 0, 0, (500, 0, 0, 9), ""),
    ("claude_code.jsonl", "Claude Code", 3, 3, 1, (90, 7000, 1700, 217), "done"),
    ("codex.jsonl", "Codex", 2, 2, 1, (600, 1600, 0, 70), "done"),
    ("inspect_messages.json", "Inspect", 2, 2, 1, (0, 0, 0, 0), "max_steps"),
    ("inspect_pool.eval", "Inspect", 2, 2, 1, (180, 1600, 300, 56), "done"),
    ("inspect_chunked.eval", "Inspect", 2, 2, 1, (180, 1600, 300, 56), "done"),
    ("mini_oldest.json", "mini-swe-agent", 2, 2, 0, (0, 0, 0, 0), "done"),
    ("mini_v1.traj.json", "mini-swe-agent", 2, 2, 2, (560, 500, 0, 40), "max_steps"),
    ("mini_v2.traj.json", "mini-swe-agent", 3, 3, 1, (560, 640, 0, 49), "done"),
    ("openai_agents.json", "openai-agents", 2, 2, 1, (1060, 640, 0, 52), "done"),
    ("openhands_call.json", "OpenHands call log", 2, 0, 0, (100, 600, 300, 40), ""),
    ("openhands_v0.json", "OpenHands V0", 3, 2, 1, (200, 1800, 300, 52), "done"),
    ("openhands_v1.jsonl", "OpenHands V1", 2, 3, 1, (800, 1000, 0, 60), "done"),
    ("openhands_v1_folder", "OpenHands V1", 2, 0, 0, (500, 0, 0, 30), ""),
    ("otlp.json", "OpenTelemetry", 3, 3, 1, (1500, 1600, 400, 61), "done"),
    ("otlp_old.jsonl", "OpenTelemetry", 1, 1, 0, (4006, 6000, 0, 49), "done"),
    ("smolagents.json", "smolagents", 4, 4, 1, (788, 1212, 0, 54), "done"),
    ("swe_agent.traj", "SWE-agent", 2, 2, 0, (0, 0, 0, 0), "budget"),
    ("swe_agent_text.traj", "SWE-agent", 1, 2, 0, (0, 0, 0, 0), "unknown"),
    ("tau_bench.json", "tau-bench", 2, 2, 0, (0, 0, 0, 0), "done"),
]


@pytest.mark.parametrize("name, source, calls, results, errors, usage, status", EXPECTED, ids=[row[0] for row in EXPECTED])
def test_every_format_gives_its_calls_results_usage_and_status(name, source, calls, results, errors, usage, status):
    trace = open_trace(SAMPLES / name)
    totals = fold(trace).totals
    assert trace.source == source and trace.bad_lines == 0
    assert len(of(trace, "tool_called")) == calls and len(of(trace, "tool_returned")) == results
    assert totals.tool_errors == errors and usage_of(trace) == usage and totals.status == status
    assert fold(trace).unreadable == 0


def test_every_sample_and_every_format_is_covered():
    assert {row[0] for row in EXPECTED} | {"inspect_zstd.eval"} == {p.name for p in SAMPLES.iterdir()}
    assert {f.name for f in FORMATS} == {row[1] for row in EXPECTED} - {"harnesslab"}


@pytest.mark.parametrize("name", names())
def test_events_have_our_shape(name):
    trace = open_trace(SAMPLES / name)
    assert trace.events[0]["type"] == "run_started" and trace.start["task"]
    ids = [p["id"] for p in of(trace, "tool_called")]
    answered = [p["id"] for p in of(trace, "tool_returned") if not p.get("orphan")]
    assert len(ids) == len(set(ids)) and len(answered) == len(set(answered)) and set(answered) <= set(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", call) for call in ids)
    for number, event in enumerate(trace.events):
        assert event["n"] == number and event["v"] == 1 and isinstance(event["time"], float)
        assert trace.source == "harnesslab" or "raw" in event
    for reply in of(trace, "model_replied"):
        assert set(reply["usage"]) in (set(), {"fresh", "cache_read", "cache_write", "output"})
        assert reply["usage"] or reply["usage_note"] == "not recorded"  # unknown is said, and is not zero
    json.dumps(trace.events)


@pytest.mark.parametrize("name", names())
def test_no_secret_gets_in(name):
    seen = json.dumps(open_trace(SAMPLES / name).events)
    assert "live-abcdef" not in seen and "ghp_" not in seen and "abcdefghijklmnop" not in seen


def test_recognised_by_content_not_by_name(tmp_path):
    for number, (name, source, *_) in enumerate(EXPECTED):
        if (SAMPLES / name).is_file():
            copy = tmp_path / f"{number}.png"
            copy.write_bytes((SAMPLES / name).read_bytes())
            assert open_trace(copy).source == source


# --- the traps, one by one


def test_the_two_accountings_meet():
    assert openai_usage({"input_tokens": 4646, "cached_input_tokens": 3482, "cache_write_input_tokens": 1158, "output_tokens": 7}) == {
        "fresh": 6, "cache_read": 3482, "cache_write": 1158, "output": 7}  # fmt: skip
    assert openai_usage({"prompt_tokens": "NaN", "completion_tokens": -1})["fresh"] == 0


def test_otel_decides_the_accounting_for_the_whole_file():
    old = open_trace(SAMPLES / "otlp_old.jsonl")  # one call has 3000 cached of 6, so the other one's 4000 leave the cache out too
    assert old.start["accounting"] == "input without cache"
    assert [r["usage"]["fresh"] for r in of(old, "model_replied")] == [6, 4000]
    assert open_trace(SAMPLES / "otlp.json").start["accounting"] == "input with cache"


def test_otel_spans_are_sorted_and_the_agent_span_is_not_billed():
    trace = open_trace(SAMPLES / "otlp.json")
    kinds = [e["type"] for e in trace.events]
    assert kinds.index("model_replied") < kinds.index("tool_returned")
    assert [(r["id"], r["is_error"], r["content"]) for r in of(trace, "tool_returned")][0] == ("c2", True, "no such file")
    assert of(trace, "tool_returned")[2]["content"] == "noted"  # a result that only the next prompt holds
    assert of(trace, "history_edited")[0]["text"] == "And be quick."


def test_claude_code_ids_order_and_placeholders():
    trace = open_trace(SAMPLES / "claude_code.jsonl")
    first, second, last = of(trace, "model_replied")
    assert [block["type"] for block in first["content"]] == ["text", "tool_use", "tool_use"] and first["usage"]["output"] == 184
    assert "usage_note" not in first and last["usage_note"].startswith("output is at least")
    assert [r["id"] for r in of(trace, "tool_returned")] == ["tu2", "tu1", "tu3"]
    assert [e["kind"] for e in of(trace, "history_edited")] == ["error", "compact", "compact", "user"]
    assert of(trace, "history_edited")[2]["messages"] == [{"role": "user", "content": "So far: bell.py loops to 13."}]


def test_claude_code_sub_agent_is_a_run_of_its_own():
    trace = open_trace(SAMPLES / "claude_code.jsonl")
    child = trace.children["tu3"]
    assert child.start["parent"] == {"run": "bell-session", "call": "tu3"} and usage_of(child) == (70, 0, 0, 5)
    assert child.start["task"] == "What time does the clock say?" and child.end["answer"] == "Noon."
    result = next(r for r in of(trace, "tool_returned") if r["id"] == "tu3")
    assert result["usage"] == {"fresh": 70, "cache_read": 0, "cache_write": 0, "output": 5}
    assert all("Noon" not in text_of(r["content"]) for r in of(trace, "model_replied"))


def claude(path, *lines):
    """A Claude Code session with these lines: (type, content, more keys of the line)."""
    written = []
    for number, (kind, content, more) in enumerate(lines):
        line = {"type": kind, "uuid": f"u{number}", "parentUuid": f"u{number - 1}", "sessionId": "s", "timestamp": f"2026-01-01T00:00:{number % 60:02d}Z"}
        if kind in ("user", "assistant"):
            line["message"] = {"role": kind, "content": content}
        if kind == "assistant":
            stop, fresh = ("end_turn", more.pop("fresh", 10)) if isinstance(content, str) else ("tool_use", 10)
            line["message"] |= {"id": f"m{number}", "model": "claude-x", "stop_reason": stop, "usage": {"input_tokens": fresh, "output_tokens": 99}}
        written.append(json.dumps(line | more))
    path.write_text("\n".join(written), encoding="utf-8")
    return path


def ask(call, prompt):
    return [{"type": "tool_use", "id": call, "name": "Task", "input": {"prompt": prompt}}]


def answer(call, text):
    return [{"type": "tool_result", "tool_use_id": call, "content": text}]


def test_what_is_said_after_the_task_is_shown_counted_and_loses_no_cache(tmp_path):
    words = "A log. " * 4_000
    lines = [("user", "go", {}), ("assistant", "hi there", {}), ("user", words, {}), ("assistant", "thanks", {"fresh": 10_000})]
    trace = open_trace(claude(tmp_path / "t.jsonl", *lines))
    folded, shown = fold(trace), plain(trace)
    assert folded.unreadable == 0 and sum(folded.calls[1].context.values()) == 10_000 and folded.calls[1].context["task"] > 9_900
    assert words.strip() in shown and "hi there" in shown and "lost" not in shown


@pytest.mark.parametrize("after", [
    ("system", None, {"subtype": "turn_duration", "durationMs": 59_902, "isMeta": False}),
    ("system", None, {"subtype": "stop_hook_summary"}),
    ("user", "<local-command-caveat>a note</local-command-caveat>", {"isMeta": True}),
], ids=["the turn's duration", "hooks", "a note to the model"])
def test_claude_code_lines_after_the_answer_do_not_take_it_away(tmp_path, after):
    trace = open_trace(claude(tmp_path / "t.jsonl", ("user", "go", {}), ("assistant", "All is done.", {}), after))
    assert trace.end["status"] == "done" and trace.end["answer"] == "All is done."


def test_claude_code_is_known_behind_many_other_lines(tmp_path):
    before = [("file-history-snapshot", None, {"snapshot": {}})] * 400
    assert open_trace(claude(tmp_path / "t.jsonl", *before, ("user", "go", {}), ("assistant", "ok", {}))).source == "Claude Code"


@pytest.mark.parametrize("named", [True, False], ids=["results name the agents", "only the prompt tells"])
def test_claude_code_sub_agents_with_one_prompt_keep_their_own_calls(tmp_path, named):
    task = "Look for it."
    lines = [("user", "go", {}), ("assistant", ask("t1", task) + ask("t2", task), {})]
    for agent, fresh in (("b", 2_000), ("a", 1_000)):
        side = {"isSidechain": True, "agentId": agent}
        lines += [("user", task, {**side, "parentUuid": None}), ("assistant", f"{agent} found it.", {**side, "fresh": fresh})]
    for call, agent in (("t1", "a"), ("t2", "b")):
        lines.append(("user", answer(call, "found"), {"parentUuid": "u1", "toolUseResult": {"agentId": agent} if named else {}}))
    trace = open_trace(claude(tmp_path / "t.jsonl", *lines, ("assistant", "Done.", {"parentUuid": "u7"})))
    spent = {call: usage_of(child)[0] for call, child in trace.children.items()}
    assert spent == ({"t1": 1_000, "t2": 2_000} if named else {"t1": 2_000, "t2": 1_000})
    assert usage_of(trace)[0] == 3_000 + 2 * 10


@pytest.mark.parametrize("given", ["c1", "a call: 1"])
def test_two_sub_agents_under_one_call(tmp_path, given):
    def part(name, fresh):
        metrics = {"prompt_tokens": fresh, "completion_tokens": 5}
        steps = [{"step_id": 1, "source": "user", "message": "look"}, {"step_id": 2, "source": "agent", "message": f"{name} done", "metrics": metrics}]
        return json.loads(atif_part(steps, trajectory_id=name))

    calls = [{"tool_call_id": given, "function_name": "ask", "arguments": {}}]
    result = {"source_call_id": given, "content": "both done", "subagent_trajectory_ref": [{"trajectory_id": name} for name in ("one", "two")]}
    steps = [{"step_id": 1, "source": "user", "message": "go"},
             {"step_id": 2, "source": "agent", "message": "", "tool_calls": calls, "observation": {"results": [result]}},
             {"step_id": 3, "source": "agent", "message": "Done."}]
    path = tmp_path / "t.json"
    path.write_text(atif_part(steps, subagent_trajectories=[part("one", 1_000), part("two", 2_000)]))
    trace = open_trace(path)
    call = of(trace, "tool_called")[0]["id"]
    assert {key: usage_of(child)[0] for key, child in trace.children.items()} == {call: 1_000, f"{call}#2": 2_000}
    assert usage_of(trace) == (3_000, 0, 0, 10)
    path.write_text(json.dumps(to_atif(trace)))
    assert [usage_of(child)[0] for child in open_trace(path).children.values()] == [1_000, 2_000]
    lines = tmp_path / "ours.jsonl"  # the same in our own format
    lines.write_text("\n".join(json.dumps(event) for one in (trace, *trace.children.values()) for event in one.events))
    assert list(open_trace(lines).children) == list(trace.children)


@pytest.mark.parametrize("write, kept, bad", [
    (lambda path, lines: path.write_text(json.dumps([json.loads(line) for line in lines])), 9, 0),
    (lambda path, lines: path.write_text(json.dumps([json.loads(line) for line in lines], indent=2)), 9, 0),
    (lambda path, lines: path.write_text("\n".join(lines), encoding="utf-16"), 9, 0),
    (lambda path, lines: path.write_text("\n".join(lines[:1]), encoding="utf-16"), 1, 0),
    (lambda path, lines: path.write_text("\n".join([*lines, "{broken"]), encoding="utf-16"), 9, 1),
], ids=["array", "indented", "utf-16", "one line", "a broken line"])
def test_a_trace_of_ours_in_another_wrapping(tmp_path, write, kept, bad):
    lines, path = (SAMPLES / "harnesslab.jsonl").read_text(encoding="utf-8").splitlines(), tmp_path / "t"
    write(path, lines)
    trace = open_trace(path)
    assert trace.source == "harnesslab" and trace.path == path and trace.bad_lines == bad
    assert trace.events == [json.loads(line) for line in lines][:kept]


def test_words_between_two_results_do_not_take_the_second_one_away():
    events = Events()
    events.start("go")
    events.reply([{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in "ab"], {}, None, None)
    events.result("a", "first", None, None)
    events.said("user", "wait", None, None)
    events.result("b", "second " * 100, None, None)
    events.reply([{"type": "text", "text": "ok"}], {"fresh": 1_000, "cache_read": 0, "cache_write": 0, "output": 1}, None, None)
    events.end("done")
    sent = next(history.messages for event, history in prompts(events.events) if event["step"] == 2)
    assert [block["content"] for m in sent if isinstance(m["content"], list) for block in m["content"] if block["type"] == "tool_result"] == ["first", "second " * 100]
    assert fold(events.events).calls[-1].context["results"] > 700


def test_claude_code_line_order_does_not_matter(tmp_path):
    lines = (SAMPLES / "claude_code.jsonl").read_text().splitlines()
    whole = [(e["type"], e["payload"].get("id")) for e in open_trace(SAMPLES / "claude_code.jsonl").events]
    other = tmp_path / "reversed.jsonl"
    other.write_text("\n".join(reversed(lines)) + "\n")
    assert [(e["type"], e["payload"].get("id")) for e in open_trace(other).events] == whole


def test_atif_copied_steps_are_not_billed_and_sub_agents_are_inside():
    trace = open_trace(SAMPLES / "atif.json")
    assert [e["kind"] for e in of(trace, "history_edited")] == ["copied", "user"]
    assert trace.children["h"].end["answer"] == "noon" and of(trace, "tool_returned")[3]["usage"]["fresh"] == 70
    assert [(r["id"], r["is_error"]) for r in of(trace, "tool_returned")][:2] == [("b", True), ("a", False)]
    assert of(trace, "tool_returned")[4]["orphan"] and of(trace, "model_replied")[2]["usage_note"] == "the sum of 2 model calls"
    assert "part2.json" in of(open_trace(SAMPLES / "atif_continued.json"), "history_edited")[0]["text"]


def test_smolagents_failed_step_keeps_its_call():
    trace = open_trace(SAMPLES / "smolagents.json")
    calls, results = of(trace, "tool_called"), of(trace, "tool_returned")
    assert calls[2]["arguments"] == {"path": "tower.py"} and results[2]["is_error"] and results[2]["content"] == "no such file"
    assert "first call" in results[1]["content"] and trace.end["answer"].startswith("The loop")


def test_openhands_v0_counts_a_response_once():
    trace = open_trace(SAMPLES / "openhands_v0.json")
    assert len(of(trace, "model_replied")) == 2 and [r["id"] for r in of(trace, "tool_returned")] == ["c2", "c1"]


def test_openhands_v1_subtracts_totals_and_keeps_orphans():
    trace = open_trace(SAMPLES / "openhands_v1.jsonl")
    replies, results = of(trace, "model_replied"), of(trace, "tool_returned")
    assert [r["usage"]["output"] for r in replies] == [30, 15, 15] and replies[1]["content"] == []
    assert "not in the file" in replies[1]["usage_note"]
    assert [(r["id"], bool(r.get("orphan"))) for r in results] == [("c2", False), ("c1", False), ("lost", True)]


def test_openhands_v1_totals_may_come_after_the_reply(tmp_path):
    lines = [json.loads(line) for line in (SAMPLES / "openhands_v1.jsonl").read_text().splitlines()]
    swapped = lines[:2] + [lines[3], lines[4], lines[2], *lines[5:7], lines[-2], lines[-3]]
    file = tmp_path / "late.jsonl"
    file.write_text("\n".join(map(json.dumps, swapped)))
    assert [r["usage"]["output"] for r in of(open_trace(file), "model_replied")] == [30, 30]


def test_mini_swe_agent_errors_and_exit():
    v1, v2 = open_trace(SAMPLES / "mini_v1.traj.json"), open_trace(SAMPLES / "mini_v2.traj.json")
    assert [(r["is_error"], r.get("exit_code")) for r in of(v1, "tool_returned")] == [(True, 1), (True, None)]
    assert [(r["id"], r["is_error"]) for r in of(v2, "tool_returned")] == [("c2", True), ("c1", False), ("c3", False)]
    assert v2.end["answer"] == "diff of bell.py" and v2.end["reported_dollars"] == 0.004
    assert "Please give exactly one action." in [e["text"] for e in of(open_trace(SAMPLES / "mini_oldest.json"), "history_edited")]


def test_swe_agent_leaves_demonstrations_out():
    trace = open_trace(SAMPLES / "swe_agent_text.traj")
    assert "another run" not in json.dumps(of(trace, "run_started") + of(trace, "model_replied"))
    assert of(trace, "tool_called")[0]["arguments"] == {"command": "cat bell.py"}
    assert open_trace(SAMPLES / "swe_agent.traj").end["reported"]["tokens_sent"] == 900


def test_tau_bench_ids_repeat_and_runs_are_numbered():
    trace = open_trace(SAMPLES / "tau_bench.json", which=1)
    assert [(r["id"], r["content"]) for r in of(trace, "tool_returned")] == [("0", "known"), ("0_2", "rung")]
    assert trace.end["reward"] == 1.0 and trace.start["runs_in_file"] == 2
    assert "no number 2" in one_sentence(SAMPLES / "tau_bench.json", which=2)
    assert "no number -1" in one_sentence(SAMPLES / "tau_bench.json", which=-1)


def test_codex_total_that_did_not_move_is_not_counted_again():
    replies = of(open_trace(SAMPLES / "codex.jsonl"), "model_replied")
    assert [r["usage"]["fresh"] for r in replies] == [400, 200] and replies[0]["content"][0]["type"] == "thinking"


def codex(path, *lines):
    """A Codex session: (type of the line, payload)."""
    start = [("session_meta", {"id": "x", "base_instructions": {"text": "You are Codex."}}), ("turn_context", {"model": "m"}),
             ("response_item", {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do it"}]})]
    written = [{"timestamp": f"2026-01-01T00:00:{n:02d}Z", "type": type, "payload": payload} for n, (type, payload) in enumerate([*start, *lines])]
    path.write_text("\n".join(map(json.dumps, written)))
    return open_trace(path)


def codex_says(text):
    return "response_item", {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


ABORTED = ("event_msg", {"type": "turn_aborted", "reason": "interrupted"})


def test_codex_a_turn_that_was_broken_off_is_not_done(tmp_path):
    trace = codex(tmp_path / "t", codex_says("I am at it."), ABORTED)
    assert trace.end["status"] == "interrupted" and trace.end["error"] == "interrupted" and trace.start["system"] == "You are Codex."
    again = codex(tmp_path / "t", codex_says("I am at it."), ABORTED, ("event_msg", {"type": "user_message", "message": "go on"}), codex_says("Done."))
    assert again.end["status"] == "done" and again.end["answer"] == "Done."


def test_codex_a_call_that_the_provider_ran_is_not_waited_for(tmp_path):
    searched = [("response_item", {"type": "web_search_call", "status": status, "action": {"type": "search", "query": "q"}}) for status in ("completed", "failed")]
    trace = codex(tmp_path / "t", codex_says("I search."), *searched, codex_says("Found it."))
    assert trace.end["status"] == "done" and trace.end["answer"] == "Found it." and [p["is_error"] for p in of(trace, "tool_returned")] == [False, True]
    assert [p["id"] for p in of(trace, "tool_called")] == [p["id"] for p in of(trace, "tool_returned")]


@pytest.mark.parametrize("output, code", [
    ("Chunk ID: x\nWall time: 0.05 seconds\nProcess exited with code 1\nOutput:\nno such file", 1),
    ("Exit code: 2\nWall time: 0 seconds\nOutput:\n", 2),
    ("Process exited with code 0\nOutput:\nProcess exited with code 7\n", 0),
    ("Process exited with code 7\nsaid somebody", None),
    ("Process running with session ID 3\nOutput:\nExit code: 7", None),
])
def test_codex_exit_codes_stand_before_the_output(tmp_path, output, code):
    call, result = {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "c"}, {"type": "function_call_output", "call_id": "c", "output": output}
    (told,) = of(codex(tmp_path / "t", ("response_item", call), ("response_item", result)), "tool_returned")
    assert told.get("exit_code") == code and told["is_error"] == (code not in (None, 0)) and told["content"] == output


@pytest.mark.parametrize("word, status", [
    ("Submitted", "done"), ("Not finished", "unknown"), ("never completed", "unknown"), ("finished", "done"), ("RuntimeError", "api_error"),
    ("InternalServerError", "api_error"), ("RateLimitError", "rate_limited"), ("ContextWindowExceededError", "context_full"), ("LimitsExceeded", "max_steps"),
    ("TimeLimitExceeded", "wall_clock"), ("exit_total_execution_time", "wall_clock"), ("exit_cost", "budget"), ("UserInterruption", "interrupted"), ("", "unknown"),
])
def test_words_for_an_ending(word, status):
    assert status_of(word) == status and all(status_of(known) == known for known in STATUSES)


@pytest.mark.parametrize("reply, ran", [
    ("First\n```bash\nls\n```\nthen\n```bash\npwd\n```", False),
    ("As in\n```sh\nls\n```\nI do\n```bash\npwd\n```", True),
    ("```bash\npwd\n```", True),
])
def test_mini_swe_agent_runs_no_reply_with_two_commands(tmp_path, reply, ran):
    answer = "<returncode>0</returncode>\n<output>\n/repo\n</output>" if ran else "Please always provide EXACTLY ONE action in triple backticks, found 2 actions."
    messages = [("system", "s"), ("user", "t"), ("assistant", reply), ("user", answer)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"trajectory_format": "mini-swe-agent-1", "messages": [{"role": role, "content": text} for role, text in messages], "info": {"exit_status": "Submitted"}}))
    trace = open_trace(path)
    assert [p["arguments"] for p in of(trace, "tool_called")] == [{"command": "pwd"}] * ran and len(of(trace, "tool_returned")) == ran
    assert " ".join(answer.split()) in " ".join(plain(trace).split())


def test_openai_agents_calls_are_matched_without_ids():
    results = of(open_trace(SAMPLES / "openai_agents.json"), "tool_returned")
    assert [(r["id"], r["is_error"]) for r in results] == [("c1", False), ("c2", True)]


def test_inspect_pools_attachments_and_layouts_agree():
    pool, pieces = (open_trace(SAMPLES / name) for name in ("inspect_pool.eval", "inspect_chunked.eval"))
    for trace in (pool, pieces):
        assert trace.start["system"].startswith("A long manual") and trace.end["answer"].startswith("The loop")
        assert [(r["id"], r["content"]) for r in of(trace, "tool_returned")][0] == ("c2", "no such file")
        assert of(trace, "history_edited")[0]["text"] == "Please proceed."
        assert of(trace, "model_replied")[2]["agent"] == "grader" and trace.end["scores"] == {"strokes": "C"}
    assert open_trace(SAMPLES / "inspect_pool.eval", which=1).end["error"] == "error: the tower fell"


@pytest.mark.skipif(not HAS_ZSTD, reason="optional: the package zstandard is not installed, and this Python is older than 3.14")
def test_inspect_zstd():
    zstd, pool = open_trace(SAMPLES / "inspect_zstd.eval"), open_trace(SAMPLES / "inspect_pool.eval")
    assert [e["payload"] for e in zstd.events[1:]] == [e["payload"] for e in pool.events[1:]]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python reads zstd by itself")
def test_without_zstd_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install zstandard" in one_sentence(SAMPLES / "inspect_zstd.eval")


# --- damaged, unknown, too large


@pytest.mark.parametrize(
    "data, words",
    [
        (b"hello there", "does not begin with JSON"),
        (b"{}", "no trace of a kind known"),
        (b"[]", "no trace of a kind known"),
        (b"42", "no trace of a kind known"),
        (b'[{"a": 1}]', "keys a"),
        (b'{"schema_version": "ATIF-v1.7",\n "steps": [', "looks like a trace of ATIF, but it breaks at line 2"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "too long"),
        (gzip.compress(b"{}", mtime=0), "gzip"),
        (b"\x28\xb5\x2f\xfd\0\0", "zstd"),
        (b"SQLite format 3\0", "SQLite"),
        (b"\x89PNG\r\n", "picture"),
        (b"PK\x03\x04 and then nothing", "damaged zip"),
        (b'{"resourceSpans": []}', "no span"),
        (b'{"resourceSpans": 7}', "no span"),
        (b'{"schema_version": "ATIF-v1.7", "steps": [], "agent": 7, "subagent_trajectories": [{"steps": [1]}]}', ""),
        (b'{"eval": {}, "samples": []}', "holds no sample"),
        (b'{"messages": [{"role": "user", "content": 5}], "info": {"model_stats": 1}}', ""),
    ],
)
def test_strange_files_give_a_trace_or_one_sentence(tmp_path, data, words):
    file = tmp_path / "strange"
    file.write_bytes(data)
    if words:
        assert words in one_sentence(file)
    else:
        assert isinstance(open_trace(file), Trace)


def test_no_file_no_folder(tmp_path):
    assert "does not exist" in one_sentence(tmp_path / "nothing")
    assert "without event files" in one_sentence(tmp_path)
    assert "is no file" in one_sentence(Path("/dev/null"))
    for data in (b"", b"\n\n", b"\0" * 300):  # nothing was written yet: an empty run of ours
        (tmp_path / "empty").write_bytes(data)
        assert open_trace(tmp_path / "empty").events == []


def test_other_encodings(tmp_path):
    text = (SAMPLES / "mini_v2.traj.json").read_text()
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "x").write_text(text, encoding=encoding)
        assert open_trace(tmp_path / "x").source == "mini-swe-agent"


def test_a_torn_line_costs_one_line(tmp_path):
    for name in ("claude_code.jsonl", "codex.jsonl", "openhands_v1.jsonl"):
        data = (SAMPLES / name).read_bytes()
        (tmp_path / name).write_bytes(data[:-20] + b"\0\0\0")
        assert open_trace(tmp_path / name).bad_lines == 1


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "large.json"
    with open(file, "wb") as out:
        out.write(b'{"schema_version": "ATIF-v1.7", "steps": [')
        out.truncate(2**30)
    tracemalloc.start()
    assert f"{MAX_BYTES:,}" in one_sentence(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_large_trace_of_ours_is_refused_too(tmp_path):
    file = tmp_path / "ours.jsonl"
    file.write_bytes((SAMPLES / "harnesslab.jsonl").read_bytes() * 2)
    assert open_trace(file).events
    assert "larger max_bytes" in one_sentence(file, max_bytes=100)


@pytest.mark.parametrize("entry", ["header.json", "samples/1_epoch_1.json"])
def test_a_zip_bomb_stays_small(tmp_path, entry):
    file, zeros = tmp_path / "bomb.eval", b'{"a": "' + b"0" * 200_000_000
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        if entry != "header.json":
            out.writestr("header.json", "{}")
        out.writestr(entry, zeros)
    del zeros
    tracemalloc.start()
    assert f"its entry {entry}" in one_sentence(file, max_bytes=2_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_many_small_objects_are_refused_before_they_are_made(tmp_path):
    file = tmp_path / "many.json"
    file.write_text('{"schema_version": "ATIF-v1.7", "steps": [' + "{}," * 5_000_000 + "{}]}")
    tracemalloc.start()
    assert "objects" in one_sentence(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80_000_000  # a few copies of the text


def test_a_folder_is_bounded(tmp_path):
    for number in range(5):
        (tmp_path / f"event-{number}.json").write_text('{"kind": "x", "source": "y", "pad": "%s"}' % ("z" * 100))
    assert "larger max_bytes" in one_sentence(tmp_path, max_bytes=300)


def test_redaction_keeps_json_valid_and_numbers_alone():
    value = {"max_tokens": 900, "api_key": "abcd", "Authorization": "Bearer " + "q" * 30, "inner": json.dumps({"client_secret": "s3cr3t!", "n": 1}),
             "AWS": "AKIA" + "A" * 16, "pem": "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "task-list": "task-" + "a" * 30}  # fmt: skip
    clean = json.loads(redact(json.dumps(value)))
    assert clean["max_tokens"] == 900 and clean["task-list"] == value["task-list"] and json.loads(clean["inner"])["n"] == 1
    assert not re.search("abcd|qqqq|s3cr3t|AKIA|abc", json.dumps({k: v for k, v in clean.items() if k != "task-list"}))


SMALL = sorted(p for p in SAMPLES.iterdir() if p.is_file())


def trace_or_sentence(path):
    """Whatever is in the file: a Trace whose events can be folded, or a UsageError of one line."""
    try:
        trace = open_trace(path)
        assert isinstance(trace, Trace)
        fold(trace)
        if trace.source != "harnesslab":
            assert fold(trace).unreadable == 0
            json.dumps(to_atif(trace))
            json.dumps(to_otlp(trace))
    except UsageError as error:
        assert "\n" not in str(error) and str(error).endswith(".")


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.name)
def test_any_truncation_gives_a_trace_or_one_sentence(path, tmp_path):
    data, file = path.read_bytes(), tmp_path / "cut"
    for end in range(0, len(data), max(1, len(data) // 60)):
        file.write_bytes(data[:end])
        trace_or_sentence(file)


@pytest.mark.parametrize("path", SMALL, ids=lambda p: p.name)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_gives_a_trace_or_one_sentence(path, tmp_path, data):
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path / "changed"
    file.write_bytes(content)
    trace_or_sentence(file)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6)  # fmt: skip


def places(value, path=()):
    """Every place in a JSON value, as a path."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


@pytest.mark.parametrize("path", [p for p in SMALL if p.suffix != ".eval"], ids=lambda p: p.name)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_of_another_type_gives_a_trace_or_one_sentence(path, tmp_path, data):
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
    where = data.draw(st.sampled_from([p for p in places(lines) if len(p) > 1]))
    parent = lines
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] = data.draw(JSON_VALUES)
    file = tmp_path / "changed"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8", errors="surrogatepass")
    trace_or_sentence(file)


# --- there and back


KEPT = {
    "tool_called": ("id", "name", "arguments"),
    "tool_returned": ("id", "content", "is_error"),
    "model_replied": ("usage", "stop_reason"),
    "run_ended": ("status", "answer"),
}


def essence(trace, without=()):
    """What a translation must not change, for the main agent. An end that the file did not tell cannot be kept."""
    return [
        (e["type"], *(e["payload"].get(key) for key in KEPT[e["type"]]))
        for e in trace.events
        if e["type"] in KEPT and not e["payload"].get("agent") and e["payload"].get("id", "") not in without
        and not ("end" in without and e["type"] == "run_ended")
    ]


@pytest.mark.parametrize("convert", [to_atif, to_otlp])
@pytest.mark.parametrize("name", names())
def test_there_and_back(name, convert, tmp_path):
    trace, file = open_trace(SAMPLES / name), tmp_path / "out.json"
    file.write_text(json.dumps(convert(trace)))
    back = open_trace(file)
    without = {p["id"] for t in (trace, back) for p in of(t, "tool_returned") if p.get("orphan")}
    without |= set() if trace.end else {"end"}
    first, again = essence(trace, without), essence(back, without)
    if any(r.get("agent") for r in of(trace, "model_replied")):  # a grader's words: no export has a second voice in one run
        again = [row for row in again if row in first]
    assert again == first
    assert back.start["task"] == trace.start["task"] and back.start["system"] == trace.start["system"]
    assert back.start["model"]["name"] in (trace.start["model"]["name"], "unknown")
    if convert is to_atif:
        assert set(back.children) == set(trace.children)


def check_atif(trajectory, inside=False):
    """The published rules of ATIF v1.7, written down again: fields, types, numbering, references."""
    root = {"schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics", "continued_trajectory_ref", "extra", "subagent_trajectories"}  # fmt: skip
    step_fields = {"step_id", "timestamp", "source", "model_name", "reasoning_effort", "message", "reasoning_content", "tool_calls", "observation", "metrics", "is_copied_context", "llm_call_count", "extra"}  # fmt: skip
    agent_only = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}
    assert set(trajectory) <= root and re.fullmatch(r"ATIF-v1\.[0-8]", trajectory["schema_version"])
    assert not inside or trajectory["trajectory_id"]
    agent = trajectory["agent"]
    assert set(agent) <= {"name", "version", "model_name", "tool_definitions", "extra"}
    assert isinstance(agent["name"], str) and isinstance(agent["version"], str)
    assert trajectory["steps"] and [s["step_id"] for s in trajectory["steps"]] == list(range(1, len(trajectory["steps"]) + 1))
    for step in trajectory["steps"]:
        assert set(step) <= step_fields and step["source"] in ("system", "user", "agent") and isinstance(step["message"], str)
        assert step["source"] == "agent" or not agent_only & set(step)
        assert step.get("llm_call_count") != 0 or not {"metrics", "reasoning_content"} & set(step)
        if "timestamp" in step:
            datetime.fromisoformat(step["timestamp"])
        calls = step.get("tool_calls", [])
        for call in calls:
            assert set(call) <= {"tool_call_id", "function_name", "arguments", "extra"}
            assert isinstance(call["tool_call_id"], str) and isinstance(call["function_name"], str) and isinstance(call["arguments"], dict)
        for result in step.get("observation", {"results": []})["results"]:
            assert set(result) <= {"source_call_id", "content", "subagent_trajectory_ref", "extra"}
            assert "source_call_id" not in result or result["source_call_id"] in {c["tool_call_id"] for c in calls}
        metrics = step.get("metrics", {})
        assert set(metrics) <= {"prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "extra"}
        assert metrics.get("cached_tokens", 0) <= metrics.get("prompt_tokens", 0)
    final = trajectory["final_metrics"]
    assert final["total_prompt_tokens"] == sum(s.get("metrics", {}).get("prompt_tokens", 0) for s in trajectory["steps"])
    assert final["total_steps"] == len(trajectory["steps"])
    subs = trajectory.get("subagent_trajectories", [])
    assert len({s["trajectory_id"] for s in subs}) == len(subs)
    for sub in subs:
        check_atif(sub, inside=True)


def check_otlp(request):
    """The published rules of OTLP JSON and of the GenAI conventions that a receiver relies on."""
    (resource,) = request["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    ids = {span["spanId"] for span in scope["spans"]}
    assert len(ids) == len(scope["spans"])
    needed = {"chat": {"gen_ai.provider.name", "gen_ai.request.model"}, "execute_tool": {"gen_ai.tool.name", "gen_ai.tool.call.id"}, "invoke_agent": {"gen_ai.agent.name", "gen_ai.provider.name"}}  # fmt: skip
    for span in scope["spans"]:
        assert re.fullmatch(r"[0-9a-f]{32}", span["traceId"]) and re.fullmatch(r"[0-9a-f]{16}", span["spanId"])
        assert span.get("parentSpanId", next(iter(ids))) in ids and span["kind"] in (1, 3)
        assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) >= 0
        assert all(isinstance(span[edge], str) for edge in ("startTimeUnixNano", "endTimeUnixNano"))
        values = {pair["key"]: pair["value"] for pair in span["attributes"]}
        assert len(values) == len(span["attributes"])
        for value in values.values():
            ((kind, inner),) = value.items()
            assert kind in ("stringValue", "intValue", "doubleValue", "boolValue", "arrayValue")
            assert isinstance(inner, {"stringValue": str, "intValue": str, "doubleValue": float, "boolValue": bool, "arrayValue": dict}[kind])
        operation = values["gen_ai.operation.name"]["stringValue"]
        assert needed[operation] <= set(values) and span["name"].startswith(operation + " ")
        assert span["status"] == {} or (span["status"]["code"] == 2 and "error.type" in values)
        for key in ("gen_ai.input.messages", "gen_ai.output.messages"):
            for message in json.loads(values[key]["stringValue"]) if key in values else []:
                assert message["role"] in ("system", "user", "assistant", "tool") and isinstance(message["parts"], list)
                assert all(p["type"] in ("text", "reasoning", "tool_call", "tool_call_response") for p in message["parts"])
        if "gen_ai.usage.input_tokens" in values:
            number = {k: int(v["intValue"]) for k, v in values.items() if k.startswith("gen_ai.usage.")}
            cached = number["gen_ai.usage.cache_read.input_tokens"] + number["gen_ai.usage.cache_creation.input_tokens"]
            assert cached <= number["gen_ai.usage.input_tokens"]


@pytest.mark.parametrize("name", names())
def test_exports_keep_the_published_shapes(name):
    trace = open_trace(SAMPLES / name)
    check_atif(to_atif(trace))
    check_otlp(to_otlp(trace))


def test_exports_of_an_empty_run():
    check_atif(to_atif([]))
    check_otlp(to_otlp([]))


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -1.0, 1e300, None, "soon"])
def test_a_time_that_is_none_does_not_stop_an_export(time):
    events = [json.loads(line) for line in (SAMPLES / "harnesslab.jsonl").read_text().splitlines()]
    for event in events[2:5]:
        event["time"] = time
    json.dumps(to_atif(events), allow_nan=False)
    check_otlp(to_otlp(events))


def test_a_trace_of_ours_with_a_very_long_first_line(tmp_path):
    lines = (SAMPLES / "harnesslab.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["payload"]["system"] = "x" * 200_000
    for start in (json.dumps(first), json.dumps(dict(reversed(first.items())))):
        (tmp_path / "long.jsonl").write_text("\n".join([start, *lines[1:]]))
        assert open_trace(tmp_path / "long.jsonl").source == "harnesslab"


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("convert", [to_atif, to_otlp])
def test_every_status_survives(status, convert, tmp_path):
    events = [json.loads(line) for line in (SAMPLES / "harnesslab.jsonl").read_text().splitlines()]
    events[-1]["payload"].update(status=status, answer="x" if status == "done" else "", error="" if status == "done" else "why")
    (tmp_path / "out").write_text(json.dumps(convert(events)))
    end = open_trace(tmp_path / "out").end
    assert {key: end[key] for key in ("status", "answer", "error")} == {key: events[-1]["payload"][key] for key in ("status", "answer", "error")}


def test_words_said_twice_are_told_twice(tmp_path):
    events = [json.loads(line) for line in (SAMPLES / "harnesslab.jsonl").read_text().splitlines()]
    nudge = next(e for e in events if e["type"] == "nudged")
    events[6:6] = [nudge]
    for number, event in enumerate(events):
        event["n"] = number
    (tmp_path / "out").write_text(json.dumps(to_otlp(events)))
    assert [e["text"] for e in of(open_trace(tmp_path / "out"), "history_edited")] == ["Use the tools."] * 2


def test_small_parts():
    assert [status_of(w) for w in ("exit_context", "token limit", "message limit", "time limit", "operator limit", "error: x")] == [
        "context_full", "budget", "max_steps", "wall_clock", "interrupted", "api_error"]  # fmt: skip
    assert moment(True) is None and moment("1e999") is None and moment(10**400) is None and moment("9" * 400) is None
    assert count("²") == 0 and count("9" * 30) == 0 and count(1e300) == 0
    assert text_of({"a": 1}) == '{"a": 1}' and text_of(7) == "7"


# --- the real files, where they are

REAL_FACTS = {
    "inspect/generated_fix.eval": (8, 8, (1521, 3328, 0, 298)),
    "inspect/log_tool_call_error.json": (0, 11, (0, 0, 0, 0)),
    "otel-genai/generated_fix_v5.otlp.json": (7, 7, (1219, 2176, 0, 291)),
    "openai-agents/generated_fix.json": (7, 7, (1323, 2176, 0, 291)),
    "mini-swe-agent/generated_fix.traj.json": (8, 8, (1340, 2432, 0, 293)),
    "mini-swe-agent/django__django-16255.traj.json": (17, 17, (27406, 33662, 0, 2317)),
    "smolagents/generated_fix.steps.json": (8, 8, (2254, 7040, 0, 299)),
    "openhands/v0_basic.json": (2, 1, (10, 3482, 4640, 1312)),
    "openhands/v1_goal_events.jsonl": (2, 3, (39265, 68193, 0, 1347)),
    "tau-bench/airline_task0.json": (12, 12, (0, 0, 0, 0)),
    "swe-agent/marshmallow-function_calling.traj": (11, 11, (0, 0, 0, 0)),
}


@pytest.mark.skipif(not REAL.is_dir(), reason="optional: the folder of other tools' real trajectories is not beside the checkout")
def test_real_files():
    seen = 0
    for path in sorted(p for p in REAL.rglob("*") if p.is_file() and p.suffix != ".md"):
        name = path.relative_to(REAL).as_posix()
        if name == "inspect/generated_fix.eval" and not HAS_ZSTD:
            assert "zstandard" in one_sentence(path)
            continue
        trace = open_trace(path)
        seen += 1
        assert trace.bad_lines == 0 and fold(trace).unreadable == 0, name
        if name in REAL_FACTS:
            facts = len(of(trace, "tool_called")), len(of(trace, "tool_returned")), usage_of(trace)
            assert facts == REAL_FACTS[name], name
        check_atif(to_atif(trace))
        check_otlp(to_otlp(trace))
    assert seen >= 20


def atif_part(steps, **more):
    agent = {"name": "a", "version": "1", "model_name": "m"}
    return json.dumps({"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": steps, **more})


def test_an_atif_run_in_several_files_is_one_run(tmp_path):
    step = lambda n, text, **more: {"step_id": n, "source": "agent", "message": text, "metrics": {"prompt_tokens": 10, "completion_tokens": 1}, **more}
    user = {"step_id": 1, "source": "user", "message": "Go."}
    (tmp_path / "a.json").write_text(atif_part([user, step(2, "one")], continued_trajectory_ref="a.cont-1.json", final_metrics={"total_prompt_tokens": 10}))
    (tmp_path / "a.cont-1.json").write_text(atif_part([{**user, "is_copied_context": True}, step(2, "two")], continued_trajectory_ref="a.cont-2.json"))
    (tmp_path / "a.cont-2.json").write_text(atif_part([step(1, "three")], final_metrics={"total_prompt_tokens": 30}))
    trace = open_trace(tmp_path / "a.json")
    assert [r["content"][0]["text"] for r in of(trace, "model_replied")] == ["one", "two", "three"]
    assert trace.end["answer"] == "three" and trace.end["status"] == "done" and summary(trace)["tok_in"] == 30


@pytest.mark.parametrize("name", ["a.json", "../b.json", "/etc/hostname", "sub/b.json", "missing.json", "broken.json", "list.json", "", "x" * 400])
def test_a_continuation_elsewhere_or_in_a_circle_is_not_followed(tmp_path, name):
    (tmp_path / "sub").mkdir()
    steps = [{"step_id": 1, "source": "user", "message": "Go."}, {"step_id": 2, "source": "agent", "message": "one"}]
    for other in ("b.json", "sub/b.json"):
        (tmp_path / other).write_text(atif_part([{"step_id": 1, "source": "agent", "message": "SECRET"}]))
    (tmp_path / "broken.json").write_text('{"steps": [')
    (tmp_path / "list.json").write_text("[1]")
    inner = tmp_path / "inner"
    inner.mkdir()
    for file in ("broken.json", "list.json"):
        (inner / file).write_bytes((tmp_path / file).read_bytes())
    (inner / "a.json").write_text(atif_part(steps, continued_trajectory_ref=name))
    trace = open_trace(inner / "a.json")
    assert [r["content"][0]["text"] for r in of(trace, "model_replied")] == ["one"]
    assert "SECRET" not in json.dumps(trace.events)
    if name:
        assert f"goes on in {name}, which was not read" in of(trace, "history_edited")[-1]["text"]


@pytest.mark.parametrize("text", ["# Read me\n\nHello.\n", "a,b\n1,2\n", "import os\n", "<html></html>"])
def test_a_file_that_is_no_trace_is_not_called_damaged(tmp_path, text):
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(UsageError, match="is no trace of any kind: it does not begin with JSON"):
        open_trace(tmp_path / "x.txt")
