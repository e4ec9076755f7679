"""OpenAI's library for Node."""

from __future__ import annotations

from openai import OpenAI

from tests.e2e.clients.programs import HERE, last_json, run_program
from tests.e2e.test_server import MODEL


def test_a_node_program(server_url: str, client: OpenAI) -> None:
    said = last_json(run_program("node", HERE / "node" / "client.mjs", f"{server_url}/v1", MODEL))
    expected = client.completions.create(
        model=MODEL, prompt="one two three one two three one two", temperature=0, max_tokens=12
    )
    assert said["completion"] == said["completionStream"] == expected.choices[0].text
    assert said["chat"]
    assert said["chat"] == said["chatStream"]
    assert said["chatUsage"] == said["streamUsage"]
    assert said["requestId"]
    assert said["refusals"] == [
        {"name": "BadRequestError", "status": 400, "param": "n", "code": None},
        {"name": "NotFoundError", "status": 404, "param": "model", "code": "model_not_found"},
    ]
    assert said["models"] == [MODEL]
