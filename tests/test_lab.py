"""The lesson in a real JupyterLab, in a real browser that can reach nothing but this machine."""
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import nbformat
import pytest

from conftest import ROOT
from test_cli import wait_until
from test_repo import copy_of_the_project

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install your system's chromium package"),
              pytest.mark.skipif(sys.platform == "darwin", reason="optional: driven on Linux only")]

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]


@pytest.fixture(scope="module")
def copy_of_lab(tmp_path_factory):
    return copy_of_the_project(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def lab(copy_of_lab, installed):
    """The URL that `make lab` prints, for a copy of the project. The kernels get harnesslab from an installed wheel."""
    copy, folder = copy_of_lab, copy_of_lab.parent
    printed = subprocess.run(["make", "--no-print-directory", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    command = printed[-1].replace(".venv/bin/jupyter", str(ROOT / ".venv" / "bin" / "jupyter") if (ROOT / ".venv").exists() else "jupyter")
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_DATA_DIR": str(folder / "data"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
                   "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "IPYTHONDIR": str(folder / "ipython"),
                   "BROWSER": "/bin/false", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(installed)}
    server = subprocess.Popen(["/bin/sh", "-c", f"exec {command} --LabApp.expose_app_in_browser=True"], cwd=copy, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, start_new_session=True)
    lines = []
    threading.Thread(target=lambda: lines.extend(iter(server.stdout.readline, "")), daemon=True).start()
    url, end = None, time.monotonic() + 60
    while url is None and time.monotonic() < end and server.poll() is None:
        url = next((m[0] for line in list(lines) if (m := re.search(r"http://(localhost|127\.0\.0\.1):\S+token=\w+", line))), None)
        time.sleep(0.1)
    assert url, "".join(lines)
    yield url
    os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def page(lab, tmp_path_factory):
    """A page of a browser that can reach nothing but this machine; at the end, it must not have tried to."""
    from playwright.sync_api import sync_playwright
    outside = []
    with sync_playwright() as playwright:
        profile = str(tmp_path_factory.mktemp("profile"))
        browser = playwright.chromium.launch_persistent_context(profile, executable_path=CHROMIUM, headless=True, args=FLAGS)
        page = browser.new_page()

        def refuse_outside(route):
            inside = re.match(r"(https?|ws)://(127\.0\.0\.1|localhost):|data:|blob:", route.request.url)
            outside.extend([] if inside else [route.request.url])
            route.continue_() if inside else route.abort()

        page.route("**/*", refuse_outside)
        yield page
        page.unroute_all(behavior="ignoreErrors")
        browser.close()
    assert outside == []


def open_notebook(page, url):
    page.goto(url, timeout=60_000)
    page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", timeout=90_000)


def test_make_lab_opens_the_first_lesson_and_it_runs(lab, page):
    assert "00_loop.ipynb" in lab
    open_notebook(page, lab)
    assert page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path").endswith("00_loop.ipynb")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    state = page.evaluate("""() => window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code').map(c => ({
        count: c.model.executionCount, outputs: Array.from({length: c.model.outputs.length}, (_, i) => c.model.outputs.get(i).toJSON().output_type)}))""")
    assert all(cell["count"] for cell in state) and not any("error" in cell["outputs"] for cell in state)
    assert page.locator(".jp-RenderedHTMLCommon >> text=blindfolded").count() == 1


ASKING = """
from pathlib import Path
from harnesslab import call, make_repo, offline, run_agent_in_notebook, say

repo = make_repo(Path("asked"))
replies = [[call("edit_file", path="a.txt", old="", new="one <b>\\n")], [call("edit_file", path="b.txt", old="", new="two\\n")],
           [call("run_command", cmd="touch begun; sleep 60", timeout=60)], [say("never")]]
run = await run_agent_in_notebook("task", repo, model=offline(replies))
print("the end:", run.status, (repo / "a.txt").exists(), (repo / "b.txt").exists(), (repo / "begun").exists())
"""


def test_buttons_ask_and_the_cell_can_be_interrupted(lab, page, copy_of_lab):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ASKING)], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    nbformat.write(notebook, copy_of_lab / "asking.ipynb")
    open_notebook(page, lab.replace("/lab/tree/nbs/00_loop.ipynb", "/doc/tree/asking.ipynb"))
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")

    def press(label, question):
        page.wait_for_selector(f".jupyter-widgets pre:has-text('{question}')", timeout=30_000)
        page.click(f"button.jupyter-button:has-text('{label}')")

    page.wait_for_timeout(1500)
    assert page.locator(".Toastify__toast, .jp-toastContainer >> text=news").count() == 0
    press("Yes", "+ one <b>")
    press("No", "+ two")
    press("Yes", "sleep 60")
    wait_until(lambda: (copy_of_lab / "asked" / "begun").exists())
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:interrupt-kernel') }")
    page.wait_for_selector(".jp-OutputArea-output >> text=the end: interrupted True False True", timeout=20_000)
