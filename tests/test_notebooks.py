"""Every notebook runs from top to bottom on a real kernel, from an installed wheel, away from the source tree. Where there is a browser, the lessons do so in
JupyterLab: test_lab_lessons.py."""
import shutil

import nbformat
import pytest
from nbclient import NotebookClient

from conftest import ROOT
from test_lab import CHROMIUM
from test_lessons import LESSONS
from test_repo import NOTEBOOKS


def test_wheel_holds_the_package_and_its_licence(installed):
    names = {path.name for path in (installed / "harnesslab").iterdir()}
    assert {path.name for path in (ROOT / "harnesslab").glob("*.py")} <= names
    assert list(installed.glob("harnesslab_kit-*.dist-info/licenses/LICENSE"))


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if CHROMIUM is None or path not in LESSONS], ids=lambda p: p.stem)
def test_notebook_runs_on_a_real_kernel(path, installed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    copy = tmp_path / "elsewhere" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    notebook = nbformat.read(copy, as_version=4)
    where = nbformat.v4.new_code_cell(f"import harnesslab; assert harnesslab.__file__.startswith({str(installed)!r}), harnesslab.__file__")
    notebook.cells.insert(0, where)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(copy.parent)}}).execute()
    assert [p.name for p in copy.parent.iterdir()] == [path.name], "the notebook left something behind"
