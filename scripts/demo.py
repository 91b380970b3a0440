"""The main job without a browser: the agent on a throwaway copy of the sample repo, live lines, the summary, the path of the trace."""
import sys
import tempfile
from pathlib import Path

from harnesslab.cli import main
from harnesslab.scripted import WALKTHROUGH_TASK, make_repo

with tempfile.TemporaryDirectory(prefix="harnesslab-demo-") as folder:
    repo = make_repo(Path(folder) / "wordcount")
    # --i-know: the repo is a copy that is thrown away, so the weakest fence will do where no other works.
    sys.exit(main(["run", str(repo), WALKTHROUGH_TASK, "--model", "scripted/walkthrough", "--mode", "yes", "--i-know", "--html"]))
