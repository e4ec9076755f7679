"""The whole server on a GPU: from the command line to an answer."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from tests.small_folders import write_hugging_face_folder

SECONDS_TO_START = 240


def test_a_server_answers_with_drafts_and_without(tmp_path: Path) -> None:
    folder = write_hugging_face_folder(tmp_path / "small")
    errors = tmp_path / "errors"
    command = [sys.executable, "-m", "server", "serve", str(folder), "--port", "0", "--device", "cuda"]
    with errors.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    overdue = threading.Timer(SECONDS_TO_START, process.kill)
    overdue.start()
    try:
        url = _await_url(process)
        request = {
            "model": "small",
            "prompt": "the end, the end, the",
            "max_tokens": 20,
            "temperature": 0,
            "ignore_eos": True,
        }
        answers = [
            httpx.post(f"{url}/v1/completions", json=request | speculation, timeout=60).raise_for_status().json()
            for speculation in ({"speculation": {"mode": "off"}}, {})
        ]
    finally:
        overdue.cancel()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    plain, drafted = (answer["metrics"]["speculative_decoding"]["num_draft_tokens"] for answer in answers)
    assert plain == 0 < drafted
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [20, 20]
    assert re.search(r"captured \d+ CUDA graphs", errors.read_text()), errors.read_text()


def _await_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"URL\s+(http://\S+)", line):
            return match[1]
    raise AssertionError(f"the server ended with {process.wait()} before it was ready")
