"""The stepper: its data, and its page in a real browser: as a file, and inside a real JupyterLab. Nothing but this machine can be reached."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harnesslab.loop import EventLog, UsageError
from harnesslab.stepper import page_data, plain, static_html, step_through, to_html
from harnesslab.traces import Prices, Trace, fold

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install your system's chromium package")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
EVIL = "</script><script>window.evil=1</script><img src=x onerror=\"window.evil=1\"><!--<script>"
PRICES = {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75, "source": "made up", "date": "2026-11-30"}
EDIT = {"path": "a.py", "old": "x = 1\ny = 2", "new": "x = 1\ny = 3"}


def make_events(turns=10, errors=(3, 7), words="some text", prices=PRICES, end="done", answer="All is done."):
    """The events of a made-up run: each turn is one call and its result."""
    events = []

    def add(type, step, **payload):
        events.append({"v": 1, "run": "made", "n": len(events), "step": step, "time": 1000.0 + len(events), "type": type, "payload": payload})

    add("run_started", 0, task="Count the words.", system="You are an agent.", tools=[{"name": "read_file", "description": "reads"}],
        model={"name": "m", "window": 200_000, "prices": prices, "scripted": False}, limits={"max_steps": 30})
    for turn in range(1, turns + 1):
        name, arguments = ("edit_file", EDIT) if turn % 4 == 0 else ("read_file", {"path": f"file_{turn}.py"})
        call = {"type": "tool_use", "id": f"c{turn}", "name": name, "input": arguments}
        add("model_called", turn, max_tokens=100)
        add("model_replied", turn, content=[{"type": "text", "text": f"I say {turn}."}, call], stop_reason="tool_use",
            usage={"fresh": 0, "cache_read": 900 + 100 * turn, "cache_write": 100, "output": 20}, seconds=0.5, tries=1, waits=0.0)
        add("tool_called", turn, id=f"c{turn}", name=name, arguments=arguments)
        wrong = turn in errors
        add("tool_returned", turn, id=f"c{turn}", name=name, content=f"wrong {turn}" if wrong else f"{words} {turn}\nsecond line", is_error=wrong, seconds=0.01)
    if answer:
        add("model_replied", turns + 1, content=[{"type": "text", "text": answer}], stop_reason="end_turn",
            usage={"fresh": 0, "cache_read": 2000, "cache_write": 100, "output": 9}, seconds=0.5, tries=1, waits=0.0)
    if end:
        add("run_ended", turns + 1, status=end, answer=answer, error="")
    return events


def write(path, events):
    with EventLog(path) as log:
        for event in events:
            log(event)
    return path


# ---- the data


def test_importing_loads_no_widgets():
    code = ("import sys, harnesslab.stepper as s; e = [{'type': 'run_started', 'payload': {'task': 'x'}}]; s.plain(e); s.static_html(e)\n"
            "heavy = {'anywidget', 'ipywidgets', 'traitlets', 'IPython', 'pandas'}; assert not heavy & set(sys.modules), heavy & set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_numbers_are_those_of_the_fold():
    events = make_events()
    run, folded = page_data(events)["runs"][0], fold(events)
    assert [event["k"] for event in run["events"]] == [moment.kind for moment in folded.moments] and len(run["events"]) == 22
    assert sum(event.get("e", 0) for event in run["events"]) == folded.totals.tool_errors == 2
    assert run["calls"][-1]["ci"] == folded.totals.usage.input and run["calls"][-1]["cd"] == pytest.approx(folded.totals.dollars)
    assert all(sum(call["m"]) == call["in"] for call in run["calls"])
    assert 0 < run["calls"][-1]["cc"] < run["calls"][-1]["ci"]


def test_the_bar_before_a_call_is_what_that_call_was_billed():
    run = page_data(make_events())["runs"][0]
    results = [event for event in run["events"] if event["k"] == "result"]
    assert all(event["exact"] for event in results)
    assert [sum(event["m"]) for event in results] == [call["in"] for call in run["calls"][1:]]


def test_unknown_prices_stay_unknown_and_given_ones_count():
    run = page_data(make_events(prices=None))["runs"][0]
    assert run["calls"][0]["cd"] is None and dict(run["totals"])["cost"] == "price unknown"
    priced = page_data(make_events(prices=None), prices=Prices(1, 1, 1, 1))["runs"][0]
    assert priced["calls"][-1]["cd"] == pytest.approx((priced["calls"][-1]["ci"] + 209) / 1e6)
    assert priced["calls"][-1]["cc"] == priced["calls"][-1]["ci"]      # where the cache costs as much, the lines are one


def test_waits_nudges_edits_and_thrown_away_replies_are_notes():
    events = make_events(turns=2)
    extra = [("model_waited", {"try": 1, "seconds": 2.5, "reason": "HTTP 529"}),
             ("model_replied", {"content": [{"type": "text", "text": "cut o"}], "stop_reason": "max_tokens", "usage": {}}),
             ("history_edited", {"kind": "clear_results", "cleared": {}}), ("something_new", {"a": 1})]
    at = next(i for i, event in enumerate(events) if event["type"] == "model_called")
    events[at + 1:at + 1] = [{**events[at], "type": type, "payload": payload} for type, payload in extra]
    notes = "\n".join(page_data(events)["runs"][0]["events"][1]["notes"])
    assert "waited 2.5 s after try 1: HTTP 529" in notes and "cut o" in notes and "max_tokens" in notes
    assert "clear_results" in notes and "something_new" in notes and "is lost" not in notes


@pytest.mark.parametrize("edit, shown, lost", [
    ({"kind": "user", "text": "Here is my log.", "added": [{"role": "user", "content": "Here is my log."}]}, "user: Here is my log.", False),
    ({"kind": "compact", "messages": [{"role": "user", "content": "short"}]}, "the history was edited: compact.", True),
    ({"kind": "clear_results", "cleared": {"c1": "gone"}}, "the history was edited: clear_results.", True),
    ({"kind": "not_compacted", "why": "too long"}, "not_compacted: too long", False),
])
def test_only_an_edit_of_what_was_sent_loses_the_cache(edit, shown, lost):
    events = make_events(turns=2)
    events.insert(5, {**events[5], "type": "history_edited", "payload": edit})
    assert shown in plain(events) and ("is lost" in plain(events)) == lost


def test_a_run_without_an_answer_says_how_it_ended():
    run = page_data(make_events(end="max_steps", answer=""))["runs"][0]
    assert run["status"] == "max_steps" and "status max_steps" in run["events"][-1]["notes"][0]
    assert "max_steps" in plain(make_events(end="max_steps", answer="")) and "max_steps" in static_html(make_events(end="max_steps", answer=""))


def test_damage_is_survived_and_told(tmp_path):
    path = write(tmp_path / "t.jsonl", make_events(end="", answer=""))
    with open(path, "ab") as file:
        file.write(b'{"torn": "li\n' + b"\0" * 100)
    run = page_data(path)["runs"][0]
    assert any("damaged line" in remark for remark in run["remarks"]) and run["status"] == "" and len(run["events"]) == 21
    assert page_data([])["runs"][0]["events"] == [] and "no end recorded" in plain([])
    odd = make_events(turns=1)
    odd[2]["payload"] |= {"content": "no list", "seconds": float("nan"), "usage": {"fresh": "many"}}
    odd[4]["payload"] |= {"content": None, "seconds": "long"}
    odd[4]["step"] = "\x1b[2J"
    assert "\x1b" not in plain(odd)
    for strange in (odd, make_events(prices={**PRICES, "input": float("nan")}), make_events(prices={"input": 1})):
        to_html(strange, tmp_path / "odd.html")


def test_bad_use_is_one_sentence(tmp_path):
    for attempt in (lambda: plain(tmp_path / "nothing"), lambda: to_html(make_events(), tmp_path / "no" / "folder.html"), lambda: step_through(tmp_path)):
        with pytest.raises(UsageError) as error:
            attempt()
        assert len(str(error.value)) < 250


def test_untrusted_text_stays_text(tmp_path):
    events = make_events(words=EVIL, answer=EVIL + "\x1b[2J\u202e")
    events[0]["payload"]["task"] = EVIL
    text = to_html(events, tmp_path / "t.html", title=EVIL).read_text()
    assert EVIL not in text and "<img" not in text.lower() and text.count("<script") == text.count("</script") == 2
    shown = static_html(events)
    assert "<img" not in shown and "<script" not in shown and "&lt;img" in shown
    assert "\x1b" not in plain(events) and "\u202e" not in plain(events) and "\\x1b[2J" in plain(events)


def test_page_code_asks_for_nothing(tmp_path):
    text = to_html(make_events(), tmp_path / "t.html").read_text()
    assert not re.search(r"\b(?:fetch|XMLHttpRequest|WebSocket|import)\s*\(|@import|url\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)
    assert "default-src 'none'" in text and set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}


def test_very_long_trace_is_cut_in_the_static_form_only(tmp_path):
    events = make_events(turns=300, words="x" * 5000)
    assert 300_000 < len(static_html(events)) < 1_400_000 and "characters here" in static_html(events)
    assert len(plain(events)) > 1_000_000


def test_two_runs_part_where_they_differ():
    same = page_data(make_events(), make_events())
    assert same["parted"] == -1 and same["rows"][0] == [0, 0] and set(same["kinds"]) == {"same"} and not same["why"]
    other = page_data(make_events(), make_events(turns=12, errors=()))
    assert other["parted"] == 6 and other["kinds"][6] == "other result" and "another result" in other["why"]
    assert [row for row, kind in zip(other["rows"], other["kinds"]) if kind == "only b"] == [[-1, n] for n in (21, 22, 23, 24)]


# ---- the widget, without a browser


def test_the_saved_form_holds_the_whole_trace(monkeypatch):
    view = step_through(make_events(words=EVIL))
    bundle = view._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in data and data["text/html"].count("<details>") == 22 and "<img" not in data["text/html"]
    monkeypatch.setenv("IN_TEST", "1")
    assert set(view._repr_mimebundle_()) == {"text/html", "text/plain"}
    view.close()


def test_menus_choose_the_run_and_the_prices(tmp_path):
    write(tmp_path / "old.jsonl", make_events(turns=2, prices=None))
    write(tmp_path / "new.jsonl", make_events(turns=4, prices=None))
    os.utime(tmp_path / "old.jsonl", (1, 1))
    view = step_through(tmp_path, prices={"round": Prices(1, 1, 1, 1)})
    shown = lambda: json.loads(view.stepper.data)      # noqa: E731
    assert shown()["runs"][0]["label"] == "new.jsonl" and shown()["runs"][0]["calls"][0]["cd"] is None
    view.price_menu.value = "round"
    assert shown()["runs"][0]["calls"][0]["cd"] > 0
    view.run_menu.value = 1
    assert shown()["runs"][0]["label"] == "old.jsonl"
    view.other_menu.value = 0
    assert [run["label"] for run in shown()["runs"]] == ["old.jsonl", "new.jsonl"] and shown()["parted"] >= 0
    view.close()


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def followers():
    return [thread for thread in threading.enumerate() if thread.name == "harnesslab-stepper"]


def test_follows_a_running_trace_and_stops_it(tmp_path):
    path, cancel, events = tmp_path / "live.jsonl", threading.Event(), make_events()
    view = step_through(path, cancel=cancel)              # the file does not exist yet
    run = lambda: json.loads(view.stepper.data)["runs"][0]      # noqa: E731
    assert run()["live"] and run()["can_stop"] and run()["events"] == []
    write(path, events[:9])
    wait_until(lambda: len(run()["events"]) == 5)
    view.stepper._handle_custom_msg({"stop": True}, [])
    assert cancel.is_set() and run()["live"]
    write(path, events[9:])
    wait_until(lambda: not run()["live"])
    assert run()["status"] == "done" and len(run()["events"]) == 22
    wait_until(lambda: not followers())
    view.close()


def test_the_stop_button_ends_a_real_run_in_good_order(tmp_path):
    from harnesslab import make_repo, run_agent
    path, cancel, done = tmp_path / "run.jsonl", threading.Event(), []
    work = threading.Thread(target=lambda: done.append(run_agent("Fix it.", make_repo(tmp_path / "repo"), "no", model="scripted/walkthrough", trace=path,
                                                                 cancel=cancel, sink=lambda event: time.sleep(0.05))))
    work.start()
    view = step_through(path, cancel=cancel)
    run = lambda: json.loads(view.stepper.data)["runs"][0]      # noqa: E731
    wait_until(lambda: len(run()["events"]) >= 3)
    view.stepper._handle_custom_msg({"stop": True}, [])
    work.join(30)
    wait_until(lambda: not run()["live"])
    assert done[0].status == run()["status"] == "interrupted"
    view.close()


def test_closing_ends_the_thread(tmp_path):
    path = write(tmp_path / "live.jsonl", make_events(end="", answer=""))
    view = step_through(path)                             # written a moment ago and without an end: followed
    assert len(followers()) == 1
    view.close()
    wait_until(lambda: not followers())
    os.utime(path, (1, 1))
    assert not json.loads(step_through(path).stepper.data)["runs"][0]["live"] and not followers()


def test_following_ends_when_there_is_no_news(tmp_path, monkeypatch):
    import harnesslab.stepper as stepper
    monkeypatch.setattr(stepper, "PATIENCE", 0.3)
    view = step_through(write(tmp_path / "killed.jsonl", make_events(end="", answer="")), follow=True)
    wait_until(lambda: "no longer followed" in json.loads(view.stepper.data)["notice"])
    wait_until(lambda: not followers())
    assert not json.loads(view.stepper.data)["runs"][0]["live"]
    view.close()


# ---- the page, in a browser


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens a file made by to_html. Every request but for the file itself is refused and remembered; any error of the page fails the test."""
    contexts, asked, errors = [], [], []

    def open_(*args, size=(1200, 900), waits_for=".hls-row", **options):
        path = to_html(args[0], tmp_path / f"page{len(contexts)}.html", *args[1:])
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        contexts.append(context)
        page = context.new_page()

        def refuse(route):
            mine = route.request.url.split("#")[0] == path.as_uri()
            asked.extend([] if mine else [route.request.url])
            route.continue_() if mine else route.abort()

        page.route("**/*", refuse)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        page.wait_for_selector(waits_for)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert asked == [] and errors == []


