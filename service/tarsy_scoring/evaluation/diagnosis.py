"""
Findings from interaction metrics, as advice for the author of a prompt or a tool, each with its numbers.

Findings inform and decide nothing. The table in `docs/interaction.md` lists the same rules.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tarsy_scoring.evaluation.interaction import Counts, Interaction, printable

# One of four commands is a quarter already: shares of fewer commands mean nothing.
MIN_COMMANDS = 5
# Two occurrences may be chance in a session of any length.
MANY = 3
# A healthy agent fails in up to a tenth of its commands, for example by looking for absent resources. At
# three tenths it mostly corrects itself. Between the two the rate alone is no evidence.
FEW_ERRORS, MANY_ERRORS = 0.1, 0.3
# An agent that reads the help of each tool once stays well below; one command in seven is too much.
MUCH_HELP = 0.15
# Every second command is a repetition, which is more than one check after each change.
MANY_RETRIES = 0.5
REPEATED_AFTER_FAILURE = 0.1
# Polling repeats a command two or three times in a row; after five times the agent is stuck.
LONG_RUN = 5
# All but one of 38 recorded investigations of a Kubernetes fault that completed took fewer; the median is 24.
MANY_COMMANDS = 40

LONGEST_SHOWN_NAME = 80
_NAMED = 3  # tools that one rule names, the worst first


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a fixed short phrase, its likely cause, and the numbers."""

    pattern: str
    likely_cause: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Rule:
    """
    The condition and the text of a finding.

    `find` yields for each finding the name that replaces `{name}` in the likely cause, and the evidence.
    """

    pattern: str
    when: str
    likely_cause: str
    find: Callable[[Interaction], Iterator[tuple[str, str]]]


def diagnose(interaction: Interaction) -> list[Finding]:
    """The findings in the order of `RULES`; none for a session of very few commands. Deterministic."""
    if interaction.total_commands < MIN_COMMANDS:
        return []
    return [
        Finding(rule.pattern, rule.likely_cause.format(name=name), evidence)
        for rule in RULES
        for name, evidence in rule.find(interaction)
    ]


def _has_many_errors(counts: Counts) -> bool:
    return counts.error_count >= MANY and (counts.error_rate or 0) >= MANY_ERRORS


def _has_much_help(counts: Counts) -> bool:
    return counts.help_invocations >= MANY and counts.help_invocations / counts.total_commands >= MUCH_HELP


def _errors_without_help(interaction: Interaction) -> Iterator[tuple[str, str]]:
    if _has_many_errors(interaction) and not _has_much_help(interaction):
        yield _worst(interaction, lambda counts: counts.error_count), _errors_and_help(interaction)


def _errors_despite_help(interaction: Interaction) -> Iterator[tuple[str, str]]:
    if _has_many_errors(interaction) and _has_much_help(interaction):
        yield _worst(interaction, lambda counts: counts.error_count), _errors_and_help(interaction)


def _help_without_errors(interaction: Interaction) -> Iterator[tuple[str, str]]:
    if (interaction.error_rate or 0) <= FEW_ERRORS and _has_much_help(interaction):
        yield _worst(interaction, lambda counts: counts.help_invocations), _errors_and_help(interaction)


def _retries_of_one_command(interaction: Interaction) -> Iterator[tuple[str, str]]:
    for name, counts in _ranked(interaction, lambda counts: counts.retry_count):
        rate = counts.retry_rate or 0
        if counts.total_commands >= MIN_COMMANDS and rate >= MANY_RETRIES:
            asked = f"of its {counts.total_commands} commands {counts.unique_commands} were unique_commands"
            yield name, f"{name}: retry_count {counts.retry_count}, retry_rate {rate:.2f} ({asked})"


def _long_way(interaction: Interaction) -> Iterator[tuple[str, str]]:
    if interaction.completed and interaction.total_commands >= MANY_COMMANDS:
        ratio = f"iteration_ratio {interaction.iteration_ratio or 0:.2f}"
        yield "", f"total_commands {interaction.total_commands}, {ratio}, completed true"


def _run(interaction: Interaction) -> Iterator[tuple[str, str]]:
    run = interaction.longest_identical_run
    if run is not None and run.length >= LONG_RUN:
        name = _display_name(run.tool)
        yield name, f"longest_identical_run: {name}, {run.length} times in a row"


