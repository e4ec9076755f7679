"""The words of the command line, and the settings that they make."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bench.options import BenchOptions, ServerOptions
from engine.config import EngineConfig
from engine.workloads import config_for
from server.cli_arguments import server_settings
from server.cli_bench_arguments import bench_options, server_options
from server.cli_engine_arguments import engine_config, parse_size
from server.settings import ServerSettings
from tests.cli.arguments import parse


class TestArguments:
    def test_the_defaults_are_the_settings_own(self) -> None:
        assert engine_config(parse("serve")) == EngineConfig()
        assert server_settings(parse("serve")) == ServerSettings()
        assert bench_options(parse("bench")) == BenchOptions()

    def test_a_workload_is_a_set_of_defaults(self) -> None:
        assert engine_config(parse("serve", "--workload", "interactive")) == config_for("interactive")
        assert engine_config(parse("serve", "--workload", "throughput")).max_num_seqs == 64
        told = engine_config(parse("serve", "--max-num-seqs", "32", "--workload", "throughput"))
        assert told == replace(config_for("throughput"), max_num_seqs=32), "what is said stands, even the usual default"
        assert config_for(None) == EngineConfig()

    def test_the_benchmark_runs_without_the_prefix_cache(self) -> None:
        assert engine_config(parse("bench")) == EngineConfig(enable_prefix_caching=False)

    def test_every_flag_reaches_its_setting(self) -> None:
        words = (
            "serve /models/one --device cpu --dtype bfloat16 --quantization int4 --max-model-len 900 --block-size 8 "
            "--kv-cache-memory 512M --no-prefix-caching --max-num-seqs 4 --max-num-batched-tokens 64 "
            "--max-num-waiting 5 --drafter none --num-speculative-tokens 3 --threads 1 --enforce-eager "
            "--draft-length adaptive --itl-slo-ms 30.5 --trace /tmp/t "
            "--cache-dir /tmp/c --served-model-name a b --unknown-fields ignore --max-logprobs -1 --api-key k l "
            "--allowed-origins https://a.example --max-request-size 1M --body-timeout 7"
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
            enforce_eager=True,
            cache_dir=Path("/tmp/c"),
            itl_slo_ms=30.5,
            trace=Path("/tmp/t"),
        )
        settings = server_settings(parse(*words.split()))
        assert settings == ServerSettings(
            served_model_names=("a", "b"),
            unknown_fields="ignore",
            max_logprobs=-1,
            max_choices_per_request=9,
            api_keys=("k", "l"),
            allowed_origins=("https://a.example",),
            max_request_bytes=1 << 20,
            body_timeout=7,
        )

    def test_keys_may_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DRAFTAHEAD_API_KEY", "one two")
        assert server_settings(parse("serve")).api_keys == ("one", "two")
        assert server_settings(parse("serve", "--api-key", "three")).api_keys == ("three",)

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


def test_no_call_may_have_more_choices_than_the_engine_ever_takes() -> None:
    few = parse("serve", "--max-num-seqs", "4", "--max-num-waiting", "5")
    assert server_settings(few).max_choices_per_request == 9
    assert server_settings(parse("serve")).max_choices_per_request == 1024


def test_help_and_version_do_not_load_torch() -> None:
    code = (
        "import sys\nfrom server.cli import main\n"
        "for words in (['--version'], ['--help'], ['serve', '--help'], ['bench', '--help'], ['top', '--help']):\n"
        "    try: main(words)\n"
        "    except SystemExit as leaving: assert leaving.code == 0\n"
        "sys.exit(bool({'torch', 'transformers', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("draftahead ")


def test_the_readme_knows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("serve", "--help")
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    table = readme.partition("## Options")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == flags