def status(page):
    return page.locator(".hls-status").first.inner_text()


def focused(page):
    return page.evaluate("() => document.activeElement.className")


@needs_browser
def test_stepping_errors_and_focus(open_page):
    page = open_page(make_events())
    assert "event 1 of 22: task" in status(page) and focused(page) == "hls-list"
    for key, at in (("ArrowRight", 2), ("j", 3), ("ArrowDown", 4), ("k", 3), ("ArrowLeft", 2), ("ArrowUp", 1), ("ArrowUp", 1), ("End", 22), ("j", 22), ("Home", 1),
                    ("PageDown", 11), ("PageUp", 1), ("n", 7), ("n", 15), ("n", 15), ("p", 7), ("p", 7)):
        page.keyboard.press(key)
        assert f"event {at} of 22" in status(page), key
        assert focused(page) == "hls-list" and page.locator(".hls-current").count() == 1
    assert "no earlier error" in status(page)
    assert "ERROR from read_file, step 3" in status(page)
    row = page.locator(".hls-current")
    assert row.get_attribute("aria-selected") == "true" and "✖ERROR" in row.inner_text().replace(" ", "").replace("\n", "")
    assert page.locator(".hls-list").get_attribute("aria-activedescendant") == row.get_attribute("id")
    page.keyboard.press("Enter")
    assert focused(page) == "hls-detail"
    page.keyboard.press("j")
    assert "event 8 of 22" in status(page) and focused(page) == "hls-detail"
    page.keyboard.press("Escape")
    assert focused(page) == "hls-list"
    page.get_by_role("button", name="go to its result, event 9").click()
    assert "event 9 of 22" in status(page) and focused(page) == "hls-list"
    page.keyboard.press("Home")
    page.locator(".hls-folded summary").first.click()                # focus inside what the next step takes away
    page.keyboard.press("j")
    assert focused(page) == "hls-detail"


