"""`compare`: compares two agent versions by their sessions, or two criteria on the same sessions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import click

from tarsy_scoring.commands.shared import (
    counted,
    json_option,
    print_json,
    require_criteria,
    run,
    run_on_parts,
    sessions_argument,
    settings_of_environment,
    time_option,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.studies.commands.judging import OrderedJudgement, cost_of, end, follow, run_options
from tarsy_scoring.studies.commands.texts import print_study
from tarsy_scoring.studies.comparison import CONFIDENCE, ScoredSession, compare_versions
from tarsy_scoring.studies.estimates import paired_change
from tarsy_scoring.studies.spread import spread
from tarsy_scoring.studies.stored_scores import scores_by_label

if TYPE_CHECKING:
    from tarsy_scoring.wiring import Parts

# Metrics that are always printed; the others only where they show a difference. --json has them all.
MAIN_METRICS = ("total_score", "pass_share", "error_rate", "help_invocations")


@click.command()
@sessions_argument(required=False)
@click.option("--label", metavar="NAME", help="Compare the sessions of two values of this label.")
@click.option(
    "--values", nargs=2, metavar="A B", help="With --label: these values; a difference is B minus A."
)
@click.option("--chain", metavar="NAME", help="With --label: only sessions of this chain.")
@click.option(
    "--since", type=time_option, metavar="TIME", help="With --label: only sessions that ended since."
)
@click.option("--criteria", nargs=2, metavar="A B", help="Judge under both; a difference is B minus A.")
@run_options
@json_option
def compare(
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
        if any((sessions, run_id)):
            raise click.UsageError("sessions and --run go with --criteria")
        document = _compare_label(settings, label, values, chain, since)
        print_json(document) if as_json else print_versions(document)
    elif criteria is not None:
        if any((values, chain, since)):
            raise click.UsageError("--values, --chain and --since go with --label")
        _compare_criteria(settings, criteria, sessions, timeout_s, run_id or uuid4(), as_json)


# --- two values of a label -----------------------------------------------------------------------------


def _compare_label(
    settings: Settings, label: str, values: tuple[str, str] | None, chain: str | None, since: datetime | None
) -> dict[str, Any]:
    if values and values[0] == values[1]:
        raise click.UsageError("--values takes two different values")
    found = run_on_parts(lambda parts: _read_label(parts, label, chain, since), settings)
    chosen = choose_values(label, found, values)
    return {"label": label, "chain": chain, "since": since} | compare_versions(found, chosen)


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
        ScoringError: There is none.
        DatabaseAway: See `Database.once`.
    """
    if found := await scores_by_label(parts.database, label, chain, since):
        return found
    among = f" of chain {chain!r}" if chain else ""
    among += f" that ended since {since:%Y-%m-%d %H:%M}" if since else ""
    raise ScoringError(f"nothing to compare: no scored session{among} has the label {label!r}")


def choose_values(
    label: str, sessions: Sequence[ScoredSession], wanted: tuple[str, str] | None
) -> tuple[str, str]:
    """
    Choose the two values to compare: the requested ones, else the only two, as they appear.

    Raises:
        click.BadParameter: A requested value has no session, or there are more than two, and none is requested.
        ScoringError: There is only one value.
    """
    counts = Counter(s.value for s in sessions)  # keeps the order in which they appear
    known = ", ".join(f"{value!r} ({counted(n, 'scored session')})" for value, n in counts.items())
    if len(counts) == 1:
        raise ScoringError(f"nothing to compare: all scored sessions with the label {label!r} have {known}")
    first, second, *others = wanted or counts
    if others or not {first, second} <= counts.keys():
        raise click.BadParameter(f"choose two of the values of {label!r}: {known}", param_hint="--values")
    return first, second


# --- two criteria --------------------------------------------------------------------------------------


def _compare_criteria(
    settings: Settings,
    criteria: tuple[str, str],
    sessions: Sequence[str],
    timeout_s: float,
    run_id: UUID,
    as_json: bool,
) -> None:
    if not sessions:
        raise click.UsageError("name the sessions: --criteria A B SESSION...")
    if criteria[0] == criteria[1]:
        raise click.UsageError("name two different criteria; `consistency` repeats judgements under one")
    registry = load_criteria(settings.config.criteria_dirs)
    for name in criteria:
        require_criteria(registry, name)
    orders = [Order(session, "shadow", name) for session in sessions for name in criteria]
    arguments = ["compare", "--criteria", *criteria, *sessions]
    judgements = run(follow(settings, run_id, arguments, orders, timeout_s))
    document = document_of(run_id, criteria, sessions, judgements)
    end("criteria_pairs.txt", document, judgements.values(), as_json=as_json)


def document_of(
    run_id: UUID,
    criteria: tuple[str, str],
    sessions: Sequence[str],
    judgements: Mapping[Order, OrderedJudgement],
) -> dict[str, Any]:
    """JSON document: every session, and a summary that describes the differences."""
    hashes = {j.criteria: j.criteria_hash for j in judgements.values()}
    compared, differences = list[dict[str, Any]](), list[int]()
    for session in sessions:
        first, second = (judgements[Order(session, "shadow", name)] for name in criteria)
        difference = None
        if first.total_score is not None and second.total_score is not None:
            difference = second.total_score - first.total_score
            differences.append(difference)
        compared.append({"session_id": session, "judgements": [first, second], "difference": difference})
    return {
        "run_id": run_id,
        "criteria": [{"name": name, "criteria_hash": hashes.get(name)} for name in criteria],
        "outstanding": sum(j.is_outstanding for j in judgements.values()),
        "sessions": compared,
        "differences": spread(differences),
        "mean_difference": asdict(paired_change(differences, CONFIDENCE).estimate),
        "cost": cost_of(judgements.values()),
    }
