from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    LlamaConfig,
    LlavaConfig,
    MambaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    T5Config,
)

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.loading import LoadedModel, load_model
from tests.small_folders import write_gguf, write_hugging_face_folder


def load(model: Path | str, **options: Any) -> LoadedModel:
    config = EngineConfig(model=str(model), **{"device": "cpu", "dtype": "float32"} | options)
    return load_model(config, lambda stage, fraction: None)


def refusal(model: Path | str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(model, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hugging_face_folder(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "small"))


class TestFolder:
    def test_a_folder_loads(self, pristine: Path) -> None:
        loaded = load(pristine)
        assert loaded.name == "small"
        assert (loaded.device, loaded.dtype, loaded.model.dtype) == (torch.device("cpu"), torch.float32, torch.float32)
        assert not loaded.model.training
        assert loaded.max_model_len == 512
        assert loaded.tokenizer.decode(loaded.tokenizer("the end")["input_ids"]) == "the end"

    def test_the_weights_are_the_files_own(self, pristine: Path) -> None:
        saved = load_file(pristine / "model.safetensors")
        state = load(pristine, dtype="bfloat16").model.state_dict()
        assert all(torch.equal(state[name], tensor.bfloat16()) for name, tensor in saved.items())

    def test_end_tokens_come_from_both_files(self, folder: Path) -> None:
        _change(folder / "config.json", eos_token_id=5)
        _change(folder / "generation_config.json", eos_token_id=[7, 5, 9])
        assert load(folder).eos_token_ids == {5, 7, 9}

    def test_no_end_token_at_all(self, folder: Path) -> None:
        _change(folder / "config.json", eos_token_id=None)
        _change(folder / "generation_config.json", eos_token_id=None)
        assert load(folder).eos_token_ids == frozenset()

    def test_progress_ends(self, pristine: Path) -> None:
        fractions: list[float] = []
        load_model(EngineConfig(model=str(pristine)), lambda stage, fraction: fractions.append(fraction))
        assert fractions[-1] == 1.0

    @pytest.mark.parametrize(("has_bfloat16", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
    def test_auto_follows_the_hardware(
        self, pristine: Path, monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool, dtype: torch.dtype
    ) -> None:
        monkeypatch.setattr("engine.model.loading._multiplies_bfloat16", lambda device: has_bfloat16)
        loaded = load(pristine, dtype="auto")
        assert (loaded.dtype, loaded.model.dtype) == (dtype, dtype)


def test_a_gguf_file_loads(tmp_path: Path) -> None:
    values = write_gguf(tmp_path / "from-a-file.gguf")
    loaded = load(tmp_path / "from-a-file.gguf", cache_dir=tmp_path / "cache")
    assert (loaded.name, loaded.max_model_len) == ("from-a-file", 256)
    assert torch.equal(loaded.model.lm_head.weight, torch.from_numpy(values["output.weight"]))


class TestNotFound:
    def test_a_folder(self, tmp_path: Path) -> None:
        assert f"no model at {tmp_path}/none: no such folder" in refusal(tmp_path / "none")

    def test_a_gguf(self, tmp_path: Path) -> None:
        assert "no such file" in refusal(tmp_path / "none.gguf")

    def test_a_name(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert "no model 'nobody/no-such-model'" in refusal("nobody/no-such-model")

    def test_a_name_that_cannot_be_one(self) -> None:
        assert "no model 'no such model!'" in refusal("no such model!")

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        assert f"configuration of the model {tmp_path.name}" in refusal(tmp_path)


class TestTooLarge:
    def test_longer_than_the_model(self, pristine: Path) -> None:
        message = refusal(pristine, max_model_len=513)
        assert "513" in message
        assert "512" in message

    def test_shorter_is_taken(self, pristine: Path) -> None:
        assert load(pristine, max_model_len=100).max_model_len == 100

    @pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
    def test_weights_beyond_the_memory(
        self, pristine: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, size: int
    ) -> None:
        num_weights = sum(tensor.numel() for tensor in load_file(pristine / "model.safetensors").values())
        monkeypatch.setattr("engine.model.loading.available_bytes", lambda device: num_weights * size)
        load(pristine, dtype=dtype)
        monkeypatch.setattr("engine.model.loading.available_bytes", lambda device: num_weights * size - 1)
        monkeypatch.setattr("engine.model.loading._load_weights", lambda *args: pytest.fail("loaded"))
        assert "not enough memory on cpu for the weights of small" in refusal(pristine, dtype=dtype)


def _linear_attention() -> PretrainedConfig:
    return Qwen3NextConfig(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])


def _longrope() -> PretrainedConfig:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=512,
        rope_parameters=rope | {"original_max_position_embeddings": 64},
    )


def _quantised() -> PretrainedConfig:
    return LlamaConfig(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})


class TestUnsupported:
    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (T5Config, "encoder-decoder"),
            (LlavaConfig, "multimodal"),
            (MambaConfig, "linear_attention"),
            (_linear_attention, "linear_attention"),
            (_longrope, "longrope"),
            (MixtralConfig, "mixture of experts"),
            (Qwen3MoeConfig, "mixture of experts"),
            (_quantised, "quantised"),
            (BloomConfig, "attention backend"),
            (lambda: BertConfig(architectures=[BertForMaskedLM.__name__]), "BertForMaskedLM"),
        ],
    )
    def test_by_its_configuration(self, tmp_path: Path, make: Callable[[], PretrainedConfig], reason: str) -> None:
        make().save_pretrained(tmp_path)
        message = refusal(tmp_path)
        assert f"the model {tmp_path.name} is not supported" in message
        assert reason in message

    def test_an_unknown_model_type(self, folder: Path) -> None:
        _change(folder / "config.json", model_type="never-heard-of")
        assert "never-heard-of" in refusal(folder)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_cuda_without_a_device(self, pristine: Path) -> None:
        assert "no CUDA device" in refusal(pristine, device="cuda")


class TestDamaged:
    def test_no_weights(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        assert "holds no model.safetensors" in refusal(folder)

    def test_cut_weights(self, folder: Path) -> None:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        assert "cannot read the weights of the model small" in refusal(folder)

    def test_missing_weights_are_not_made_up(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        assert "lacks 1 of its weights, such as model.layers.1.mlp.up_proj.weight" in refusal(folder)

    def test_weights_of_another_shape(self, folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 64)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        assert "model.layers.1.mlp.up_proj.weight of the model small has the shape" in refusal(folder)

    def test_a_missing_shard(self, folder: Path) -> None:
        index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert "model-00001-of-00002.safetensors" in refusal(folder)

    def test_no_tokenizer(self, folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        assert "tokenizer of the model small" in refusal(folder)

    def test_a_tokenizer_of_another_model(self, folder: Path) -> None:
        tokens = [f"<more-{number}>" for number in range(50)]
        tokenizer = load(folder).tokenizer
        tokenizer.add_tokens(tokens)
        tokenizer.save_pretrained(folder)
        message = refusal(folder)
        assert f"{len(tokenizer)} tokens" in message
        assert "knows 392" in message


def _change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
