"""The interaction metrics of recorded sessions against numbers that were counted by reading them."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from golden_interaction import GOLDEN, Counts, Golden, Tally

from tarsy_scoring.evaluation.interaction import CommandRules, measure_interaction
from tarsy_scoring.timeline.files import read_session_file
from unit.timeline.sessions import RECORDED, RECORDED_DIR

EACH_GOLDEN = pytest.mark.parametrize("golden", GOLDEN, ids=[golden.case for golden in GOLDEN])
needs_recordings = pytest.mark.skipif(not RECORDED, reason="the recorded sessions are not beside this repository")


def measured(golden: Golden) -> dict[str, Any]:
    timeline = read_session_file(RECORDED_DIR / f"{golden.session_id}.json")
    return measure_interaction(timeline, CommandRules(golden.pattern, golden.shell_tools)).document()


def tallies(breakdown: dict[str, dict[str, Any]]) -> dict[str, Tally]:
    return {name: (numbers["total_commands"], numbers["error_count"]) for name, numbers in breakdown.items()}


def summed(parts: Mapping[str, Tally]) -> Tally:
    return sum(commands for commands, _ in parts.values()), sum(failed for _, failed in parts.values())


@needs_recordings
@EACH_GOLDEN
def test_counts_are_those_of_a_reader(golden: Golden) -> None:
    """Commands, identities, failures, repetitions and requests for help, whatever the rules count."""
    document = measured(golden)

    assert {name: document[name] for name in Counts._fields} == golden.counts._asdict()
    assert document["completed"] is golden.completed


@needs_recordings
@EACH_GOLDEN
def test_rates_are_the_exact_fractions(golden: Golden) -> None:
    """Nothing is rounded, and without a command there is no rate."""
    document = measured(golden)

    for name, fraction in golden.rates._asdict().items():
        assert document[name] == (None if fraction is None else float(fraction)), name


@needs_recordings
@EACH_GOLDEN
def test_breakdowns_are_those_of_a_reader(golden: Golden) -> None:
    """Each tool and each subcommand has its commands and failures, and none is there without a command."""
    document = measured(golden)

    assert tallies(document["by_tool"]) == golden.by_tool
    assert tallies(document["by_subcommand"]) == golden.by_subcommand
    for numbers in [*document["by_tool"].values(), *document["by_subcommand"].values()]:
        assert numbers["error_rate"] == float(Fraction(numbers["error_count"], numbers["total_commands"]))


@needs_recordings
@EACH_GOLDEN
def test_loops_are_those_of_a_reader(golden: Golden) -> None:
    """The longest run of one command, and the stretches that go round."""
    document = measured(golden)

    run = document["longest_identical_run"]
    assert (None if run is None else (run["tool"], run["length"])) == golden.longest_identical_run
    assert tuple((tuple(c["tools"]), c["repetitions"]) for c in document["cycles"]) == golden.cycles


@needs_recordings
@EACH_GOLDEN
def test_failures_are_known_from_the_error_flag(golden: Golden) -> None:
    """Every recorded call says `is_error` and none has an exit code."""
    expected = {"is_error": golden.counts.total_commands} if golden.counts.total_commands else {}

    assert measured(golden)["error_basis"] == expected


@EACH_GOLDEN
def test_the_table_agrees_with_itself(golden: Golden) -> None:
    """A slip in a row shows without the recordings."""
    counts, rates, total = golden.counts, golden.rates, golden.counts.total_commands

    assert counts.retry_count == total - counts.unique_commands
    assert (total, counts.error_count) == summed(golden.by_tool)
    if total:
        assert rates.error_rate == Fraction(counts.error_count, total)
        assert rates.retry_rate == Fraction(counts.retry_count, total)
        assert rates.iteration_ratio == Fraction(counts.unique_commands, total)
    if golden.by_subcommand:
        assert (total, counts.error_count) == summed(golden.by_subcommand)
