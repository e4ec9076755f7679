"""What a request may not ask for, as far as no single field shows it and every route has it. Converts nothing."""

from __future__ import annotations

from engine.errors import InvalidRequest
from server.protocol import GenerationFields
from server.settings import ServerSettings


def check_generation(body: GenerationFields, num_prompts: int, settings: ServerSettings) -> None:
    """Refuse what no single field shows, of the fields that every route has.

    Raises:
        InvalidRequest: two fields that contradict each other, or more choices than ``settings`` allows.
    """
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is for stream: true only", param="stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed", param="prompt_logprobs")
    check_logprobs("prompt_logprobs", body.prompt_logprobs, settings)
    _check_logprob_token_ids(len(body.logprob_token_ids or ()), settings)
    if body.truncate_prompt_tokens == 0:
        raise InvalidRequest("truncate_prompt_tokens must be -1 or at least 1, not 0", param="truncate_prompt_tokens")
    most = settings.max_choices_per_request
    if num_prompts * body.num_candidates > most:
        name = "best_of" if body.ranks_candidates else "n"
        raise InvalidRequest(
            f"a request may have {most} choices, not {num_prompts} prompts with {name} = {body.num_candidates}",
            param=name,
        )


def check_logprobs(name: str, number: int | None, settings: ServerSettings) -> None:
    """Refuse more alternatives a token than the operator allows.

    Args:
        number: -1 for the whole vocabulary.

    Raises:
        InvalidRequest: naming the field ``name``.
    """
    if number is None:
        return
    most = settings.max_logprobs
    if most == -1:
        if number < -1:
            raise InvalidRequest(f"{name} must be -1 or at least 0, not {number}", param=name)
    elif not 0 <= number <= most:
        hint = "; -1, all tokens, is only for servers that allow it" if number == -1 else ""
        raise InvalidRequest(f"{name} must lie between 0 and {most}, not {number}{hint}", param=name)


def _check_logprob_token_ids(number: int, settings: ServerSettings) -> None:
    most = settings.max_logprobs
    if number > most != -1:
        raise InvalidRequest(f"logprob_token_ids may hold {most} ids, not {number}", param="logprob_token_ids")
