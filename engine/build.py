"""Puts the engine together: the only place that knows every strategy by name."""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq

import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.model.draft_loading import load_draft_model
from engine.model.loading import LoadedModel, num_bytes, vocab_size
from engine.model.pool_size import ModelToRun, choose_num_blocks
from engine.model.running import RunningModel, make_exact, open_library, run_model
from engine.model.step_profile import profile_steps
from engine.model.thread_count import choose_num_threads
from engine.params import SpeculationMode
from engine.sampling.draft_sampler import DraftSampler
from engine.sampling.native_draw import NativeDraw
from engine.sampling.sampler import Sampler
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.scheduler import Scheduler
from engine.speculation.auto import AutoDrafter, Source
from engine.speculation.controller import DraftLengthController, FixedDraftLength
from engine.speculation.draft_gate import DraftGate
from engine.speculation.draft_model import DraftLimits, DraftModelDrafter
from engine.speculation.drafter import Drafter, NullDrafter
from engine.speculation.goodput import GoodputController
from engine.speculation.prediction import PredictionDrafter
from engine.speculation.shared_suffix import SharedSuffixIndex
from engine.speculation.step_times import StepTimes
from engine.speculation.suffix import SuffixDrafter
from engine.speculation.survival import Survival
from engine.speculation.trace import NO_RECORDER, TraceFile
from engine.speculation.verifier import Verifier
from engine.types import ModelInfo, Progress


def build_engine(
    config: EngineConfig,
    loaded: LoadedModel,
    name: str,
    *,
    progress: Progress,
    drafter: Drafter | None = None,
) -> tuple[EngineCore, ModelInfo]:
    """An engine ready to step, and what to tell of it.

    Args:
        name: what clients call the model.
        progress: told the stage and the fraction done, 0..1.
        drafter: in the place of the configured one.

    Raises:
        ConfigError: the model does not run here, or memory is too small for one request of full length; or there is no
            such draft model, or it does not go with the model.
    """
    models = _models_to_run(config, loaded, progress, has_drafter=drafter is not None)
    progress("preparing the engine", 0.0)
    torch.set_num_threads(config.num_threads or len(os.sched_getaffinity(0)))
    library = open_library(config, loaded.device)
    for model in models:
        make_exact(config, model.loaded, library)
    num_blocks = choose_num_blocks(config, models)
    running = [run_model(config, model, num_blocks, library, progress) for model in models]
    target = running[0]
    if library is not None and config.num_threads is None:
        choose_num_threads(target.eager.forward_nothing, torch.get_num_threads())
    native = NativeDraw(library) if library else None
    times, survival = _build_times(config, target), Survival()
    core = EngineCore(
        scheduler=Scheduler(
            BlockManager(num_blocks, target.pool.block_size, enable_prefix_caching=config.enable_prefix_caching),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        ),
        controller=_build_controller(config, times, survival),
        drafter=_build_drafter(config, _sources(config, running, native, times, drafter), survival),
        runner=target.runner,
        verifier=Verifier(Sampler(loaded.eos_token_ids, native)),
        end_token_ids=loaded.eos_token_ids,
        recorder=TraceFile(config.trace) if config.trace else NO_RECORDER,
    )
    return core, _describe(config, name, running)


def _models_to_run(
    config: EngineConfig, loaded: LoadedModel, progress: Progress, *, has_drafter: bool
) -> list[ModelToRun]:
    """The target, and behind it the draft model if there is to be one."""
    longest_draft = config.num_speculative_tokens if config.drafter != "none" else 0
    models = [ModelToRun(loaded, loaded.max_model_len, longest_draft)]
    if config.draft_model and not has_drafter:
        # It usually computes one row a sequence, and two after a draft that was right to its end.
        models.append(ModelToRun(load_draft_model(config, loaded, progress), loaded.max_model_len, longest_draft=1))
    return models


def _build_times(config: EngineConfig, target: RunningModel) -> StepTimes:
    """On CUDA a captured step takes another time than the profiled one, so the times are learnt as steps run."""
    is_timed = config.draft_length == "adaptive" and config.drafter != "none" and target.loaded.device.type == "cpu"
    return StepTimes(profile_steps(target.eager) if is_timed else None)


def _build_controller(config: EngineConfig, times: StepTimes, survival: Survival) -> DraftLengthController:
    if config.draft_length == "fixed" or config.drafter == "none":
        return FixedDraftLength()
    return GoodputController(times, survival, itl_slo=config.itl_slo)


def _build_drafter(config: EngineConfig, sources: Seq[Source], survival: Survival) -> Drafter:
    return NullDrafter() if config.drafter == "none" else AutoDrafter(sources, survival)


def _sources(
    config: EngineConfig,
    running: Seq[RunningModel],
    native: NativeDraw | None,
    times: StepTimes,
    given: Drafter | None,
) -> list[Source]:
    """Who drafts, the client's own prediction first."""
    sources = [Source(PredictionDrafter())]
    if given is not None:
        return [*sources, Source(given)]
    if config.drafter in ("auto", "suffix"):
        shared = SharedSuffixIndex(config.shared_suffix_tokens) if config.shared_suffix_tokens else None
        sources.append(Source(SuffixDrafter(shared=shared), SpeculationMode.SUFFIX))
    if config.draft_model:
        gate = DraftGate(times, itl_slo=config.itl_slo) if config.draft_length == "adaptive" else None
        sources.append(Source(_build_model_drafter(config, *running, native=native), SpeculationMode.MODEL, gate))
    return sources


def _build_model_drafter(
    config: EngineConfig, target: RunningModel, draft: RunningModel, *, native: NativeDraw | None
) -> Drafter:
    limits = DraftLimits(
        block_size=draft.pool.block_size,
        max_num_rows=config.max_num_batched_tokens,
        max_model_len=draft.loaded.max_model_len,
        vocab_size=vocab_size(draft.loaded),
        target_vocab_size=vocab_size(target.loaded),
    )
    sampler = DraftSampler(target.loaded.eos_token_ids, native)
    return DraftModelDrafter(draft.runner, sampler, limits, looks_at_each=draft.loaded.device.type == "cpu")


def _describe(config: EngineConfig, name: str, running: Seq[RunningModel]) -> ModelInfo:
    target, *drafting = running
    loaded = target.loaded
    return ModelInfo(
        name=name,
        source=loaded.name,
        device=str(loaded.device),
        dtype=str(loaded.dtype).removeprefix("torch."),
        quantization=config.quantization,
        attention=target.attention.name,
        vocab_size=vocab_size(loaded),
        max_model_len=loaded.max_model_len,
        weights_bytes=num_bytes(loaded.model),
        kv_cache_bytes=sum(model.pool.num_bytes for model in running),
        num_kv_tokens=(target.pool.num_blocks - 1) * target.pool.block_size,
        drafter=config.drafter,
        draft_length=config.draft_length,
        drafters=_drafter_names(config),
        num_speculative_tokens=config.num_speculative_tokens if config.drafter != "none" else 0,
        num_threads=torch.get_num_threads(),
        draft_model="".join(model.loaded.name for model in drafting),
        draft_weights_bytes=sum(num_bytes(model.loaded.model) for model in drafting),
    )


def _drafter_names(config: EngineConfig) -> tuple[str, ...]:
    """The modes by which a request may ask for one drafter alone."""
    suffix = config.drafter in ("auto", "suffix")
    return ("suffix",) * suffix + ("model",) * bool(config.draft_model)
