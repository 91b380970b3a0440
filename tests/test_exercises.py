"""Every solution passes its check, every stub and every listed wrong answer fails it, each with an explanation of its own; and the student's notebooks
work on a real kernel and under the grader, whatever a student writes into them."""
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings, strategies as st
from nbclient import NotebookClient

from test_cli import wait_until

from harnesslab import small_harness, tools
from harnesslab.checking import (Exercise, Mistake, Trial, Wrong, difference, is_untouched, judge, limited, mentions, mistakes, show,
                                 wrong_answer)
from harnesslab.checks_fence import left_behind, running
from harnesslab.exercises import (EXERCISES, LESSONS, _whole_solution, check, check_folder, exercise_notebook, exercises_of, results_table,
                                  write_exercises)
from harnesslab.loop import UsageError
from harnesslab.own_parts import try_in_harness

ALL = list(EXERCISES.values())
MISTAKES = [(exercise, mistake) for exercise in ALL for mistake in exercise.mistakes]


def run_code(code, name, given=small_harness):
    """The function that a piece of code defines, among the small harness's own names."""
    names = dict(vars(given))
    exec(compile(code, "<answer>", "exec"), names)
    return names[name]


def by_name(name):
    return run_code(EXERCISES[name].source, name)


# --- the exercises

def test_the_lesson_has_its_exercises():
    asked = {"call_model", "safe_path", "clip", "read_file", "search", "edit_file", "run_command", "permit", "execute", "run_agent", "run_tasks"}
    assert asked <= set(EXERCISES) and {exercise.lesson for exercise in ALL} == set(LESSONS)
    assert all(len(exercise.mistakes) >= 3 and exercise.hints and exercise.breaks for exercise in ALL)


@pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
def test_the_solution_passes(exercise):
    before = dict(os.environ), os.fstat(0)
    verdict = check(exercise.name, by_name(exercise.name))
    assert verdict and verdict.held >= 5, verdict
    assert (dict(os.environ), os.fstat(0)) == before, "a check puts everything back"


@pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
def test_the_stub_fails(exercise):
    stub = run_code(exercise.stub, exercise.name)
    assert stub.__doc__ and is_untouched(stub) and len(stub.__doc__) > 60
    verdict = check(exercise.name, stub)
    assert not verdict and verdict.untouched and "not written yet" in repr(verdict)
    for nothing in ("return None  # :", "return ''", "raise NotImplementedError", "x = 1"):
        verdict = check(exercise.name, run_code(exercise.stub.replace("    ...", f"    {nothing}"), exercise.name))
        assert not verdict and (verdict.untouched or verdict.why), nothing


@pytest.mark.parametrize("exercise, mistake", MISTAKES, ids=[f"{e.name}-{m.name}" for e, m in MISTAKES])
def test_a_wrong_answer_gets_its_own_explanation(exercise, mistake):
    verdict = check(exercise.name, run_code(wrong_answer(exercise, mistake), exercise.name))
    assert not verdict and verdict.why.startswith(mistake.why) and verdict.given and verdict.wanted and verdict.got, verdict


# Answers that are right by the docstring, and written otherwise than ours: (exercise, piece of our solution, what stands there instead).
NO_WORDS_FOR_A_SHELL = r"""not re.search(r'[;&|<>$`\\"\'(){}\[\]*?~#!\n\r]', args.get("cmd", ""))"""
OTHERWISE_RIGHT = [
    ("clip", "[... {len(s) - 2 * half} characters cut here", "[... too long, {len(s) - 2 * half:,} extra characters cut"),
    ("read_file", "{number:>4} ", "{number:>2} "), ("read_file", "{number:>4} ", "{number}: "), ("read_file", "if last < wanted", "if last < len(lines)"),
    ("read_file", "for number, line in", "for number, line in ((n, line[:150]) for n, line in"), ("execute", "json.dumps(result)", "json.dumps(result, indent=2)"),
    ("execute", 'f"{type(error).__name__}: {error}"', "repr(error)"), ("edit_file", '", ".join(map(str, places))', "f'{places[:-1]} and {places[-1]}'"),
    ("edit_file", "old text found 0 times in", "old text not found in"), ("permit", 're.fullmatch(r"[\\w./ -]+", args.get("cmd", ""))', NO_WORDS_FOR_A_SHELL),
    ("call_model", "time.sleep(wait * (1 + random.random() / 4))", "time.sleep(wait)\n        time.sleep(random.random())"),
    ("call_model", "time.sleep(wait * (1 + random.random() / 4))", "time.sleep(wait + random.getrandbits(1))"),
    ("run_agent", "if not calls", 'if reply["stop_reason"] == "end_turn"')]


