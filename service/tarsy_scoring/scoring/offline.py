"""
Score one session without Kafka and without a database, for pipelines and for prompt authors.

Timeline rules, context, judge and document are as in a worker. Nothing is stored.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import RetryLater, Unscorable, WaitFor
from tarsy_scoring.gates.run import run_gates
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.judge.verdict import Ask, Question, Turn, Verdict
from tarsy_scoring.scores.document import document, unstored_row
from tarsy_scoring.scores.shapes import Turn as TurnPart
from tarsy_scoring.scoring.columns import (
    decided_columns,
    evidence_columns,
    judgement_columns,
    measure,
    sum_usage,
)
from tarsy_scoring.scoring.providers import Judges, judge
from tarsy_scoring.scoring.second_opinion import add_second_opinion
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.evidence import check_evidence
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.context import FittedContext
from tarsy_scoring.timeline.render.fence import new_nonce


async def score_offline(
    settings: Settings,
    registry: CriteriaRegistry,
    clients: Mapping[str, JudgeClient],
    timeline: Timeline,
    chain_id: str | None,
    *,
    with_judge: bool,
    reference: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Score one session and return the document; where there is no score, `error_kind` says why.

    Args:
        reference: What the document carries from the reference in `timeline`.

    Raises:
        UnknownCriteria: The chain's criteria do not exist.
    """
    chain_id = chain_id or timeline.chain_id
    chain = settings.chain(chain_id)
    criteria = registry.of_chain(chain)
    started = datetime.now(UTC)
    turns: list[Turn] = []
    ended: dict[str, Any] = {"status": "completed"}
    context: FittedContext | None = None
    verdict: Verdict | None = None
    layers = await measure(timeline, chain)
    try:
        check_evidence(timeline, settings.config.evidence.max_missing_share, may_change=False)
        limit_s, gates = settings.attempt_timeout_s, settings.config.gates
        checked = await run_gates(chain.gates, timeline, gates, deadline_s=limit_s)
        layers = replace(layers, gates=checked)
        if with_judge and chain.judge.enabled:
            asking = _recording(clients, AttemptClock(limit_s), turns)
            masking = masking_of(settings.config.masking_patterns)
            judges, nonce = Judges(settings.config.providers, asking, masking=masking), new_nonce()
            # There is no later attempt, so every error in an optional turn is final.
            judgement = await judge(timeline, nonce, chain, criteria, judges, lambda _error: True)
            await add_second_opinion(judgement, timeline, nonce, chain, criteria, judges)
            context, verdict = judgement.context, judgement.verdict
        first = [turn for turn in turns if turn.kind != "second_opinion"]
        ended |= judgement_columns(verdict, first, timeline, context, criteria, settings.config)
        ended |= decided_columns(layers, settings, chain_id, criteria, verdict)
        ended["reference"] = reference if context is not None and context.has_reference else None
    except (Unscorable, RetryLater, WaitFor) as error:
        status = error.status if isinstance(error, Unscorable) else "failed"
        ended = {"status": status, "error_kind": error.error_kind, "error_message": str(error)}
        verdict = None
    row = {
        **unstored_row(timeline.session_id, chain_id, criteria.name, criteria.criteria_hash, started),
        "usage": sum_usage(turns),
        **evidence_columns(timeline, context),
        **layers.columns(),
        **ended,
    }
    shown_turns = [{name: getattr(turn, name) for name in TurnPart.model_fields} for turn in turns]
    tools, approaches = _lists_in(verdict) if verdict else ([], [])
    return document(row, tools, approaches, shown_turns, lambda _name, _chain: criteria.criteria_hash)


def _lists_in(verdict: Verdict) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Missing tools and alternative approaches, as rows."""
    return [asdict(t) for t in verdict.missing_tools], [asdict(a) for a in verdict.alternative_approaches]


def _recording(
    clients: Mapping[str, JudgeClient], clock: AttemptClock, turns: list[Turn]
) -> Callable[[str, FittedContext], Ask]:
    """For `Judges.ask_of`: asks a provider and appends the turn."""

    def ask_of(provider: str, _context: FittedContext) -> Ask:
        async def ask(question: Question) -> Turn:
            turn = await clients[provider].ask(question, clock=clock)
            turns.append(turn)
            return turn

        return ask

    return ask_of
