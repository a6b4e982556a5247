"""
Judgements that a command orders besides the score of a session and follows until they end.

Workers make the judgements. A command's run has an id; repeating a run orders nothing new and shows how
far the judgements are.
"""

import asyncio
import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn
from uuid import UUID

import click
from pydantic import BaseModel

from tarsy_scoring.commands import shared
from tarsy_scoring.commands.rescore import ask_to_spend
from tarsy_scoring.commands.shared import FAILED, FiniteRange, asker, audited, print_json, progress_bar, usd
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.scores.bands import band_of, bands_of
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.studies.commands.texts import print_study
from tarsy_scoring.wiring import open_migrated_parts

POLL_S = 0.5
PICK_UP_S = 10.0  # an idle worker looks for due scores every second
TIMEOUT_S = 600.0
NO_WORKER = "no worker is free. Start one with `tarsy-scoring worker`"


ORDERED = """
SELECT s.score_id, s.session_id, s.status, s.attempt, s.waiting_reason, s.waiting_for_text,
       s.next_attempt_at <= now() AS is_due,
       s.chain_id, s.chain_is_named, s.criteria, s.criteria_hash,
       s.judge_fingerprint, s.total_score, s.judge_outcome, s.flags, s.usage, s.error_kind, s.error_message,
       c.content -> 'bands' AS bands
FROM {schema}.session_scores s LEFT JOIN {schema}.scoring_criteria c USING (criteria_hash)
WHERE s.score_id = ANY($1::uuid[])
"""


class OrderedJudgement(BaseModel):
    """
    An ordered score's state, with fields as in the score document.

    Args:
        waiting_for: Why a pending score waits.
        band: The total's band under the criteria; None without a total or between two bands.
    """

    score_id: UUID
    session_id: str
    status: str
    attempt: int
    waiting_for: str | None
    criteria: str | None
    criteria_hash: str | None
    judge_fingerprint: str | None
    total_score: int | None
    band: str | None
    judge_outcome: str | None
    flags: list[str]
    usage: dict[str, Any] | None
    error_kind: str | None
    error_message: str | None

    @property
    def is_outstanding(self) -> bool:
        """Whether it has not ended yet."""
        return self.status in ("pending", "in_progress")


def cost_of(judgements: Iterable[OrderedJudgement]) -> dict[str, Any]:
    """
    Add up the `tokens` and `cost_usd` of ended judgements; None where none reports it.

    `unknown` is the number of ended judgements without a known cost.
    """
    usages = [j.usage or {} for j in judgements if not j.is_outstanding]
    costs = [u["cost_usd"] for u in usages if u.get("cost_usd") is not None]
    return {
        "tokens": _tokens_of(usages),
        "cost_usd": math.fsum(costs) if costs else None,
        "unknown": len(usages) - len(costs),
    }


def _tokens_of(usages: Iterable[dict[str, Any]]) -> int | None:
    counted = [(u.get("input_tokens"), u.get("output_tokens")) for u in usages]
    tokens = [i + o for i, o in counted if i is not None and o is not None]
    return sum(tokens) if tokens else None


def cost_in_words(judgements: Iterable[OrderedJudgement]) -> str:
    """What ended judgements took, for people."""
    cost = cost_of(judgements)
    known = "unknown" if cost["cost_usd"] is None else usd(cost["cost_usd"])
    if cost["tokens"] is not None:
        known += f", {cost['tokens']:,} tokens"
    is_partial = cost["unknown"] and cost["cost_usd"] is not None
    return f"{known}; unknown for {cost['unknown']}" if is_partial else known


def status_of(judgements: Iterable[OrderedJudgement]) -> int:
    """A command's exit status: 0 if every judgement has a total."""
    return 0 if all(j.total_score is not None for j in judgements) else FAILED


def end(
    name: str, document: dict[str, Any], judged: Collection[OrderedJudgement], *, as_json: bool
) -> NoReturn:
    """Print what a run found, for people with the template `name`, and end with its status."""
    words = document | {"cost_in_words": cost_in_words(judged)}
    print_json(document) if as_json else print_study(name, words)
    sys.exit(status_of(judged))


# --- a run ---------------------------------------------------------------------------------------------


timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(min=0),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long, then list outstanding judgements; 0 only orders.",
)


def run_options(command: Any) -> Any:
    """Options for every command that orders judgements and follows them."""
    add_run = click.option(
        "--run", "run_id", type=click.UUID, metavar="ID", help="Show an earlier run of the command."
    )
    return timeout_option(add_run(shared.spend_option(command)))


