"""A small model in a folder, and a way to serve it in this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest

from server.cli import main
from tests.small_folders import write_hugging_face_folder

Served = Callable[..., int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hugging_face_folder(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def serve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Serve in this process, have a client use it in a thread, then interrupt; gives the exit code.

    A client that stops the server itself asks for no second signal, which might come when nobody handles it any more.
    """

    def serve(use: Callable[[str], None], *words: str, interrupt: bool = True) -> int:
        urls: Queue[str] = Queue()
        monkeypatch.setattr("server.cli_card.print_card", lambda info, url: urls.put(url))

        def client() -> None:
            try:
                use(urls.get(timeout=60))
            finally:
                if interrupt:
                    os.kill(os.getpid(), signal.SIGINT)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(client)
            code = main(["serve", str(folder), "--port", "0", "--device", "cpu", "--threads", "1", *words])
        done.result()
        return code

    return serve
