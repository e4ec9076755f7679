"""A benchmark result as a JSON document, for later comparison."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.bench.context import BenchContext
from engine.bench.result import BenchResult, LoadResult
from engine.bench.target import ServerInfo
from engine.errors import ConfigError


def write_json(result: BenchResult, context: BenchContext, path: Path) -> None:
    """Write the whole result, with its context, to ``path``.

    Raises:
        ConfigError: the file cannot be written.
    """
    document = {
        "context": asdict(context),
        "server" if isinstance(result.info, ServerInfo) else "model": asdict(result.info),
        "options": asdict(result.options),
        "uses_chat_template": result.uses_chat_template,
        "matched_plain_run": "'plain' is the same prompts on the same engine in the same run, alternating",
        "units": "times in seconds, lengths in tokens, memory in MiB, shares and rates 0..1",
        "num_prompts": result.num_prompts,
        "differing_prompt_ids": result.differing_prompt_ids,
        "peak_rss_mib": result.peak_rss_mib,
        "loads": [_load(load) for load in result.loads],
    }
    write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", path, option="json")


def write_text(text: str, path: Path, *, option: str) -> None:
    """Write a report to ``path``.

    Raises:
        ConfigError: the file cannot be written; names ``option``.
    """
    try:
        path.expanduser().write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{option}: cannot write {path}: {error}") from error


def _load(load: LoadResult) -> dict[str, Any]:
    return {**load.load._asdict(), **{key: value for key, value in asdict(load).items() if key != "load"}}
