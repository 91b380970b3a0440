"""The project behind the suite's contract, one class for each fence. `python3 run.py --adapter adapter:Namespace`."""
import os
import pathlib

from core import Adapter

from harnesslab import fences, tools


class Project(Adapter):
    """Everything but the fence is the same; a call that the project does not offer (yet) is left unimplemented, and its cases are skipped."""
    refusals = (tools.ToolError, ValueError)

    def make_fence(self):
        raise NotImplementedError

    def setup(self):
        self.fence = self.make_fence()

    def safe_path(self, root, p):
        return tools.safe_path(pathlib.Path(root), p)

    def read_file(self, root, path, start=1, end=None):
        return tools.read_file(pathlib.Path(root), path, start, end)

    def list_dir(self, root, path="."):
        return tools.list_dir(pathlib.Path(root), path)

    def search(self, root, pattern):
        return tools.search(pathlib.Path(root), pattern)

    def edit_file(self, root, path, old, new):
        result = tools.edit_file(pathlib.Path(root), path, old, new)
        return getattr(result, "text", result)

    def run_command(self, root, cmd, timeout=30):
        result = self.fence.run(pathlib.Path(root), cmd, timeout)
        if result.not_run is not None:
            return f"NOT RUN: {result.not_run}"
        first = f"TIMEOUT after {timeout}s" if result.timed_out else f"exit code {result.exit_code}"
        return tools.clip(f"{first}\n{result.output}")


class Process(Project):
    name = "process"

    def make_fence(self):
        return fences.ProcessFence()


class Landlock(Project):
    name = "landlock"

    def make_fence(self):
        return fences.LandlockFence()


class Namespace(Project):
    name = "namespace"

    def make_fence(self):
        return fences.NamespaceFence()


class Container(Project):
    """The image comes from HL_IMAGE, the engine's command line from HL_ENGINE."""
    name = "container"

    def make_fence(self):
        return fences.ContainerFence(engine=os.environ.get("HL_ENGINE", "podman"), image=os.environ.get("HL_IMAGE", fences.IMAGE))
