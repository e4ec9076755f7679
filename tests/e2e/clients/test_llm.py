"""The command line ``llm``, which asks a server that a file of models names."""

from __future__ import annotations

from pathlib import Path

from openai import OpenAI

from tests.e2e.clients.programs import PYTHON_FOLDER, run_program
from tests.e2e.test_server import MODEL


def test_a_prompt_on_the_command_line(server_url: str, client: OpenAI, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: local-chat\n  model_name: {MODEL}\n  api_base: {server_url}/v1\n"
        f"- model_id: local-text\n  model_name: {MODEL}\n  api_base: {server_url}/v1\n  completion: true\n"
    )
    env = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    options = ("-o", "temperature", "0", "-o", "max_tokens", "12")
    streamed, whole = (
        run_program(PYTHON_FOLDER / "llm", "-m", "local-chat", *more, "Count to ten.", *options, env=env)
        for more in ((), ("--no-stream",))
    )
    expected = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Count to ten."}], temperature=0, max_tokens=12
    )
    assert streamed.strip() == whole.strip() == (expected.choices[0].message.content or "").strip()
    text = run_program(PYTHON_FOLDER / "llm", "-m", "local-text", "one two three one two", *options, env=env)
    completion = client.completions.create(model=MODEL, prompt="one two three one two", temperature=0, max_tokens=12)
    assert text.strip() == completion.choices[0].text.strip()
