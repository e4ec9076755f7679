"""A start that cannot be: one line that says why, and exit code 2."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from server import cli
from server.cli import main
from tests import vocabularies
from tests.tiny import tiny_llama


class TestRefusals:
    def refusal(self, capsys: pytest.CaptureFixture[str], *words: str) -> str:
        try:
            code: object = main(words)
        except SystemExit as leaving:
            code = leaving.code
        assert code == 2
        shown = capsys.readouterr().err.splitlines()
        errors = [line for line in shown if line.startswith("draftahead: error: ")]
        assert errors == shown[-1:], shown
        return errors[0].removeprefix("draftahead: error: ")

    @pytest.mark.parametrize(
        ("words", "part"),
        [
            ("", "COMMAND"),
            ("sing", "sing"),
            ("serve --port 70000", "70000"),
            ("serve --port -1", "-1"),
            ("serve --drain-timeout soon", "soon"),
            ("serve --dtype int3", "int3"),
            ("serve --drafter oracle", "oracle"),
            ("serve --kv-cache-memory much", "much"),
            ("serve --num-speculative-tokens 0", "num_speculative_tokens must lie in 1..32, not 0"),
            ("serve --threads 100000", "num_threads must be at most"),
            ("serve --block-size 100000", "block_size must be at most 1024, not 100000"),
            ("serve /etc/passwd --port 0", "/etc/passwd is a file"),
            ("serve --max-num-seqs 8 --max-num-batched-tokens 7", "max_num_batched_tokens must be at least 8"),
            ("serve --served-model-name a a", "names a model twice"),
            ("serve --no-such-flag", "--no-such-flag"),
            ("serve --port 0 /no/such/folder", "no model at /no/such/folder"),
            ("serve --host a..b", "cannot listen on a..b port 8000"),
            ("serve --host 203.0.113.7", "cannot listen on 203.0.113.7 port 8000"),
            ("serve --drafter model", "drafter is 'model', but no draft_model is named"),
            (
                "serve --drafter suffix --draft-model m",
                "draft_model is for the drafters 'auto' and 'model', but drafter",
            ),
            (
                "serve --drafter none --shared-suffix-tokens 9",
                "shared_suffix_tokens is for the drafters 'auto' and 'suf",
            ),
            ("serve --itl-slo-ms 0", "itl_slo_ms must be a number above 0, not 0.0"),
            ("serve --itl-slo-ms nan", "itl_slo_ms must be a number above 0, not nan"),
            ("serve --itl-slo-ms 9 --draft-length fixed", "itl_slo_ms needs adaptive draft lengths"),
            ("serve --workload interactive --draft-length fixed", "itl_slo_ms needs adaptive draft lengths"),
            ("serve --workload fast", "fast"),
            ("serve --port 0 --trace /no/such/folder/file", "/no/such/folder/file cannot be written"),
            ("inspect /no/such/file", "/no/such/file cannot be read"),
            ("inspect /etc/passwd", "/etc/passwd, line 1, is not a step"),
            ("bench --simulate --step-times b200", "step_times 'b200' is none of h200-8b, and no file"),
            ("bench --simulate --step-times /etc/passwd", "/etc/passwd is no JSON object of seconds by rows"),
            ("bench --simulate --concurrency 0", "concurrency must be at least 1, not 0"),
            ("bench --simulate --recorded /etc/passwd", "/etc/passwd, line 1, is not a step"),
            ("serve --shared-suffix-tokens -1", "shared_suffix_tokens must be at least 0, not -1"),
            ("steps --rows 1 0", "rows must be at least 1, not 0"),
            ("steps --steps 0", "steps must be at least 1, not 0"),
            ("steps --temperature -1", "temperature must lie between 0 and 2, not -1.0"),
            ("bench --temperature 3", "temperature must lie between 0 and 2, not 3.0"),
            ("bench --prompts /no/such/file", "/no/such/file"),
            ("bench --concurrency 1 0", "concurrency must be at least 1, not 0"),
            ("bench --request-rate 1 --concurrency 1", "give no concurrency with it"),
            ("bench --url host", "url must look like http://host:port, not 'host'"),
            ("bench --url http://host --dtype float32 /models/one", "which model, dtype cannot change"),
            ("bench --endpoint chat", "endpoint belongs to url"),
            ("bench --served-model m", "served_model belongs to url"),
            ("bench --url http://host --endpoint tea", "tea"),
        ],
    )
    def test_one_line_and_code_2(self, capsys: pytest.CaptureFixture[str], words: str, part: str) -> None:
        assert part in self.refusal(capsys, *words.split())

    def test_a_port_in_use_is_known_before_the_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            message = self.refusal(capsys, "serve", "/no/such/folder", "--port", port)
        assert message == f"cannot listen on 127.0.0.1 port {port}: Address already in use"

    def test_a_port_that_another_server_took_meanwhile(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
            port = str(other.getsockname()[1])
            build = cli._build_engine

            def build_slowly(*args: Any, **options: Any) -> Any:
                other.listen()
                return build(*args, **options)

            monkeypatch.setattr(cli, "_build_engine", build_slowly)
            message = self.refusal(capsys, "serve", str(folder), "--port", port, "--device", "cpu")
        assert message == f"cannot listen on 127.0.0.1 port {port}: Address already in use"

    def test_a_key_value_cache_that_is_too_small(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        words = ("serve", str(folder), "--port", "0", "--kv-cache-memory", "1K", "--device", "cpu")
        assert "kv_cache_memory is 1 MiB, but one request of 512 tokens needs" in self.refusal(capsys, *words)

    def test_a_draft_model_with_another_vocabulary(
        self, capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
    ) -> None:
        tokenizer = vocabularies.byte_level(vocab_size=300)
        tiny_llama(vocab_size=304).save_pretrained(tmp_path / "other")
        tokenizer.save_pretrained(tmp_path / "other")
        words = ("serve", str(folder), "--port", "0", "--device", "cpu", "--drafter", "model")
        message = self.refusal(capsys, *words, "--draft-model", str(tmp_path / "other"))
        assert message.startswith(
            "the draft model other has another vocabulary than the model small, so it cannot draft for it: "
            f"300 tokens, not {len(vocabularies.byte_level())}"
        )

    def test_a_draft_model_that_is_not_there(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        words = ("serve", str(folder), "--port", "0", "--device", "cpu", "--drafter", "model")
        assert "no model at /no/draft" in self.refusal(capsys, *words, "--draft-model", "/no/draft")


def test_work_in_a_passing_thread_gives_its_result_or_its_error() -> None:
    assert cli._in_passing_thread(lambda: threading.current_thread().name) == "loading"
    with pytest.raises(ZeroDivisionError):
        cli._in_passing_thread(lambda: 1 // 0)
    assert "loading" not in {thread.name for thread in threading.enumerate()}
