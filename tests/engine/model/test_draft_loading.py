"""Which models may draft for which, and what is said of those that may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.draft_loading import load_draft_model
from engine.model.loading import LoadedModel, load_model, num_bytes
from tests import vocabularies
from tests.draft_pairs import truncated
from tests.sequences import make_sequence, run, tokens_of
from tests.small_folders import write_hugging_face_folder
from tests.tiny import tiny_llama


def nothing(stage: str, fraction: float) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hugging_face_folder(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def target(folder: Path) -> LoadedModel:
    return load_model(config_for(folder), nothing)


def config_for(folder: Path, draft: Path | None = None, **options: object) -> EngineConfig:
    settings: dict[str, object] = {"device": "cpu", "dtype": "float32", "num_threads": 1, "max_model_len": 256}
    if draft is not None:
        settings |= {"drafter": "model", "draft_model": str(draft)}
    return EngineConfig(model=str(folder), **(settings | options))  # type: ignore[arg-type]


def refusal(folder: Path, target: LoadedModel, draft: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_draft_model(config_for(folder, draft), target, nothing)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_draft(folder: Path, tokenizer: vocabularies.PreTrainedTokenizerFast, *, num_padding: int = 0) -> Path:
    vocab_size = -(-len(tokenizer) // 8) * 8 + num_padding
    truncated(tiny_llama(vocab_size=vocab_size)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_its_own_context_and_the_target_s_type(folder: Path, target: LoadedModel) -> None:
    draft = load_draft_model(config_for(folder, folder), target, nothing)
    assert (target.max_model_len, draft.max_model_len) == (256, 512)
    assert (draft.dtype, draft.device) == (target.dtype, target.device)


def test_an_embedding_padded_otherwise_is_no_other_vocabulary(
    folder: Path, target: LoadedModel, tmp_path: Path
) -> None:
    tokenizer = vocabularies.byte_level()
    draft = write_draft(tmp_path / "padded", tokenizer, num_padding=96)
    assert load_draft_model(config_for(folder, draft), target, nothing).name == "padded"


def test_another_number_of_tokens(folder: Path, target: LoadedModel, tmp_path: Path) -> None:
    message = refusal(folder, target, write_draft(tmp_path / "fewer", vocabularies.byte_level(vocab_size=300)))
    assert message.startswith("the draft model fewer has another vocabulary than the model small, so it cannot draft")
    assert f"300 tokens, not {len(vocabularies.byte_level())}" in message


def test_other_tokens_under_the_same_ids(folder: Path, target: LoadedModel, tmp_path: Path) -> None:
    tokenizer = vocabularies.byte_level()
    number = len(tokenizer)
    text = tokenizer.backend_tokenizer.to_str().replace('"a":', '"swap":').replace('"b":', '"a":')
    swapped = vocabularies.PreTrainedTokenizerFast(
        tokenizer_object=vocabularies.Tokenizer.from_str(text.replace('"swap":', '"b":')), eos_token="<|end|>"
    )
    message = refusal(folder, target, write_draft(tmp_path / "swapped", swapped))
    first = min(tokenizer.convert_tokens_to_ids(["a", "b"]))
    theirs, ours = swapped.convert_ids_to_tokens(first), tokenizer.convert_ids_to_tokens(first)
    assert f"2 of {number} common ids are other tokens, such as {first}: {theirs!r}, not {ours!r}" in message
    assert {theirs, ours} == {"a", "b"}


def test_an_engine_of_two_models(folder: Path, tmp_path: Path) -> None:
    """Both in the account, one pool a model over the same blocks, and the answers of the target alone."""
    draft = write_draft(tmp_path / "draft", vocabularies.byte_level())
    answers, infos = [], []
    for chosen in (None, draft):
        config = config_for(folder, chosen, kv_cache_memory=1 << 20)
        core, info = build_engine(config, load_model(config, nothing), "it", progress=nothing)
        sequences = [
            make_sequence(f"{t}", [5, 6, 7], num_speculative_tokens=4, temperature=t, max_tokens=40, ignore_eos=True)
            for t in (0.0, 1.0)
        ]
        answers.append([tokens_of(outputs) for outputs in run(core, sequences).values()])
        infos.append(info)
        assert (sequences[0].stats.num_accepted_tokens > 0) or chosen is None
    assert answers[0] == answers[1]
    alone, both = infos
    loaded = load_model(config_for(draft), nothing)
    assert (both.draft_model, both.drafter, alone.draft_model) == ("draft", "model", "")
    assert both.draft_weights_bytes >= num_bytes(loaded.model) > 0
    assert both.weights_bytes == alone.weights_bytes
    # A token takes two layers' keys and values in the target's pool and one layer's in the other.
    assert both.num_kv_tokens == pytest.approx(alone.num_kv_tokens * 2 / 3, abs=32)
    assert both.kv_cache_bytes == pytest.approx(alone.kv_cache_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": "model"}, "drafter is 'model', but no draft_model is named"),
        (
            {"drafter": "suffix", "draft_model": "x"},
            "draft_model is for the drafters 'auto' and 'model', but drafter is 'suffix'",
        ),
        (
            {"drafter": "none", "shared_suffix_tokens": 5},
            "shared_suffix_tokens is for the drafters 'auto' and 'suffix', but drafter is 'none'",
        ),
        ({"shared_suffix_tokens": -1}, "shared_suffix_tokens must be at least 0, not -1"),
    ],
)
def test_settings_that_do_not_go_together(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**options)  # type: ignore[arg-type]