@needs_browser
def test_search_filter_and_play(open_page):
    page = open_page(make_events())
    page.keyboard.press("/")
    page.keyboard.type("SAY 4")
    assert "event 8 of 22" in status(page) and "1 of 1" in page.locator(".hls-toolbar").inner_text()
    assert page.locator(".hls-detail mark").first.inner_text() == "say 4"
    page.keyboard.press("Escape")
    assert focused(page) == "hls-list" and "event 8 of 22" in status(page)
    page.keyboard.press("/")
    page.keyboard.type("file_")
    assert "event 10 of 22" in status(page)                          # while typing: the first match from where the search began
    page.keyboard.press("Enter")
    assert "event 12 of 22" in status(page)
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    assert "event 6 of 22" in status(page)
    page.keyboard.press("Control+a")
    page.keyboard.type("no such words (.*[")
    assert "not found" in page.locator(".hls-toolbar").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert page.locator("mark").count() == 0
    for shown, count in (("calls", 10), ("results", 10), ("errors", 2), ("edits", 2)):
        page.keyboard.press("f")
        assert f"showing {shown}: {count}" in status(page) and page.locator(".hls-row").count() == count
    page.keyboard.press("Escape")
    assert page.locator("select").input_value() == "all" and page.locator(".hls-row").count() > 10
    page.keyboard.press("Home")
    page.keyboard.press("f")
    page.keyboard.press("j")
    assert "event 4 of 22" in status(page)                           # stepping stays among the calls
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    page.wait_for_function("() => document.querySelector('.hls-status').textContent.includes('event 4 of 22')", timeout=5000)
    page.keyboard.press(" ")
    assert page.get_by_role("button", name="play (space)").count() == 1


