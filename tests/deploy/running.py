"""A real Prometheus that scrapes a server every second, on the loopback and ended afterwards."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.deploy.expressions import RULES
from tests.deploy.tools import find_tool

_SECONDS_TO_START = 120
_OPTIONS = ("--metrics-names", "vllm")

_CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: draftahead
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """Its HTTP API."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **parameters: Any) -> Any:
        """The data of an answer that must be a success."""
        response = self._client.get(path, params=parameters)
        body = response.json()
        assert body["status"] == "success", (path, parameters, body)
        return body["data"]

    def query(self, expr: str) -> list[float]:
        """The values of all series that an expression gives now."""
        data = self.get("/query", query=expr)
        assert data["resultType"] == "vector", (expr, data)
        return [float(sample["value"][1]) for sample in data["result"]]

    def await_scrapes(self, least: int) -> None:
        """Wait until the server has been scraped that often and each rule has been tried."""
        for _ in range(300):
            is_scraped = self.query("count_over_time(draftahead_engine_up[1h])") >= [least]
            if is_scraped and all(rule["health"] == "ok" for rule in self.rules()):
                return
            time.sleep(0.1)
        raise AssertionError(f"Prometheus does not scrape: {self.get('/targets')}, {self.rules()}")

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health."""
        return [rule for group in self.get("/rules")["groups"] for rule in group["rules"]]


@contextmanager
def running_prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """One that scrapes ``target``, a host and port, tries our rules, and keeps its data in ``folder``."""
    config, port = folder / "prometheus.yml", _free_port()
    config.write_text(_CONFIG.format(target=target, rules=", ".join(map(str, RULES))), "utf-8")
    command = [
        find_tool("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30) as client:
                _await_ready(client, process, folder / "log")
                yield Prometheus(client)
        finally:
            process.terminate()
            process.wait(timeout=30)


def _await_ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, log.read_text("utf-8")
        try:
            if client.get("/query", params={"query": "1"}).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text("utf-8"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
