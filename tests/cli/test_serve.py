"""A server from its first request to the signal that ends it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import httpx

from tests.cli.conftest import Served


def long_stream(url: str, after_the_first: Callable[[], None]) -> list[str]:
    """The events of a long answer behind its first, upon which something happens."""
    request = {"model": "small", "prompt": "the end", "max_tokens": 490, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=request, timeout=60) as answer:
        events = answer.iter_lines()
        next(events)
        after_the_first()
        return [event for event in events if event]


class TestServe:
    def test_a_running_request_is_finished_first(self, folder: Path) -> None:
        command = [sys.executable, "-m", "server", "serve", str(folder), "--port", "0", "--device", "cpu"]
        with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
            assert process.stdout is not None
            card = "".join(iter(process.stdout.readline, "\n"))
            _, url, *_, body = shlex.split(card.splitlines()[-1])
            request = json.loads(body) | {"max_tokens": 480, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", url, json=request, timeout=60) as answer:
                events = answer.iter_lines()
                assert next(events).startswith("data: ")
                process.send_signal(signal.SIGTERM)
                *_, last, end = [line for line in events if line]
            _, shown = process.communicate(timeout=60)
        assert end == "data: [DONE]"
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert (process.returncode, "Traceback" in shown) == (0, False), shown

    def test_names_and_an_answer(self, serve: Served) -> None:
        def use(url: str) -> None:
            models = httpx.get(f"{url}/v1/models").json()["data"]
            assert [model["id"] for model in models] == ["main", "other"]
            request = {"model": "main", "prompt": "the end", "max_tokens": 4, "ignore_eos": True}
            answer = httpx.post(f"{url}/v1/completions", json=request, timeout=60).json()
            assert answer["usage"]["completion_tokens"] == 4

        assert serve(use, "--served-model-name", "main", "other") == 0

    def test_a_request_that_takes_too_long_is_told(self, serve: Served) -> None:
        def use(url: str) -> None:
            told.extend(long_stream(url, lambda: os.kill(os.getpid(), signal.SIGTERM)))

        told: list[str] = []
        assert serve(use, "--drain-timeout", "0", interrupt=False) == 0
        (error,) = [json.loads(event.removeprefix("data: "))["error"] for event in told if '"error"' in event]
        assert error["code"] == "engine_unavailable"
        assert error["message"] == "the server shut down before this request was finished"

    def test_a_second_signal_ends_the_drain(self, serve: Served) -> None:
        def signal_twice() -> None:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.05)

        def use(url: str) -> None:
            told.extend(long_stream(url, signal_twice))

        told: list[str] = []
        assert serve(use, "--drain-timeout", "60", interrupt=False) == 0
        assert any('"engine_unavailable"' in event for event in told), told
