"""
Judgements that a command orders besides the score of a session and follows until they end.

Workers make the judgements. A command's run has an id; repeating a run orders nothing new and shows how
far the judgements are.
"""

import asyncio
import math
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import click

from tarsy_scoring.commands.shared import FAILED, FiniteRange, asker, audited, progress_bar, usd
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.scores.bands import band_of, bands_of
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.studies.stored_scores import ordered_scores
from tarsy_scoring.wiring import open_migrated_parts

POLL_S = 0.5
PICK_UP_S = 10.0  # an idle worker looks for due scores every second
TIMEOUT_S = 600.0
NO_WORKER = "no worker is free. Start one with `tarsy-scoring worker`"


@dataclass(frozen=True, slots=True)
class OrderedJudgement:
    """An ordered score's state, with fields as in the score document."""

    score_id: UUID
    session_id: str
    status: str
    attempt: int
    waiting_for: str | None
    criteria: str | None
    criteria_hash: str | None
    judge_fingerprint: str | None
    total_score: int | None
    judge_outcome: str | None
    flags: Sequence[str]
    usage: Mapping[str, Any] | None
    error_kind: str | None
    error_message: str | None
    bands: Mapping[str, Sequence[int]] | None = None

    @property
    def is_outstanding(self) -> bool:
        """Whether it has not ended yet."""
        return self.status in ("pending", "in_progress")

    @property
    def band(self) -> str | None:
        """The total's band under the criteria; None without a total or between two bands."""
        return None if self.total_score is None else band_of(self.total_score, bands_of(self.bands or {}))

    def document(self) -> dict[str, Any]:
        """JSON document."""
        shown = (
            "score_id",
            "status",
            "total_score",
            "judge_outcome",
            "flags",
            "usage",
            "error_kind",
            "error_message",
        )
        return {name: getattr(self, name) for name in shown} | {
            "band": self.band,
            "waiting_for": self.waiting_for,
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """
    What ended judgements took in tokens and money.

    Each is the sum over the judgements that report it, and None if none does. `unknown` is the number of
    ended judgements without a known cost.
    """

    tokens: int | None
    cost_usd: float | None
    unknown: int

    def __str__(self) -> str:
        cost = "unknown" if self.cost_usd is None else usd(self.cost_usd)
        known = cost if self.tokens is None else f"{cost}, {self.tokens:,} tokens"
        return f"{known}; unknown for {self.unknown}" if self.unknown and self.cost_usd is not None else known


def cost_of(judgements: Iterable[OrderedJudgement]) -> Cost:
    """Add up tokens and cost. A judgement with unknown usage or price contributes nothing."""
    usages = [j.usage or {} for j in judgements if not j.is_outstanding]
    costs = [u["cost_usd"] for u in usages if u.get("cost_usd") is not None]
    return Cost(_tokens_of(usages), math.fsum(costs) if costs else None, len(usages) - len(costs))


def _tokens_of(usages: Iterable[Mapping[str, Any]]) -> int | None:
    counted = [(u.get("input_tokens"), u.get("output_tokens")) for u in usages]
    tokens = [i + o for i, o in counted if i is not None and o is not None]
    return sum(tokens) if tokens else None


def status_of(judgements: Iterable[OrderedJudgement]) -> int:
    """A command's exit status: 0 if every judgement has a total."""
    return 0 if all(j.total_score is not None for j in judgements) else FAILED


# --- a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StudyRun:
    """
    What a command orders, and the command line that shows them again.

    Args:
        arguments: The command's arguments, without `--run`.
    """

    run_id: UUID
    arguments: Sequence[str]
    orders: Sequence[Order]

    @property
    def again(self) -> str:
        """The command that shows this run later."""
        return shlex.join(["tarsy-scoring", *self.arguments, "--run", str(self.run_id)])


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
    return timeout_option(add_run(command))


async def follow(settings: Settings, run: StudyRun, timeout_s: float) -> dict[Order, OrderedJudgement]:
    """
    Order a run's judgements and follow them until all have ended or `timeout_s` is over.

    Prints on stderr which judgements are outstanding and how to see them later. However it ends, workers
    continue with the ordered judgements.

    Raises:
        DatabaseAway: The database was away at the start or at the end.
        ScoringError: A session was erased since the run began.
    """
    async with open_migrated_parts(settings) as parts:
        try:
            await audited(parts.database, "order", run_id=str(run.run_id), judgements=len(run.orders))
            ordered = await parts.inbox.order(run.run_id, run.orders, requested_by=asker())
            found = await wait_for(parts.reader, list(ordered.values()), timeout_s)
        except (DatabaseAway, asyncio.CancelledError):
            click.echo(f"the judgements continue without this command; to see them:\n  {run.again}", err=True)
            raise
    if len(found) < len(run.orders):
        raise ScoringError(f"a session of run {run.run_id} was erased; start a new run, without --run")
    judgements = {order: found[score_id] for order, score_id in ordered.items()}
    if outstanding := _outstanding(judgements.values()):
        states = Counter(j.waiting_for or j.status.replace("_", " ") for j in outstanding)
        counts = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        click.echo(
            f"{len(outstanding)} of {len(judgements)} judgements are outstanding ({counts}) and continue without this "
            f"command; to see them later:\n  {run.again}",
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
    rows = await ordered_scores(reader, ids)
    return {
        r["score_id"]: OrderedJudgement(**{name: r[name] for name in OrderedJudgement.__slots__})
        for r in rows
    }


def _print_hint(outstanding: Sequence[OrderedJudgement], waited_s: float) -> bool:
    """Print why no judgement has begun; False if one has."""
    if any(j.attempt for j in outstanding):
        return False
    held_up_by = sorted({j.waiting_for for j in outstanding if j.waiting_for})
    why = f"they wait for: {', '.join(held_up_by)}" if held_up_by else NO_WORKER
    click.echo(f"after {waited_s:.0f} s none of the judgements has begun: {why}", err=True)
    return True
