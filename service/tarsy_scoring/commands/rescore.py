"""
`rescore` and `backfill`: request scores for sessions, again or for the first time.

They are shown first, with the estimated cost. A terminal is asked; elsewhere a selection needs --yes.
"""

import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from tarsy_scoring.commands.shared import (
    asker,
    audited,
    counted,
    json_option,
    may_spend,
    not_blank,
    print_json,
    print_text,
    progress_bar,
    require_criteria,
    run_on_parts,
    sessions_argument,
    settings_of_environment,
    spend_option,
    time_option,
)
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Priority, Request
from tarsy_scoring.queue.selection import CostEstimate, estimate_of, never_scored, obsolete_sessions
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.timeline.model import FoundSession
from tarsy_scoring.timeline.sources import open_timeline_source
from tarsy_scoring.wiring import Parts

_REQUESTS_PER_BATCH = 500
# Why `backfill` leaves a session out, by the disposition that an event would have got.
_LEFT_OUT = {"disabled": "where automatic scoring is off", "sampled_out": "outside the sample of their chain"}


@click.command()
@sessions_argument(required=False)
@click.option("--obsolete", is_flag=True, help="All sessions scored under other criteria than their chain's.")
@click.option("--failed", is_flag=True, help="All sessions whose newest score failed or timed out.")
@click.option("--error-kind", type=not_blank, metavar="KIND", help="With --failed: only of this kind.")
@click.option(
    "--since", type=time_option, metavar="TIME", help="Only scores created since (RFC 3339, or a date)."
)
@click.option("--chain", type=not_blank, metavar="NAME", help="Only sessions of this chain.")
@click.option("--criteria", metavar="NAME", help="Score under these criteria instead of the chain's.")
@click.option("--without-reference", is_flag=True, help="Judge without the references of the sessions.")
@click.option("--reason", metavar="TEXT", help="Kept with the request.")
@spend_option
@json_option
def rescore(
    sessions: list[str],
    obsolete: bool,
    failed: bool,
    error_kind: str | None,
    since: datetime | None,
    chain: str | None,
    criteria: str | None,
    without_reference: bool,
    reason: str | None,
    as_json: bool,
) -> None:
    """
    Request new scores of sessions, by name or by selection.

    A session with references is judged against the newest. Trends count scores without a reference: renew
    these with --without-reference.

    Named sessions are scored before everything else, a selection after everything else. The number of
    sessions is shown first, with tokens and cost estimated from earlier scores. Without a terminal to ask
    at, named sessions are sent, and a selection only with --yes.

    Sessions are not looked up in the timeline source: scores of missing ones fail as session_not_found.
    """
    settings = settings_of_environment()
    is_selection = obsolete or failed or since is not None
    for is_wrong, why in (
        (
            bool(sessions) == is_selection,
            "name sessions, or select them with --obsolete, --failed or --since",
        ),
        (sessions and chain, "--chain needs a selection: --obsolete, --failed or --since"),
        (obsolete and failed, "--obsolete and --failed exclude each other"),
        (error_kind and not failed, "--error-kind needs --failed"),
        (obsolete and criteria, "--obsolete uses each chain's criteria and excludes --criteria"),
    ):
        if is_wrong:
            raise click.UsageError(why)
    if criteria is not None:
        require_criteria(load_criteria(settings.config.criteria_dirs), criteria)

    async def select(parts: Parts) -> list[str]:
        if not is_selection:
            return sessions
        if obsolete:
            return await obsolete_sessions(parts.database, parts.inbox.policy, chain, since)
        if failed:
            return await parts.reader.failed_sessions(error_kind, chain, since)
        return await parts.reader.scored_sessions(chain, since)

    async def work(parts: Parts) -> None:
        requests = [
            Request(
                request_id=uuid.uuid4(),
                session_id=session,
                source="cli",
                requested_by=asker(),
                force=True,
                criteria=criteria,
                use_reference=not without_reference,
                reason=reason,
                priority=Priority.BULK if is_selection else Priority.PEOPLE,
            )
            for session in await select(parts)
        ]
        await _show_or_send(parts, requests, as_json=as_json, is_named=not is_selection, left_out=None)

    run_on_parts(work, settings)


