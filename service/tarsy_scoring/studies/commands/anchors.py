"""`anchors`: sessions that every judge judges, to tell whether the judge or the agents changed."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tarsy_scoring.commands.rescore import ask_to_spend, estimate_document, show_estimate
from tarsy_scoring.commands.shared import (
    asker,
    audited,
    counted,
    json_option,
    may_spend,
    print_either,
    print_json,
    run_on_parts,
    sessions_argument,
    spend_option,
)
from tarsy_scoring.queue.selection import CostEstimate, estimate_of
from tarsy_scoring.studies import anchors as anchor_sessions
from tarsy_scoring.studies.anchors import Anchor, State
from tarsy_scoring.studies.commands import judging
from tarsy_scoring.studies.commands.texts import print_study
from tarsy_scoring.studies.drift_report import STATES

if TYPE_CHECKING:
    from tarsy_scoring.wiring import Parts

# States that a manual run retries. A session that is gone from the source would fail again.
WANTED: tuple[State, ...] = ("lacking", "given_up")
_MOST_SHOWN = 10
MAX_NOTE = 4000  # characters; the limit of a label's reason


@click.group(no_args_is_help=True)
def anchors() -> None:
    """Sessions that every judge judges, to detect a changed judge."""


@anchors.command("add")
@sessions_argument(required=False)
@click.option(
    "--sample", type=click.IntRange(1, 1000), metavar="N", help="Draw N sessions of the last 90 days."
)
@click.option("--chain", metavar="NAME", help="With --sample: only sessions of this chain.")
@click.option("--note", metavar="TEXT", help=f"Stored with the anchors; at most {MAX_NOTE:,} characters.")
@spend_option
@json_option
def add(sessions: list[str], sample: int | None, chain: str | None, note: str | None, as_json: bool) -> None:
    """
    Make scored sessions anchors, by name or at random.

    --sample draws from each chain and alert type in proportion to the share, because anchors should resemble
    ordinary sessions. 40 anchors in a chain detect a judge that moved by 8 points. Every judge judges each
    anchor once, at the cost of a score. A running worker requests these judgements by itself, within the
    budgets and at lowest priority.
    """
    if bool(sessions) == (sample is not None):
        raise click.UsageError("name sessions, or draw them with --sample N")
    if chain is not None and sample is None:
        raise click.UsageError("--chain needs --sample: named sessions become anchors whatever their chain")
    if note is not None and len(note) > MAX_NOTE:
        raise click.BadParameter(f"at most {MAX_NOTE:,} characters, not {len(note):,}", param_hint="--note")

    async def work(parts: "Parts") -> tuple[list[str], list[str]]:
        if refused := await anchor_sessions.unfit(parts.database, sessions):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(refused.items())[:_MOST_SHOWN])
            more = f"; and {len(refused) - _MOST_SHOWN} more" if len(refused) > _MOST_SHOWN else ""
            raise click.ClickException(f"no session was added: {reasons}{more}")
        chosen = (
            sessions if sample is None else await anchor_sessions.draw(parts.database, sample, chain=chain)
        )
        await ask_to_spend(parts.database, chosen)
        await audited(parts.database, "anchor_add", sessions=len(chosen))
        return chosen, await anchor_sessions.add(parts.database, chosen, by=asker(), note=note)

    chosen, added = run_on_parts(work)
    others = f", {len(chosen) - len(added)} were anchors already" if len(added) < len(chosen) else ""
    if sample is not None and len(chosen) < sample:
        others = ": the last 90 days have no more scored sessions"
    lines = [f"{counted(len(added), 'anchor')} added{others}"]
    if added:
        lines.append("a running worker will have them judged; `tarsy-scoring anchors run` shows the cost")
    print_either({"chosen": chosen, "added": added}, lines, as_json=as_json)


@anchors.command("remove")
@sessions_argument(required=True)
@json_option
def remove(sessions: list[str], as_json: bool) -> None:
    """Remove anchors. Their judgements stay stored but no longer count."""

    async def work(parts: "Parts") -> list[str]:
        await audited(parts.database, "anchor_remove", sessions=len(sessions))
        return await anchor_sessions.remove(parts.database, sessions, by=asker())

    removed = run_on_parts(work)
    others = f", {len(sessions) - len(removed)} were not anchors" if len(removed) < len(sessions) else ""
    print_either(
        {"removed": removed}, [f"{counted(len(removed), 'anchor')} removed{others}"], as_json=as_json
    )


@anchors.command("list")
@json_option
def list_anchors(as_json: bool) -> None:
    """List all anchors with their progress under today's judge."""
    found = run_on_parts(lambda parts: anchor_sessions.standing(parts.database, parts.inbox.policy))
    if as_json:
        print_json(found)
    elif found.anchors:
        print_study("anchors.txt", {"anchors": found.anchors, "judges": found.judges, "states": STATES})
    else:
        click.echo("there are no anchors; draw some with `tarsy-scoring anchors add --sample 40`")


@anchors.command("run")
@spend_option
@judging.timeout_option
@json_option
def run_anchors(timeout_s: float, as_json: bool) -> None:
    """
    Request the judgements of anchors that today's judge lacks.

    Follows them to their end. Workers do the same when a judge is new, and once
    a day for missing ones. This command requests them at once, including those that
    workers gave up. Exit status 1: not every requested judgement produced a total in time; outstanding ones
    continue.
    """

    async def work(parts: "Parts") -> tuple[Sequence[Anchor], CostEstimate, list[judging.OrderedJudgement]]:
        found = await anchor_sessions.standing(parts.database, parts.inbox.policy)
        wanted = [a for a in found.anchors if a.state in WANTED]
        estimate = await estimate_of(parts.database, {a.session_id: a.chain_id for a in wanted})
        _print_plan(found.anchors, estimate, err=as_json)
        if not wanted or not may_spend(previews=True):
            return found.anchors, estimate, []
        await audited(parts.database, "order", command="anchors run", judgements=len(wanted))
        scores = await anchor_sessions.ask(parts.inbox, wanted, found.judges, by=asker())
        made = await judging.wait_for(parts.reader, scores, timeout_s)
        return found.anchors, estimate, list(made.values())

    found, estimate, made = run_on_parts(work)
    outstanding = sum(j.is_outstanding for j in made)
    if as_json:
        print_json(
            {
                "anchors": len(found),
                "states": Counter(a.state for a in found),
                "lacking": estimate.sessions,
                "asked": len(made),
                "outstanding": outstanding,
                "estimate": estimate_document(estimate),
                "cost": judging.cost_of(made),
                "judgements": made,
            }
        )
    elif made:
        _print_made(made, outstanding)
    elif estimate.sessions:
        click.echo("nothing was requested; add --yes to request it")
    sys.exit(judging.status_of(made))


def _print_plan(found: Sequence[Anchor], estimate: CostEstimate, *, err: bool) -> None:
    counts = Counter(a.state for a in found)
    states = ", ".join(f"{n} {STATES[state]}" for state, n in counts.items())
    states = f": {states}" if states else "; add some with `tarsy-scoring anchors add`"
    click.echo(counted(len(found), "anchor") + states, err=err)
    if estimate.sessions:
        show_estimate(estimate, err=err)


def _print_made(made: Sequence[judging.OrderedJudgement], outstanding: int) -> None:
    without = sum(j.total_score is None and not j.is_outstanding for j in made)
    click.echo(
        f"{len(made) - outstanding - without} judged, {without} without a total, {outstanding} outstanding"
    )
    click.echo(f"cost: {judging.cost_in_words(made)}")
    if outstanding:
        click.echo("outstanding judgements continue; `tarsy-scoring anchors list` shows them")
