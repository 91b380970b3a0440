"""Each lesson worked through in a real JupyterLab, as a reader does it: run, predict, run on, look at what was measured."""
import html
import os
import re

import pytest

from harnesslab.exercises import EXERCISES, write_exercises
from test_lab import copy_of_lab, lab, open_notebook, page, pytestmark      # noqa: F401  (one server and one browser for this file)
from test_lessons import LESSONS, calls

assert copy_of_lab and lab and page and pytestmark
RUN = """async ([first, last]) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.mode = 'command'; notebook.deselectAll(); notebook.activeCellIndex = first;
    if (last > first) notebook.extendContiguousSelectionTo(last);
    await window.jupyterapp.commands.execute('notebook:run-cell');
}"""
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code' && c.model.sharedModel.source.trim()).map(c => ({
    id: c.model.sharedModel.id, count: c.model.executionCount, outputs: Array.from({length: c.model.outputs.length}, (_, i) => c.model.outputs.get(i).toJSON())}))"""


PICTURES = os.environ.get("HARNESSLAB_PICTURES")   # a folder: what was clicked and run is saved there as pictures
FOLDED = """() => window.jupyterapp.shell.currentWidget.content.widgets.flatMap(
    (cell, place) => cell.model.type === 'markdown' && cell.model.sharedModel.source.includes('<details') ? [place] : [])"""


@pytest.fixture(scope="module")
def complaints(page):
    """What the browser's console calls an error."""
    found = []
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def answer(form, number) -> str:
    """Answer one form with the mouse and the keyboard. Returns what it says that it has kept."""
    choices = form.locator("label:has(input[type=radio])")
    if choices.count():
        choices.nth(number % choices.count()).click()
    else:
        form.locator("input[type=text]").click()
        form.page.keyboard.type(str(number + 2))
    form.locator("button", has_text="Keep my answer").click()
    form.locator("[role=status]", has_text="Kept: ").wait_for(timeout=10_000)
    return re.fullmatch(r"Kept: (.+)\. You can change it until you see the measurement\.", form.locator("[role=status]").inner_text())[1]


def work_through(page, path) -> dict[str, str]:
    """Run a lesson up to each question, answer it, run on. Returns the kept answers by the id of the question."""
    kept, begin = {}, 0
    asked = calls(path, "predict")
    for last in [*sorted({cell for cell, _, _ in asked}), page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets.length") - 1]:
        page.evaluate(RUN, [begin, last])
        begin = last + 1
        questions = [id for cell, id, _ in asked if cell == last]
        cell = page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{last}']")
        if questions:
            page.evaluate("cell => window.jupyterapp.shell.currentWidget.content.scrollToItem(cell, 'center')", last)
            cell.locator("button", has_text="Keep my answer").nth(len(questions) - 1).wait_for(timeout=10_000)
        forms = cell.locator(".jp-OutputArea-child").filter(has=page.locator("button", has_text="Keep my answer"))
        kept |= {id: answer(forms.nth(number), len(kept) + number) for number, id in enumerate(questions)}
    return kept


def unfold(page) -> int:
    """Click every folded answer open, and find something to read in it. Returns how many there were."""
    opened = 0
    for number in page.evaluate(FOLDED):
        page.evaluate("cell => window.jupyterapp.shell.currentWidget.content.scrollToItem(cell, 'start')", number)
        folds = page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{number}'] details")
        folds.first.wait_for(timeout=10_000)
        for fold in folds.all():                                      # an outer one stands before what is folded into it
            closed = fold.bounding_box()["height"]
            fold.locator("> summary").click()
            assert fold.get_attribute("open") is not None and fold.bounding_box()["height"] > closed + 15
            opened += 1
        if PICTURES:
            page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{number}']").screenshot(path=f"{PICTURES}/{page.title().split('.')[0][-12:].strip()}-{number}.png")
    return opened


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_a_lesson_is_worked_through(path, lab, page, complaints):
    open_notebook(page, re.sub(r"/lab/tree/nbs/.*?\.ipynb", f"/doc/tree/nbs/{path.name}", lab))
    kept = work_through(page, path)
    cells = page.evaluate(CELLS)
    assert [f"{cell['id']}: {output['ename']}: {output['evalue']}" for cell in cells for output in cell["outputs"] if output["output_type"] == "error"] == []
    assert [cell["id"] for cell in cells if not cell["count"]] == [] and len(kept) >= 2

    shown = "".join("".join(output.get("data", {}).get("text/html", "")) for cell in cells for output in cell["outputs"])
    said = [html.unescape(text) for text in re.findall(r">You said</th><td[^>]*>(.*?)</td>", shown)]
    assert sorted(said) == sorted(kept.values()), "each reveal shows the answer that was kept for it"
    for number, id, _ in calls(path, "reveal"):     # and it is there on the page, not only in the file
        page.evaluate("cell => window.jupyterapp.shell.currentWidget.content.scrollToItem(cell, 'center')", number)
        page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{number}'] tr:has-text('You said'):has-text({kept[id]!r})").first.wait_for(timeout=10_000)
    assert unfold(page) >= 3
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    assert complaints == []


PLACE = "id => window.jupyterapp.shell.currentWidget.content.widgets.findIndex(c => c.model.sharedModel.id === id)"


def type_into(page, id, code):
    """Click into a cell, and put this in the place of what is there."""
    number = page.evaluate(PLACE, id)
    page.evaluate("cell => window.jupyterapp.shell.currentWidget.content.scrollToItem(cell, 'center')", number)
    page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{number}'] .cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(code)


def run_and_read(page, id) -> str:
    """Run one cell with the keyboard; what then stands under it."""
    number = page.evaluate(PLACE, id)
    page.evaluate(RUN, [number, number])
    cell = page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{number}']")
    if PICTURES:
        cell.screenshot(path=f"{PICTURES}/exercise-{id}-{len(os.listdir(PICTURES))}.png")
    return cell.locator(".jp-OutputArea").inner_text()


def test_an_exercise_is_solved_by_typing(lab, page, copy_of_lab, complaints):
    """Nothing, then a wrong answer, then our solution: each gets its own words, and the agent works with what was typed."""
    write_exercises(copy_of_lab / "mine")
    open_notebook(page, re.sub(r"/lab/tree/nbs/.*?\.ipynb", "/doc/tree/mine/01_tools_exercises.ipynb", lab))
    assert run_and_read(page, "begin-imports") == ""
    run_and_read(page, "clip-yours")
    assert "not written yet" in run_and_read(page, "clip-check")
    type_into(page, "clip-yours", "def clip(s, limit=MAX_OUT):\n    return s[:limit]")
    run_and_read(page, "clip-yours")
    assert "Keep the end as well" in run_and_read(page, "clip-check")
    assert unfold(page) >= 15
    type_into(page, "clip-yours", EXERCISES["clip"].source)
    run_and_read(page, "clip-yours")
    assert ": right, all" in run_and_read(page, "clip-check")
    tried = run_and_read(page, "clip-try")
    assert "your clip: status done" in tried and "The task is solved." in tried
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    assert complaints == []
