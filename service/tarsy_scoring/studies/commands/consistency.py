"""`consistency SESSION`: measures how much repeated judgements for one session differ."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

import click

from tarsy_scoring.commands.shared import (
    json_option,
    require_criteria,
    run,
    session_id,
    settings_of_environment,
)
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.studies.commands.judging import OrderedJudgement, cost_of, end, follow, run_options
from tarsy_scoring.studies.spread import flip_rate, spread


@click.command()
@click.argument("session", type=session_id)
@click.option("-n", "count", type=click.IntRange(2, 100), default=5, show_default=True, help="Judgements.")
@click.option("--criteria", metavar="NAME", help="Judge under these criteria instead of the chain's.")
@run_options
@json_option
def consistency(
    session: str, count: int, criteria: str | None, timeout_s: float, run_id: UUID | None, as_json: bool
) -> None:
    """
    Have one session judged several times and show the spread.

    These judgements never become the session's score. Needs the database and a running worker. Exit
    status 1: not every judgement produced a total in time; outstanding ones continue, and the command that
    shows them later is printed.
    """
    settings = settings_of_environment()
    arguments = ["consistency", session, "-n", str(count)]
    if criteria is not None:
        require_criteria(load_criteria(settings.config.criteria_dirs), criteria)
        arguments += ["--criteria", criteria]
    orders = [Order(session, "consistency", criteria, number) for number in range(1, count + 1)]
    run_id = run_id or uuid4()
    judgements = list(run(follow(settings, run_id, arguments, orders, timeout_s)).values())
    document = document_of(run_id, judgements)
    end("consistency.txt", document, judgements, as_json=as_json)


def document_of(run_id: UUID, judgements: Sequence[OrderedJudgement]) -> dict[str, Any]:
    """JSON document: every judgement and their summary."""
    totals = [j.total_score for j in judgements if j.total_score is not None]
    bound = next((j for j in judgements if j.criteria is not None), judgements[0])
    return {
        "run_id": run_id,
        "session_id": bound.session_id,
        "criteria": bound.criteria,
        "criteria_hash": bound.criteria_hash,
        "judge_fingerprints": sorted(filter(None, {j.judge_fingerprint for j in judgements})),
        "outstanding": sum(j.is_outstanding for j in judgements),
        "totals": totals,
        "spread": spread(totals),
        "flip_rate": flip_rate([j.band for j in judgements if j.total_score is not None]),
        "flags": Counter(chain.from_iterable(j.flags for j in judgements)),
        "cost": cost_of(judgements),
        "judgements": judgements,
    }
