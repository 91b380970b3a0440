"""Look up every local link, picture and anchor of a folder of finished pages: `python scripts/check_links.py FOLDER`. Nothing is fetched."""
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Links(HTMLParser):
    """The ids and the links of one finished page."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links = {"", "top"}, []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                self.ids.add(value)
            elif name in ("href", "src", "data", "poster") and value is not None:
                self.links.append((value, name != "href" or tag == "link"))


def broken(site: Path) -> list[str]:
    """One line for each local link, picture or anchor that leads nowhere, and for everything that a page would load from elsewhere."""
    pages = {path: Links(path) for path in sorted(site.rglob("*.html"))}
    found = [f"{path.relative_to(site)}: loads {match[0]}" for path in sorted(site.rglob("*.css"))
             for match in re.finditer(r"""(?:@import\s+|url\()["']?(?:https?:)?//[^"')]*""", path.read_text(encoding="utf-8"))]
    for page, links in pages.items():
        for url, loaded in links.links:
            parts = urlsplit(url)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if parts.scheme or parts.netloc:
                problem = "loads from elsewhere" if loaded and parts.scheme != "data" else ""
            elif not target.is_file():
                problem = "leads nowhere"
            else:
                problem = "has no such anchor" if target in pages and unquote(parts.fragment) not in pages[target].ids else ""
            found += [f"{page.relative_to(site)}: {url} {problem}"] if problem else []
    return found


if __name__ == "__main__":
    found = broken(Path(sys.argv[1]).resolve())
    print("\n".join(found) or "no broken link")
    sys.exit(bool(found))
