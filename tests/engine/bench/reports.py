"""Results to show, and the context they came from."""

from __future__ import annotations

from typing import Any

from engine.bench.context import BenchContext
from engine.bench.load import Load
from engine.bench.measurement import BenchMode, ChunkRun, Measurement
from engine.bench.options import BenchOptions
from engine.bench.result import BenchResult
from engine.bench.summary import differing_prompts, summarise, summarise_load
from engine.bench.target import ServerInfo

CONTEXT = BenchContext(
    command="draftahead bench --repeats 2",
    started_at="2030-01-02T03:04:05+00:00",
    cpu="Some CPU",
    num_cores=2,
    accelerator=None,
    versions={"torch": "2.13.0"},
)


def served(*, num_repeats: int, texts: tuple[str, ...] = ("a",), **fields: Any) -> BenchResult:
    """One prompt on a server that tells nothing of its steps: four tokens in two seconds."""
    runs = [
        ChunkRun(
            task="chat",
            mode=BenchMode.AS_SERVED,
            repeat=repeat,
            seconds=2.0,
            measurements=(
                Measurement(
                    prompt_id=1,
                    output=texts[repeat % len(texts)],
                    num_tokens=4,
                    ttft=0.5,
                    token_gaps=(0.25,) * 3,
                    **fields,
                ),
            ),
        )
        for repeat in range(num_repeats)
    ]
    return BenchResult(
        options=BenchOptions(tasks=("chat",), repeats=num_repeats),
        info=ServerInfo(url="http://host", model="m", endpoint="completions", is_draftahead=False),
        uses_chat_template=False,
        loads=(summarise_load(Load(1), (summarise("chat", runs),), runs),),
        num_prompts=1,
        differing_prompt_ids=differing_prompts(runs),
        peak_rss_mib=None,
    )
