"""One real server process on the default model, started as a user starts it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from openai import OpenAI

SECONDS_TO_START = 240  # the first start on a machine converts the model


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    command = (
        sys.executable,
        "-m",
        "server",
        "serve",
        "--port",
        "0",
        "--dtype",
        "float32",
        "--kv-cache-memory",
        "512M",
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    overdue = threading.Timer(SECONDS_TO_START, process.kill)
    overdue.start()
    try:
        url = _await_url(process)
        overdue.cancel()
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0, "the server must drain and leave with 0"


def _await_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"URL\s+(http://\S+)", line):
            return match[1]
    raise AssertionError(f"the server ended with {process.wait()} before it was ready")


@pytest.fixture(scope="session")
def client(server_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
