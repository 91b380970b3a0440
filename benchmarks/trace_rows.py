"""Reading traces: a table of a million events, and the first view and the keys of the stepper on ten thousand."""
import gc
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Iterator

from .measure import Row, at_most, in_turn, middle, ms, seconds

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


def write_trace(path: Path, events: int, text: int = 120) -> None:
    """A trace of a run that reads one file again and again: four events a step, results of `text` characters."""
    facts = {"name": "bench", "window": 10**9, "max_output": 1000, "prices": None, "scripted": True}
    usage = {"fresh": 100, "cache_read": 1000, "cache_write": 50, "output": 20}
    kinds = [("model_called", {"max_tokens": 1000, "estimated_prompt": 1000}),
             ("model_replied", {"content": [{"type": "text", "text": "next"}], "stop_reason": "tool_use", "usage": usage, "seconds": 0.5, "tries": 1, "waits": 0.0, "request_bytes": 4000}),
             ("tool_called", {"name": "read_file", "arguments": {"path": "core.py"}}),
             ("tool_returned", {"name": "read_file", "content": "x" * text, "is_error": False, "seconds": 0.01, "changed": []})]
    with open(path, "w") as file:
        start = {"task": "Read.", "messages": [{"role": "user", "content": "Read."}], "system": "", "tools": [], "model": facts, "request": {}, "limits": {}}
        file.write(json.dumps({"v": 1, "run": "bench", "n": 0, "step": 0, "time": 0.0, "type": "run_started", "payload": start}) + "\n")
        for n in range(1, events - 1):
            kind, payload = kinds[(n - 1) % 4]
            step = 1 + (n - 1) // 4
            payload = {**payload, **({"id": f"c{step}"} if kind.startswith("tool") else {})}
            file.write(json.dumps({"v": 1, "run": "bench", "n": n, "step": step, "time": float(n), "type": kind, "payload": payload}) + "\n")
        end = {"status": "done", "answer": "Read.", "error": "", "answer_is_call": False, "lost": 0}
        file.write(json.dumps({"v": 1, "run": "bench", "n": events - 1, "step": step, "time": float(events), "type": "run_ended", "payload": end}) + "\n")


def table(repeats: int, events: int = 1_000_000) -> Iterator[Row]:
    """A DataFrame of a million events against orjson parsing the same lines into a list: as Python does it by default, and with the garbage
    collector off. `to_dataframe` switches the collector off while it reads, so the second ratio is the fair one."""
    import orjson

    from harnesslab.traces import to_dataframe
    with tempfile.TemporaryDirectory(prefix="harnesslab-bench-") as folder:
        path = Path(folder) / "trace.jsonl"
        write_trace(path, events)

        def bare():
            with open(path, "rb") as file:
                return [orjson.loads(line) for line in file]

        def bare_without_collector():
            gc.disable()
            try:
                return bare()
            finally:
                gc.enable()

        assert len(to_dataframe(path)) == events
        measures = {"bare": bare, "bare without collector": bare_without_collector, "ours": lambda: to_dataframe(path)}
        taken = in_turn({name: lambda measure=measure: seconds(measure) for name, measure in measures.items()}, repeats)
    plain, fast, ours = (min(times) for times in taken.values())
    what = f"{events:,} events to a DataFrame"
    yield at_most(what, ours / plain, 2, f"{ours / plain:.2f} times bare orjson ({ours:.1f} s, orjson {plain:.1f} s)", "at most 2 times")
    yield at_most(f"{what}, both without the garbage collector", ours / fast, 2, f"{ours / fast:.2f} times bare orjson (orjson {fast:.1f} s)", "at most 2 times")


def stepper(repeats: int, events: int = 10_000) -> Iterator[Row]:
    """One page of ten thousand events in headless Chromium: from opening the file to the first row, and from a key to the changed page."""
    if CHROMIUM is None:
        yield Row("stepper, 10,000 events", "not measured: no Chromium here")
        return
    from playwright.sync_api import sync_playwright

    from harnesslab.stepper import to_html
    with tempfile.TemporaryDirectory(prefix="harnesslab-bench-") as folder:
        path = Path(folder) / "trace.jsonl"
        write_trace(path, events, text=400)
        making = min(seconds(lambda: to_html(path, Path(folder) / "page.html")) for _ in range(repeats))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            views, keys = [], []
            for _ in range(repeats):
                page = browser.new_page(viewport={"width": 1200, "height": 800})
                began = time.perf_counter()
                page.goto((Path(folder) / "page.html").as_uri())
                page.wait_for_function("() => document.body.innerText.includes('read_file')")
                views.append(time.perf_counter() - began)
                keys += page.evaluate("""async () => {
                    const target = document.activeElement === document.body ? document.querySelector('[tabindex]') : document.activeElement;
                    target.focus();
                    const times = [];
                    for (let i = 0; i < 20; i++) {
                        const began = performance.now();
                        document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true, cancelable: true}));
                        await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
                        times.push((performance.now() - began) / 1000);
                    }
                    return times;
                }""")
                page.close()
            browser.close()
    view, key = min(views), middle(keys)
    yield at_most("stepper, 10,000 events: first view", making + view, 1, f"{ms(making + view)} ({ms(making)} to write the page, {ms(view)} to show it)", "under 1 s")
    yield at_most("stepper, 10,000 events: key to redraw", key, 0.05, ms(key), "under 50 ms")
