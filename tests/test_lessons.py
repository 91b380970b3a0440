"""Every lesson has all parts of the anatomy that CONTRIBUTING.md describes."""
import ast
import json
import re

import pytest

from conftest import ROOT
from harnesslab.exercises import exercises_of

LESSONS = sorted((ROOT / "nbs").glob("0*.ipynb"))
EXPERIMENTS = {"05_break_it"}  # made of experiments: see below
HEADINGS = ["## The smallest version", "## How it fails", "## The version that holds", "## Build it yourself", "## Explain it back", "## What comes next"]


def cells_of(path, kind):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def text_of(cell):
    return re.sub(r"</?abbr[^>]*>", "", "".join(cell["source"]))


def prose(path):
    return [text_of(cell) for cell in cells_of(path, "markdown")]


def headings(path):
    return [line for text in prose(path) for line in text.split("\n") if line.startswith("## ")]


def calls(path, function):
    """(number of the cell, first argument, tags) of each call of a function, in order."""
    found = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code" and f"{function}(" in "".join(cell["source"]):
            for node in ast.walk(ast.parse("".join(cell["source"]))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function and node.args and isinstance(node.args[0], ast.Constant):
                    found.append((number, node.args[0].value, cell["metadata"].get("tags", [])))
    return found


def section(path, heading):
    """The prose from one heading to the next."""
    whole = "\n\n".join(prose(path))
    return re.split(r"^## ", whole.split(heading, 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_all_six_are_there():
    assert [path.stem for path in LESSONS] == ["00_loop", "01_tools", "02_sandbox", "03_traces", "04_evals", "05_break_it"]


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_title_scene_and_promise(path):
    title, scene = prose(path)[:2]
    assert re.match(rf"# {path.stem[:2]} \w[^\n]*\n\n> \S[^\n]+\.$", title), title
    assert len(scene) > 500 and not scene.startswith(("#", "**"))
    for part in (r"\*\*After this notebook you can\*\* \w", r"\*\*Time\*\*:[^.]*\d+ minutes", r"\*\*You need\*\*: \w"):
        assert re.search(part, scene, re.DOTALL), part


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_parts_come_in_order(path):
    wanted = HEADINGS[3:] if path.stem in EXPERIMENTS else HEADINGS
    found = [next((i for i, line in enumerate(headings(path)) if line.startswith(part)), None) for part in wanted]
    assert None not in found and found == sorted(found), dict(zip(wanted, found))
    assert headings(path)[-1].startswith("## What comes next") and "**What to notice" in "\n".join(prose(path))


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_predictions_are_asked_first_and_revealed_later(path):
    asked, revealed = calls(path, "predict"), calls(path, "reveal")
    assert asked and len({id for _, id, _ in asked}) == len(asked)
    assert {id for _, id, _ in asked} == {id for _, id, _ in revealed}, "each question is asked once and answered"
    lesson = path.stem[3:]
    for number, id, tags in asked:
        assert id.startswith(f"{lesson}-") and number < min(n for n, other, _ in revealed if other == id)
    assert not any("keep-output" in tags for _, _, tags in asked + revealed), "an answer of somebody's must not be stored"
    code = [cell["id"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    smallest = [n for n, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]) if text_of(cell).startswith(HEADINGS[0])]
    if path.stem not in EXPERIMENTS:
        assert asked[0][0] < smallest[0], code[smallest[0]]


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_explain_it_back_has_folded_answers(path):
    text = section(path, "## Explain it back")
    answers = re.findall(r"<details><summary>(.+?)</summary>\n\n(.+?)\n\n?</details>", text, re.DOTALL)
    assert len(answers) >= 3 and text.count("<details") == text.count("</details>") == len(answers)
    for question, answer in answers:
        assert len(question) > 40 and len(answer) > 80, question
    assert "open>" not in text


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_build_it_yourself_names_the_exercises(path):
    text = section(path, "## Build it yourself")
    assert len(text) > 150
    for exercise in exercises_of(path.stem):
        assert f"| `{exercise.name}` | {exercise.minutes} | {exercise.breaks} |" in text and "harnesslab exercises" in text


@pytest.mark.parametrize("path", sorted(path for path in LESSONS if path.stem in EXPERIMENTS), ids=lambda p: p.stem)
def test_experiments_are_whole(path):
    experiments = [line for line in headings(path) if line.startswith("## Experiment")]
    assert len(experiments) == 4
    for line in experiments:
        text = section(path, line)
        assert all(part in text for part in ("**What you switch off**", "**Where to look", "**What to notice"))
    assert len(calls(path, "predict")) >= 4


def test_the_teachers_page_agrees_with_the_lessons():
    page = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    for path in LESSONS:
        row = next(line for line in page.split("\n") if line.startswith("|") and f"nbs/{path.name}" in line)
        reading, building = (int(cell) for cell in row.split("|")[2:4])
        assert reading == int(re.search(r"\*\*Time\*\*:[^.]*?(\d+) minutes", prose(path)[1], re.DOTALL)[1]), path.stem
        if exercises_of(path.stem):
            assert building == sum(exercise.minutes for exercise in exercises_of(path.stem)), path.stem
    assert all((ROOT / "docs" / link).exists() for link in re.findall(r"\]\((?![a-z]+:)([^)#]+)", page))


def test_contributing_describes_the_anatomy():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(heading.removeprefix("## ") in text for heading in HEADINGS) and "**What to notice**" in text