@needs_browser
def test_edit_cut_bill_and_charts(open_page):
    events = make_events(words="a\n[... 1,234 characters cut here ...]\nb")
    page = open_page(events)
    assert "✂ [... 1,234 characters cut here ...]" not in page.locator(".hls-detail").inner_text()
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator(".hls-detail .hls-cut").inner_text().startswith("✂")
    page.locator("[data-place='7']").click()
    assert page.locator(".hls-diff .hls-out").inner_text() == "- y = 2" and page.locator(".hls-diff .hls-in").inner_text() == "+ y = 3"
    assert "Billed input: 5,000 tokens so far, 1,400 of them by call 4" in page.locator(".hls-billed").inner_text()
    assert "$" in page.locator(".hls-billed").inner_text()
    assert page.locator(".hls-bar").get_attribute("aria-label").startswith("Context ")
    chart = page.locator(".hls-chart").nth(1)
    box = chart.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 15, box["y"] + 60)    # the last call
    assert "event 22 of 22" in status(page) and focused(page) == "hls-list"
    assert chart.locator("polyline.hls-cached").evaluate("e => getComputedStyle(e).strokeDasharray") != "none"


@needs_browser
def test_nothing_of_a_trace_becomes_markup(open_page):
    events = make_events(words=EVIL, answer=EVIL)
    events[0]["payload"] |= {"task": EVIL, "system": EVIL, "tools": [{"name": EVIL, "description": EVIL}], "repo": EVIL}
    events[3]["payload"] |= {"name": EVIL, "arguments": {EVIL: EVIL, "__proto__": "x"}}
    page = open_page(events)
    for _ in range(22):
        assert page.locator(".hls img, .hls script").count() == 0
        page.keyboard.press("j")
    page.keyboard.press("/")
    page.keyboard.type("<img")
    assert page.locator("mark").count() > 0 and page.evaluate("() => window.evil") is None


