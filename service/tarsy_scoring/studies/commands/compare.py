"""`compare`: compares two agent versions by their sessions, or two criteria on the same sessions."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import click
from click.core import ParameterSource

from tarsy_scoring.commands.shared import (
    counted,
    json_option,
    moment,
    print_json,
    require_criteria,
    run,
    run_on_parts,
    sessions_argument,
    settings_of_environment,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.studies.commands.judging import (
    OrderedJudgement,
    StudyRun,
    cost_of,
    follow,
    run_options,
    status_of,
)
from tarsy_scoring.studies.commands.texts import print_study
from tarsy_scoring.studies.comparison import CONFIDENCE, ScoredSession, compare_versions
from tarsy_scoring.studies.estimates import paired_change
from tarsy_scoring.studies.spread import spread
from tarsy_scoring.studies.stored_scores import scores_by_label, session_labels

if TYPE_CHECKING:
    from tarsy_scoring.wiring import Parts

# Options that only one of the two modes has: parameter of `compare`, and the option at the command line.
_LABEL_OPTIONS = {
    "values": "--values",
    "chain": "--chain",
    "since": "--since",
}
_CRITERIA_OPTIONS = {"sessions": "SESSION", "timeout_s": "--timeout", "run_id": "--run"}


# Metrics that are always printed; the others only where they show a difference. --json has them all.
MAIN_METRICS = ("total_score", "pass_share", "error_rate", "help_invocations")


@dataclass(frozen=True, slots=True)
class Pair:
    """One session's judgements under both criteria."""

    first: OrderedJudgement
    second: OrderedJudgement

    @property
    def difference(self) -> int | None:
        """The second total minus the first; None if one is missing."""
        if self.first.total_score is None or self.second.total_score is None:
            return None
        return self.second.total_score - self.first.total_score


