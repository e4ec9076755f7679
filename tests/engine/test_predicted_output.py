"""Where an output stands in its prediction: found again after every kind of edit, never claimed without a reason."""

from __future__ import annotations

import pytest

from engine.predicted_output import PredictedOutput

PREDICTION = list(range(100, 160))
PROMPT = [1, 2, 3]


def follow(prediction: list[int], output: list[int]) -> tuple[PredictedOutput, int]:
    """The prediction after the output, and how many of its tokens it told beforehand."""
    predicted, tokens, num_told = PredictedOutput(prediction), list(PROMPT), 0
    for token in output:
        num_told += predicted.following(1) == (token,)
        tokens.append(token)
        predicted.follow(tokens)
    return predicted, num_told


def test_an_output_as_predicted_is_told_to_its_end() -> None:
    predicted, num_told = follow(PREDICTION, PREDICTION)
    assert num_told == len(PREDICTION)
    assert (predicted.num_accepted, predicted.num_rejected) == (60, 0)
    assert not predicted.is_aligned
    assert predicted.following(5) == ()


def test_what_follows_is_cut_at_the_end_and_at_the_length() -> None:
    predicted, _ = follow(PREDICTION, PREDICTION[:57])
    assert predicted.following(2) == (157, 158)
    assert predicted.following(9) == (157, 158, 159)
    assert predicted.num_in_step == 57


@pytest.mark.parametrize(
    ("output", "num_lost"),
    [
        # Each parting costs the first other token; beside that only what is put in, and the token that tells where.
        pytest.param([*PREDICTION[:20], 7, *PREDICTION[21:]], 1, id="one replaced"),
        pytest.param([*PREDICTION[:20], 7, 8, 9, *PREDICTION[23:]], 4, id="three replaced"),
        pytest.param([*PREDICTION[:20], *PREDICTION[25:]], 1, id="five left out"),
        pytest.param([*PREDICTION[:20], 7, *PREDICTION[20:]], 2, id="one put in"),
        pytest.param([*PREDICTION[:20], 7, 8, 9, *PREDICTION[20:]], 4, id="three put in"),
        pytest.param([*PREDICTION[:20], *PREDICTION[55:]], 2, id="far left out"),
        pytest.param([*PREDICTION[30:], *PREDICTION[:30]], 4, id="halves exchanged"),
        pytest.param([7, *PREDICTION], 2, id="begun otherwise"),
        pytest.param([*PREDICTION[:30], *PREDICTION[10:]], 2, id="a part twice"),
    ],
)
def test_an_edited_output_is_found_again(output: list[int], num_lost: int) -> None:
    _, num_told = follow(PREDICTION, output)
    assert len(output) - num_told <= num_lost


def test_a_prediction_that_has_nothing_to_do_with_the_output() -> None:
    predicted, num_told = follow(PREDICTION, list(range(200, 240)))
    assert num_told == 0
    assert not predicted.is_aligned
    assert (predicted.num_accepted, predicted.num_rejected) == (0, 60)


def test_one_equal_token_far_away_is_no_reason() -> None:
    predicted, _ = follow(PREDICTION, [*PREDICTION[:5], 7, 8, 155])
    assert not predicted.is_aligned
    predicted, _ = follow(PREDICTION, [*PREDICTION[:5], 7, 8, 155, 156])
    assert predicted.following(1) == (157,)


def test_the_longest_run_wins_and_then_the_nearest() -> None:
    repeated = [1, 2, 3, 50, 9, 2, 3, 60, 9, 2, 3, 70]
    assert follow(repeated, [4, 4, 1, 2, 3])[0].following(1) == (50,)
    assert follow(repeated, [1, 2, 3, 50, 4, 4, 9, 2, 3])[0].following(1) == (60,)


def test_a_token_counts_once_however_often_it_is_followed() -> None:
    predicted, _ = follow([5, 6, 7, 8], [5, 6, 7, 8, 5, 6, 7, 8])
    assert (predicted.num_accepted, predicted.num_rejected) == (4, 0)


def test_many_equal_tokens_take_no_time() -> None:
    predicted, _ = follow([9] * 100_000, [9, 8] * 300)
    assert predicted.num_accepted + predicted.num_rejected == 100_000
