"""The lesson in a real JupyterLab, in a real browser that can reach nothing but this machine."""
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from conftest import ROOT
from test_repo import copy_of_the_project

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install your system's chromium package"),
              pytest.mark.skipif(sys.platform == "darwin", reason="optional: driven on Linux only")]

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The URL that `make lab` prints, for a copy of the project."""
    folder = tmp_path_factory.mktemp("lab")
    copy = copy_of_the_project(folder)
    printed = subprocess.run(["make", "--no-print-directory", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    command = printed[-1].replace(".venv/bin/jupyter", str(ROOT / ".venv" / "bin" / "jupyter") if (ROOT / ".venv").exists() else "jupyter")
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_DATA_DIR": str(folder / "data"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
                   "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "IPYTHONDIR": str(folder / "ipython"),
                   "BROWSER": "/bin/false", "PYTHONUNBUFFERED": "1"}
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


def test_make_lab_opens_the_first_lesson_and_it_runs(lab, tmp_path):
    from playwright.sync_api import sync_playwright
    assert "00_loop.ipynb" in lab
    outside = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(str(tmp_path / "profile"), executable_path=CHROMIUM, headless=True, args=FLAGS)
        page = browser.new_page()

        def refuse_outside(route):
            inside = re.match(r"(https?|ws)://(127\.0\.0\.1|localhost):|data:|blob:", route.request.url)
            outside.extend([] if inside else [route.request.url])
            route.continue_() if inside else route.abort()

        page.route("**/*", refuse_outside)
        page.goto(lab, timeout=60_000)
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", timeout=90_000)
        assert page.evaluate("() => window.jupyterapp.shell.currentWidget.context.path").endswith("00_loop.ipynb")
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        state = page.evaluate("""() => window.jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code').map(c => ({
            count: c.model.executionCount, outputs: Array.from({length: c.model.outputs.length}, (_, i) => c.model.outputs.get(i).toJSON().output_type)}))""")
        assert all(cell["count"] for cell in state) and not any("error" in cell["outputs"] for cell in state)
        assert page.locator(".jp-RenderedHTMLCommon >> text=blindfolded").count() == 1
        page.unroute_all(behavior="ignoreErrors")
        browser.close()
    assert outside == []
