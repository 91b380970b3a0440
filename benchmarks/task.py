"""The one task that every contestant does: ask, read one page, ask again. This module needs the standard library only."""

SYSTEM = "You read pages one after the other, through the tool you are given, until you are told that there are no more."
TASK = "Read all {steps} pages of the book, one by one, and say when you are done."
MODEL = "claude-opus-4-6"      # any name would do for us; some clients only take one that they know
TOOL = {"name": "read_page", "description": "Read one page of a book. Returns its text.",
        "input_schema": {"type": "object", "properties": {"book": {"type": "string"}, "number": {"type": "integer"}}, "required": ["book", "number"]}}

# 2,000 characters, about what a useful tool result has: 40 lines of code, with quotes and line breaks that JSON must escape. Plain ASCII.
_LINE = '{:>4}     if value == "{:04d}":  return lookup(table, key)\n'
_PAGE = "".join(_LINE.format(k, k * 37 % 9973) for k in range(1, 60))[:1_990]


def page(number: int) -> str:
    """The tool's work: 2,000 characters, different for each number."""
    return f"page {number:4d}\n{_PAGE}"
