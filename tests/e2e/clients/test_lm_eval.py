"""lm-evaluation-harness with ``local-completions`` and the server's own tokenizer: log-likelihoods of given text.

They are compared with those that the model itself gives, computed here without any of our engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.model.loading import load_model
from tests.e2e.clients.programs import HERE, PYTHON_FOLDER, run_program
from tests.e2e.test_server import MODEL
from tests.tiny import one_thread

TASKS = HERE / "lm_eval_tasks"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture(scope="module")
def samples(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("lm_eval")
    task = (TASKS / "opposites.yaml").read_text().replace("opposites.jsonl", str(TASKS / "opposites.jsonl"))
    (folder / "opposites.yaml").write_text(task)
    arguments = f"base_url={server_url}/v1/completions,model={MODEL},tokenizer_backend=remote,num_concurrent=4"
    run_program(
        PYTHON_FOLDER / "lm_eval",
        *("--model", "local-completions", "--model_args", arguments),
        *("--tasks", "opposites", "--include_path", folder, "--output_path", folder / "out", "--log_samples"),
        env=OFFLINE | {"HF_HOME": str(folder / "hf")},
    )
    (found,) = (folder / "out").rglob("samples_opposites_*.jsonl")
    return [json.loads(line) for line in Path(found).read_text().splitlines()]


def test_log_likelihoods_are_the_models_own(samples: list[dict[str, Any]]) -> None:
    loaded = load_model(EngineConfig(dtype="float32", device="cpu"), lambda stage, fraction: None)
    assert len(samples) == len((TASKS / "opposites.jsonl").read_text().splitlines())
    with one_thread():  # the server has the others
        for sample in samples:
            context = f"The opposite of {sample['doc']['word']} is"
            for choice, (response,) in zip(sample["doc"]["choices"], sample["resps"], strict=True):
                expected, is_greedy = _log_likelihood(loaded, context, f" {choice}")
                assert float(response[0]) == pytest.approx(expected, abs=1e-3)
                assert str(response[1]) == str(is_greedy)


def test_the_model_knows_more_than_chance(samples: list[dict[str, Any]]) -> None:
    assert sum(sample["acc"] for sample in samples) / len(samples) > 0.5


def _log_likelihood(loaded: Any, context: str, continuation: str) -> tuple[float, bool]:
    encode = loaded.tokenizer.backend_tokenizer.encode
    whole = encode(context + continuation, add_special_tokens=False).ids
    num_context = len(encode(context, add_special_tokens=False).ids)
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([whole])).logits[0].log_softmax(-1)
    scored = [(logits[place - 1], whole[place]) for place in range(num_context, len(whole))]
    total = sum(float(row[token_id]) for row, token_id in scored)
    return total, all(int(row.argmax()) == token_id for row, token_id in scored)
