"""Agents, models and a check for tests/test_evals.py, in a module of their own so that other processes can load them."""
import time
from pathlib import Path

from harnesslab.providers import offline
from harnesslab.scripted import call, solver


def idle_agent(prompt, repo, mode="ask", trace=None):
    """Does nothing."""
    return {"status": "done", "steps": 1, "tok_in": 10, "tok_out": 1, "tool_errors": 0}


def chatty_agent(prompt, repo, mode="ask", max_steps=30, max_input_tokens=300_000, trace=None):
    """Has the lesson's signature, solves locate, and tells more than it must."""
    assert mode == "yes" and trace is not None
    (Path(repo) / "ANSWER.txt").write_text("format_report wordcount/report.py\n")
    return {**idle_agent(prompt, repo), "mood": "good"}


def boasting_agent(prompt, repo, mode="ask", trace=None):
    """Does nothing, says that it passed, and leaves a folder where the trace should be."""
    Path(trace).mkdir()
    return {**idle_agent(prompt, repo), "passed": True, "task": "another", "reason": "none", "fence": "steel", "wall_s": 0.0}


def uncounting_agent(prompt, repo, mode="ask", trace=None):
    """Returns something else than numbers."""
    return {**idle_agent(prompt, repo), "tok_in": "many"}


def bad_agent(prompt, repo, mode="ask", trace=None):
    """Returns words."""
    return "I am done."


def crashing_agent(prompt, repo, mode="ask", trace=None, flag=""):
    """Raises the first time."""
    if not Path(flag).exists():
        Path(flag).write_text("")
        raise ZeroDivisionError("one over none")
    return idle_agent(prompt, repo)


def sleepy_model(task, rep):
    """A model whose agent sits in a long command."""
    return offline([[call("run_command", cmd="sleep 60", timeout=60)], "Done."])


def unhurried_solver(task, rep):
    """Solves as the scripted solver does, and takes a fifth of a second for each reply, so that a run takes a while on any machine."""
    policy = solver(f"{task}:{rep}", 0.5, miss_rate=0.05)

    def answer(request):
        time.sleep(0.2)
        return policy(request)

    return offline(answer)


def unsure_check(bench):
    """A check that cannot decide."""
    raise OSError("no space left")
