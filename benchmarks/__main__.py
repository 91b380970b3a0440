"""Run the benchmarks and print one table: `python -m benchmarks [--peers] [--write] [--strict] [--quick] [--only PART ...]`."""
import argparse
import sys
from pathlib import Path
from typing import Callable, Iterable

from . import eval_rows, loop_rows, tool_rows, trace_rows
from .measure import Row, machine

# part: (function of a number of repeats that yields rows, repeats)
PARTS: dict[str, tuple[Callable[[int], Iterable[Row]], int]] = {
    "loop": (loop_rows.cpu_and_memory, 7),
    "parallel": (loop_rows.parallel_tools, 20),
    "trace": (loop_rows.trace_append, 9),
    "imports": (loop_rows.imports, 15),
    "commands": (tool_rows.commands, 60),
    "search": (tool_rows.searching, 25),
    "flood": (tool_rows.flood, 3),
    "table": (trace_rows.table, 3),
    "stepper": (trace_rows.stepper, 5),
    "evals": (eval_rows.batch, 2),
}
BEGIN, END = "<!-- table: written by `python -m benchmarks --write` -->", "<!-- end of table -->"


def as_markdown(rows: list[Row], label: str) -> str:
    lines = [f"Measured {label}.", "", "| what | measured | target | met |", "|---|---|---|---|"]
    lines += ["| " + " | ".join([row.what, row.measured, row.target, {True: "yes", False: "no", None: ""}[row.met]]).replace("\n", " ") + " |" for row in rows]
    return "\n".join(lines)


def write_table(table: str, readme: Path) -> None:
    """Put the table between the two marks of the README."""
    before, _, rest = readme.read_text().partition(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the harness costs, as ratios against the plainest thing that does the same.")
    parser.add_argument("--peers", action="store_true", help="also measure other harnesses, each installed into a virtual environment of its own")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed")
    parser.add_argument("--quick", action="store_true", help="a third of the repeats")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"only these parts: {', '.join(PARTS)}")
    options = parser.parse_args()
    label, rows = machine(), []
    parts = {name: PARTS[name] for name in options.only or PARTS}
    if options.peers:
        from .peer_rows import peers
        parts["peers"] = (peers, 3)
    for name, (part, repeats) in parts.items():
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        try:
            rows += part(max(2, repeats // 3) if options.quick else repeats)
        except Exception as error:                  # one part that cannot be measured here must not cost the others
            rows.append(Row(name, f"not measured: {type(error).__name__}: {str(error)[:200]}"))
    table = as_markdown(rows, label)
    print(table)
    if options.write:
        write_table(table, Path(__file__).with_name("README.md"))
    return int(options.strict and any(row.met is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
