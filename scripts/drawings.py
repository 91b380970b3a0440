"""The lessons' drawings, made by code: `python scripts/drawings.py` writes nbs/figures/*.svg (so does `make notebooks`).

Each stands on a white card of its own, so that it reads on a light page and on a dark one, and says in its <desc> what it shows.
"""
from html import escape
from pathlib import Path
from xml.sax.saxutils import quoteattr

BLUE, ORANGE, GREEN, RED, PINK, GREY, INK = "#0072B2", "#B35C00", "#00734F", "#B03A00", "#9C4F7C", "#57606A", "#1F2328"
TINT = {BLUE: "#E3F1FA", ORANGE: "#FDF1DC", GREEN: "#E0F4EC", RED: "#FBE7DC", PINK: "#F8EAF2", GREY: "#F2F4F6"}


class Drawing:
    """An SVG under construction. Coordinates are pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str, what: str):
        self.width, self.height, self.title, self.what, self.parts = width, height, title, what, []

    def box(self, x, y, width, height, colour, *lines, bold=True, dashed=False, corner=8, at="middle"):
        """A rounded box with centred lines (`at="top"`: at its upper edge), the first of them bold."""
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{corner}" fill="{TINT[colour]}" stroke="{colour}" stroke-width="1.6"{dash}/>')
        top = y + 22 if at == "top" else y + height / 2 - 9.5 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 19 * number, line, bold=bold and number == 0, colour=colour if number == 0 else INK, anchor="middle")

    def text(self, x, y, words, *, bold=False, colour=INK, anchor="start", size=14, mono=False):
        weight = ' font-weight="600"' if bold else ""
        family = ' font-family="ui-monospace, Menlo, Consolas, monospace"' if mono else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}{family}>{escape(words)}</text>')

    def line(self, points, colour=GREY, *, arrow=True, dashed=False, width=1.8):
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"' + (' stroke-dasharray="6 5"' if dashed else "")
                          + (f' marker-end="url(#tip{colour[1:]})"' if arrow else "") + "/>")

    def svg(self) -> str:
        tips = "".join(f'<marker id="tip{c[1:]}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{c}"/></marker>'
                       for c in (BLUE, ORANGE, GREEN, RED, PINK, GREY))
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" role="img" aria-label={quoteattr(self.title)} '
                f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n<title>{escape(self.title)}</title>\n<desc>{escape(self.what)}</desc>\n<defs>{tips}</defs>\n'
                f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="12" fill="#FFFFFF" stroke="#D0D7DE"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def loop() -> Drawing:
    d = Drawing(760, 400, "The loop", "The task starts the history. The history goes to the model. A reply with tool calls goes through the gate and the fence to the tools, and the results go "
                "back into the history. A reply without calls is the answer. Before each model call the harness checks its own reasons to stop.")
    d.box(24, 40, 110, 54, GREY, "task")
    d.box(214, 30, 190, 74, BLUE, "history", "a list of messages")
    d.box(560, 30, 170, 74, PINK, "model", "sees only this list")
    d.box(560, 200, 170, 64, PINK, "reply", "any tool calls?")
    d.box(560, 318, 170, 54, GREEN, "no: the answer", "done")
    d.box(330, 200, 150, 64, ORANGE, "gate", "may this run?")
    d.box(110, 200, 150, 64, ORANGE, "tools", "inside the fence")
    d.line([(134, 67), (210, 67)])
    d.line([(404, 67), (556, 67)], BLUE)
    d.text(480, 56, "the whole list,", anchor="middle", size=12, colour=GREY)
    d.text(480, 84, "every time", anchor="middle", size=12, colour=GREY)
    d.line([(645, 104), (645, 196)], PINK)
    d.line([(645, 264), (645, 314)], GREEN)
    d.line([(560, 232), (484, 232)], ORANGE)
    d.text(522, 224, "yes", anchor="middle", size=12, colour=GREY)
    d.line([(330, 232), (264, 232)], ORANGE)
    d.line([(185, 200), (185, 150), (280, 150), (280, 108)], BLUE)
    d.text(176, 172, "all results,", anchor="end", size=12, colour=GREY)
    d.text(176, 188, "one message", anchor="end", size=12, colour=GREY)
    d.line([(405, 200), (405, 150), (345, 150), (345, 108)], BLUE, dashed=True)
    d.text(414, 155, "denied", size=12, colour=GREY)
    d.box(24, 300, 500, 76, RED, "the harness's own reasons to stop, checked each time", "steps · budget · time · repeats · full context · cut-off reply", "an interrupt · the model cannot be reached", dashed=True)
    return d


def two_appends() -> Drawing:
    d = Drawing(760, 300, "Two appends a step", "Each step appends twice: first the model's reply, untouched, before anything runs; then one message with the results of all its calls. So the list is valid after every "
                "step, and each request begins with the bytes of the one before.")
    for column, (x, title) in enumerate(((24, "request 1"), (270, "request 2"), (516, "request 3"))):
        d.text(x + 110, 32, title, bold=True, anchor="middle")
        d.box(x, 46, 220, 40, GREY, "user: the task", bold=False)
        for step in range(column):
            y = 96 + 96 * step
            d.box(x, y, 220, 40, PINK, f"assistant: reply {step + 1}", bold=False)
            d.box(x, y + 46, 220, 40, BLUE, f"user: all results of reply {step + 1}", bold=False)
    d.text(24, 122, "① append the reply, untouched,", colour=PINK, size=13, bold=True)
    d.text(40, 140, "before anything runs", colour=PINK, size=13)
    d.text(24, 170, "② append ONE message", colour=BLUE, size=13, bold=True)
    d.text(40, 188, "with a result for every call", colour=BLUE, size=13)
    d.text(24, 238, "What was sent once never changes:", size=13, colour=GREY)
    d.text(24, 257, "each request begins with all the bytes of the one", size=13, colour=GREY)
    d.text(24, 276, "before, so the provider can reuse its cache.", size=13, colour=GREY)
    return d


def one_message() -> Drawing:
    d = Drawing(760, 300, "One message with all results", "Right: the reply asks for two calls, and one user message holds both results, matched by id, in order, before any text. Wrong: a message for each result, which some APIs "
                "refuse; a call without a result; text before the results.")
    d.text(24, 32, "right", bold=True, colour=GREEN)
    d.box(24, 44, 300, 104, PINK, "assistant", "text: I need both.", "tool_use   a   search", "tool_use   b   read_file", at="top")
    d.box(24, 178, 300, 100, BLUE, "user: one message", "tool_result   a", "tool_result   b   is_error", "text, if any, comes last", at="top")
    d.line([(90, 148), (90, 174)], BLUE)
    d.line([(258, 148), (258, 174)], BLUE)
    d.text(174, 168, "matched by id, in order", anchor="middle", size=12, colour=GREY)
    d.line([(352, 30), (352, 278)], GREY, arrow=False, width=1)
    d.text(380, 32, "wrong", bold=True, colour=RED)
    d.box(380, 44, 350, 66, RED, "a message for each result", "some APIs join the two, others refuse", dashed=True)
    d.box(380, 122, 350, 66, RED, "a call without its result", "b failed, and nothing was sent for it: HTTP 400", dashed=True)
    d.box(380, 200, 350, 78, RED, "text before the results", "user: “Here you are:”, then tool_result a, b", "the results must stand first: HTTP 400", dashed=True)
    return d


def fences() -> Drawing:
    d = Drawing(760, 470, "Fences, from the inside out", "A tool call in the middle, inside four boxes: argument checks, the permission gate, process limits, and one wall from the operating system: landlock, namespace or container.")
    d.box(16, 16, 728, 438, BLUE, "a wall of the operating system: no code inside can vote on it", at="top", corner=14)
    d.box(44, 112, 672, 326, GREEN, "process limits", "clean environment; CPU, memory and output caps; all of it killed at the deadline", at="top", corner=12)
    d.box(96, 172, 568, 250, ORANGE, "the permission gate", "reading just runs; edits and commands are asked for", at="top", corner=12)
    d.box(150, 232, 460, 174, PINK, "argument checks", "the arguments fit the schema, the path stays inside", at="top", corner=12)
    d.box(270, 300, 220, 78, GREY, "one tool call", "the model only asks")
    for x, name, what in ((44, "landlock", "walls round files, network"), (275, "namespace", "a room of its own"), (506, "container", "a system of its own")):
        d.box(x, 50, 210, 50, BLUE, name, what)
    return d


def bill(calls: int = 40, start: int = 2_000, growth: int = 1_500, read: float = 0.1, write: float = 1.25) -> Drawing:
    """The first seed's formula for `calls` model calls: `start` tokens that every call sends, `growth` tokens a step."""
    plain, cached, so_far, so_far_cached = [0], [0], 0, 0.0
    for call in range(calls):
        prefix = start + growth * (call - 1) if call else 0
        new = growth if call else start
        so_far += prefix + new
        so_far_cached += read * prefix + write * new
        plain.append(so_far)
        cached.append(so_far_cached)
    d = Drawing(760, 410, "What the input of a run costs", f"Two curves over {calls} model calls. Without caching the billed input grows with the square of the calls and reaches {plain[-1]:,} tokens. With prompt caching it "
                f"reaches the price of {cached[-1]:,.0f} tokens, and grows far more slowly.")
    left, bottom, width, height = 90, 330, 560, 270
    x = lambda call: left + width * call / calls      # noqa: E731
    y = lambda tokens: bottom - height * tokens / 1_400_000      # noqa: E731
    for tokens in range(0, 1_400_001, 200_000):
        d.line([(left, y(tokens)), (left + width, y(tokens))], GREY, arrow=False, width=0.3)
        d.text(left - 10, y(tokens) + 4, f"{tokens // 1000}k" if tokens < 10**6 else f"{tokens / 10**6:.1f}M", anchor="end", size=12, colour=GREY)
    for call in range(0, calls + 1, 10):
        d.text(x(call), bottom + 20, str(call), anchor="middle", size=12, colour=GREY)
    d.line([(x(n), y(t)) for n, t in enumerate(plain)], BLUE, arrow=False, width=2.6)
    d.line([(x(n), y(t)) for n, t in enumerate(cached)], ORANGE, arrow=False, width=2.6, dashed=True)
    half = calls // 2
    for n in (half, calls):
        d.parts.append(f'<circle cx="{x(n):g}" cy="{y(plain[n]):g}" r="4" fill="{BLUE}"/>')
    d.text(x(half) - 8, y(plain[half]) - 10, f"{half} calls: {plain[half]:,}", anchor="end", size=13, colour=BLUE)
    d.text(x(calls) - 8, y(plain[calls]) - 12, f"{calls} calls: {plain[calls]:,}", anchor="end", size=13, colour=BLUE, bold=True)
    d.text(x(calls) + 8, y(cached[calls]) - 10, f"{cached[calls]:,.0f}", size=13, colour=ORANGE, bold=True)
    d.text(x(calls) + 8, y(cached[calls]) + 8, "with caching", size=13, colour=ORANGE)
    d.text(left + width / 2, bottom + 42, "model calls", anchor="middle", size=13)
    d.text(left, 36, "billed input so far, as tokens at the full input price", size=13)
    d.text(24, bottom + 62, f"Computed: {start:,} tokens in every call and {growth:,} more a step; cached tokens cost {read:g}, written ones {write:g}.", size=12, colour=GREY)
    return d


DRAWINGS = {"loop": loop, "two_appends": two_appends, "one_message": one_message, "fences": fences, "bill": bill}


def write(folder: Path) -> None:
    """Write every drawing into the folder."""
    folder.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "nbs" / "figures")
