"""The repo itself: exported code equals the notebooks, notebooks are clean, arrows run one way, nothing private or generated slips in."""
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from conftest import ROOT

NOTEBOOKS = sorted(path for path in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
PACKAGE = ROOT / "harnesslab"


def tracked_files() -> list[Path]:
    """Files of the project: those that git knows, or all of them in a copy without git."""
    done = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True)
    if done.returncode == 0 and done.stdout:
        return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not {".venv", ".git", "__pycache__"} & set(path.parts)]


def copy_of_the_project(folder: Path) -> Path:
    copy = folder / "copy"
    for path in tracked_files():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    return copy


def derive(copy: Path) -> None:
    done = subprocess.run([sys.executable, str(copy / "scripts" / "notebooks.py"), str(copy)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def differences(copy: Path) -> list[str]:
    names = {str(p.relative_to(ROOT)) for p in tracked_files()} | {
        str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    return sorted(n for n in names if not (copy / n).exists() or not (ROOT / n).exists() or (copy / n).read_bytes() != (ROOT / n).read_bytes())


@pytest.fixture(scope="module")
def derived(tmp_path_factory):
    """A copy of the project with everything exported, cleaned and written again."""
    copy = copy_of_the_project(tmp_path_factory.mktemp("derived"))
    derive(copy)
    return copy


def test_modules_notebooks_and_readme_are_up_to_date(derived):
    assert differences(derived) == [], "run `make notebooks` and commit what it changes"


def test_the_check_sees_a_hand_edit_and_a_stale_module(derived):
    (derived / "harnesslab" / "loop.py").write_text((derived / "harnesslab" / "loop.py").read_text() + "\n# by hand\n")
    shutil.copy(derived / "harnesslab" / "loop.py", derived / "harnesslab" / "stale.py")
    assert differences(derived) == ["harnesslab/loop.py", "harnesslab/stale.py"]
    derive(derived)
    assert differences(derived) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_clean(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert "widgets" not in notebook["metadata"]
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    assert all(re.match(r"[a-z_]+[a-z0-9_]*-", i) for i in ids), "cell ids are names, so that they stay the same"
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "code":
            assert bool(cell["outputs"]) == ("keep-output" in tags), f"{cell['id']}: only tagged cells keep their output (make figures)"
            for output in cell["outputs"]:
                assert output["output_type"] != "error" and "application/vnd.jupyter.widget-view+json" not in output.get("data", {}), cell["id"]
    assert path.stat().st_size < 250_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_code_cells_are_not_cut_off(path):
    """JupyterLab does not wrap code: in a window of ordinary width, what is longer is out of sight."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [line for cell in cells for line in "".join(cell["source"]).split("\n") if len(line) > 112] == []


def test_all_notebooks_together_stay_small():
    """The lessons as files, and all of them as git keeps them."""
    assert sum(path.stat().st_size for path in NOTEBOOKS if path.name.startswith("0")) < 1_500_000
    assert sum(len(zlib.compress(path.read_bytes())) for path in NOTEBOOKS) < 1_500_000


def arrows() -> dict[str, set[str]]:
    """The table of CONTRIBUTING.md: module to the modules that it may import."""
    table = re.search(r"```\n(loop .*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    rows: dict[str, set[str]] = {}
    for line in table.strip().splitlines():
        name, allowed = line.split(":")
        rows[name.strip()] = set(rows) if allowed.strip() == "everything above" else set(allowed.replace("-", "").split())
    return rows


def imports_of(module: Path) -> set[str]:
    """Modules of ours that a module imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level == 1 or base == "harnesslab":
                inner = base.removeprefix("harnesslab").strip(".")
                found |= {inner.split(".")[0]} if inner else {alias.name for alias in node.names}
            elif base.startswith("harnesslab."):
                found.add(base.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("harnesslab.")}
    return found & {path.stem for path in PACKAGE.glob("*.py")}


MODULES = sorted(path for path in PACKAGE.glob("*.py") if not path.stem.startswith("_"))


@pytest.mark.parametrize("module", MODULES, ids=lambda p: p.stem)
def test_arrows_run_one_way(module):
    table = arrows()
    assert module.stem in table, "a new room needs its line in CONTRIBUTING.md"
    assert imports_of(module) <= table[module.stem]


def test_arrow_table_has_no_circle():
    table, settled = arrows(), set()
    while table:
        free = [name for name, allowed in table.items() if allowed <= settled]
        assert free, f"a circle among {sorted(table)}"
        settled |= set(free)
        for name in free:
            del table[name]


def test_arrow_check_sees_a_wrong_import(tmp_path):
    module = tmp_path / "loop.py"
    module.write_text("def f():\n    from harnesslab.sandbox import run_agent\n    from . import tools\n    import harnesslab.fences\n")
    assert imports_of(module) == {"sandbox", "tools", "fences"}


def test_importing_loads_nothing_heavy():
    code = ("import sys, harnesslab; first = set(sys.modules); from harnesslab import run_agent, run_loop, read_file\n"
            "heavy = {'pandas', 'altair', 'ipywidgets', 'IPython', 'anywidget', 'mcp', 'numpy'}\n"
            "assert not {'httpx', 'pydantic'} & first, 'import harnesslab is not lazy'\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_can_be_imported():
    import harnesslab
    assert "run_agent" in harnesslab.__all__ and len(harnesslab.__all__) == len(set(harnesslab.__all__))
    for name in harnesslab.__all__:
        assert getattr(harnesslab, name) is not None
    assert set(harnesslab.__all__) <= set(dir(harnesslab))
    with pytest.raises(AttributeError, match="no_such_name"):
        harnesslab.no_such_name


def test_no_machine_path_secret_or_registry_address():
    home, parent = str(Path.home()), str(ROOT.parent)
    forbidden = [re.escape(p + "/") for p in {home, parent} if p not in ("/", "")] + [
        r"sk-ant-[A-Za-z0-9]{8}", r"--(extra-)?index-url", r"https?://[^\s/]*pypi[^\s]*/simple"]
    pattern = re.compile("|".join(forbidden))
    found = []
    for path in tracked_files():
        if path.name == "test_repo.py" or path.suffix in {".png", ".whl"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert found == []


def test_lock_covers_what_pyproject_asks_for():
    import tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = set(re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    wanted = project["dependencies"] + [r for rows in project["optional-dependencies"].values() for r in rows]
    names = {re.match(r"[A-Za-z0-9_.-]+", r)[0].lower() for r in wanted}
    assert names <= {name.lower() for name in locked}


def test_names_of_distribution_and_import():
    import tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "harnesslab-kit"
    readme = (ROOT / "README.md").read_text()
    assert not re.search(r"pip install harnesslab(?!-kit)(?!` from)", readme)


@pytest.mark.parametrize("path", [*NOTEBOOKS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\((?![a-z]+:|#)([^)\s#]+)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_makefile_says_what_is_missing(tmp_path):
    """An old Python is refused with a sentence, before anything is made."""
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    done = subprocess.run(["make", "demo", f"PYTHON={fake}"], cwd=tmp_path, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode != 0 and "older than Python 3.11" in done.stdout and not (tmp_path / ".venv").exists()
    done = subprocess.run(["make", "demo", "PYTHON="], cwd=tmp_path, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode != 0 and "Python 3.11 or newer is needed" in done.stdout
