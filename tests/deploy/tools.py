"""Programs that read what ``deploy/`` holds: Prometheus and its tool, Docker's Compose, a linter of Dockerfiles."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = (ROOT / ".tools" / "bin", ROOT / ".tools" / "usr" / "bin")
_SECONDS = 60


def find_tool(name: str) -> str:
    """Where a program is."""
    found = shutil.which(name, path=os.pathsep.join((*map(str, _FOLDERS), os.environ["PATH"])))
    assert found is not None, f"{name} is missing: make test installs it"
    return found


def run_tool(name: str, *words: str | Path, given: bytes = b"", cwd: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    """Run one to its end, which may be a bad one. Nothing of the caller's environment but PATH and HOME reaches it."""
    env = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    command = [find_tool(name), *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=env, input=given, capture_output=True, timeout=_SECONDS)


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    """All that a program wrote."""
    return (done.stdout + done.stderr).decode()
