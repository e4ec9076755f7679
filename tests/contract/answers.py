"""Whole and streamed answers of both routes in one form, so that they can be compared."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Json = dict[str, Any]


class Origin(NamedTuple):
    """Where a token came from, as the wire says it."""

    origin: str
    drafter: str | None
    draft_position: int | None
    draft_length: int


@dataclass
class Choice:
    """One choice. ``logprobs`` is a list of entries, of completions zipped from their four lists.

    ``tokens`` are what is said of each token but for its origin, and ``origins`` that. ``pieces`` are the texts in
    which it came, ``runs`` the numbers of tokens.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Any] | None = None
    tokens: list[tuple[int, str, float]] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list, compare=False)
    pieces: list[str] = field(default_factory=list, compare=False)
    runs: list[int] = field(default_factory=list, compare=False)


@dataclass
class Answer:
    """All choices by their index, and the usage."""

    choices: list[Choice]
    usage: Json
    id: str
    model: str
    num_drafted: int
    num_accepted: int
    seed: int

    @property
    def said(self) -> tuple[list[Choice], Json]:
        """What must not depend on how the output was drafted or sent."""
        return self.choices, {name: value for name, value in self.usage.items() if name != "prompt_tokens_details"}

    @property
    def only(self) -> Choice:
        (choice,) = self.choices
        return choice


def whole(body: Json) -> Answer:
    """An answer that was not streamed."""
    return _answer(body, [body])


def streamed(events: list[Json]) -> Answer:
    """All chunks of a stream whose last one has the usage."""
    return _answer(events[-1], events)


def parse_events(text: str) -> list[Json]:
    *events, end = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert end == "[DONE]"
    return [json.loads(event) for event in events]


def _answer(last: Json, parts: list[Json]) -> Answer:
    choices: dict[int, Choice] = {}
    for part in parts:
        for said in part["choices"]:
            choice = choices.setdefault(said["index"], Choice())
            _add(choice, said)
    for part in parts:  # in chat all choices have one prompt
        for choice in choices.values():
            choice.prompt_token_ids = choice.prompt_token_ids or part.get("prompt_token_ids")
            choice.prompt_logprobs = choice.prompt_logprobs or part.get("prompt_logprobs")
    stats = last["metrics"]["speculative_decoding"]
    return Answer(
        [choices[index] for index in sorted(choices)],
        last["usage"],
        last["id"],
        last["model"],
        stats["num_draft_tokens"],
        stats["num_accepted_draft_tokens"],
        last["metrics"]["seed"],
    )


def _add(choice: Choice, said: Json) -> None:
    message = said.get("message") or said.get("delta") or {}
    choice.pieces.append(said.get("text") or message.get("content") or "")
    choice.text += choice.pieces[-1]
    choice.runs.append(len(said.get("token_ids") or []))
    choice.token_ids += said.get("token_ids") or []
    choice.finish_reason = choice.finish_reason or said["finish_reason"]
    choice.stop_reason = choice.stop_reason if choice.stop_reason is not None else said["stop_reason"]
    choice.prompt_token_ids = choice.prompt_token_ids or said.get("prompt_token_ids")
    choice.prompt_logprobs = choice.prompt_logprobs or said.get("prompt_logprobs")
    for token in said.get("token_provenance") or []:
        choice.tokens.append((token["token_id"], token["text"], token["logprob"]))
        choice.origins.append(Origin(*(token[name] for name in Origin._fields)))
    if said["logprobs"] is not None:
        choice.logprobs = (choice.logprobs or []) + _entries(said["logprobs"])


def _entries(logprobs: Json) -> list[Any]:
    if "content" in logprobs:
        return list(logprobs["content"])
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[name] for name in names), strict=True))