def _cycle(interaction: Interaction) -> Iterator[tuple[str, str]]:
    if interaction.cycles:
        cycle = interaction.cycles[0]
        tools = ", ".join(map(_display_name, cycle.tools))
        others = f"; {len(interaction.cycles)} cycles in all" if len(interaction.cycles) > 1 else ""
        name = ", ".join(dict.fromkeys(map(_display_name, cycle.tools)))
        yield name, f"cycles: {tools}, {cycle.repetitions} repetitions{others}"


def _ignored_failures(interaction: Interaction) -> Iterator[tuple[str, str]]:
    count, total = interaction.repeated_after_failure, interaction.total_commands
    if count >= MANY and count / total >= REPEATED_AFTER_FAILURE:
        name = _worst(interaction, lambda counts: counts.repeated_after_failure)
        yield name, f"repeated_after_failure {count} of {total} commands"


_A_LOT_OF_HELP = f"{MANY} help_invocations or more, and in {MUCH_HELP:.0%} of the commands or more"
_LITTLE_HELP = f"fewer than {MANY} help_invocations, or in less than {MUCH_HELP:.0%} of the commands"

RULES = (
    Rule(
        "many errors, little help-seeking",
        f"error_rate at least {MANY_ERRORS:g} ({MANY} errors or more), {_LITTLE_HELP}",
        "The agents think that they know the syntax of {name}: examples of it in the prompt or the tool's description "
        "may be wrong or missing.",
        _errors_without_help,
    ),
    Rule(
        "many errors despite help",
        f"error_rate at least {MANY_ERRORS:g} ({MANY} errors or more), {_A_LOT_OF_HELP}",
        "The help of {name} does not suffice: add the arguments that fail, with an example that works.",
        _errors_despite_help,
    ),
    Rule(
        "much help-seeking, few errors",
        f"error_rate at most {FEW_ERRORS:g}, {_A_LOT_OF_HELP}",
        "The agents know too little up front, but the help of {name} is good: put what it says into the prompt or the "
        "tool's description.",
        _help_without_errors,
    ),
    Rule(
        "many retries of one command",
        f"of a subcommand, or a tool where none are named: {MIN_COMMANDS} commands or more, "
        f"retry_rate at least {MANY_RETRIES:g}",
        "The error messages and results of {name} do not help: let them say what to do differently, or that nothing "
        "has changed.",
        _retries_of_one_command,
    ),
    Rule(
        "long way to the end",
        f"completed, {MANY_COMMANDS} commands or more",
        "The commands are described, the workflow is not: say in which order to use them, and when enough is known.",
        _long_way,
    ),
    Rule(
        "the same command in a row",
        f"longest_identical_run of {LONG_RUN} or more",
        "The agent is stuck at {name}: its answer to an identical call should say so, or a limit should end it.",
        _run,
    ),
    Rule(
        "going round in circles",
        "a cycle of 2 to 8 commands, three rounds or more",
        "No step of the round leads on: say in the prompt what to do when the results of {name} stay the same.",
        _cycle,
    ),
    Rule(
        "repeating what failed",
        f"repeated_after_failure of {MANY} or more, and of {REPEATED_AFTER_FAILURE:.0%} of the commands or more",
        "The agents do not learn from the failures of {name}: its errors should name the cause, and whether trying "
        "again can help.",
        _ignored_failures,
    ),
)
"""All rules, in the order of their findings."""


def _errors_and_help(interaction: Interaction) -> str:
    return (
        f"error_rate {interaction.error_rate or 0:.2f} (error_count {interaction.error_count} of "
        f"{interaction.total_commands} commands), help_invocations {interaction.help_invocations}"
    )


def _ranked(interaction: Interaction, number: Callable[[Counts], int]) -> list[tuple[str, Counts]]:
    """The few subcommands with the highest number, or tools where no subcommands are known, with display
    names.
    """
    parts: Mapping[str, Counts] = interaction.by_subcommand or interaction.by_tool
    worst = sorted(parts.items(), key=lambda part: (-number(part[1]), part[0]))
    return [(_display_name(name), counts) for name, counts in worst[:_NAMED]]


def _worst(interaction: Interaction, number: Callable[[Counts], int]) -> str:
    ranked = _ranked(interaction, number)
    return ranked[0][0] if ranked else "the tools"


def _display_name(name: str) -> str:
    return f"`{printable(name, LONGEST_SHOWN_NAME)}`"
