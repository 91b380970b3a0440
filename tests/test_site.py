"""The static site: built once, its links looked up, and its pages opened as files in a real browser that can reach nothing else."""
import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install your system's chromium package")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND"]
pytestmark = pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_nb", "furo")), reason="optional: the site needs Sphinx: make site")
LESSONS = sorted(path.stem for path in (ROOT / "nbs").glob("0*.ipynb"))
PAGES = ["index", *LESSONS, "appendix", "glossary", "CONTRIBUTING", "appendix/charts", "appendix/stepper", "appendix/glossary"]


def build(folder):
    return subprocess.run([sys.executable, str(ROOT / "scripts" / "build_site.py"), str(folder)], capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(folder)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    assert "no broken link" in done.stdout
    return folder


def test_every_notebook_has_its_page_and_nothing_of_nbdev_is_left(site):
    for path in (ROOT / "nbs").rglob("*.ipynb"):
        if ".ipynb_checkpoints" not in path.parts:
            text = (site / path.relative_to(ROOT / "nbs")).with_suffix(".html").read_text()
            assert '<span class="c1">#|' not in text and "flowchart LR" not in text, path
    assert "playground" not in (site / "index.html").read_text(), "a hidden cell is shown"


def test_links_turn_into_links_of_the_site(tmp_path):
    import build_site
    pages = build_site.Pages(tmp_path)
    lesson, appendix = ROOT / "nbs" / "01_tools.ipynb", ROOT / "nbs" / "appendix" / "charts.ipynb"
    assert pages.prose("[a](00_loop.ipynb#cell-id=loop-bug-1) [b](appendix/charts.ipynb#The-bill)", lesson) == "[a](00_loop.html#cell-id=loop-bug-1) [b](appendix/charts.html#the-bill)"
    assert pages.prose("[a](../00_loop.ipynb) [b](../../CONTRIBUTING.md) ![c](../figures/loop.svg)", appendix) == "[a](../00_loop.html) [b](../CONTRIBUTING.html) ![c](../figures/loop.svg)"
    assert pages.prose("[a](../harnesslab/loop.py) [b](appendix) [c](https://a.example/x.ipynb)", lesson) == "[a](harnesslab/loop.py.html) [b](appendix.html) [c](https://a.example/x.ipynb)"
    assert pages.prose('`[a](00_loop.ipynb)` <a href="00_loop.ipynb">x</a> [a](#How-it-fails)', lesson) == '`[a](00_loop.ipynb)` <a href="00_loop.html">x</a> [a](#how-it-fails)'
    assert pages.prose("[a](gone.ipynb)", lesson) == "[a](gone.ipynb)"          # for the check to find
    assert ROOT / "harnesslab" / "loop.py" in pages.waiting


def test_a_tooltip_leads_into_the_glossary(tmp_path, site):
    import build_site
    from harnesslab.glossary import GLOSSARY, term
    prose = build_site.Pages(tmp_path).prose(f"A {term('harness')} and <abbr title='another'>x</abbr>.", ROOT / "nbs" / "appendix" / "charts.ipynb")
    assert prose.startswith('A <a class="word" href="../glossary.html#term-harness"><abbr title="') and "<abbr title='another'>" in prose
    ids = re.findall(r'<dt id="([^"]+)"', (site / "glossary.html").read_text())
    assert len(ids) == len(set(ids)) == len(GLOSSARY) and "term-harness" in ids


def test_the_link_check_sees_what_is_broken(tmp_path):
    import check_links
    (tmp_path / "b.html").write_text('<p id="here">')
    (tmp_path / "a.html").write_text('<a href="b.html#here"></a><a href="https://a.example">'
                                     '<a href="b.html#gone"></a><a href="c.html"></a><img src="d.png"><script src="https://a.example/x.js"></script>')
    (tmp_path / "a.css").write_text("@import 'https://a.example/x.css'; p { background: url(e.png) }")
    assert check_links.broken(tmp_path) == ["a.css: loads @import 'https://a.example/x.css", "a.html: b.html#gone has no such anchor", "a.html: c.html leads nowhere",
                                            "a.html: d.png leads nowhere", "a.html: https://a.example/x.js loads from elsewhere"]


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    done = build(tmp_path)
    assert done.returncode != 0 and "name another folder" in done.stderr and (tmp_path / "thesis.txt").exists()


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, site):
    """Opens a page of the site as a file. A request for anything outside of the site, an error in the console, or one of a script fails the test."""
    contexts, trouble = [], []

    def open_(name, width=1200, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **options))
        page = contexts[-1].new_page()

        def refuse_outside(route):
            inside = route.request.url.startswith((site.as_uri() + "/", "data:"))
            trouble.extend([] if inside else [route.request.url])
            route.continue_() if inside else route.abort()

        page.route("**/*", refuse_outside)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
        page.goto(f"{site.as_uri()}/{name}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert trouble == []


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@needs_browser
def test_pages_load_alone_and_fit_narrow_and_wide(open_page, site):
    page = open_page("index.html")
    for name in PAGES:
        page.goto(f"{site.as_uri()}/{name}.html")
        images = page.evaluate("[...document.images].map(i => [i.src, i.loading === 'lazy' || i.naturalWidth > 0, i.alt])")
        assert all(loaded and alt for _, loaded, alt in images), (name, images)
        for width in (375, 1000, 1330, 1600):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)


@needs_browser
def test_light_dark_and_the_switch_between_them_from_the_keyboard(open_page):
    light, dark = open_page("00_loop.html", color_scheme="light"), open_page("00_loop.html", color_scheme="dark")
    assert background(light) != background(dark)
    code = "getComputedStyle(document.querySelector('.cell_input .highlight')).backgroundColor"
    assert light.evaluate(code) != dark.evaluate(code)
    before = background(light)
    switch = light.locator(".theme-toggle:visible").first
    switch.focus()
    light.keyboard.press("Enter")
    assert background(light) != before


@needs_browser
def test_search_works_without_a_server(open_page):
    page = open_page("appendix/charts.html")
    page.locator("input[name=q]:visible").fill("harness")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results li a")
    page.wait_for_function("document.querySelector('.search-summary').textContent.includes('found')")
    assert page.locator("#search-results li").count() > 5
    page.locator("#search-results li a", has_text="00 The loop").first.click()
    page.wait_for_selector("h1")
    assert page.locator("h1").inner_text().startswith("00 The loop")


@needs_browser
def test_answers_open_and_links_to_cells_arrive(open_page):
    page = open_page("03_traces.html")
    answer = page.locator("details:has(summary):not(.hide)").first
    assert not answer.locator("p").first.is_visible()
    answer.locator("summary").focus()
    page.keyboard.press("Enter")
    assert answer.locator("p").first.is_visible()
    assert page.locator("math").count() > 10 and page.locator("math[display=block] mfrac").count() >= 1
    ids = [cell["id"] for cell in json.loads((ROOT / "nbs" / "00_loop.ipynb").read_text())["cells"]]
    page = open_page(f"00_loop.html#cell-id={ids[-3]}")
    target = f'document.getElementById("cell-id={ids[-3]}").getBoundingClientRect().y'
    page.wait_for_function(f"window.scrollY > 1000 && {target} >= 0 && {target} < 800")