@pytest.mark.parametrize("name, old, new", OTHERWISE_RIGHT, ids=[f"{name}-{number}" for number, (name, _, _) in enumerate(OTHERWISE_RIGHT)])
def test_a_right_answer_that_is_not_ours_passes(name, old, new):
    closing = {"for number, line in": ((", start=start)]", ", start=start))]"),)}.get(old, ())
    code = wrong_answer(EXERCISES[name], Mistake("", "", ((old, new), *closing)))
    assert check(name, run_code(code, name))


def test_the_lessons_own_clip_passes():
    assert check("clip", tools.clip)


@pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
def test_explanations_differ(exercise):
    starts = [mistake.why for mistake in exercise.mistakes]
    assert not any(a != b and a.startswith(b) for a in starts for b in starts)
    assert len(set(starts)) == len(starts) and all(len(start) > 5 for start in starts)


# --- our own small versions keep what their docstrings say

@given(length=st.integers(0, 400), limit=st.integers(0, 300))
def test_our_clip_never_passes_its_limit(length, limit):
    text = "".join(chr(256 + n) for n in range(length))
    got = small_harness.clip(text, limit)
    assert len(got) <= limit or got == text and length <= limit
    if limit >= 60 and length > limit:
        head, cut, tail = re.fullmatch(r"(.*)\n\[\.\.\. (\d+) characters cut here \.\.\.\]\n(.*)", got).groups()
        assert text.startswith(head) and text.endswith(tail) and len(head) + int(cut) + len(tail) == length and len(head) == len(tail)


@settings(max_examples=50)
@given(before=st.binary(max_size=20), after=st.binary(max_size=20))
def test_our_edit_keeps_every_byte_around_it(tmp_path_factory, before, after):
    folder = tmp_path_factory.getbasetemp()
    (folder / "bytes.txt").write_bytes(before.replace(b"o", b"") + b"old" + after.replace(b"o", b""))
    assert small_harness.edit_file(folder, "bytes.txt", "old", "n\u00e9w").startswith("edited")
    assert (folder / "bytes.txt").read_bytes() == before.replace(b"o", b"") + "n\u00e9w".encode() + after.replace(b"o", b"")


def test_our_edit_counts_places_that_overlap(tmp_path):
    (tmp_path / "a.txt").write_text("aaa\n")
    with pytest.raises(tools.ToolError, match="found 2 times"):
        small_harness.edit_file(tmp_path, "a.txt", "aa", "b")
    assert (tmp_path / "a.txt").read_text() == "aaa\n"


def test_our_read_says_what_the_cap_left_out_of_a_range_too(tmp_path):
    (tmp_path / "a.txt").write_text("x\n" * 1_000)
    assert small_harness.read_file(tmp_path, "a.txt", 101, 900).endswith(" 500 x\n[The file has 1000 lines. To go on, read from line 501.]")
    assert small_harness.read_file(tmp_path, "a.txt", 999, 2_000) == " 999 x\n1000 x" and small_harness.read_file(tmp_path, "a.txt", 1, 1) == "   1 x"


def test_an_exercise_that_does_not_exist_and_a_function_that_was_called():
    with pytest.raises(UsageError, match="There is no exercise 'clap'"):
        check("clap", len)
    with pytest.raises(UsageError, match="without brackets"):
        check("clip", "a text")


# --- the trial: whatever a function does

def exercise_of(check_it, solution=len):
    return Exercise(solution, "x", 1, "", "", (), check_it, ())


