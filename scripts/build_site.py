"""Build the static site of the notebooks: `make site`, or

    python scripts/build_site.py [FOLDER]      FOLDER: where the site goes (default: build/site)

The pages are written into a scratch folder, in the form that Sphinx reads: notebooks without nbdev's directives and hidden cells, links turned to
pages of the site. A file of the repo that some page links to becomes a page too. Nothing is run: outputs are those kept in the notebooks.
Then every local link, picture and anchor of the finished pages is looked up. Nothing that a page loads may come from elsewhere.
"""
import json
import os
import re
import shutil
import sys
import tempfile
from html import escape, unescape
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import check_links
from harnesslab.glossary import GLOSSARY

ROOT = Path(__file__).resolve().parent.parent
PICTURES = {".svg", ".png"}
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".json": "json"}
STORED = """```{note}
This is the notebook as it is stored: of its outputs, only a few charts and tables are kept. Run it in JupyterLab (`make lab`) to see the others, to answer the questions, and to
step through the traces.
```"""
CODE = re.compile(r"(^```.*?^```[^\n]*$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"""(\]\(|\]:\ |\b(?:href|src)=")(?![a-z]+:)([^)\s"#]*)(\#[^)\s"]*)?(?=[)\s"]|$)""")
TOOLTIP = re.compile(r'<abbr title="([^"]*)">.*?</abbr>', re.DOTALL)
ARROW = re.compile(r'^ *(\w+)(?:[\[({]+"([^"]*)"[\])}]+)? +([-.=].*[-.=]>(?:\|[^|]*\|)?) *(\w+)(?:[\[({]+"([^"]*)"[\])}]+)? *$', re.MULTILINE)


class Pages:
    """The pages on their way to Sphinx. A page is called by the path of its file in the repo; what lies in nbs/ comes to the root of the site."""

    def __init__(self, folder: Path):
        self.folder, self.waiting, self.written = folder, [], set()

    def write_all(self) -> None:
        lessons, appendix = sorted((ROOT / "nbs").glob("0*.ipynb")), sorted((ROOT / "nbs" / "appendix").glob("*.ipynb"))
        others = [path for path in (ROOT / "docs" / "teaching.md", ROOT / "CONTRIBUTING.md") if path.exists()]
        contents = contents_list("Lessons", lessons) + contents_list("More", [ROOT / "appendix.md", ROOT / "glossary.md", *others])
        self.waiting = [*lessons, *appendix, *others]
        self.save("index.ipynb", json.dumps(self.notebook(ROOT / "nbs" / "index.ipynb", contents)))
        rows = "\n".join(f"| [{title}]({self.link('appendix.md', path)}) | {subtitle} |" for path in appendix for title, subtitle in [headings(path)])
        self.save("appendix.md", f"# Appendix\n\nThe fittings. Each page is a module of the package.\n\n| page | what it is |\n|---|---|\n{rows}\n{contents_list('', appendix)}")
        terms = "\n".join(f'<dt id="{term_id(term)}">{escape(term)}</dt><dd>{escape(text)}</dd>' for term, text in sorted(GLOSSARY.items(), key=lambda row: row[0].lower()))
        self.save("glossary.md", f'# Glossary\n\nEvery word of the trade that the lessons use.\n\n<dl class="words">\n{terms}\n</dl>\n')
        while self.waiting:
            path = self.waiting.pop()
            if page_name(path) not in self.written:
                self.write(path)

    def write(self, path: Path) -> None:
        """One file or folder of the repo, as a page or a picture."""
        name, heading = page_name(path), f"---\norphan: true\nnosearch: true\n---\n\n# {path.relative_to(ROOT)}\n\n"
        if path.suffix == ".ipynb":
            self.save(name, json.dumps(self.notebook(path)))
        elif path.suffix == ".md":
            self.save(name, self.prose(path.read_text(encoding="utf-8"), path))
        elif path.suffix in PICTURES:
            self.save(name, path.read_bytes())
        elif path.is_dir():
            self.save(name, heading + "\n".join(f"* `{child.name}`" for child in sorted(path.iterdir()) if child.name != "__pycache__"))
        else:
            self.save(name, f"{heading}``````{{code-block}} {LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}\n``````\n")

    def save(self, name: str, content: str | bytes) -> None:
        self.written.add(name)
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def notebook(self, path: Path, last: str = "") -> dict:
        """A notebook as it is read: every cell can be linked to by its id; hidden cells are gone, and so are the lines for nbdev."""
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["metadata"]["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        cells = []
        for cell in notebook["cells"]:
            source, anchor = "".join(cell["source"]), f'<span id="cell-id={cell["id"]}"></span>'
            if cell["cell_type"] == "markdown":
                cells.append({**cell, "source": f"{anchor}\n\n{self.prose(source, path)}"})
                continue
            directives = re.findall(r"^#\|\s*(\w+)", source, re.MULTILINE)
            source = re.sub(r"^#\|.*\n?", "", source, flags=re.MULTILINE).strip("\n")
            cells.append(markdown(cell["id"] + "-anchor", anchor))
            if source and "hide" not in directives:
                chart = re.search(r"Title text '([^']*)'", json.dumps(cell["outputs"]))
                shown = {"image": {"alt": f"Chart: {chart[1] if chart else 'see the text'}"}, "code_prompt_show": "Imports", "code_prompt_hide": "Imports"}
                cells.append({**cell, "source": source, "metadata": {"tags": directives + ["hide-input"] * only_imports(source), "mystnb": shown}})
        if any(cell["cell_type"] == "code" for cell in cells) and path.name != "index.ipynb":
            cells.insert(2, markdown("stored", STORED))
        notebook["cells"] = [*cells, markdown("contents", last)] if last else cells
        return notebook

    def prose(self, text: str, path: Path) -> str:
        """Markdown with its links turned to pages of the site, its tooltips to links into the glossary, and its mermaid drawings to lines of text."""
        glossary = self.link(page_name(path), ROOT / "glossary.md")
        anchors = {definition: term_id(term) for term, definition in GLOSSARY.items()}

        def into_glossary(match: re.Match) -> str:
            known = anchors.get(unescape(match[1]))
            return f'<a class="word" href="{glossary}#{known}">{match[0]}</a>' if known else match[0]

        parts = CODE.split(text)        # prose, code, prose, ...
        for number, part in enumerate(parts):
            if number % 2 == 0:
                part = LINK.sub(lambda match: match[1] + self.turned(match[2], match[3] or "", path), part)
                parts[number] = TOOLTIP.sub(into_glossary, part)
            elif part.startswith("```mermaid"):
                parts[number] = drawing_in_words(part)
        return "".join(parts)

    def turned(self, url: str, anchor: str, path: Path) -> str:
        """A link of a file in the repo as a link of its page. What does not exist stays as it is, and the check will find it."""
        from docutils.nodes import make_id
        target = (path.parent / unquote(url)).resolve() if url else path
        if not target.exists() or not target.is_relative_to(ROOT):
            return url + anchor
        self.waiting.append(target)
        return (self.link(page_name(path), target) if url else "") + (anchor if anchor.startswith("#cell-id=") or not anchor else "#" + make_id(unquote(anchor)))

    def link(self, name: str, target: Path) -> str:
        """The way from a page to that of another file."""
        other = page_name(target)
        return os.path.relpath(other if target.suffix in PICTURES else str(PurePosixPath(other).with_suffix(".html")), PurePosixPath(name).parent)


def page_name(path: Path) -> str:
    """The file that Sphinx reads for a file of the repo."""
    name = path.relative_to(ROOT).as_posix().removeprefix("nbs/")
    name = {"nbs": "index.ipynb", "README.md": "index.ipynb", "appendix": "appendix.md"}.get(name, name)
    return name if PurePosixPath(name).suffix in {".ipynb", ".md", *PICTURES} else name + ".md"


def markdown(id: str, source: str) -> dict:
    return {"cell_type": "markdown", "id": id, "metadata": {}, "source": source}


def contents_list(caption: str, paths: list[Path]) -> str:
    names = "\n".join("/" + str(PurePosixPath(page_name(path)).with_suffix("")) for path in paths)
    return f"\n```{{toctree}}\n:hidden:\n{caption and f':caption: {caption}'}\n\n{names}\n```\n"


def headings(path: Path) -> tuple[str, str]:
    """The title of a notebook, and the line below it."""
    text = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    return re.search(r"^# (.*)", text, re.MULTILINE)[1], " ".join(re.findall(r"^> ?(.*)", text, re.MULTILINE))


def only_imports(code: str) -> bool:
    return all(re.match(r"import |from |#|\s|\)|$", line) for line in code.splitlines())


def term_id(term: str) -> str:
    return "term-" + re.sub(r"\W+", "-", term.lower().replace("^", "-hat-")).strip("-")


def drawing_in_words(fence: str) -> str:
    """A mermaid flowchart as one line for each arrow. (Mermaid is a large program, and it draws only in the browser.)"""
    names = {}
    for start, start_name, _, end, end_name in ARROW.findall(fence):
        names |= {key: name.replace("<br/>", ", ") for key, name in ((start, start_name), (end, end_name)) if name}
    lines = []
    for start, _, arrow, end, _ in ARROW.findall(fence):
        label = re.search(r'[|"]([^|"]+)[|"]', arrow)
        lines.append(f"{names.get(start, start)}  →  {names.get(end, end)}" + (f"   ({label[1]})" if label else ""))
    return "```text\n" + "\n".join(lines or fence.splitlines()[1:-1]) + "\n```"


def build(site: Path) -> list[str]:
    """Build the site in a folder, which is replaced. Returns what is broken."""
    try:
        import myst_nb  # noqa: F401
        from sphinx.cmd.build import build_main
    except ImportError:
        sys.exit("The site needs Sphinx: say `make site`, which installs it.")
    if site.exists() and any(site.iterdir()) and not (site / ".buildinfo").exists():
        sys.exit(f"{site} holds something that is no site: name another folder.")
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(scratch, "pages"), Path(scratch, "site")
        Pages(source).write_all()
        failed = build_main(["-q", "-b", "html", "-j", "auto", "-c", str(ROOT / "docs" / "site"), "-d", str(Path(scratch, "trees")), str(source), str(made)])
        if failed:
            sys.exit("Sphinx could not build the site: see above.")
        for picture in (path for path in source.rglob("*") if path.suffix in PICTURES):
            (made / picture.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, made / picture.relative_to(source))
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(made, site)
    return check_links.broken(site)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()
    problems = build(folder)
    print("\n".join(problems) + f"\n{len(problems)} broken links" if problems else f"{len(list(folder.rglob('*.html')))} pages, no broken link: open {folder / 'index.html'}")
    sys.exit(bool(problems))
