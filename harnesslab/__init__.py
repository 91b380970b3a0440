"""A small coding-agent harness that teaches: the loop, the tools, the sandbox, the trace, the eval runner.

Names are loaded when they are first used, so that `import harnesslab` costs nothing. This file is written by hand (the export only keeps
the version in step); every other module here is exported from a notebook in nbs/.
"""
__version__ = "0.1.0"

import importlib as _importlib

_HOME = {
    "loop": ["STATUSES", "UsageError", "Usage", "Prices", "ModelFacts", "ModelError", "Reply", "Call", "History", "Limits", "Retry", "Run", "Totals", "ToolResult",
             "EventLog", "run_loop", "time_left", "cancelled"],
    "tools": ["ToolError", "MAX_OUT", "clip", "safe_path", "read_file", "list_dir", "search", "edit_file", "READ_ONLY", "Tool", "Registry", "file_tools"],
    "sandbox": ["IMPL", "SYSTEM", "Gate", "permit", "execute", "run_command", "run_agent", "run_agent_in_notebook", "make_tools"],
    "fences": ["Fence", "CommandResult", "choose_fence"],
    "providers": ["call_model", "connect", "offline", "list_models"],
    "facts": ["FACTS", "model_facts"],
    "throttle": ["Throttle"],
    "server_probe": ["probe_server"],
    "extra_tools": ["find_definition", "TodoList", "McpServer"],
    "traces": ["Trace", "read_trace", "fold", "timeline", "summary", "to_dataframe", "requests", "check_prefix", "diff_runs", "follow", "predict_input"],
    "what_if": ["replay", "fork"],
    "context": ["clear_old_results", "compact", "Helper"],
    "formats": ["open_trace", "to_atif", "to_otlp"],
    "stepper": ["step_through", "to_html"],
    "tasks": ["Task", "wordcount_tasks", "load_tasks", "save_tasks", "swe_bench_tasks"],
    "verifier": ["Verdict", "verify", "fresh_repo", "take_patch", "suspicious", "validate"],
    "statistics": ["pass_at_k", "pass_hat_k", "wilson", "overall", "score", "compare", "power", "tasks_needed"],
    "evals": ["run_tasks", "run_comparison", "load_results", "Setup", "Results", "ScriptedSolver", "TaskEnv"],
    "break_it": ["useless_errors", "flooded_context", "leaked_process", "injected_prompt", "stolen_secret", "run_experiments"],
    "exercises": ["check", "check_folder", "write_exercises"],
    "fake_api": ["FakeApi", "Fault", "sign"],
    "chat_api": ["ChatApi"],
    "responses_api": ["ResponsesApi"],
    "gemini_api": ["GeminiApi"],
    "scripted": ["make_repo", "canned", "say", "call", "scripted_api"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'harnesslab' has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"harnesslab.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