@pytest.mark.parametrize("code, got", [
    ("while True: pass", "nothing, and it was stopped"), ("exit_()", "SystemExit"), ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("return f(s)", "RecursionError"), ("return s.nothing", "AttributeError: 'str' object has no attribute 'nothing', in line 2"),
    ("raise type('Odd', (Exception,), {'__str__': lambda self: ''})", "Odd: no message"), ("return Odd()", "<Odd>")])
def test_whatever_a_function_does_there_is_a_verdict(code, got):
    class Odd:
        def __repr__(self):
            raise ValueError

    names = {"exit_": sys.exit, "Odd": Odd}
    exec(compile(f"def f(s):\n    {code}", "<answer>", "exec"), names)

    def check_it(trial):
        trial.give("a text", "text", seconds=0.3)
        trial.wants("text", "It says so.")

    began = time.monotonic()
    verdict = judge(exercise_of(check_it), names["f"])
    assert not verdict and verdict.got.startswith(got) and verdict.why and time.monotonic() - began < 8
    assert "<script" not in verdict._repr_html_() and verdict.headline in verdict._repr_html_().replace("&#x27;", "'")


def test_time_is_really_given_back():
    before = len([t for t in __import__("threading").enumerate() if t.name == "harnesslab-exercise"])
    assert limited(lambda: [None for _ in iter(int, 1)], seconds=0.2).timed_out
    assert len([t for t in __import__("threading").enumerate() if t.name == "harnesslab-exercise"]) == before


def test_refuses_wants_the_right_exception_and_its_words():
    def trial_of(error):
        def function():
            raise error
        trial = Trial(function)
        trial.give("nothing")
        return trial

    class ToolError(Exception):
        """A learner's own class of this name will do."""

    trial_of(ToolError("line 6")).refuses("why", says=("6",))
    for error in (ToolError("line 7"), ValueError("line 6")):
        with pytest.raises(Wrong, match="other"):
            trial_of(error).refuses("why", says=("6",), or_why="other")


def test_refuses_finds_numbers_however_they_are_listed():
    for words in ("found 3 times, at lines 1, 2 and 4", "3: [1, 2, 4]", "3 times: 1,2,4"):
        def function():
            raise tools.ToolError(words)
        trial = Trial(function)
        trial.give("nothing")
        trial.refuses("why", says=(3, 1, 2, 4))
        with pytest.raises(Wrong):
            trial.refuses("why", says=(12,))


@given(st.integers(0, 10**12))
def test_a_number_is_found_however_it_is_grouped(number):
    assert all(mentions(f"line {text}.", number) for text in (str(number), f"{number:,}", f"{number:_}"))
    assert not mentions(f"line {number}0", number) or number == 0


def test_mistakes_are_read_from_text():
    one, two, three = mistakes("one => Because\n- a\n- b\n+ c\n- d\n+\ntwo => So\n= def f():\n=\n=     pass\nthree => X\n- y\n+ z\n")
    assert one.changes == (("a\nb", "c"), ("d", "")) and two.code == "def f():\n\n    pass" and three.changes == (("y", "z"),)
    with pytest.raises(UsageError, match="does not fit"):
        wrong_answer(EXERCISES["clip"], one)


def test_ours_stand_in_for_what_is_not_written_yet():
    names = dict(vars(small_harness))
    for name in ("safe_path", "clip", "read_file"):
        exec(EXERCISES[name].stub if name != "read_file" else EXERCISES[name].source, names)
    verdict = check("read_file", names["read_file"])
    assert verdict and "Ours stood in for clip, safe_path" in verdict.note and is_untouched(names["clip"])
    del names["clip"]
    assert check("read_file", names["read_file"]) and "clip" not in names


def test_a_check_leaves_the_learners_names_as_they_were():
    function = by_name("call_model")
    before = dict(function.__globals__)
    assert check("call_model", function) and function.__globals__ == before and time.sleep is before["time"].sleep
    answer = by_name("permit")
    assert check("permit", answer) and "input" not in answer.__globals__