async def follow(
    settings: Settings, run_id: UUID, arguments: Sequence[str], orders: Sequence[Order], timeout_s: float
) -> dict[Order, OrderedJudgement]:
    """
    Order a run's judgements, if the user agrees to the cost, and follow them until all have ended or
    `timeout_s` is over.

    Prints on stderr which judgements are outstanding and how to see them later. However it ends, workers
    continue with the ordered judgements.

    Args:
        arguments: The command's arguments, without `--run`.

    Raises:
        DatabaseAway: The database was away at the start or at the end.
        click.Abort, click.UsageError: Nothing was ordered, see `may_spend`.
        ScoringError: A session was erased since the run began.
    """
    again = shlex.join(["tarsy-scoring", *arguments, "--run", str(run_id)])
    async with open_migrated_parts(settings) as parts:
        if len(await parts.inbox.requests_of_event(str(run_id), len(orders))) < len(orders):
            sessions = {order.session_id for order in orders}
            await ask_to_spend(parts.database, sessions, len(orders) // len(sessions))
        try:
            await audited(parts.database, "order", run_id=str(run_id), judgements=len(orders))
            ordered = await parts.inbox.order(run_id, orders, requested_by=asker())
            found = await wait_for(parts.reader, list(ordered.values()), timeout_s)
        except (DatabaseAway, asyncio.CancelledError):
            click.echo(f"the judgements continue without this command; to see them:\n  {again}", err=True)
            raise
    if len(found) < len(orders):
        raise ScoringError(f"a session of run {run_id} was erased; start a new run, without --run")
    judgements = {order: found[score_id] for order, score_id in ordered.items()}
    if outstanding := _outstanding(judgements.values()):
        states = Counter(j.waiting_for or j.status.replace("_", " ") for j in outstanding)
        counts = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        click.echo(
            f"{len(outstanding)} of {len(judgements)} judgements are outstanding ({counts}) and continue without this "
            f"command; to see them later:\n  {again}",
            err=True,
        )
    return judgements


async def wait_for(reader: Reader, ids: Sequence[UUID], timeout_s: float) -> dict[UUID, OrderedJudgement]:
    """
    Wait until all judgements have ended or `timeout_s` is over; returns their states.

    Prints the likely reason on stderr if none begins. While time remains, also waits for a database that is
    away.

    Raises:
        DatabaseAway: The database is still away at the end.
    """
    started, has_hinted = time.monotonic(), False
    with progress_bar("judging", len(ids)) as show:
        while True:
            waited_s = time.monotonic() - started
            is_last = waited_s >= timeout_s
            try:
                judgements = await _read(reader, ids)
                outstanding = _outstanding(judgements.values())
                show(len(ids) - len(outstanding))
                if not has_hinted and (is_last or waited_s >= PICK_UP_S) and len(outstanding) == len(ids):
                    has_hinted = _print_hint(outstanding, waited_s)
                if not outstanding or is_last:
                    return judgements
            except DatabaseAway:
                if is_last:
                    raise
            await asyncio.sleep(min(POLL_S, max(0.0, timeout_s - waited_s)))


def _outstanding(judgements: Iterable[OrderedJudgement]) -> list[OrderedJudgement]:
    return [j for j in judgements if j.is_outstanding]


async def _read(reader: Reader, ids: Sequence[UUID]) -> dict[UUID, OrderedJudgement]:
    """Read the present state of judgements; leaves out erased ones."""
    rows = await reader.database.rows(ORDERED, ids)
    waits = await reader.waits([dict(r) for r in rows])
    found = {}
    for row in rows:
        wait, total = waits.get(row["score_id"]), row["total_score"]
        found[row["score_id"]] = OrderedJudgement(
            **row,
            waiting_for=wait and wait.reason,
            band=None if total is None else band_of(total, bands_of(row["bands"])),
        )
    return found


def _print_hint(outstanding: Sequence[OrderedJudgement], waited_s: float) -> bool:
    """Print why no judgement has begun; False if one has."""
    if any(j.attempt for j in outstanding):
        return False
    held_up_by = sorted({j.waiting_for for j in outstanding if j.waiting_for})
    why = f"they wait for: {', '.join(held_up_by)}" if held_up_by else NO_WORKER
    click.echo(f"after {waited_s:.0f} s none of the judgements has begun: {why}", err=True)
    return True
