"""The prompts of the benchmark: the built-in set, or a file in the same format.

Knows the file format and the six tasks. Refuses to know engines, tokens and time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from engine.errors import ConfigError

TASKS = ("chat", "translation", "summarisation", "qa", "maths", "retrieval")

# Spec-Bench keeps the eight categories of its multi-turn part apart and spells three tasks otherwise.
_TASK_OF_CATEGORY = {
    **{task: task for task in TASKS},
    **dict.fromkeys(("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "chat"),
    "summarization": "summarisation",
    "math_reasoning": "maths",
    "rag": "retrieval",
}


class BenchPrompt(NamedTuple):
    """One user message.

    Attributes:
        prompt_id: the file's ``question_id``, unique in its file.
        task: one of ``TASKS``.
        text: the first turn.
    """

    prompt_id: int
    task: str
    text: str


def load_prompts(path: Path | None = None) -> list[BenchPrompt]:
    """The prompts of a JSON-lines file in Spec-Bench's format, in its order; None is the built-in set.

    Each line is an object with ``question_id`` (a whole number), ``category`` (a task of ours or a category
    of Spec-Bench) and ``turns`` (texts, of which the first is taken); other fields are not read. Blank lines
    are allowed.

    Raises:
        ConfigError: the file cannot be read or is not of that format; names the file, the line and the fault.
    """
    source = resources.files("engine.bench") / "data" / "prompts.jsonl" if path is None else path.expanduser()
    try:
        lines = source.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompts in {source}: {error}") from error
    prompts: list[BenchPrompt] = []
    line_of_id: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _parse(line)
            first = line_of_id.setdefault(prompt.prompt_id, number)
            if first != number:
                raise ValueError(f"question_id {prompt.prompt_id} was taken by line {first}")
        except ValueError as error:
            raise ConfigError(f"{source}, line {number}: {error}") from error
        prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{source} holds no prompts")
    return prompts


def select_prompts(
    prompts: Sequence[BenchPrompt], *, tasks: Sequence[str], limit_per_task: int | None
) -> dict[str, list[BenchPrompt]]:
    """The first ``limit_per_task`` prompts of each task asked for, in the order of ``TASKS``.

    Raises:
        ConfigError: there is no prompt of a task asked for.
    """
    selected = {
        task: [prompt for prompt in prompts if prompt.task == task][:limit_per_task] for task in TASKS if task in tasks
    }
    for task, chosen in selected.items():
        if not chosen:
            raise ConfigError(f"tasks: none of the {len(prompts)} prompts is of the task {task!r}")
    return selected


def _parse(line: str) -> BenchPrompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, not {type(record).__name__}")
    missing = [name for name in ("question_id", "category", "turns") if name not in record]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    prompt_id, category, turns = record["question_id"], record["category"], record["turns"]
    if type(prompt_id) is not int:  # bool is an int to isinstance
        raise ValueError(f"question_id must be a whole number, not {prompt_id!r}")
    if not isinstance(category, str) or category not in _TASK_OF_CATEGORY:
        raise ValueError(f"category must be one of {', '.join(_TASK_OF_CATEGORY)}, not {category!r}")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0].strip():
        raise ValueError("turns must be a list that begins with a text")
    return BenchPrompt(prompt_id, _TASK_OF_CATEGORY[category], turns[0])
