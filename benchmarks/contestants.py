"""The two that are always compared: the bare loop, and the harness with everything on. Each `make_...` gives a function that does one whole run."""
from typing import Callable

from .task import MODEL, SYSTEM, TASK, TOOL, page


def make_bare(url: str) -> Callable[[int], int]:
    """The loop of the first lesson: twelve lines, httpx, no limits, no trace, no checks. The whole history is encoded anew for every call."""
    import httpx
    client = httpx.Client(timeout=600)
    headers = {"x-api-key": "none", "anthropic-version": "2023-06-01"}

    def run(steps: int) -> int:
        messages = [{"role": "user", "content": TASK.format(steps=steps)}]
        while True:
            body = {"model": MODEL, "max_tokens": 8192, "system": SYSTEM, "tools": [TOOL], "messages": messages}
            reply = client.post(f"{url}/read_page/v1/messages", json=body, headers=headers).json()
            messages.append({"role": "assistant", "content": reply["content"]})
            calls = [block for block in reply["content"] if block["type"] == "tool_use"]
            if not calls:
                return len(messages) // 2 - 1
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": page(call["input"]["number"])} for call in calls]
            messages.append({"role": "user", "content": results})
    return run


def make_ours(url: str) -> Callable[[int], int]:
    """`run_agent` as a user calls it: six tools with generated schemas, arguments validated, the gate asked for every call (the tool counts as one that
    changes things), repeats counted, a trace of about 2,400 flushed lines, secrets looked for in every result and every line of the trace."""
    import os
    import tempfile
    from pathlib import Path

    os.environ["ANTHROPIC_API_KEY"] = "a-key-to-be-found-and-redacted-0123456789"
    from harnesslab import Limits, run_agent
    from harnesslab.loop import ModelFacts
    from harnesslab.providers import AnthropicModel, make_client
    from harnesslab.tools import Tool

    def read_page(book: str, number: int) -> str:
        """Read one page of a book. Returns its text."""
        return page(number)

    model = AnthropicModel(ModelFacts(MODEL, window=10_000_000), make_client(), f"{url}/read_page", "none")
    folder = tempfile.TemporaryDirectory(prefix="harnesslab-bench-")
    repo = Path(folder.name, "repo")
    repo.mkdir()

    def run(steps: int, _keep=folder) -> int:
        limits = Limits(max_steps=steps + 1, max_input_tokens=10**12)
        done = run_agent(TASK.format(steps=steps), repo, mode="yes", model=model, fence="process", i_know=True, limits=limits, tools=[Tool(read_page)],
                         system=SYSTEM, trace=Path(folder.name, f"trace-{steps}.jsonl"))
        assert done.status == "done" and not done["tool_errors"] and not done["events_lost"], dict(done)
        return done["tool_calls"]
    return run