def test_sleep_under_another_name_does_not_wait_either():
    code = EXERCISES["call_model"].source.replace("time.sleep(", "nap(").replace("    body =", "    global nap\n    body =", 1)
    function = run_code(code, "call_model")
    function.__globals__["nap"] = time.sleep
    began = time.monotonic()
    assert check("call_model", function) and time.monotonic() - began < 20 and function.__globals__["nap"] is time.sleep


def test_differences_in_words():
    assert difference("a", 1) == "text came back, and a whole number was wanted." and difference((1,), [1]) == "a tuple came back, and a list was wanted."
    assert difference({"a": 1, "b": 2}, {"a": 1}) == "there is a key too many: 'b'." and difference({}, {"a": 1}) == "the key 'a' is missing."
    assert difference([1, 2, 3], [1, 2]) == "[3] follows after all that was wanted." and difference(2, 3) == "2 instead of 3."
    assert show("a\nb") == "'a\\nb'" and len(show({"k": "x" * 5_000})) < 400


def test_processes_are_found_and_ended():
    child = subprocess.Popen(["sleep", "63.25"])
    try:
        wait_until(lambda: running("sleep 63.25") == [child.pid])
        assert left_behind("sleep 63.25")
        assert child.wait(timeout=5) == -9 and not running("sleep 63.25") and not left_behind("sleep 63.25")
    finally:
        child.kill()


# --- in the real harness

@pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
def test_the_solution_works_in_the_real_harness(exercise):
    tried = try_in_harness(by_name(exercise.name))
    assert tried and all(line.strip() for line in tried.lines), tried


@pytest.mark.parametrize("name, mistake, line", [
    ("safe_path", "checks nothing", "A model asked for ../secret.txt and was given: 1 canary"), ("run_command", "is the obvious version", "STILL RUNNING"),
    ("permit", "looks at the first words only", "NOT all denied"), ("run_agent", "drops the assistant's", "exception: ApiError"),
    ("call_model", "gives up on 500", "status api_error"), ("read_lines", "trusts every line", "exception: JSONDecodeError"), ("billed_tokens", "counts the cache", "you counted"),
    ("run_tasks", "believes the agent", "nothing passed"), ("edit_file", "forgets to write", "NOT solved"), ("execute", "forgets the root", "NOT solved")])
def test_a_wrong_answer_is_felt_in_the_real_harness(name, mistake, line):
    exercise = EXERCISES[name]
    wrong = next(each for each in exercise.mistakes if each.name.startswith(mistake))
    tried = try_in_harness(run_code(wrong_answer(exercise, wrong), name))
    assert not tried and line.lower() in " ".join(repr(tried).split()).lower().replace("modelerror", "apierror").replace("valueerror", "apierror"), tried


def test_a_flood_is_felt_in_the_real_harness():
    tried = try_in_harness(run_code("def clip(s, limit=8000):\n    return s", "clip"))
    assert not tried and "was given 2,100,0" in tried.lines[-1]


def test_try_in_harness_wants_known_and_written_functions():
    with pytest.raises(UsageError, match="wants functions that are among"):
        try_in_harness(len)
    with pytest.raises(UsageError, match="wants functions"):
        try_in_harness()
    tried = try_in_harness(run_code(EXERCISES["clip"].stub, "clip"))
    assert not tried and "Not written yet: clip." in repr(tried) and "<ul" in tried._repr_html_()


# --- the student's notebooks

@pytest.fixture
def folder(tmp_path):
    write_exercises(tmp_path / "student")
    return tmp_path / "student"


def fill_in(path, answers):
    """Write code in the place of stubs."""
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        name = cell["id"].removesuffix("-yours")
        if cell["id"].endswith("-yours") and name in answers:
            cell["source"] = answers[name]
    path.write_text(json.dumps(notebook))


