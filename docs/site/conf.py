"""Settings of Sphinx for the static site. scripts/build_site.py prepares the pages and runs it: `make site`."""
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

project = html_title = "harnesslab"
extensions = ["myst_nb"]
suppress_warnings = ["myst.header"]     # a cell may begin with a heading of any level

nb_execution_mode = "off"               # the site shows the outputs that are kept in the notebooks, and runs nothing
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath"]
myst_all_links_external = True          # the links are made ready by build_site.py, and checked in the finished pages

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_js_files = ["site.js"]
html_use_index = False
html_domain_indices = False
html_math_renderer = "mathml"           # the browser's own: no script, nothing from elsewhere
highlight_language = "text"             # of a block that names no language
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"


def _formula(self, node, block: bool) -> None:
    self.body.append(tex2mathml(node.astext().replace(r"\dots", r"\ldots"), as_block=block))
    raise nodes.SkipNode


def setup(app) -> None:
    app.add_html_math_renderer("mathml", (lambda self, node: _formula(self, node, False), None), (lambda self, node: _formula(self, node, True), None))
