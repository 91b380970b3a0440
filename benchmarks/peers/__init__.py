"""Other harnesses on the same task. Each module names what to install (`INSTALL`, `PACKAGE`) and has `make(url)`, which gives a function that does one run.

They run as their makers ship them, with two exceptions that are to their advantage: limits that would end the run early are lifted, and nothing is
written to disk. Each is imported only inside its own virtual environment.
"""
NAMES = ("mini_swe_agent", "pydantic_ai", "anthropic_tool_runner")
