"""What several test files need: a registry of small tools, a run over the strict local API, and the question whether that API takes a history."""
import functools
import json
from pathlib import Path

from harnesslab.api_rules import check_request
from harnesslab.loop import History, Limits, ModelFacts, Reply, Run, Usage, run_loop
from harnesslab.providers import offline
from harnesslab.scripted import call, say
from harnesslab.tools import Registry, Tool


def look(key: object = None) -> str:
    """Look at something."""
    return f"seen {key}"


def change(key: object = None) -> str:
    """Change something."""
    return f"changed {key}"


def registry(*tools, root="."):
    """A registry of these tools; of `look` (read-only) and `change` when none are given."""
    return Registry(Path(root), tools or (Tool(look, read_only=True), change))


def run(replies, tools=None, limits=Limits(), *, task="The task.", history=None, model=None, events=None, **options):
    """One run over the strict local API; `events` collects what the sink gets. Options for the API: faults, keys, name, retry."""
    tools = tools or registry()
    loop_options = {name: options.pop(name) for name in ("gate", "cancel", "about", "sink") if name in options}
    if events is not None:
        loop_options["sink"] = events.append
    history = history or History(task, "", tools.definitions)
    return run_loop(history, model or offline(replies, **options), tools, limits, **loop_options)


class Mute:
    """A model with no API behind it: it hands out ready replies, even such as the strict API would never send."""

    def __init__(self, *replies, facts=ModelFacts("mute")):
        self.replies, self.facts, self.asked = list(replies), facts, 0

    def __call__(self, history, max_tokens, on_wait=lambda info: None):
        self.asked += 1
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, Reply):
            return reply
        has_call = any(isinstance(block, dict) and block.get("type") == "tool_use" for block in reply)
        return Reply(reply, "tool_use" if has_call else "end_turn", Usage(100, 0, 0, 10))


def use(name, id="toolu_1", **arguments):
    """A `tool_use` block with an id."""
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def messages_of(history):
    """The messages as they go over the wire."""
    return json.loads(b"[" + history.json() + b"]")


def results_of(history):
    """Every tool result of a history, in order."""
    return [block for message in messages_of(history) if isinstance(message["content"], list)
            for block in message["content"] if block["type"] == "tool_result"]


def assert_taken(history):
    """The strict API takes this history with one more word of the person, also where neighbours of one role are not put together."""
    tools = history.tools or registry().definitions
    messages = [*messages_of(history), {"role": "user", "content": "Go on."}]
    for merge in (True, False):
        check_request({"model": "scripted-general", "max_tokens": 100, "tools": tools, "messages": messages}, merge=merge)


def assert_goes_on(finished: Run):
    """The history of a finished run is good, and a new run can go on from it."""
    assert_taken(finished.history)
    finished.history.add_user("Go on.")
    again = run_loop(finished.history, offline(lambda body: [say("went on")]), registry())
    assert (again.status, again.answer) == ("done", "went on"), dict(again)


__all__ = ["Mute", "assert_goes_on", "assert_taken", "call", "change", "look", "messages_of", "registry", "results_of", "run", "say", "use"]


ODD = (None, True, False, 0, -1, 1.5, 1e300, 10**400, "", "  ", "x", "\x00", "\ud83d", "a:b|c", "x" * 200, '{"key": ', "[" * 2_000, [], [[]], [None], ["x"], [1], {}, {"a": 1}, {"type": "text"},
       {"text": 5}, [{"type": "text", "text": "hi"}], [{"text": ["x"]}], functools.reduce(lambda inner, _: {"a": inner}, range(150), 1))
"""What a server may send where something else belongs."""


def spoiled(value, odd=ODD):
    """A JSON value again and again, each time with one part left out, or with something odd in its place."""
    if isinstance(value, dict | list):
        for at in value if isinstance(value, dict) else range(len(value)):
            rest = {key: part for key, part in value.items() if key != at} if isinstance(value, dict) else [*value[:at], *value[at + 1 :]]
            yield rest
            for part in (*odd, *spoiled(value[at], odd)):
                yield {**value, at: part} if isinstance(value, dict) else [*value[:at], part, *value[at + 1 :]]
