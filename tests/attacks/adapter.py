"""The project behind the suite's contract, one class for each fence: `python3 run.py --adapter adapter:Namespace`.

HL_ADAPTER_PATH must hold the folder of the project (and, for another Python, the folder of its packages).
"""
import dataclasses
import os
from pathlib import Path

from core import Adapter

from harnesslab import fences, sandbox, tools


class Project(Adapter):
    """Everything but the fence is the same. A call that the project does not offer is left unimplemented, and its cases are skipped."""
    refusals = (tools.ToolError, ValueError)

    def setup(self):
        self.fence = self.make_fence()

    def safe_path(self, root, p):
        return tools.safe_path(Path(root), p)

    def read_file(self, root, path, start=1, end=None):
        return tools.read_file(Path(root), path, start, end)

    def list_dir(self, root, path="."):
        return tools.list_dir(Path(root), path)

    def search(self, root, pattern):
        return tools.search(Path(root), pattern)

    def edit_file(self, root, path, old, new):
        result = tools.edit_file(Path(root), path, old, new)
        return getattr(result, "text", result)

    def run_command(self, root, cmd, timeout=30):
        return sandbox.run_command(Path(root), cmd, timeout, fence=self.fence)

    def permit(self, name, args, mode="no", allowlist=()):
        """The suite's mode "allowlist" is our mode "no" with a list."""
        return sandbox.permit(name, args, "no" if mode == "allowlist" else mode, allow=allowlist)

    def execute(self, root, call, mode="no", allowlist=()):
        return sandbox.execute(Path(root), call, "no" if mode == "allowlist" else mode, allow=allowlist, fence=self.fence)

    def verify(self, task, repo, checks, pristine, timeout=20):
        """Our task of that name, on the suite's starting files. Its check scripts stay unused: ours is a judge that asks for values."""
        from harnesslab import tasks, verifier      # only these cases need them, and each case is a process that pays for what it loads

        ours = next((each for each in tasks.wordcount_tasks() if each.id == task["id"]), None)
        if ours is None:
            raise NotImplementedError(f"no task {task['id']}")
        ours = dataclasses.replace(ours, make_repo=tasks.FolderCopy(str(pristine)))
        verdict = verifier.verify(ours, repo, fence=self.fence, timeout=timeout)
        if verdict.error:
            raise RuntimeError(verdict.error)
        return verdict.passed


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
    """HL_ENGINE is the engine's command line, HL_IMAGE the image."""
    name = "container"

    def make_fence(self):
        return fences.ContainerFence(engine=os.environ.get("HL_ENGINE") or "podman", image=os.environ.get("HL_IMAGE") or fences.IMAGE)
