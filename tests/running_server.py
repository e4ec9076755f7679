"""A server in a process of its own, on the loopback and ended afterwards."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SECONDS_TO_START = 120


@contextmanager
def running_server(folder: Path, *options: str) -> Iterator[str]:
    """The address of a server of the model in ``folder``, started with ``options``."""
    words = ["serve", folder, "--port", "0", "--device", "cpu", "--threads", "1", *options]
    command = [sys.executable, "-m", "server", *map(str, words)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        overdue = threading.Timer(_SECONDS_TO_START, process.kill)
        overdue.start()
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"URL\s+(http://\S+)", line) for line in process.stdout)), None)
            assert found is not None, "the server ended before it was ready"
            overdue.cancel()
            yield found[1]
        finally:
            overdue.cancel()
            process.terminate()
            process.communicate(timeout=60)
