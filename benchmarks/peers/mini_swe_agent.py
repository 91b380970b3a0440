"""mini-swe-agent with its LiteLLM model. Its one tool is a shell; here a command is answered from memory, so that no process is started for it."""
import os
import tempfile
from typing import Callable

from ..task import MODEL, SYSTEM, TASK, page

INSTALL, PACKAGE = "mini-swe-agent", "mini-swe-agent"


def make(url: str) -> Callable[[int], int]:
    folder = tempfile.TemporaryDirectory(prefix="harnesslab-bench-")
    os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=folder.name)
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    class Pages(LocalEnvironment):
        count = 0

        def execute(self, action: dict, cwd: str = "", *, timeout: int | None = None) -> dict:
            ending = action["command"].startswith("echo ")
            output = {"output": action["command"].removeprefix("echo ") if ending else page(self.count), "returncode": 0, "exception_info": ""}
            self._check_finished(output)
            self.count += 1
            return output

    def run(steps: int, _keep=folder) -> int:
        pages = Pages()
        model = LitellmModel(model_name=f"anthropic/{MODEL}", cost_tracking="ignore_errors",
                             model_kwargs={"api_base": f"{url}/bash", "api_key": "none"})
        DefaultAgent(model, pages, system_template=SYSTEM, instance_template="{{task}}", cost_limit=0).run(TASK.format(steps=steps))
        return pages.count
    return run
