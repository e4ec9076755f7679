"""Whether this engine can run a model at all, judged by its configuration before any weight is read.

Knows which features of architectures the engine lacks. Refuses to know sizes, devices and folders.
"""

from __future__ import annotations

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig

from engine.errors import ConfigError

_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
_OTHER_SENSES = ("vision_config", "audio_config")
_NUMBERS_OF_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CAUSAL_HEADS = ("ForCausalLM", "LMHeadModel")


def check_suitable(config: PretrainedConfig, name: str) -> None:
    """Refuse a model that would run wrongly.

    Args:
        name: what the error calls the model.

    Raises:
        ConfigError: names the feature that is missing here.
    """
    if reason := _reason_against(config):
        raise ConfigError(f"the model {name} is not supported: {reason}")


def _reason_against(config: Any) -> str | None:
    if config.is_encoder_decoder:
        return "it is an encoder-decoder model, and only decoder-only models are"
    for sense in _OTHER_SENSES:
        if getattr(config, sense, None) is not None:
            return f"it is multimodal ({sense}), and only text models are"
    heads = config.architectures or ()
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or (
        heads and not any(head.endswith(_CAUSAL_HEADS) for head in heads)
    ):
        return f"it is not a causal language model ({', '.join(heads) or config.model_type})"
    if "longrope" in _rope_types(config):
        return "its rotary embedding (longrope) depends on the longest sequence in a batch"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantised in a way that is not read"
    strange = set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS
    if strange:
        return f"it has layers of type {', '.join(sorted(strange))}, and only softmax attention is"
    if any((getattr(config, name, None) or 0) > 1 for name in _NUMBERS_OF_EXPERTS):
        return "it is a mixture of experts, whose results would depend on what else is in the batch"
    if not MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_attention_backend:
        return f"model type {config.model_type} does not let its attention be replaced (attention backend)"
    return None


def _rope_types(config: Any) -> set[str]:
    """Of all layer types."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [found, *(entry for entry in found.values() if isinstance(entry, dict))]
    return {str(kind.get("rope_type", kind.get("type"))) for kind in kinds}
