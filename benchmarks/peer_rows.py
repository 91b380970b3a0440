"""Rows about other harnesses: the same task, the same server, each in a virtual environment of its own outside the repo."""
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator

from .loop_rows import work
from .measure import PYTHON, Row, in_turn, ms
from .peers import NAMES
from .server import serving

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harnesslab-benchmarks"


def install(name: str) -> str:
    """The path of a Python in which this peer is installed. Installs it on first use; remove the folder to install anew."""
    home = CACHE / name
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        package = importlib.import_module(f"benchmarks.peers.{name}").INSTALL
        print(f"installing {package} into {home}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True, capture_output=True, text=True, timeout=120)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package], capture_output=True, text=True, timeout=600)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise RuntimeError(f"could not be installed: {(lines or ['no message'])[-1]}")
        (home / "installed").touch()
    return str(python)


def peers(repeats: int) -> Iterator[Row]:
    with serving() as url:
        for name in NAMES:
            shown = name.replace("_", "-")
            try:
                python = install(name)
                for steps in (50, 400):
                    taken = in_turn({"bare": lambda: work("bare", url, steps, PYTHON), "peer": lambda: work(name, url, steps, python)}, repeats)
                    bare, peer = (min(one["cpu"] for one in taken[who]) / steps for who in ("bare", "peer"))
                    yield Row(f"peer: {shown} {taken['peer'][0]['version']}, CPU time per step, {steps} steps",
                              f"{peer / bare:.1f} times the bare loop ({ms(peer)}, bare {ms(bare)})")
            except Exception as error:
                yield Row(f"peer: {shown}", f"not measured: {type(error).__name__}: {str(error)[:200]}")
