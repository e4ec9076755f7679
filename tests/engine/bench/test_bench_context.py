from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from fake_client import FakeClient

from engine.bench import context as context_module
from engine.bench.context import describe_run
from engine.bench.target import ServerInfo


class TestContext:
    def test_describes_this_machine(self) -> None:
        started_at = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
        context = describe_run(FakeClient().info, command="draftahead bench", started_at=started_at)
        assert (context.command, context.started_at) == ("draftahead bench", "2030-01-02T03:04:05+00:00")
        assert context.cpu
        assert context.num_cores >= 1
        assert context.accelerator is None
        assert context.versions["torch"].startswith(torch.__version__.partition("+")[0])

    def test_names_the_accelerator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Some GPU at {device}")
        info = replace(FakeClient().info, device="cuda:0")
        context = describe_run(info, command="", started_at=datetime.now(UTC))
        assert context.accelerator == "Some GPU at cuda:0"

    def test_reads_the_processor_where_linux_tells_it(self, tmp_path: Path) -> None:
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU: 9000\n", encoding="utf-8")
        assert context_module._cpu_model(cpuinfo) == "Some CPU: 9000"
        cpuinfo.write_text("processor\t: 0\n", encoding="utf-8")
        assert context_module._cpu_model(cpuinfo) == context_module._cpu_model(tmp_path / "absent")

    def test_of_a_server_is_that_of_the_client(self) -> None:
        info = ServerInfo(url="http://host", model="m", endpoint="chat", is_draftahead=False)
        context = describe_run(info, command="", started_at=datetime.now(UTC))
        assert context.accelerator is None
        assert set(context.versions) == {"python", "draftahead", "httpx"}
