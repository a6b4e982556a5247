"""
Derives findings from interaction metrics: advice for the author of a prompt or a tool, with the numbers.

Findings inform and decide nothing. The table in `docs/interaction.md` lists the same rules.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.evaluation.interaction import Interaction, printable
from tarsy_scoring.events import Counts

# One in four commands is a quarter already: shares of fewer mean nothing.
MIN_COMMANDS = 5
# Two occurrences may be chance in a session of any length.
MANY = 3
# A healthy agent fails in up to a tenth of all commands, for example by looking for absent resources. At
# three tenths it mostly corrects itself. Between the two the rate alone is no evidence.
FEW_ERRORS, MANY_ERRORS = 0.1, 0.3
# An agent that reads the help of each tool once stays well below; one command in seven is too much.
MUCH_HELP = 0.15
# Every second command is a repetition, which is more than one check after each change.
MANY_RETRIES = 0.5
REPEATED_AFTER_FAILURE = 0.1
# All but one of 38 recorded investigations of a Kubernetes fault that completed took fewer; the median is 24.
MANY_COMMANDS = 40

LONGEST_SHOWN_NAME = 80
_NAMED = 3  # tools that one rule names, the worst first


@dataclass(frozen=True, slots=True)
class DiagnosedPattern:
    """One finding: a fixed short phrase, the likely cause, and the numbers."""

    pattern: str
    likely_cause: str
    evidence: str


CAUSES: Mapping[str, str] = packaged_yaml(__package__, "causes.yaml")
"""The likely cause by pattern, in the order of the findings. `{name}` stands for the tools that a finding names."""


def diagnose(interaction: Interaction) -> list[DiagnosedPattern]:
    """The findings in the order of `CAUSES`; none for a session with very few commands. Deterministic."""
    if interaction.total_commands < MIN_COMMANDS:
        return []
    return [
        DiagnosedPattern(pattern, CAUSES[pattern].format(name=name), evidence)
        for find in (_errors_and_help, _retries, _long_way, _ignored_failures)
        for pattern, name, evidence in find(interaction)
    ]


def _errors_and_help(interaction: Interaction) -> Iterator[tuple[str, str, str]]:
    errors, helped, total = interaction.error_count, interaction.help_invocations, interaction.total_commands
    error_rate = interaction.error_rate or 0
    has_much_help = helped >= MANY and helped / total >= MUCH_HELP
    evidence = (
        f"error_rate {error_rate:.2f} (error_count {errors} of {total} commands), help_invocations {helped}"
    )
    if errors >= MANY and error_rate >= MANY_ERRORS:
        pattern = "many errors despite help" if has_much_help else "many errors, little help-seeking"
        yield pattern, _worst(interaction, lambda counts: counts.error_count), evidence
    if error_rate <= FEW_ERRORS and has_much_help:
        name = _worst(interaction, lambda counts: counts.help_invocations)
        yield "much help-seeking, few errors", name, evidence


def _retries(interaction: Interaction) -> Iterator[tuple[str, str, str]]:
    for name, counts in _ranked(interaction, lambda counts: counts.retry_count):
        rate = counts.retry_rate or 0
        if counts.total_commands >= MIN_COMMANDS and rate >= MANY_RETRIES:
            asked = f"of its {counts.total_commands} commands {counts.unique_commands} were unique_commands"
            evidence = f"{name}: retry_count {counts.retry_count}, retry_rate {rate:.2f} ({asked})"
            yield "many retries of one command", name, evidence


def _long_way(interaction: Interaction) -> Iterator[tuple[str, str, str]]:
    if interaction.completed and interaction.total_commands >= MANY_COMMANDS:
        ratio = f"iteration_ratio {interaction.iteration_ratio or 0:.2f}"
        yield (
            "long way to the end",
            "",
            f"total_commands {interaction.total_commands}, {ratio}, completed true",
        )


def _ignored_failures(interaction: Interaction) -> Iterator[tuple[str, str, str]]:
    count, total = interaction.repeated_after_failure, interaction.total_commands
    if count >= MANY and count / total >= REPEATED_AFTER_FAILURE:
        name = _worst(interaction, lambda counts: counts.repeated_after_failure)
        yield "repeating what failed", name, f"repeated_after_failure {count} of {total} commands"


def _ranked(interaction: Interaction, number: Callable[[Counts], int]) -> list[tuple[str, Counts]]:
    """The `_NAMED` subcommands with the highest number, or tools where no subcommands are known."""
    parts: Mapping[str, Counts] = interaction.by_subcommand or interaction.by_tool
    worst = sorted(parts.items(), key=lambda part: (-number(part[1]), part[0]))
    return [(f"`{printable(name, LONGEST_SHOWN_NAME)}`", counts) for name, counts in worst[:_NAMED]]


def _worst(interaction: Interaction, number: Callable[[Counts], int]) -> str:
    ranked = _ranked(interaction, number)
    return ranked[0][0] if ranked else "the tools"
