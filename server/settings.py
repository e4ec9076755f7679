"""What an operator may set about the HTTP side. Knows names and limits; knows no setting of the engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from engine.errors import ConfigError

_KEY = re.compile(r"[!-~]+")

UnknownFields = Literal["reject", "ignore"]
MetricsNames = Literal["draftahead", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything reception needs besides an engine.

    Attributes:
        served_model_names: what clients may call the model, main name first; empty takes the engine's name.
        unknown_fields: whether a request field that this server does not know is a 400 or passed over.
        api_keys: one of these must come with a request; empty asks for none.
        allowed_origins: web origins whose pages may call this server; ``*`` is all.
        max_request_bytes: longest request body.
        body_timeout: seconds in which the whole of it must have come.
        max_prompts_per_request: most prompts in one request.
        max_choices_per_request: most choices in one request, that is prompts times ``n``.
        max_logprobs: most alternatives that a request may have with each token; -1 for the whole vocabulary.
        metrics_names: ``vllm`` exports every metric by vLLM's name too, where it has one.

    Raises:
        ConfigError: a limit out of its range, an empty or doubled name, an unknown word.
    """

    served_model_names: tuple[str, ...] = ()
    unknown_fields: UnknownFields = "reject"
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allowed_origins: tuple[str, ...] = ()
    max_request_bytes: int = 8 * 1024 * 1024
    body_timeout: int = 60
    max_prompts_per_request: int = 1024
    max_choices_per_request: int = 1024
    max_logprobs: int = 20
    metrics_names: MetricsNames = "draftahead"

    def __post_init__(self) -> None:
        if self.metrics_names not in get_args(MetricsNames):
            choices = ", ".join(get_args(MetricsNames))
            raise ConfigError(f"metrics_names must be one of {choices}, not {self.metrics_names!r}")
        if self.unknown_fields not in get_args(UnknownFields):
            choices = ", ".join(get_args(UnknownFields))
            raise ConfigError(f"unknown_fields must be one of {choices}, not {self.unknown_fields!r}")
        if "" in self.served_model_names:
            raise ConfigError("served_model_names must not hold an empty name")
        if len(set(self.served_model_names)) < len(self.served_model_names):
            raise ConfigError(f"served_model_names names a model twice: {', '.join(self.served_model_names)}")
        for name in ("max_request_bytes", "body_timeout", "max_prompts_per_request", "max_choices_per_request"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not all(map(_KEY.fullmatch, self.api_keys)):
            raise ConfigError("api_keys must be visible ASCII characters without spaces")
        if self.max_logprobs < -1:
            raise ConfigError(f"max_logprobs must be -1 or at least 0, not {self.max_logprobs}")
