"""`compare`: two ways of judging, on the same sessions, side by side."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID, uuid4

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarsy_scoring.commands.judging import Judgement, Run, cost_of, follow, run_options, status_of
from tarsy_scoring.commands.shared import print_json, require_criteria, run, session_ids, settings_of_environment
from tarsy_scoring.evaluation.agreement import Spread, spread
from tarsy_scoring.inbox import Order
from tarsy_scoring.judge.criteria import load_criteria


@dataclass(frozen=True, slots=True)
class Pair:
    """One session under both criteria."""

    first: Judgement
    second: Judgement

    @property
    def difference(self) -> int | None:
        """The second total minus the first; None unless there are both."""
        if self.first.total_score is None or self.second.total_score is None:
            return None
        return self.second.total_score - self.first.total_score


@click.command()
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--criteria", nargs=2, metavar="A B", help="Judge the sessions under both; a difference is B minus A.")
@run_options
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def compare(
    sessions: tuple[str, ...],
    criteria: tuple[str, str] | None,
    timeout_s: float,
    run_id: UUID | None,
    as_json: bool,
) -> None:
    """
    Judge the same sessions under two criteria and lay the totals side by side.

    None of the judgements becomes the score of a session. Needs the database and a running worker. Exit status 1: not
    every judgement came to a total in time; what is outstanding goes on, and the command to see it later is told.
    """
    settings = settings_of_environment()
    if criteria is None or not sessions:
        raise click.UsageError("say what to compare: --criteria A B SESSION...")
    if criteria[0] == criteria[1]:
        raise click.UsageError("two criteria make a comparison; for repeated judgements under one see `consistency`")
    registry = load_criteria(settings.config.criteria_dirs)
    for name in criteria:
        require_criteria(registry, name)
    chosen = session_ids(sessions)
    orders = [Order(session, "shadow", name) for session in chosen for name in criteria]
    ordered = Run(run_id or uuid4(), ["compare", "--criteria", *criteria, *chosen], orders)
    judgements = run(follow(settings, ordered, timeout_s))
    pairs = pairs_of(judgements, criteria)
    print_json(document_of(ordered.run_id, criteria, pairs)) if as_json else _show(criteria, pairs)
    sys.exit(status_of(judgements.values()))


def pairs_of(judgements: Mapping[Order, Judgement], criteria: tuple[str, str]) -> list[Pair]:
    """The two judgements of each session, in the order of the sessions."""
    sessions = dict.fromkeys(order.session_id for order in judgements)
    first, second = ({o.session_id: j for o, j in judgements.items() if o.criteria == name} for name in criteria)
    return [Pair(first[session], second[session]) for session in sessions]


def _differences(pairs: Sequence[Pair]) -> Spread:
    return spread([p.difference for p in pairs if p.difference is not None])


def document_of(run_id: UUID, criteria: tuple[str, str], pairs: Sequence[Pair]) -> dict[str, Any]:
    """For programs: every pair, and what the differences come to."""
    judgements = [j for p in pairs for j in (p.first, p.second)]
    hashes = {j.criteria: j.criteria_hash for j in judgements}
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
        "differences": asdict(_differences(pairs)),
        "cost": asdict(cost_of(judgements)),
    }


def _show(criteria: tuple[str, str], pairs: Sequence[Pair]) -> None:
    table = Table("session")
    for header in (*criteria, "difference"):
        table.add_column(Text(header), justify="right")
    for p in pairs:
        difference = "" if p.difference is None else f"{p.difference:+d}"
        table.add_row(Text(p.first.session_id), _cell(p.first), _cell(p.second), difference)
    Console().print(table)
    apart = _differences(pairs)
    if apart.mean is None:
        click.echo("no session has a total under both criteria")
    else:
        told = f"{criteria[1]} minus {criteria[0]}: mean {apart.mean:+.1f} over {apart.n} of {len(pairs)} sessions"
        if apart.standard_deviation is not None:
            told += f", from {apart.lowest:+g} to {apart.highest:+g}, standard deviation {apart.standard_deviation:.1f}"
        click.echo(told)
    click.echo(f"cost: {cost_of(j for p in pairs for j in (p.first, p.second))}")


def _cell(judgement: Judgement) -> Text:
    if judgement.total_score is not None:
        return Text(f"{judgement.total_score} {judgement.judge_outcome or judgement.band or 'between bands'}")
    if judgement.is_outstanding:
        return Text(judgement.waiting_reason or judgement.status.replace("_", " "))
    return Text(judgement.error_kind or "no judge")
