from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from subprocess import PIPE
from typing import Any

import httpx
import pytest

from engine.bench.options import BenchOptions, ServerOptions
from engine.config import EngineConfig
from engine.types import ModelInfo
from server import cli
from server.cli import main
from server.cli_arguments import build_parser, engine_config, parse_size, server_settings
from server.cli_bench_arguments import bench_options, server_options
from server.cli_card import print_card
from server.settings import ServerSettings
from tests.small_folders import write_hugging_face_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hugging_face_folder(tmp_path_factory.mktemp("models") / "small")


def parse(*words: str) -> argparse.Namespace:
    return build_parser(serve=lambda arguments: 0, bench=lambda arguments: 0, steps=lambda arguments: 0).parse_args(
        words
    )


class TestArguments:
    def test_the_defaults_are_the_settings_own(self) -> None:
        assert engine_config(parse("serve")) == EngineConfig()
        assert server_settings(parse("serve")) == ServerSettings()
        assert bench_options(parse("bench")) == BenchOptions()

    def test_the_benchmark_runs_without_the_prefix_cache(self) -> None:
        assert engine_config(parse("bench")) == EngineConfig(enable_prefix_caching=False)

    def test_every_flag_reaches_its_setting(self) -> None:
        words = (
            "serve /models/one --device cpu --dtype bfloat16 --quantization int4 --max-model-len 900 --block-size 8 "
            "--kv-cache-memory 512M --no-prefix-caching --max-num-seqs 4 --max-num-batched-tokens 64 "
            "--max-num-waiting 5 --drafter none --num-speculative-tokens 3 --threads 1 --cache-dir /tmp/c "
            "--served-model-name a b --unknown-fields ignore"
        )
        assert engine_config(parse(*words.split())) == EngineConfig(
            model="/models/one",
            device="cpu",
            dtype="bfloat16",
            quantization="int4",
            max_model_len=900,
            block_size=8,
            kv_cache_memory=512 << 20,
            enable_prefix_caching=False,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_num_waiting=5,
            drafter="none",
            num_speculative_tokens=3,
            num_threads=1,
            cache_dir=Path("/tmp/c"),
        )
        settings = server_settings(parse(*words.split()))
        assert settings == ServerSettings(
            served_model_names=("a", "b"), unknown_fields="ignore", max_choices_per_request=9
        )

    def test_bench_flags(self) -> None:
        words = (
            "bench --tasks qa maths --limit-per-task 2 --max-tokens 3 --concurrency 4 8 --repeats 5 "
            "--temperature 0.5 --seed 6 --num-warmup 7 --ignore-eos"
        )
        assert bench_options(parse(*words.split())) == BenchOptions(
            tasks=("qa", "maths"),
            limit_per_task=2,
            max_tokens=3,
            concurrency=(4, 8),
            repeats=5,
            temperature=0.5,
            seed=6,
            num_warmup=7,
            ignore_eos=True,
        )
        assert bench_options(parse("bench", "--request-rate", "1.5")) == BenchOptions(request_rate=1.5)
        assert server_options(parse(*words.split())) is None

    def test_flags_of_a_server_to_measure(self) -> None:
        url = "http://host:80"
        assert server_options(parse("bench", "--url", url)) == ServerOptions(url=url)
        words = f"bench --url {url} --served-model m --endpoint chat"
        expected = ServerOptions(url=url, served_model="m", endpoint="chat")
        assert server_options(parse(*words.split())) == expected

    @pytest.mark.parametrize(
        ("text", "size"),
        [("4096", 4096), ("1K", 1024), ("512M", 512 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30), ("1TB", 1 << 40)],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert parse_size(text) == size

    @pytest.mark.parametrize("text", ["", "M", "-1", "1.M", "1 M", "1MM", "1e3", "0x10", "2PB", "much"])
    def test_what_is_no_size(self, text: str) -> None:
        with pytest.raises(argparse.ArgumentTypeError, match="is not a size such as 512M"):
            parse_size(text)


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


def test_no_call_may_have_more_choices_than_the_engine_ever_takes() -> None:
    few = parse("serve", "--max-num-seqs", "4", "--max-num-waiting", "5")
    assert server_settings(few).max_choices_per_request == 9
    assert server_settings(parse("serve")).max_choices_per_request == 1024


def test_work_in_a_passing_thread_gives_its_result_or_its_error() -> None:
    assert cli._in_passing_thread(lambda: threading.current_thread().name) == "loading"
    with pytest.raises(ZeroDivisionError):
        cli._in_passing_thread(lambda: 1 // 0)
    assert "loading" not in {thread.name for thread in threading.enumerate()}


def test_help_and_version_do_not_load_torch() -> None:
    code = (
        "import sys\nfrom server.cli import main\n"
        "for words in (['--version'], ['--help'], ['serve', '--help'], ['bench', '--help']):\n"
        "    try: main(words)\n"
        "    except SystemExit as leaving: assert leaving.code == 0\n"
        "sys.exit(bool({'torch', 'transformers', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("draftahead ")


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

    def test_the_command_survives_the_shell(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_card(self.INFO, "http://127.0.0.1:8000")
        words = shlex.split(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("curl")))
        assert words[1] == "http://127.0.0.1:8000/v1/completions"
        assert json.loads(words[-1])["model"] == "it's [bold]"


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
            request = {"model": "small", "prompt": "the end", "max_tokens": 490, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=request, timeout=60) as answer:
                events = answer.iter_lines()
                next(events)
                os.kill(os.getpid(), signal.SIGTERM)
                told.extend(event for event in events if event)

        told: list[str] = []
        assert serve(use, "--drain-timeout", "0", interrupt=False) == 0
        (error,) = [json.loads(event.removeprefix("data: "))["error"] for event in told if '"error"' in event]
        assert error["code"] == "engine_unavailable"
        assert error["message"] == "the server shut down before this request was finished"

    def test_a_second_signal_ends_the_drain(self, serve: Served) -> None:
        def use(url: str) -> None:
            request = {"model": "small", "prompt": "the end", "max_tokens": 490, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=request, timeout=60) as answer:
                events = answer.iter_lines()
                next(events)
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(0.05)
                told.extend(event for event in events if event)

        told: list[str] = []
        assert serve(use, "--drain-timeout", "60", interrupt=False) == 0
        assert any('"engine_unavailable"' in event for event in told), told


Served = Callable[..., int]


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


@pytest.fixture
def bench(tmp_path: Path) -> list[str]:
    """The words of a benchmark of one short prompt."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"question_id": 1, "category": "qa", "turns": ["the end of the"]}) + "\n")
    return ["bench", "--prompts", str(prompts), "--tasks", "qa", "--max-tokens", "8", "--num-warmup", "0"]


def test_bench_measures_and_reports(
    folder: Path, tmp_path: Path, bench: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    written, page = tmp_path / "result.json", tmp_path / "result.html"
    words = [*bench, "--device", "cpu", "--threads", "1", "--json", str(written), "--html", str(page)]
    assert main([*words, "--concurrency", "1", "2", "--", str(folder)]) == 0
    assert "qa" in capsys.readouterr().out
    document = json.loads(written.read_text())
    assert document["context"]["command"].startswith("draftahead bench --prompts ")
    for load in document["loads"]:
        split = load["overall"]["modes"]["speculative"]["step_split"]
        assert sum(split["shares"].values()) == pytest.approx(1)
    assert document["peak_rss_mib"] > 50
    assert page.read_text("utf-8").count("<svg") == 2 * 4


def test_bench_measures_our_own_server(
    serve: Served, tmp_path: Path, bench: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "result.json"
    words = [*bench, "--temperature", "1", "--seed", "3", "--ignore-eos", "--json", str(written)]
    codes: list[int] = []
    assert serve(lambda url: codes.append(main([*words, "--url", url])), "--no-prefix-caching") == 0
    assert codes == [0]
    assert "All 1 prompts gave the same text with and without speculation." in capsys.readouterr().out
    document = json.loads(written.read_text())
    assert document["server"]["model"] == "small"
    modes = document["loads"][0]["overall"]["modes"]
    assert list(modes) == ["plain", "speculative"]
    assert modes["plain"]["num_drafts"] == 0
    assert modes["plain"]["num_output_tokens"] == modes["speculative"]["num_output_tokens"] == 8


def test_bench_says_in_one_line_why_a_server_failed(
    serve: Served, bench: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    assert serve(lambda url: codes.append(main([*bench, "--url", url, "--served-model", "none"]))) == 0
    assert codes == [1]
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("draftahead: error: ")]
    assert "prompt 1 (qa) failed: " in error
    assert "/v1/completions answered 404: " in error


def test_the_readme_knows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("serve", "--help")
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    readme = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    table = readme.partition("## Options")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == flags
