"""The tool runner of the Anthropic SDK. Its threads, which leave the history with the server, are switched off: here everyone sends the whole history."""
from typing import Callable

from ..task import MODEL, SYSTEM, TASK, page

INSTALL, PACKAGE = "anthropic", "anthropic"


def make(url: str) -> Callable[[int], int]:
    from anthropic import Anthropic, beta_tool
    client = Anthropic(base_url=f"{url}/read_page", api_key="none")

    @beta_tool
    def read_page(book: str, number: int) -> str:
        """Read one page of a book. Returns its text."""
        return page(number)

    def run(steps: int) -> int:
        runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=8192, system=SYSTEM, tools=[read_page], thread=False,
                                                  messages=[{"role": "user", "content": TASK.format(steps=steps)}])
        return sum(any(block.type == "tool_use" for block in message.content) for message in runner)
    return run
