"""`compare`: the mean of pairs, the values it chooses, and the arguments that it refuses at once."""

import uuid
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tarsy_scoring.errors import ScoringError
from tarsy_scoring.studies.commands.compare import Pair, choose_values, compare, document_of
from tarsy_scoring.studies.commands.judging import OrderedJudgement
from tarsy_scoring.studies.comparison import ScoredSession

RUN = uuid.UUID("6d1f6f0e-7f0e-4c53-8d0b-0d2f6a2f7a11")


def judgement(criteria: str, total: int | None) -> OrderedJudgement:
    return OrderedJudgement(
        score_id=uuid.uuid4(),
        session_id="session-1",
        status="failed" if total is None else "completed",
        attempt=1,
        waiting_for=None,
        criteria=criteria,
        criteria_hash=f"hash-{criteria}",
        judge_fingerprint="judge-1",
        total_score=total,
        judge_outcome=None,
        flags=[],
        usage=None,
        error_kind=None,
        error_message=None,
    )


def mean_difference(*differences: int | None) -> dict[str, Any]:
    """The mean in the document of these differences; None is a pair without both totals."""
    pairs = [Pair(judgement("strict", 50), judgement("lenient", None if d is None else 50 + d)) for d in differences]
    found: dict[str, Any] = document_of(RUN, ("strict", "lenient"), pairs)["mean_difference"]
    return found


# --- two criteria --------------------------------------------------------------------------------------


def test_the_mean_of_paired_differences_has_an_interval() -> None:
    """Only sessions with both totals count."""
    found = mean_difference(4, 6, 5, 10, 0, None, 5)

    assert (found["n"], found["value"]) == (6, 5)
    assert 0 < found["low"] < 5 < found["high"] < 10


# --- which values --------------------------------------------------------------------------------------


def sessions(*values: str) -> list[ScoredSession]:
    return [ScoredSession(value, None, None, 60, None, None, (), None) for value in values]


@pytest.mark.parametrize(
    ("found", "wanted", "chosen"),
    [
        pytest.param(("b", "a", "b"), None, ("b", "a"), id="the-older-first"),
        pytest.param(("b", "a"), ("a", "b"), ("a", "b"), id="as-wanted"),
        pytest.param(("a", "b", "c"), ("c", "a"), ("c", "a"), id="two-of-three"),
        pytest.param(("a", ""), None, ("a", ""), id="an-empty-value-is-one"),
    ],
)
def test_wanted_values_or_the_only_two_are_compared(
    found: tuple[str, ...], wanted: tuple[str, str] | None, chosen: tuple[str, str]
) -> None:
    assert choose_values("guidance", sessions(*found), wanted) == chosen


@pytest.mark.parametrize(
    ("found", "wanted", "error", "words"),
    [
        pytest.param(("a", "b", "c", "b"), None, click.UsageError, r"'b' \(2 scored sessions\)", id="three-values"),
        pytest.param(("a", "b"), ("a", "d"), click.BadParameter, "no scored session has guidance=d", id="unknown"),
        pytest.param(("a", "a"), None, ScoringError, r"one value, 'a' \(2 scored", id="one-value"),
        pytest.param(("a",), None, ScoringError, r"one value, 'a' \(1 scored session\)", id="one-session"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(
    found: tuple[str, ...], wanted: tuple[str, str] | None, error: type[Exception], words: str
) -> None:
    """Where another command line would help it is a usage error; missing data is a failure."""
    with pytest.raises(error, match=words):
        choose_values("guidance", sessions(*found), wanted)


# --- invalid arguments ---------------------------------------------------------------------------------

CRITERIA = ["--criteria", "investigation-methodology", "investigation-outcome"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param([], "choose a comparison", id="nothing"),
        pytest.param(["--label", "guidance", *CRITERIA], "choose a comparison", id="both"),
        pytest.param(["--label", "guidance", "session-1"], "SESSION goes with --criteria", id="label-and-sessions"),
        pytest.param(["--label", "guidance", "--run", str(RUN)], "--run goes with --criteria", id="label-and-run"),
        pytest.param([*CRITERIA, "s", "--values", "a", "b"], "--values goes with --label", id="criteria-and-values"),
        pytest.param([*CRITERIA, "s", "--chain", "c"], "--chain goes with --label", id="criteria-and-chain"),
        pytest.param([*CRITERIA, "s", "--since", "2026-01-01"], "--since goes with --label", id="criteria-and-since"),
        pytest.param(["--label", "guidance", "--values", "a", "a"], "two different values", id="one-value-twice"),
        pytest.param(["--label", "guidance", "--since", "yesterday"], "is not a time", id="no-time"),
        pytest.param(CRITERIA, "name the sessions", id="no-sessions"),
    ],
)
def test_invalid_arguments_end_with_status_2(arguments: list[str], words: str) -> None:
    """The command refuses them before it reads anything, and says what would help."""
    ended = CliRunner().invoke(compare, arguments)

    assert ended.exit_code == 2, ended.output
    assert words in ended.output