@click.command()
@sessions_argument(required=False)
@click.option("--label", metavar="NAME", help="Compare the sessions of two values of this label.")
@click.option(
    "--values", nargs=2, metavar="A B", help="With --label: these two values; a difference is B minus A."
)
@click.option("--chain", metavar="NAME", help="With --label: only sessions of this chain.")
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="With --label: only sessions that ended since (RFC 3339, or a date).",
)
@click.option(
    "--criteria",
    nargs=2,
    metavar="A B",
    help="Judge the sessions under both; a difference is B minus A.",
)
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
    Compare two agent versions, or two criteria.

    --label NAME compares stored scores and interaction metrics of the sessions with two values of a label. It
    compares within chain and alert type, totals within the judge too, gives 95 % intervals, and puts the older
    value first. It requests no judgement. Exit status 1: there is nothing to compare.

    --criteria A B SESSION... has the same sessions judged under two criteria and compares the totals. These
    judgements never become a session's score. Needs a running worker. Exit status 1: not every judgement
    produced a total in time; outstanding ones continue, and the command that shows them later is printed.
    """
    settings = settings_of_environment()
    if (label is None) == (criteria is None):
        raise click.UsageError("choose a comparison: --label NAME, or --criteria A B SESSION...")
    if label is not None:
        _refuse_options(context, "--criteria", _CRITERIA_OPTIONS)
        document = _compare_label(settings, label, values, chain, since)
        print_json(document) if as_json else print_versions(document)
    elif criteria is not None:
        _refuse_options(context, "--label", _LABEL_OPTIONS)
        _compare_criteria(settings, criteria, sessions, timeout_s, run_id, as_json)


def _refuse_options(context: click.Context, owner: str, options: Mapping[str, str]) -> None:
    """
    Refuse the other mode's options.

    Args:
        owner: The option that chooses the other mode.

    Raises:
        click.UsageError: Naming the first such option.
    """
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
) -> dict[str, Any]:
    if values and values[0] == values[1]:
        raise click.UsageError("--values takes two different values")
    found = run_on_parts(lambda parts: _read_label(parts, label, chain, since), settings)
    comparison = compare_versions(found, choose_values(label, found, values))
    return {"label": label, "chain": chain, "since": since} | asdict(comparison)


def print_versions(document: Mapping[str, Any]) -> None:
    """Print a comparison of two versions for people: the main metrics, and those with a difference."""
    metrics = document["metrics"]
    printed = [m for m in metrics if m["metric"] in MAIN_METRICS or m["verdict"] in ("higher", "lower")]
    others = [m["metric"] for m in metrics if m not in printed]
    print_study("versions.txt", {**document, "metrics": printed, "tested": len(metrics), "others": others})


async def _read_label(
    parts: "Parts", label: str, chain: str | None, since: datetime | None
) -> list[ScoredSession]:
    """
    Read every scored session with the label, earliest first.

    Raises:
        ScoringError: There is none; the message lists the labels in use.
        DatabaseAway: See `Database.once`.
    """
    if found := await scores_by_label(parts.database, label, chain, since):
        return found
    carried = await session_labels(parts.database)
    labels = (
        ", ".join(f"{name} ({counted(n, 'session')})" for name, n in carried.items()) or "no session has one"
    )
    among = "".join(
        (
            f" of chain {chain!r}" if chain else "",
            f" that ended since {since:%Y-%m-%d %H:%M}" if since else "",
        )
    )
    raise ScoringError(
        f"nothing to compare: no scored session{among} has the label {label!r}; labels: {labels}"
    )


def choose_values(
    label: str, sessions: Sequence[ScoredSession], wanted: tuple[str, str] | None
) -> tuple[str, str]:
    """
    Choose the two values to compare: the requested ones, else the only two, as they appear.

    Raises:
        click.BadParameter: A requested value has no session.
        click.UsageError: There are more than two values, and none is requested.
        ScoringError: There is only one value.
    """
    counts = Counter(s.value for s in sessions)  # keeps the order in which they appear
    known = ", ".join(f"{value!r} ({counted(n, 'scored session')})" for value, n in counts.items())
    if wanted is not None:
        if unknown := [value for value in wanted if value not in counts]:
            raise click.BadParameter(
                f"no scored session has {label}={unknown[0]}; values: {known}", param_hint="--values"
            )
        return wanted
    if len(counts) == 1:
        raise ScoringError(
            f"nothing to compare: all scored sessions with the label {label!r} have one value, {known}"
        )
    if len(counts) > 2:
        raise click.UsageError(f"choose two of the values of {label!r} with --values A B: {known}")
    first, second = counts
    return first, second


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
        raise click.UsageError(
            "two criteria make a comparison; for repeated judgements under one see `consistency`"
        )
    registry = load_criteria(settings.config.criteria_dirs)
    for name in criteria:
        require_criteria(registry, name)
    orders = [Order(session, "shadow", name) for session in sessions for name in criteria]
    ordered = StudyRun(run_id or uuid4(), ["compare", "--criteria", *criteria, *sessions], orders)
    judgements = run(follow(settings, ordered, timeout_s))
    document = document_of(ordered.run_id, criteria, pairs_of(judgements, criteria))
    if as_json:
        print_json(document)
    else:
        print_study("criteria_pairs.txt", document | {"cost_in_words": str(cost_of(judgements.values()))})
    sys.exit(status_of(judgements.values()))


def pairs_of(judgements: Mapping[Order, OrderedJudgement], criteria: tuple[str, str]) -> list[Pair]:
    """Each session's two judgements, in session order."""
    sessions = dict.fromkeys(order.session_id for order in judgements)
    first, second = (
        {o.session_id: j for o, j in judgements.items() if o.criteria == name} for name in criteria
    )
    return [Pair(first[session], second[session]) for session in sessions]


def document_of(run_id: UUID, criteria: tuple[str, str], pairs: Sequence[Pair]) -> dict[str, Any]:
    """JSON document: every pair, and a summary that describes the differences."""
    judgements = [j for p in pairs for j in (p.first, p.second)]
    hashes = {j.criteria: j.criteria_hash for j in judgements}
    found = [p.difference for p in pairs if p.difference is not None]
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
        "differences": asdict(spread(found)),
        "mean_difference": asdict(paired_change(found, CONFIDENCE).estimate),
        "cost": asdict(cost_of(judgements)),
    }