@needs_browser
def test_two_runs_step_together(open_page):
    page = open_page(make_events(), make_events(turns=12, errors=()))
    assert page.locator(".hls-pane").count() == 2 and page.locator(".hls-parted").count() == 2
    for _ in range(6):
        page.keyboard.press("j")
    assert "a: event 7 of 22: ERROR from read_file" in status(page) and "b: event 7 of 26: result" in status(page)
    assert "other result" in status(page) and "here the runs part" in status(page)
    page.keyboard.press("d")
    page.keyboard.press("d")
    assert "a: no event · b: event 22 of 26: call read_file, step 11 · only in run b" in status(page)
    assert "Only the other run" in page.locator(".hls-detail").first.inner_text()
    assert "Event 7" in page.locator(".hls-apart").inner_text()
    scrolls = page.evaluate("() => [...document.querySelectorAll('.hls-list')].map(l => l.scrollTop)")
    assert scrolls[0] == scrolls[1] > 0
    page.keyboard.press("Home")
    page.keyboard.press("Shift+D")
    assert "b: event 25 of 26" in status(page)


@needs_browser
def test_two_runs_without_an_event(open_page):
    page = open_page([], [], waits_for=".hls-empty")
    assert page.locator(".hls-empty").all_inner_texts() == ["No events yet."] * 2 and "a: no event · b: no event" in status(page)
    assert page.locator(".hls-detail").all_inner_texts() == ["Nothing to show."] * 2
    for key in ("j", "End", "n", "d", "Shift+D", "f", "Escape", "/", "?"):
        page.keyboard.press(key)
    one = open_page(make_events(), [])
    one.keyboard.press("End")
    assert "a: event 22 of 22: answer, step 11 · b: no event · only in run a" in status(one)
    one.keyboard.press("f")  # a type that no event of the second run has


