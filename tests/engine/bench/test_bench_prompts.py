from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from engine.bench.prompts import TASKS, BenchPrompt, load_prompts, select_prompts
from engine.errors import ConfigError

GOOD = '{"question_id": 1, "category": "qa", "turns": ["Why?"]}'


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


class TestBuiltInSet:
    def test_has_ten_prompts_of_each_task(self) -> None:
        counts = Counter(prompt.task for prompt in load_prompts())
        assert set(counts) == set(TASKS)
        assert all(counts[task] >= 10 for task in TASKS)

    def test_has_no_id_and_no_text_twice(self) -> None:
        prompts = load_prompts()
        assert len({prompt.prompt_id for prompt in prompts}) == len(prompts)
        assert len({prompt.text for prompt in prompts}) == len(prompts)

    def test_shares_no_sentence_between_prompts(self) -> None:
        instruction_words = 12  # what instructions of one task may have in common
        seen: dict[tuple[str, ...], int] = {}
        for prompt in load_prompts():
            words = prompt.text.split()
            if prompt.task == "retrieval":  # each begins with the same instruction
                words = prompt.text.partition("[1]")[2].split()
            for start in range(len(words) - instruction_words + 1):
                window = tuple(words[start : start + instruction_words])
                assert seen.setdefault(window, prompt.prompt_id) == prompt.prompt_id, " ".join(window)

    @pytest.mark.parametrize("task", ["summarisation", "retrieval"])
    def test_passages_are_long_enough_to_be_drafted_from(self, task: str) -> None:
        for prompt in load_prompts():
            if prompt.task == task:
                assert 150 <= len(prompt.text.split()) <= 400, prompt.prompt_id

    def test_retrieval_prompts_number_their_passages_and_end_with_the_question(self) -> None:
        for prompt in load_prompts():
            if prompt.task == "retrieval":
                assert "\n\n[1] " in prompt.text
                assert "\n\n[3] " in prompt.text
                assert prompt.text.rpartition("\n\n")[2].startswith("Question: ")

    def test_translations_come_from_three_languages(self) -> None:
        languages = {prompt.text.split()[1] for prompt in load_prompts() if prompt.task == "translation"}
        assert languages == {"German", "French", "Spanish"}


class TestFile:
    def test_categories_of_spec_bench_become_tasks(self, tmp_path: Path) -> None:
        categories = [
            "writing",
            "stem",
            "translation",
            "summarization",
            "qa",
            "math_reasoning",
            "rag",
            "maths",
        ]
        lines = [
            json.dumps({"question_id": n, "category": category, "turns": [f"t{n}", "later"], "reference": []})
            for n, category in enumerate(categories)
        ]
        prompts = load_prompts(write(tmp_path / "p.jsonl", *lines, ""))
        tasks = ["chat", "chat", "translation", "summarisation", "qa", "maths", "retrieval", "maths"]
        assert [prompt.task for prompt in prompts] == tasks
        assert prompts[3] == BenchPrompt(3, "summarisation", "t3")

    def test_a_line_separator_inside_a_text_does_not_end_the_line(self, tmp_path: Path) -> None:
        line = '{"question_id": 1, "category": "qa", "turns": ["one\u2028two"]}'
        assert load_prompts(write(tmp_path / "p.jsonl", line))[0].text == "one\u2028two"

    @pytest.mark.parametrize(
        ("line", "fault"),
        [
            ("{", "not JSON: .* at column 2"),
            ("[1]", "expected an object, not list"),
            ('{"category": "qa"}', "missing question_id, turns"),
            ('{"question_id": true, "category": "qa", "turns": ["a"]}', "question_id must be a whole number"),
            ('{"question_id": 2, "category": "poetry", "turns": ["a"]}', "category must be .* not 'poetry'"),
            ('{"question_id": 2, "category": ["qa"], "turns": ["a"]}', "category must be"),
            ('{"question_id": 2, "category": "qa", "turns": []}', "turns must be"),
            ('{"question_id": 2, "category": "qa", "turns": "a"}', "turns must be"),
            ('{"question_id": 2, "category": "qa", "turns": [" "]}', "turns must be"),
            (GOOD, "question_id 1 was taken by line 1"),
        ],
    )
    def test_a_fault_is_named_with_file_and_line(self, tmp_path: Path, line: str, fault: str) -> None:
        path = write(tmp_path / "p.jsonl", GOOD, "", line)
        with pytest.raises(ConfigError, match=fault) as caught:
            load_prompts(path)
        assert str(caught.value).startswith(f"{path}, line 3: ")

    def test_an_unreadable_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"cannot read .*absent\.jsonl"):
            load_prompts(tmp_path / "absent.jsonl")
        (tmp_path / "latin.jsonl").write_bytes(b"\xff")
        with pytest.raises(ConfigError, match=r"cannot read .*latin\.jsonl"):
            load_prompts(tmp_path / "latin.jsonl")

    def test_an_empty_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="holds no prompts"):
            load_prompts(write(tmp_path / "p.jsonl", "", " "))


class TestSelection:
    def test_takes_the_first_of_each_task_in_the_order_of_the_tasks(self, prompts: list[BenchPrompt]) -> None:
        selected = select_prompts(prompts, tasks=("maths", "chat"), limit_per_task=2)
        assert [(task, [p.prompt_id for p in chosen]) for task, chosen in selected.items()] == [
            ("chat", [1, 2]),
            ("maths", [11, 12]),
        ]

    def test_no_limit_takes_all(self, prompts: list[BenchPrompt]) -> None:
        assert len(select_prompts(prompts, tasks=("chat",), limit_per_task=None)["chat"]) == 4

    def test_a_task_without_prompts_is_refused(self, prompts: list[BenchPrompt]) -> None:
        with pytest.raises(ConfigError, match="none of the 6 prompts is of the task 'qa'"):
            select_prompts(prompts, tasks=("qa", "chat"), limit_per_task=None)