@click.command()
@click.option(
    "--since",
    type=time_option,
    metavar="TIME",
    required=True,
    help="Sessions that ended since then (RFC 3339, or a date).",
)
@click.option("--chain", type=not_blank, metavar="NAME", help="Only sessions of this chain.")
@click.option("--all", "takes_all", is_flag=True, help="Also where scoring is off, and outside the sample.")
@spend_option
@json_option
def backfill(since: datetime, chain: str | None, takes_all: bool, as_json: bool) -> None:
    """
    Request scores of finished sessions that were never scored.

    The oldest come first. Lists the sessions of the timeline source and takes those without a score that
    would be scored automatically: by auto_score_statuses, enabled and sample_rate of their chain. It says how
    many were left out, which --all takes too, and shows the number of sessions, and tokens and cost estimated
    from scores of their chains. Without a terminal to ask at, nothing is sent without --yes. They are scored
    after everything else.
    """

    async def work(parts: Parts) -> None:
        requests = [
            Request(
                request_id=uuid.uuid4(),
                session_id=session.session_id,
                source="cli",
                chain_id=session.chain_id,
                session_status=session.status,
                completed_at=session.completed_at,
                requested_by=asker(),
                priority=Priority.BULK,
            )
            for session in await _never_scored_since(parts, since, chain)
        ]
        left_out = Counter[str]()
        if not takes_all:
            reasons = [parts.inbox.policy.rejection(request, request.chain_id) for request in requests]
            requests = [r for r, why_not in zip(requests, reasons, strict=True) if why_not is None]
            left_out.update(why_not for why_not in reasons if why_not is not None)
        await _show_or_send(parts, requests, as_json=as_json, is_named=False, left_out=left_out)

    run_on_parts(work)


async def _never_scored_since(parts: Parts, since: datetime, chain: str | None) -> list[FoundSession]:
    """Source sessions that `backfill` selects."""
    source = open_timeline_source(parts.settings)

    async def wanted() -> AsyncIterator[FoundSession]:
        listed = 0
        with progress_bar("reading sessions", None) as show:
            async for session in source.finished_sessions(since):
                show(listed := listed + 1)
                statuses = parts.settings.chain(session.chain_id).auto_score_statuses
                if chain in (None, session.chain_id) and session.status in statuses:
                    yield session

    async with closing(source):
        return await never_scored(parts.database, wanted())


# --- selections ----------------------------------------------------------------------------------------


async def _show_or_send(
    parts: Parts, requests: Sequence[Request], *, as_json: bool, is_named: bool, left_out: Counter[str] | None
) -> None:
    """
    Show the estimated cost of requests, and send them if the user agrees.

    Args:
        left_out: How many sessions the selection leaves out, by reason; None: it comes from stored
            scores, and the source may have lost some of these sessions.
    """
    estimate = await estimate_of(parts.database, {r.session_id: r.chain_id for r in requests})
    show_estimate(estimate, err=as_json)
    if not as_json:
        _show_unsent(requests, left_out)
    is_done = not requests or may_spend(previews=True, is_named=is_named)
    counts = await _send(parts, requests) if is_done else Counter[str]()
    if as_json:
        document = {"sessions": len(requests), "estimate": estimate_document(estimate)}
        document |= {"dispositions": counts, "done": is_done}
        print_json(document if left_out is None else document | {"left_out": left_out})
    elif is_done:
        summary = ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "nothing to do"
        click.echo(f"{counted(len(requests), 'session')}: {summary}")
    else:
        click.echo("nothing was sent; add --yes to send it")


def _show_unsent(requests: Sequence[Request], left_out: Mapping[str, int] | None) -> None:
    if left_out:
        reasons = ", ".join(f"{n} {_LEFT_OUT[why]}" for why, n in sorted(left_out.items()))
        click.echo(f"  left out: {reasons}; --all takes them too")
    if left_out is None and requests:
        click.echo("  not looked up: sessions that the source no longer has fail, without cost")


async def _send(parts: Parts, requests: Sequence[Request]) -> Counter[str]:
    """Store requests in batches; returns counts by disposition."""
    counts: Counter[str] = Counter()
    if requests:
        await audited(parts.database, "order", sessions=len(requests), is_forced=requests[0].force)
    with progress_bar("asking", len(requests)) as show:
        for start in range(0, len(requests), _REQUESTS_PER_BATCH):
            counts.update((await parts.inbox.accept(requests[start : start + _REQUESTS_PER_BATCH])).values())
            show(min(start + _REQUESTS_PER_BATCH, len(requests)))
    return counts


def estimate_document(estimate: CostEstimate) -> dict[str, Any]:
    """An estimate as a JSON document; chains are sorted by name."""
    by_name = sorted(estimate.chains.items(), key=lambda counted: counted[0] or "")
    chains = [{"chain_id": chain, "sessions": n} for chain, n in by_name]
    tokens = asdict(estimate.tokens)
    tokens["about"] = None if estimate.tokens.about is None else round(estimate.tokens.about)
    return {"chains": chains, "tokens": tokens, "cost_usd": asdict(estimate.cost_usd)}


def show_estimate(estimate: CostEstimate, *, err: bool = False) -> None:
    """Print what a selection will probably cost."""
    document = {"sessions": estimate.sessions, "times": estimate.times} | estimate_document(estimate)
    print_text("estimate.txt", document, err=err)


async def ask_to_spend(database: Database, sessions: Iterable[str], times: int = 1) -> None:
    """Show on stderr what it costs to judge stored sessions so many times. Raises: See `may_spend`."""
    estimate = await estimate_of(database, dict.fromkeys(sessions), times)
    show_estimate(estimate, err=True)
    if estimate.sessions:
        may_spend()
