"""Promise 1 on real weights: the output is a function of model, prompt, parameters and seed, and of nothing else.

The reference is always plain decoding, one request at a time, in an engine without prefix caching; once, it is itself
compared with transformers' own generation.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama

from engine.model.loading import load_model
from engine.model.native_rotary import NativeRotary
from engine.params import SamplingParams
from tests.draft_pairs import truncated
from tests.exactness.conftest import Answer, RealModel, Size, Totals, run

DRAFT_LENGTHS = (1, 4, 8)
BLOCK_SIZE = 4
KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 4  # keys and values, layers, key-value heads, head dimension, float32

SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0},
}
VARIED: dict[str, dict[str, object]] = {
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.3},
    "penalties": {"temperature": 1.0, "frequency_penalty": 0.8, "presence_penalty": 0.4},
    "logit_bias": {"temperature": 0.0, "logit_bias": {28: -100.0, 30: 4.0}},
    "top_p": {"temperature": 1.0, "top_p": 0.8},
    "min_p": {"temperature": 1.0, "min_p": 0.05},
    "top_k": {"temperature": 0.7, "top_k": 20, "top_p": 0.95},
    "stop": {"temperature": 0.0, "stop": ("e a", ". ", "\n\n")},
    "masks": {"temperature": 1.0, "allowed_token_ids": frozenset(range(3000)), "bad_words": ((28,), (260, 4))},
    "stop token": {"temperature": 1.0, "stop_token_ids": frozenset({30, 198}), "include_stop_str_in_output": True},
    "special tokens": {"temperature": 0.0, "logit_bias": {2: 12.0}, "ignore_eos": True, "skip_special_tokens": False},
    "repeating": {"temperature": 0.0, "frequency_penalty": -1.5, "logprobs": 3},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In full every parameter meets every prompt; otherwise each takes its turn on some of them."""
    if "case" in metafunc.fixturenames:
        is_full = metafunc.config.getoption("--exactness") == "full"
        names = [*SETTINGS, *(VARIED if is_full else ["varied"])]
        metafunc.parametrize("case", names, indirect=True, scope="module")


class Case:
    """Prompts with their parameters, and what plain decoding alone gives for each."""

    def __init__(self, model: RealModel, size: Size, settings: list[dict[str, object]]) -> None:
        self._model = model
        self._prompts = model.prompts(size.num_prompts)
        self._params = [
            SamplingParams(seed=1000 + i, max_tokens=size.num_tokens, **settings[i % len(settings)])  # type: ignore[arg-type]
            for i in range(size.num_prompts)
        ]
        self.expected, _ = self.run(0, num_at_once=1, enable_prefix_caching=False)

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(map(len, self._prompts)) + self._params[0].max_tokens

    def num_bytes(self, *, share: float) -> int:
        """KV memory for a share of the tokens of the first sixteen requests, and for the longest at least."""
        total = sum(len(prompt) + self._params[0].max_tokens for prompt in self._prompts[:16])
        return KV_BYTES_PER_TOKEN * max(int(share * total), self.longest + 2 * BLOCK_SIZE)

    def run(self, draft_length: int, *, num_at_once: int, **engine: object) -> tuple[list[Answer], Totals]:
        sequences = [
            self._model.sequence(f"request-{i}", prompt, draft_length, params)
            for i, (prompt, params) in enumerate(zip(self._prompts, self._params, strict=True))
        ]
        return run(self._model.engine(**engine), sequences, num_at_once=num_at_once)


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, real_model: RealModel, size: Size) -> Case:
    name: str = request.param
    settings = list(VARIED.values()) if name == "varied" else [(SETTINGS | VARIED)[name]]
    return Case(real_model, size, settings)


@pytest.mark.parametrize(("draft_length", "num_at_once"), [(8, 1), *((length, 16) for length in DRAFT_LENGTHS)])
def test_suffix_drafts_change_nothing(case: Case, draft_length: int, num_at_once: int) -> None:
    answers, totals = case.run(draft_length, num_at_once=num_at_once)
    assert answers == case.expected
    assert 0 < totals.num_accepted_tokens < totals.num_draft_tokens


@pytest.fixture(scope="module")
def draft_folder(real_model: RealModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model without its last eight layers: a poor draft model, but one of the right family."""
    folder = tmp_path_factory.mktemp("draft")
    whole = load_model(real_model.config, lambda stage, fraction: None)
    truncated(whole.model, num_layers=22).save_pretrained(folder)
    whole.tokenizer.save_pretrained(folder)
    return folder


def test_drafts_of_a_model_change_nothing(case: Case, draft_folder: Path) -> None:
    answers, totals = case.run(2, num_at_once=16, drafter="model", draft_model=str(draft_folder))
    assert answers == case.expected
    assert 0 < totals.num_accepted_tokens < totals.num_draft_tokens


def test_preemption_changes_nothing(case: Case) -> None:
    # Small blocks, because a request is admitted with room for one more of them.
    small = {"block_size": BLOCK_SIZE, "kv_cache_memory": case.num_bytes(share=0.4), "max_model_len": case.longest}
    answers, totals = case.run(8, num_at_once=16, **small)
    assert answers == case.expected
    assert totals.num_preemptions > 0


def test_prefix_cache_and_chunked_prefill_change_nothing(case: Case) -> None:
    answers, totals = case.run(4, num_at_once=16, max_num_batched_tokens=48, max_num_seqs=16)
    assert answers == case.expected
    assert totals.num_cached_tokens > 0


def test_greedy_equals_transformers(real_model: RealModel, size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = real_model.prompts(size.num_prompts)[::2]
    num_tokens = size.num_tokens_against_transformers
    params = SamplingParams(seed=0, temperature=0.0, max_tokens=num_tokens)
    sequences = [real_model.sequence(str(i), prompt, 8, params) for i, prompt in enumerate(prompts)]
    answers, _ = run(real_model.engine(), sequences, num_at_once=16)
    if isinstance(rotary := modeling_llama.apply_rotary_pos_emb, NativeRotary):
        monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotary.original)
    untouched = load_model(real_model.config, lambda stage, fraction: None).model
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == _generate(untouched, prompt, max_tokens=num_tokens)


def _generate(model: PreTrainedModel, prompt: list[int], *, max_tokens: int) -> list[int]:
    """Greedy generation by transformers, with its own attention, cache and linear layers."""
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    generated: list[int] = output[0, len(prompt) :].tolist()
    return generated
