"""One request to either route, and the answer in the one form."""

from __future__ import annotations

import httpx

from tests.contract.answers import Answer, Json, parse_events, streamed, whole
from tests.contract.field import CHAT, COMPLETIONS, MAX_TOKENS, PROMPT

PATHS = {COMPLETIONS: "/v1/completions", CHAT: "/v1/chat/completions"}
SCORES: dict[str, Json] = {COMPLETIONS: {"logprobs": 2}, CHAT: {"logprobs": True, "top_logprobs": 2}}
OFF: Json = {"speculation": {"mode": "off"}}


async def ask(client: httpx.AsyncClient, route: str, fields: Json, *, streams: bool = False) -> Answer:
    given: Json = {"prompt": PROMPT} if route == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    given |= {"model": "tiny", "max_tokens": MAX_TOKENS, "temperature": 0, "seed": 5, "return_token_ids": True}
    if streams:
        given |= {"stream": True, "stream_options": {"include_usage": True}}
    response = await client.post(PATHS[route], json=given | fields)
    assert response.status_code == 200, response.text
    return streamed(parse_events(response.text)) if streams else whole(response.json())
