"""What an operator sees once the server runs."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from engine.types import ModelInfo
from server.cli_card import print_card


class TestCard:
    INFO = ModelInfo(
        name="it's [bold]",
        source="it's [bold]",
        quantization="none",
        attention="native",
        device="cpu",
        dtype="bfloat16",
        vocab_size=9,
        max_model_len=8192,
        weights_bytes=256 << 20,
        kv_cache_bytes=2 << 30,
        num_kv_tokens=93184,
        drafter="suffix",
        num_speculative_tokens=6,
        num_threads=2,
    )

    def test_the_facts(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_card(self.INFO, "http://127.0.0.1:8000")
        shown = capsys.readouterr().out
        for fact in ("it's [bold]", "bfloat16", "256 MiB", "2,048 MiB for 93,184 tokens", "up to 6 tokens", "8,192"):
            assert fact in shown

    def test_a_draft_model_is_named_with_its_size(self, capsys: pytest.CaptureFixture[str]) -> None:
        info = replace(self.INFO, drafter="model", draft_model="small", draft_weights_bytes=9 << 20)
        print_card(info, "http://127.0.0.1:8000")
        assert "model small (9 MiB), up to 6 tokens a draft" in capsys.readouterr().out

    def test_the_command_survives_the_shell(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_card(self.INFO, "http://127.0.0.1:8000")
        words = shlex.split(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("curl")))
        assert words[1] == "http://127.0.0.1:8000/v1/completions"
        assert json.loads(words[-1])["model"] == "it's [bold]"
