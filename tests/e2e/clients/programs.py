"""Runs programs that are not ours, with what ``make test`` installs for them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYTHON_FOLDER = ROOT / ".venv-clients" / "bin"
SECONDS = 180


def run_program(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What the program printed; it must end well."""
    assert Path(command[0]).exists() or "/" not in str(command[0]), f"{command[0]} is missing: make test installs it"
    done = subprocess.run(
        [str(word) for word in command],
        cwd=HERE,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def last_json(printed: str) -> Any:
    """The object on the last line."""
    return json.loads(printed.strip().splitlines()[-1])
