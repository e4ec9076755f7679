"""The Dockerfile and the Compose file, as far as they can be read without anything that runs containers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.deploy.tools import ROOT, run_tool, said

COMPOSE = ROOT / "docker-compose.yml"


def resolve(*words: str) -> dict[str, Any]:
    """The Compose file as Compose itself understands it."""
    done = run_tool("docker-compose", *words, "config", "--format", "json")
    assert done.returncode == 0, said(done)
    resolved: dict[str, Any] = json.loads(done.stdout)
    return resolved


def test_nothing_is_wrong_with_the_dockerfile() -> None:
    done = run_tool("hadolint", "Dockerfile")
    assert done.returncode == 0, said(done)


@pytest.mark.parametrize(
    ("words", "server"), [((), "draftahead"), (("--profile", "gpu"), "draftahead-gpu")], ids=["cpu", "gpu"]
)
class TestCompose:
    def test_there_is_one_server(self, words: tuple[str, ...], server: str) -> None:
        assert set(resolve(*words)["services"]) == {server, "prometheus", "grafana"}

    def test_each_waits_until_the_one_before_is_well(self, words: tuple[str, ...], server: str) -> None:
        services = resolve(*words)["services"]
        assert services["grafana"]["depends_on"]["prometheus"]["condition"] == "service_healthy"
        assert services["prometheus"]["depends_on"][server]["condition"] == "service_healthy"
        assert {"prometheus", "grafana"} <= {name for name, service in services.items() if "healthcheck" in service}
        assert "HEALTHCHECK" in (ROOT / "Dockerfile").read_text("utf-8")

    def test_what_is_mounted_is_there(self, words: tuple[str, ...], server: str) -> None:
        for service in resolve(*words)["services"].values():
            for volume in service.get("volumes", ()):
                if volume["type"] == "bind":
                    assert (ROOT / volume["source"]).is_dir()
                    assert volume["read_only"]

    def test_nothing_listens_beyond_this_machine(self, words: tuple[str, ...], server: str) -> None:
        ports = [port for service in resolve(*words)["services"].values() for port in service["ports"]]
        assert sorted(port["published"] for port in ports) == ["3000", "8000", "9090"]
        assert {port["host_ip"] for port in ports} == {"127.0.0.1"}

    def test_prometheus_finds_the_server(self, words: tuple[str, ...], server: str) -> None:
        service = resolve(*words)["services"][server]
        names = {server, *((service.get("networks") or {}).get("default") or {}).get("aliases", ())}
        assert "draftahead" in names
        assert '"draftahead:8000"' in (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text("utf-8")


def test_only_the_gpu_is_reserved_and_only_there() -> None:
    device = resolve("--profile", "gpu")["services"]["draftahead-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert [(entry["driver"], entry["capabilities"]) for entry in device] == [("nvidia", ["gpu"])]
    assert "deploy" not in resolve()["services"]["draftahead"]
