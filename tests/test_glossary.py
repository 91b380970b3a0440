"""Each term is defined once, and every tooltip in a lesson says what the glossary says."""
import copy
import html
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ROOT
from harnesslab import glossary
from harnesslab.glossary import GLOSSARY, define, mark_terms, term
from harnesslab.loop import UsageError

LESSONS = sorted((ROOT / "nbs").glob("0*.ipynb"))
TOOLTIP = re.compile(r'<abbr title="([^"]*)">(.*?)</abbr>', re.DOTALL)


def prose(notebook):
    return "\n\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")


def test_each_term_is_defined_once():
    groups = [getattr(glossary, name) for name in ("_AGENT", "_WIRE", "_TOOLS", "_FENCES", "_TRACES", "_EVALS")]
    names = [line.split(": ")[0].lower() for group in groups for line in group.split("\n") if line and not line.startswith(" ")]
    assert len(names) == len(set(names)) == len(GLOSSARY) > 50
    assert len(set(GLOSSARY.values())) == len(GLOSSARY)


def test_definitions_are_sentences_that_fit_a_tooltip_and_a_table():
    for name, text in GLOSSARY.items():
        assert text[0].isupper() and text.endswith(".") and 30 < len(text) < 260 and "|" not in text and "\n" not in text, name


def test_every_spelling_belongs_to_one_term():
    spellings = [s.lower() for name in GLOSSARY for s in glossary._SPELLINGS.get(name, (name, name + "s"))]
    assert len(spellings) == len(set(spellings)) and set(glossary._SPELLINGS) <= set(GLOSSARY)


def test_a_word_that_nobody_defined_is_refused():
    with pytest.raises(UsageError, match="not in the glossary"):
        define("paradigm")
    assert term("JSONL") == f'<abbr title="{html.escape(GLOSSARY["JSONL"])}">JSONL</abbr>'


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_tooltips_of_a_lesson_are_up_to_date(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    before = copy.deepcopy(notebook)
    seen = mark_terms(notebook)
    assert notebook == before, "run `make notebooks`, which writes the tooltips anew"
    found = TOOLTIP.findall(prose(notebook))
    assert len(seen) == len(found) >= 8
    assert all(html.unescape(title) in GLOSSARY.values() for title, _ in found)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_marking_changes_nothing_but_tooltips(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    plain = TOOLTIP.sub(r"\2", prose(notebook))
    mark_terms(notebook)
    once = prose(notebook)
    assert TOOLTIP.sub(r"\2", once) == plain
    mark_terms(notebook)
    assert prose(notebook) == once


def one_cell(text):
    return {"cells": [{"cell_type": "markdown", "source": text}]}


@pytest.mark.parametrize("text", [
    "# A harness", "> the harness", "`harness`", "```\nharness\n```", "    harness", "[harness](x.md)", "![harness](x.svg)", "$harness$", "$$\nharness\n$$",
    "<summary>Why a harness?</summary>", "<!-- harness -->", '<img alt="harness">', "~~~text\nharness\n~~~", "harnessed", "a context variable", "harness-like"])
def test_what_is_not_prose_stays_as_it_is(text):
    notebook = one_cell(text)
    assert mark_terms(notebook) == [] and notebook == one_cell(text)


@pytest.mark.parametrize("text, term_of, shown", [
    ("Two **harnesses**? One **harness**.", "harness", "harnesses"), ("A Tool call", "tool call", "Tool call"), ("clear tool\ncalls now", "tool call", "tool\ncalls"),
    ("| a | b |\n|---|---|\n| the gate | x |", "gate", "gate"), ("<details>\n\nThe gate.\n</details>", "gate", "gate"), ("JSON Schema.", "JSON Schema", "JSON Schema")])
def test_the_first_use_gets_the_tooltip(text, term_of, shown):
    notebook = one_cell(text)
    assert mark_terms(notebook) == [term_of]
    assert notebook["cells"][0]["source"] == text.replace(shown, term(term_of, shown), 1)


def test_a_stale_tooltip_is_written_anew():
    notebook = one_cell('The <abbr title="an old sentence">harness</abbr> and the <abbr title="x">garden</abbr>.')
    assert mark_terms(notebook) == ["harness"]
    assert notebook["cells"][0]["source"] == f"The {term('harness')} and the garden."


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["harness", "tool call", "`gate`", "```\n", "\n\n", "# ", "> ", "$", " ", "a run", "<summary>", "</summary>", "[x](", ")", "| ", "*", "token"]), max_size=25))
def test_marking_twice_is_marking_once(pieces):
    notebook = one_cell("".join(pieces))
    first = mark_terms(notebook)
    once = copy.deepcopy(notebook)
    assert mark_terms(notebook) == first and notebook == once
    assert TOOLTIP.sub(r"\2", notebook["cells"][0]["source"]) == "".join(pieces)