@needs_browser
def test_the_widget_hears_of_new_data_whatever_it_began_with(open_page, tmp_path):
    page = open_page([], [], waits_for=".hls-empty")
    later = page_data(make_events(), make_events(turns=12, errors=(3,)))
    shown = page.evaluate("""(later) => {
        const element = document.createElement("div"), heard = {}, bytes = (text) => new TextEncoder().encode(text);
        document.body.append(element);
        let data = bytes(document.getElementById("harnesslab-data").textContent);
        const model = { get: (name) => (name === "data" ? data : 0), set() {}, save_changes() {}, off() {}, on: (name, act) => (heard[name] = act) };
        harnesslabStepper.render({ model, el: element }, () => {});
        const before = element.querySelectorAll(".hls-row").length;
        data = bytes(later);
        heard["change:data"]();
        return [before, element.querySelectorAll(".hls-row").length > 0, element.querySelector(".hls-status").textContent];
    }""", json.dumps(later))
    assert shown[:2] == [0, True] and "a: event 1 of 22: task · b: event 1 of 26: task" in shown[2]


@needs_browser
@pytest.mark.parametrize("size, scheme", [((1400, 900), "light"), ((600, 900), "dark"), ((320, 700), "light")])
def test_fits_and_can_be_read(open_page, size, scheme):
    """Nothing sticks out sideways, also at 200 % zoom (half the width); text has contrast; every control has a name."""
    events = make_events(words="word " * 200 + "x" * 400)
    page = open_page(events, size=size, color_scheme=scheme, reduced_motion="reduce")
    page.keyboard.press("n")
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    contrast = page.evaluate("""() => {
        const rgb = (c) => c.match(/[\\d.]+/g).map(Number), light = (c) => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
        const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return 'rgb(255,255,255)'; };
        const out = [];
        for (const e of document.querySelectorAll('.hls *')) {
            if (!e.getClientRects().length || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.closest('svg, option')) continue;
            const a = light(getComputedStyle(e).color), b = light(back(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) out.push([e.className, e.textContent.slice(0, 30), ratio]);
        }
        return out; }""")
    assert contrast == []
    nameless = page.evaluate("() => [...document.querySelectorAll('button, input, select, svg[role=img], [tabindex]')].filter(e => !(e.getAttribute('aria-label') || e.textContent)).length")
    assert nameless == 0
    assert page.evaluate("() => document.querySelector('[role=status]') && document.querySelector('[role=listbox] [role=option][aria-selected=true]') !== null")