def solutions():
    return {exercise.name: _whole_solution(exercise) for exercise in ALL}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_students_notebook_is_whole(lesson):
    notebook = exercise_notebook(lesson)
    nbformat.validate(nbformat.from_dict(notebook))
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-z0-9_-]{1,64}", i) for i in ids)
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    prose = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert prose.count("<details>") == prose.count("</details>") and "minutes" in prose
    for exercise in exercises_of(lesson):
        body = exercise.source.splitlines()[-1].strip()
        assert exercise.stub.strip() in code and not any(body in cell for cell in code)
        visible = re.sub(r"<details>.*?</details>\n*(</details>)?", "", prose, flags=re.DOTALL)
        assert exercise.source.strip() in prose and exercise.source.strip() not in visible and exercise.text in visible
        assert all(hint in prose and hint not in visible for hint in exercise.hints)
    assert max(len(line) for cell in code for line in cell.split("\n")) <= 112


def run_notebook(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}).get("text/plain", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(shown)


def test_a_fresh_notebook_runs_from_top_to_bottom(folder, tmp_path):
    shown = run_notebook(folder / "01_tools_exercises.ipynb", tmp_path)
    assert shown.count("not written yet") == 5 and shown.count("Not written yet") == 6


def test_a_solved_notebook_runs_on_a_real_kernel(folder, tmp_path):
    path = folder / "01_tools_exercises.ipynb"
    fill_in(path, solutions())
    shown = run_notebook(path, tmp_path)
    assert shown.count(": right, all") == 5 and "Ours stood in" not in shown and shown.count("The task is solved.") == 6
    assert "your clip, safe_path, read_file, search, edit_file: status done, 8 model calls" in shown


def test_somebodys_work_is_never_overwritten_without_asking(folder):
    path, others = folder / "01_tools_exercises.ipynb", len(LESSONS) - 1
    assert [what for _, what in write_exercises(folder)] == ["written"] * (others + 1)
    fill_in(path, {"clip": "def clip(s):\n    return s"})
    mine = path.read_text()
    asked = []
    for ask in (None, lambda question: asked.append(question)):
        assert dict(write_exercises(folder, ask))[path] == "kept" and path.read_text() == mine
    assert len(asked) == 1 and str(path) in asked[0]
    assert dict(write_exercises(folder, lambda question: True))[path] == "replaced" and path.read_text() != mine
    assert path.with_name("01_tools_exercises.old1.ipynb").read_text() == mine
    path.write_text("this is no notebook")
    assert dict(write_exercises(folder))[path] == "kept"
    assert dict(write_exercises(folder, lambda question: True))[path] == "replaced"
    assert path.with_name("01_tools_exercises.old2.ipynb").read_text() == "this is no notebook" and path.with_name("01_tools_exercises.old1.ipynb").read_text() == mine
    assert len({row["notebook"] for row in check_folder(folder)}) == len(LESSONS), "old ones are not graded"
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


def test_a_run_notebook_is_not_yet_somebodys_work(folder):
    path = folder / "03_traces_exercises.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count, cell.outputs = 3, [nbformat.v4.new_output("stream", text="x")]
    nbformat.write(notebook, path)
    assert dict(write_exercises(folder))[path] == "written"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another folder"):
        write_exercises(tmp_path / "file")


# --- the grader

def test_a_solved_folder_is_all_right_and_runs_together(folder):
    for path in folder.iterdir():
        fill_in(path, solutions())
    rows = check_folder(folder)
    assert [row["exercise"] for row in rows] == [*EXERCISES, "together"] and all(row["passed"] for row in rows), results_table(rows)
    assert "your call_model, run_agent, clip" in rows[-1]["text"] and f"{len(EXERCISES) + 1} of {len(EXERCISES) + 1} right." in results_table(rows)


def only(folder, lesson):
    """Keep one notebook of a folder."""
    for path in folder.iterdir():
        if lesson not in path.name:
            path.unlink()
    return folder / f"{lesson}_exercises.ipynb"


def test_the_grader_says_what_is_missing_wrong_or_broken(folder):
    path = only(folder, "01_tools")
    answers = solutions() | {
        "clip": "print('hello')\n%timeit 1\n!ls\ndef clip(s, limit=8000):\n    return s[:limit]\n", "safe_path": "def safe_path(root, p:\n    pass",
        "read_file": "raise RuntimeError('a cell that fails')", "search": EXERCISES["search"].stub}
    fill_in(path, answers)
    rows = {row["exercise"]: row for row in check_folder(folder)}
    assert "Keep the end as well" in rows["clip"]["text"]
    assert "There is no function safe_path" in rows["safe_path"]["text"] and "is no Python: line 1" in rows["safe_path"]["text"]
    assert "RuntimeError: a cell that fails" in rows["read_file"]["text"] and rows["search"]["untouched"]
    assert rows["edit_file"]["passed"], "what is missing is lent"
    table = results_table(list(rows.values()))
    assert re.search(r"search +not written", table) and re.search(r"edit_file +right", table) and "1 of 5 right." in table


RIGHT_IN_A_NOTEBOOK = {
    "clip": '''
from __future__ import annotations
%matplotlib inline
files = !ls
NOTES = []
NOTES.append("\\n[... %d characters cut here ...]\\n")
nothing.like_this()
def clip(s: Text, limit: int = 8_000) -> str:
    if (len(s)
            != min(len(s), limit)):
        half = (limit - 60) // 2
        note = (NOTES[0]
                % (len(s) - 2 * half))
        return s[:half] + note + s[-half:]
    return s
for _ in range(2):
    %timeit -n 1 clip("x")
clip?
check("clip", clip), print(try_in_harness(clip))
''',
    "safe_path": "def later(x: Text): pass\n" + EXERCISES["safe_path"].source, "search": EXERCISES["search"].source + "await sleep(1)\n"}


def test_what_is_right_in_a_notebook_is_right_for_the_grader(folder):
    fill_in(only(folder, "01_tools"), solutions() | RIGHT_IN_A_NOTEBOOK)
    rows = {row["exercise"]: row for row in check_folder(folder)}
    assert all(row["passed"] for row in rows.values()), results_table(list(rows.values()))


@pytest.mark.parametrize("code, says", [("import os\nx = os._exit(0)", "ended without a word"), ("while True: pass", "does not end by itself"),
                                        ("import sys\nx = sys.exit(0)", "SystemExit")])
def test_a_cell_that_hangs_or_ends_python_costs_only_its_own_notebook(folder, code, says):
    path = only(folder, "03_traces")
    fill_in(path, {"read_lines": code, "billed_tokens": solutions()["billed_tokens"]})
    rows = check_folder(folder, seconds=60)
    assert says in rows[0]["text"] and not rows[0]["passed"]
    assert rows[1]["passed"] == ("_exit" not in code)


def test_a_notebook_that_takes_too_long_is_ended_with_all_it_started(folder):
    path = only(folder, "03_traces")
    fill_in(path, {"read_lines": "import subprocess\nsleeper = subprocess.Popen(['sleep', '64.125'])\ncode = sleeper.wait()"})
    rows = check_folder(folder, seconds=4)
    assert all("more than 4 seconds" in row["text"] for row in rows) and not left_behind("sleep 64.125")


@pytest.mark.parametrize("make, says", [(lambda p: None, "There is no folder"), (lambda p: p.mkdir(), "There is no notebook of exercises"),
                                        (lambda p: (p.mkdir(), (p / "x.ipynb").write_text("[]"), (p / "y.ipynb").write_text('{"cells": 5}')), "no notebook of exercises")])
def test_a_folder_without_exercises(tmp_path, make, says):
    make(tmp_path / "student")
    with pytest.raises(UsageError, match=says):
        check_folder(tmp_path / "student")


def test_stored_solutions_need_nothing_but_the_standard_library():
    for exercise in ALL:
        names = {name for name in exercise.solution.__code__.co_names if name in vars(small_harness)}
        modules = {vars(small_harness)[name].__name__.split(".")[0] for name in names if type(vars(small_harness)[name]).__name__ == "module"}
        assert modules <= sys.stdlib_module_names


def test_hints_do_not_hold_a_machines_paths():
    text = json.dumps([exercise_notebook(lesson) for lesson in LESSONS])
    assert str(Path.home()) + os.sep not in text or str(Path.home()) == "/"
