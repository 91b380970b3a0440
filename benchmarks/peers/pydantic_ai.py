"""Pydantic AI with its Anthropic model."""
from typing import Callable

from ..task import MODEL, SYSTEM, TASK, page

INSTALL, PACKAGE = "pydantic-ai-slim[anthropic]", "pydantic-ai-slim"


def make(url: str) -> Callable[[int], int]:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.usage import UsageLimits
    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=f"{url}/read_page", api_key="none"))
    agent = Agent(model, instructions=SYSTEM, model_settings={"max_tokens": 8192})       # with its default, the model's maximum, it would ask for a stream

    @agent.tool_plain
    def read_page(book: str, number: int) -> str:
        """Read one page of a book. Returns its text."""
        return page(number)

    def run(steps: int) -> int:
        done = agent.run_sync(TASK.format(steps=steps), usage_limits=UsageLimits(request_limit=None))
        return sum(part.part_kind == "tool-return" for message in done.all_messages() for part in message.parts)
    return run
