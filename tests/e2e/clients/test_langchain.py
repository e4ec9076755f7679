"""LangChain."""

from __future__ import annotations

from openai import OpenAI

from tests.e2e.clients.programs import HERE, PYTHON_FOLDER, last_json, run_program
from tests.e2e.test_server import MODEL


def test_a_langchain_program(server_url: str, client: OpenAI) -> None:
    said = last_json(run_program(PYTHON_FOLDER / "python", HERE / "langchain_client.py", f"{server_url}/v1", MODEL))
    expected = client.completions.create(
        model=MODEL, prompt="one two three one two three one two", temperature=0, max_tokens=12
    )
    assert said["completion"] == said["completion_stream"] == expected.choices[0].text
    assert said["stopped"] == expected.choices[0].text.partition("two")[0]
    assert said["chat"]
    assert [said["stream"], said["asynchronous"], *said["batch"]] == [said["chat"]] * 4
    assert said["usage"]["output_tokens"] == said["num_logprobs"] > 0
    assert said["finish_reason"] in ("stop", "length")
