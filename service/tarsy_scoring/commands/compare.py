"""`compare`: two versions of the agents by their sessions, or two criteria on the same sessions."""

import contextlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from tarsy_scoring.commands.judging import Judgement, Run, cost_of, follow, run_options, status_of
from tarsy_scoring.commands.shared import (
    counted,
    json_option,
    moment,
    plain,
    print_json,
    require_criteria,
    run,
    run_on_parts,
    sessions_argument,
    settings_of_environment,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.drift import anchors
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.records.judgements import scores_by_label, session_labels
from tarsy_scoring.statistics.agreement import Estimate, Spread, spread
from tarsy_scoring.statistics.bootstrap import estimate_mean
from tarsy_scoring.statistics.comparison import Comparison, MetricComparison, ScoredSession, Side, compare_versions
from tarsy_scoring.statistics.drift import AnchorJudgement
from tarsy_scoring.wiring import Parts

_WHOLE = {"total_score", "total_commands", "help_invocations"}  # the other metrics are rates and shares

# Options of each of the two modes.
_OF_LABEL = {"values": "--values", "chain": "--chain", "since": "--since"}
_OF_CRITERIA = {"sessions": "SESSION", "timeout_s": "--timeout", "run_id": "--run"}


@dataclass(frozen=True, slots=True)
class Pair:
    """One session under both criteria."""

    first: Judgement
    second: Judgement

    @property
    def difference(self) -> int | None:
        """The second total minus the first; None if one is missing."""
        if self.first.total_score is None or self.second.total_score is None:
            return None
        return self.second.total_score - self.first.total_score


@click.command()
@sessions_argument(required=False)
@click.option("--label", metavar="NAME", help="Compare the sessions of two values of this label.")
@click.option("--values", nargs=2, metavar="A B", help="With --label: these two values; a difference is B minus A.")
@click.option("--chain", metavar="NAME", help="With --label: only sessions of this chain.")
@click.option(
    "--since", type=moment, metavar="TIME", help="With --label: only sessions that ended since (RFC 3339, or a date)."
)
@click.option("--criteria", nargs=2, metavar="A B", help="Judge the sessions under both; a difference is B minus A.")
@run_options
@json_option
@click.pass_context
def compare(
    context: click.Context,
    sessions: list[str],
    label: str | None,
    values: tuple[str, str] | None,
    chain: str | None,
    since: datetime | None,
    criteria: tuple[str, str] | None,
    timeout_s: float,
    run_id: UUID | None,
    as_json: bool,
) -> None:
    """
    Compare two versions of the agents, or two criteria.

    --label NAME compares stored scores and interaction metrics of the sessions with two values of a label. It
    compares within chain and alert type where possible, gives 95 % intervals, and puts the older value first.
    Where different judges scored the two values, it removes the judges' part of the difference with the help
    of anchors (see `anchors`). It requests no judgement. Exit status 1: there is nothing to compare.

    --criteria A B SESSION... has the same sessions judged under two criteria and compares the totals. These
    judgements never become the score of a session. Needs a running worker. Exit status 1: not every judgement
    produced a total in time; outstanding ones continue, and the command that shows them later is printed.
    """
    settings = settings_of_environment()
    if (label is None) == (criteria is None):
        raise click.UsageError("choose a comparison: --label NAME, or --criteria A B SESSION...")
    if label is not None:
        _refuse_strangers(context, "--criteria", _OF_CRITERIA)
        _compare_label(settings, label, values, chain, since, as_json)
    elif criteria is not None:
        _refuse_strangers(context, "--label", _OF_LABEL)
        _compare_criteria(settings, criteria, sessions, timeout_s, run_id, as_json)


def _refuse_strangers(context: click.Context, owner: str, options: Mapping[str, str]) -> None:
    """Raises: click.UsageError: an option belongs to the other mode."""
    for name, written in options.items():
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE and context.params[name]:
            raise click.UsageError(f"{written} goes with {owner}")


# --- two values of a label -----------------------------------------------------------------------------


def _compare_label(
    settings: Settings,
    label: str,
    values: tuple[str, str] | None,
    chain: str | None,
    since: datetime | None,
    as_json: bool,
) -> None:
    if values and values[0] == values[1]:
        raise click.UsageError("--values takes two different values")
    found, judgements = run_on_parts(lambda parts: _read_label(parts, label, chain, since), settings)
    chosen = choose_values(label, found, values)
    console = Console(stderr=True)
    with console.status("resampling ...") if console.is_terminal else contextlib.nullcontext():
        comparison = compare_versions(found, chosen, judgements)
    if as_json:
        print_json({"label": label, "chain": chain, "since": since} | asdict(comparison))
    else:
        _show_versions(label, comparison)


async def _read_label(
    parts: Parts, label: str, chain: str | None, since: datetime | None
) -> tuple[list[ScoredSession], list[AnchorJudgement]]:
    """
    Read every scored session with the label, earliest first, and the judgements of anchors.

    Raises:
        ScoringError: There is none; the message lists the labels in use.
        DatabaseAway: See `Database.once`.
    """
    if found := await scores_by_label(parts.database, label, chain, since):
        return found, await anchors.judgements(parts.database)
    carried = await session_labels(parts.database)
    labels = ", ".join(f"{name} ({counted(n, 'session')})" for name, n in carried.items()) or "no session has one"
    among = "".join(
        (f" of chain {chain!r}" if chain else "", f" that ended since {since:%Y-%m-%d %H:%M}" if since else "")
    )
    raise ScoringError(f"nothing to compare: no scored session{among} has the label {label!r}; labels: {labels}")


def choose_values(label: str, sessions: Sequence[ScoredSession], wanted: tuple[str, str] | None) -> tuple[str, str]:
    """
    Choose the two values to compare: the requested ones, else the only two, in order of appearance.

    Raises:
        click.BadParameter: A requested value has no session, or there are more than two values and none is
            requested.
        ScoringError: There is only one value.
    """
    counts = Counter(s.value for s in sessions)  # keeps the order of appearance
    known = ", ".join(f"{value!r} ({counted(n, 'scored session')})" for value, n in counts.items())
    if wanted is not None:
        if unknown := [value for value in wanted if value not in counts]:
            raise click.BadParameter(
                f"no scored session has {label}={unknown[0]}; values: {known}", param_hint="--values"
            )
        return wanted
    if len(counts) == 1:
        raise ScoringError(f"nothing to compare: all scored sessions with the label {label!r} have one value, {known}")
    if len(counts) > 2:
        raise click.UsageError(f"choose two of the values of {label!r} with --values A B: {known}")
    first, second = counts
    return first, second


def _show_versions(label: str, comparison: Comparison) -> None:
    first, second = map(plain, comparison.values)
    before, after = (counted(n, "session") for n in comparison.sessions)
    click.echo(f"{plain(label)}: {second} ({after}) minus {first} ({before})")
    table = Table(Column("metric", no_wrap=True), box=None, padding=(0, 2, 0, 0))
    for value in comparison.values:
        table.add_column(Text(plain(value)), justify="right", overflow="fold")
    table.add_column("difference", justify="right")
    table.add_column("shown", no_wrap=True)
    for m in comparison.metrics:
        shown = Text(m.verdict, style="bold" if m.verdict in {"higher", "lower"} else "")
        table.add_row(m.metric, _side(m, m.first), _side(m, m.second), _difference(m), shown)
    Console().print(table)
    click.echo("Below a mean: how many sessions have it (of these, how many can be compared).")
    click.echo("Below a difference: its 95 % interval.")
    reasons: dict[str, list[str]] = {}
    for m in comparison.metrics:
        if m.difference.reason:
            reasons.setdefault(m.difference.reason, []).append(m.metric)
    for reason, metrics in reasons.items():
        click.echo(f"{', '.join(metrics)}: {reason}.")
    for sentence in comparison.meaning:
        click.echo(sentence)


def _side(metric: MetricComparison, side: Side) -> str:
    mean = "none" if side.mean is None else _number(metric, side.mean)
    return f"{mean}\nn={side.n}" + ("" if side.compared == side.n else f" ({side.compared})")


def _difference(metric: MetricComparison) -> str:
    estimate = metric.difference
    value = "unknown" if estimate.value is None else _number(metric, estimate.value, sign="+")
    if estimate.low is None or estimate.high is None:
        return f"{value}\nno interval"
    return f"{value}\n{_number(metric, estimate.low, sign='+')} to {_number(metric, estimate.high, sign='+')}"


def _number(metric: MetricComparison, value: float, *, sign: str = "") -> str:
    return f"{value:{sign}.{1 if metric.metric in _WHOLE else 3}f}"


# --- two criteria --------------------------------------------------------------------------------------


def _compare_criteria(
    settings: Settings,
    criteria: tuple[str, str],
    sessions: Sequence[str],
    timeout_s: float,
    run_id: UUID | None,
    as_json: bool,
) -> None:
    if not sessions:
        raise click.UsageError("name the sessions: --criteria A B SESSION...")
    if criteria[0] == criteria[1]:
        raise click.UsageError("two criteria make a comparison; for repeated judgements under one see `consistency`")
    registry = load_criteria(settings.config.criteria_dirs)
    for name in criteria:
        require_criteria(registry, name)
    orders = [Order(session, "shadow", name) for session in sessions for name in criteria]
    ordered = Run(run_id or uuid4(), ["compare", "--criteria", *criteria, *sessions], orders)
    judgements = run(follow(settings, ordered, timeout_s))
    pairs = pairs_of(judgements, criteria)
    print_json(document_of(ordered.run_id, criteria, pairs)) if as_json else _show_pairs(criteria, pairs)
    sys.exit(status_of(judgements.values()))


def pairs_of(judgements: Mapping[Order, Judgement], criteria: tuple[str, str]) -> list[Pair]:
    """The two judgements of each session, in the order of the sessions."""
    sessions = dict.fromkeys(order.session_id for order in judgements)
    first, second = ({o.session_id: j for o, j in judgements.items() if o.criteria == name} for name in criteria)
    return [Pair(first[session], second[session]) for session in sessions]


def _differences(pairs: Sequence[Pair]) -> tuple[Spread, Estimate]:
    """Spread and mean of the differences, with the interval of the mean."""
    found = [p.difference for p in pairs if p.difference is not None]
    return spread(found), estimate_mean(found)


def document_of(run_id: UUID, criteria: tuple[str, str], pairs: Sequence[Pair]) -> dict[str, Any]:
    """JSON document: every pair and the summary of the differences."""
    judgements = [j for p in pairs for j in (p.first, p.second)]
    hashes = {j.criteria: j.criteria_hash for j in judgements}
    apart, mean = _differences(pairs)
    return {
        "run_id": run_id,
        "criteria": [{"name": name, "criteria_hash": hashes.get(name)} for name in criteria],
        "outstanding": sum(j.is_outstanding for j in judgements),
        "sessions": [
            {
                "session_id": p.first.session_id,
                "judgements": [p.first.document(), p.second.document()],
                "difference": p.difference,
            }
            for p in pairs
        ],
        "differences": asdict(apart),
        "mean_difference": asdict(mean),
        "cost": asdict(cost_of(judgements)),
    }


def _show_pairs(criteria: tuple[str, str], pairs: Sequence[Pair]) -> None:
    table = Table("session")
    for header in (*criteria, "difference"):
        table.add_column(Text(header), justify="right")
    for p in pairs:
        difference = "" if p.difference is None else f"{p.difference:+d}"
        table.add_row(Text(p.first.session_id), _cell(p.first), _cell(p.second), difference)
    Console().print(table)
    apart, mean = _differences(pairs)
    if apart.mean is None:
        click.echo("no session has a total under both criteria")
    else:
        line = f"{criteria[1]} minus {criteria[0]}: mean {apart.mean:+.1f} over {apart.n} of {len(pairs)} sessions"
        if apart.standard_deviation is not None:
            line += f", from {apart.lowest:+g} to {apart.highest:+g}, standard deviation {apart.standard_deviation:.1f}"
        click.echo(line)
        has_interval = mean.low is not None and mean.high is not None
        interval = f"{mean.low:+.1f} to {mean.high:+.1f}" if has_interval else f"unknown: {mean.reason}"
        click.echo(f"95 % interval of the mean: {interval}")
    click.echo(f"cost: {cost_of(j for p in pairs for j in (p.first, p.second))}")


def _cell(judgement: Judgement) -> Text:
    if judgement.total_score is not None:
        return Text(f"{judgement.total_score} {judgement.judge_outcome or judgement.band or 'between bands'}")
    if judgement.is_outstanding:
        return Text(judgement.waiting_for or judgement.status.replace("_", " "))
    return Text(judgement.error_kind or "no judge")