@needs_browser
def test_ten_thousand_events(open_page):
    events = make_events(turns=5000, errors=range(50, 5000, 50), words="word " * 100)
    began = time.perf_counter()
    page = open_page(events)
    first = time.perf_counter() - began
    assert page.locator(".hls-row").count() < 60 and "99 errors" in page.locator(".hls-toolbar").inner_text()
    spent = page.evaluate("""async () => {
        const list = document.querySelector('.hls-list'), spent = [];
        for (const key of [...'jjjjjnnnnnppkkkk', 'End', 'Home', 'PageDown', ...'jjjjjjjjjjjjjjjjjjjjj']) {
            await new Promise(requestAnimationFrame);
            const began = performance.now();
            list.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
            document.body.offsetHeight;
            spent.push(performance.now() - began);
        }
        return spent.sort((a, b) => a - b); }""")
    print(f"10,000 events: file made and first view {first:.2f} s, key to redraw median {spent[len(spent) // 2]:.1f} ms, longest {spent[-1]:.1f} ms")
    assert first < 20 and spent[len(spent) // 2] < 150             # wide bounds, for busy machines: a quiet one needs a small part of them


# ---- inside a real JupyterLab

CELLS = ["""from harnesslab.stepper import step_through
from harnesslab.traces import Prices
view = step_through("trace.jsonl", prices={"round numbers": Prices(1, 1, 1, 1)})
view""", "first = 1", """import json, threading
stop = threading.Event()
def work():
    for line in open("trace.jsonl").read().splitlines()[:-1]:
        with open("live.jsonl", "a") as file:
            file.write(line + "\\n")
        stop.wait(0.01)
    stop.wait(60)
    with open("live.jsonl", "a") as file:
        file.write(json.dumps({"v": 1, "run": "made", "n": 99, "step": 11, "time": 1099.0, "type": "run_ended",
                               "payload": {"status": "interrupted", "answer": ""}}) + "\\n")
threading.Thread(target=work).start()
live = step_through("live.jsonl", cancel=stop)
live""", "second = 2"]
CELLS_NOW = "() => window.jupyterapp.shell.currentWidget.content.widgets.map(c => c.model.sharedModel.getSource())"
ASK_KERNEL = """async (expression) => {
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const reply = await kernel.requestExecute({code: "", user_expressions: {v: expression}}).done;
    return reply.content.user_expressions.v.data["text/plain"]; }"""


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory, installed):
    """A page of JupyterLab in which the cells above have run, and the list of addresses outside this machine that it asked for."""
    import nbformat
    folder = tmp_path_factory.mktemp("lab")
    root = folder / "root"
    root.mkdir()
    write(root / "trace.jsonl", make_events(words=EVIL))
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS], metadata={
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}), root / "stepper.ipynb")
    environment = {**os.environ, "PYTHONPATH": str(installed), "JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_DATA_DIR": str(folder / "data"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
                   "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "IPYTHONDIR": str(folder / "ipython"),
                   "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen([sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={root}",
                               "--LabApp.expose_app_in_browser=True"],
                              cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    lines, outside = [], []
    threading.Thread(target=lambda: lines.extend(iter(server.stdout.readline, "")), daemon=True).start()
    try:
        wait_until(lambda: any(re.search(r"http://127\.0\.0\.1:\S+token=\w+", line) for line in list(lines)) or server.poll() is not None, 60)
        address = next((m for line in list(lines) if (m := re.search(r"(http://127\.0\.0\.1:\d+)/\S*(token=\w+)", line))), None)
        assert address, "".join(lines)
        context = browser.new_context(viewport={"width": 1250, "height": 1900})
        page = context.new_page()

        def refuse_outside(route):
            inside = re.match(r"(https?|ws)://(127\.0\.0\.1|localhost):|data:|blob:", route.request.url)
            outside.extend([] if inside else [route.request.url])
            route.continue_() if inside else route.abort()

        page.route("**/*", refuse_outside)
        page.goto(f"{address[1]}/doc/tree/stepper.ipynb?{address[2]}", timeout=60_000)
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", timeout=90_000)
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function("() => document.querySelectorAll('.hls').length === 2 && document.querySelectorAll('.hls-row').length > 20", timeout=60_000)
        yield page, outside
        page.unroute_all(behavior="ignoreErrors")
        context.close()
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


linux_only = pytest.mark.skipif(sys.platform == "darwin", reason="optional: JupyterLab is driven on Linux only")


@needs_browser
@linux_only
def test_no_key_reaches_the_notebook(lab):
    page, outside = lab
    inside = "() => Boolean(document.activeElement.closest('.hls')) && document.activeElement.closest('.hls') === document.querySelector('.hls')"
    stepper = page.locator(".hls").first
    stepper.locator("[data-place='1']").click()
    for key in ["j", "b", "d", "d", "x", "Enter", "j", "d", "d", "Escape", "a", "b", "m", "y", "z", "c", "v", "Enter", "Escape", "Escape", "0", "0", "i", "i", "r", "Shift+m",
                "ArrowDown", "ArrowUp", "Shift+Enter", "Shift+ArrowDown", "s", "h", "l", "n", "f", "f", "?", "/", "d", "d", "Enter", "Escape", " ", " "]:
        page.keyboard.press(key)
        assert page.evaluate(inside), f"the focus left the stepper after {key}"
    assert page.evaluate(CELLS_NOW) == CELLS
    page.locator(".widget-dropdown select").first.focus()
    for key in "bddxam":
        page.keyboard.press(key)                                      # the menus around it are no way out either
    assert page.evaluate(CELLS_NOW) == CELLS
    types = page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets.map(c => c.model.type)")
    assert types == ["code"] * 4 and page.locator(".jp-Dialog").count() == 0
    assert outside == [] and page.evaluate("() => window.evil") is None


@needs_browser
@linux_only
def test_the_step_reaches_python_and_comes_from_it(lab):
    page, _ = lab
    stepper = page.locator(".hls").first
    stepper.locator(".hls-list").focus()
    page.keyboard.press("Escape")
    stepper.locator("select").select_option("all")
    stepper.locator(".hls-list").focus()
    page.keyboard.press("Home")
    for _ in range(6):
        page.keyboard.press("j")
    assert "event 7 of 22" in stepper.locator(".hls-status").inner_text()
    page.wait_for_timeout(400)
    assert page.evaluate(ASK_KERNEL, "view.step") == "7"
    page.evaluate(ASK_KERNEL, "setattr(view, 'step', 15)")
    page.wait_for_function("() => document.querySelector('.hls-status').textContent.includes('event 15 of 22')", timeout=5000)
    page.locator(".widget-dropdown select").first.select_option("round numbers")
    page.wait_for_function("() => document.querySelector('.hls-billed').textContent.includes('$0.0')", timeout=5000)
    assert "event 15 of 22" in stepper.locator(".hls-status").inner_text()


@needs_browser
@linux_only
def test_live_follow_and_stop(lab):
    page, _ = lab
    stepper = page.locator(".hls").nth(1)
    page.wait_for_function("() => document.querySelectorAll('.hls-status')[1].textContent.includes('event 21 of 21')", timeout=10_000)    # it stays at the end
    assert "running" in stepper.locator(".hls-head").inner_text()
    stepper.get_by_role("button", name="stop the run").click()
    page.wait_for_function("() => document.querySelectorAll('.hls-head')[1].textContent.includes('interrupted')", timeout=10_000)
    assert stepper.locator(".hls-stop").is_hidden()
    assert page.evaluate("() => document.activeElement.className") == "hls-list"    # the button went away, the focus did not
    assert page.evaluate(ASK_KERNEL, "stop.is_set()") == "True"


BLOCKING = """import tempfile, time
from harnesslab import make_repo, run_agent
from IPython.display import display
folder = tempfile.TemporaryDirectory()
display(step_through(folder.name + "/run.jsonl", cancel="kernel"))
blocked = run_agent("Fix it.", make_repo(folder.name + "/repo"), "no", model="scripted/walkthrough", trace=folder.name + "/run.jsonl",
                    sink=lambda event: time.sleep(3 if event["n"] > 8 else 0.05))"""


@needs_browser
@linux_only
def test_the_stop_button_ends_a_run_that_blocks_its_cell(lab):
    """The kernel is busy with the cell and hears no message; the button asks the server to interrupt it."""
    page, outside = lab
    shown = page.locator(".hls").count()
    page.evaluate("""(source) => {
        const notebook = window.jupyterapp.shell.currentWidget.content;
        notebook.model.sharedModel.addCell({cell_type: 'code', source});
        notebook.activeCellIndex = notebook.widgets.length - 1;
        window.jupyterapp.commands.execute('notebook:run-cell'); }""", BLOCKING)
    page.wait_for_function("(n) => document.querySelectorAll('.hls').length > n && document.querySelectorAll('.hls')[n].querySelectorAll('.hls-row').length > 2", arg=shown, timeout=30_000)
    stepper = page.locator(".hls").nth(shown)
    assert "running" in stepper.locator(".hls-head").inner_text()
    stepper.get_by_role("button", name="stop the run").click()
    page.wait_for_function("(n) => document.querySelectorAll('.hls-head')[n].textContent.includes('interrupted')", arg=shown, timeout=20_000)
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'", timeout=20_000)
    assert page.evaluate(ASK_KERNEL, "blocked.status") == "'interrupted'"
    page.evaluate(ASK_KERNEL, "folder.cleanup()")


def test_only_an_event_or_the_kernel_can_be_stopped(tmp_path):
    path = write(tmp_path / "trace.jsonl", make_events())
    with pytest.raises(UsageError, match='an event or "kernel"'):
        step_through(path, cancel="cell")
    assert json.loads(step_through(path, cancel="kernel").stepper.data)["kernel"] == ""     # no kernel here
