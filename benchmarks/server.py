"""The model that all contestants talk to: a raw HTTP server in a process of its own, made to cost as little as possible.

It does not parse a request. It counts the assistant turns in the bytes and answers with the next call, or, after enough of them, with a last word. So a
request of 1.5 MB is answered in about a millisecond, and what is measured is the client. The name of the tool to call stands in the path
(/read_page/v1/messages), the number of steps in the text of the task.
"""
import json
import re
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from .task import MODEL

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_STEPS = re.compile(rb"Read all (\d+) pages")


def _reply(tool: str, steps: int, turn: int, size: int) -> bytes:
    """The HTTP answer to a request that holds `turn` assistant turns. Its usage is a rough estimate from the size, 4 bytes a token."""
    if tool == "bash":                              # an agent with a shell and nothing else ends by a command
        arguments = {"command": f"cat page-{turn:04d}.txt" if turn < steps else "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
    else:
        arguments = {"book": "tables.py", "number": turn}
    if turn >= steps and tool != "bash":
        content, stop = [{"type": "text", "text": "There are no more pages."}], "end_turn"
    else:
        call = {"type": "tool_use", "id": f"toolu_{turn:06d}", "name": tool, "input": arguments}
        content, stop = [{"type": "text", "text": f"I read page {turn}."}, call], "tool_use"
    body = json.dumps({"id": f"msg_{turn:06d}", "type": "message", "role": "assistant", "model": MODEL, "content": content, "stop_reason": stop,
                       "stop_sequence": None, "usage": {"input_tokens": size // 4, "output_tokens": 20}}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _talk(connection: socket.socket) -> None:
    """Answer one request after another until the client hangs up. One buffer serves them all."""
    buffer, filled = bytearray(1 << 22), 0
    while True:
        while (end := buffer.find(b"\r\n\r\n", 0, filled)) < 0:
            got = connection.recv_into(memoryview(buffer)[filled:])
            if not got:
                return
            filled += got
        head = bytes(buffer[:end])
        length = _LENGTH.search(head)
        total = end + 4 + int(length[1] if length else 0)
        if total > len(buffer):
            buffer.extend(bytes(2 * total - len(buffer)))
        while filled < total:
            got = connection.recv_into(memoryview(buffer)[filled:])
            if not got:
                return
            filled += got
        tool, steps = head.split(b"/", 2)[1].decode(), _STEPS.search(buffer, end, total)
        turns = buffer.count(b'"assistant"', end, total)       # inside a JSON text the quotes would be escaped, so this counts roles only
        connection.sendall(_reply(tool, int(steps[1]) if steps else 0, turns, total - end))
        buffer[:filled - total], filled = buffer[total:filled], filled - total


def _serve_one(connection: socket.socket) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            _talk(connection)
        except OSError:
            pass


def main() -> None:
    """Print the port, then serve until standard input closes: so it cannot outlive the process that started it."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            threading.Thread(target=_serve_one, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server that runs while the block does."""
    process = subprocess.Popen([sys.executable, "-m", __name__], cwd=Path(__file__).parent.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


if __name__ == "__main__":
    main()
