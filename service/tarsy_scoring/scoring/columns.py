"""
An attempt's results as columns for `session_scores`, for stored scores and for scores made offline.

    interaction metrics (always) -> gates (per chain) -> [judge] -> outcome, composite score

Metrics never decide an outcome; gates and the threshold do.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pydantic_core import to_json

from tarsy_scoring.config.chains import ChainSettings, Config, ProviderSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.evaluation.agent_cost import USD_DIGITS, agent_cost_usd
from tarsy_scoring.evaluation.diagnosis import diagnose
from tarsy_scoring.evaluation.interaction import CommandRules, Interaction, measure_interaction
from tarsy_scoring.evaluation.outcome import GateResult, composite_score, decide_outcome, threshold_of
from tarsy_scoring.events import InteractionTotals
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import RubricReading, SecondOpinion, Turn, Verdict
from tarsy_scoring.scores.shapes import Usage
from tarsy_scoring.scoring.providers import flags_of, is_self_judged
from tarsy_scoring.timeline.clean.masking import MASKING_POLICY, masking_of
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.record_gaps import find_gaps
from tarsy_scoring.timeline.render.context import CONTEXT_POLICY, REFERENCE_NOTICE, FittedContext

# Columns that the verdict holds under the same name.
_AS_STATED = ("total_score", "score_analysis", "score_breakdown", "missing_tools_analysis", "judge_outcome")


def evidence_columns(timeline: Timeline | None, context: FittedContext | None) -> dict[str, Any]:
    """How much could be read from the session, and how much the judge was shown."""
    evidence = timeline.evidence if timeline else None
    gaps = find_gaps(timeline) if timeline else None
    return {
        "coverage": context.coverage if context else None,
        "evidence": {
            "expected": evidence.expected,
            "read": evidence.read,
            "missing": list(evidence.missing),
            "cut_by_source": gaps.cut_results,
            "calls_recorded": gaps.calls_recorded,
        }
        if evidence and gaps
        else None,
    }


def _models_of(turns: Iterable[Turn]) -> set[str | None]:
    """The models that were requested, and those that answered."""
    return {model for t in turns for model in (t.model_requested, t.model_served)}


def _as_dict(part: SecondOpinion | RubricReading | None) -> dict[str, Any] | None:
    return None if part is None else asdict(part)


def judgement_columns(
    verdict: Verdict | None,
    turns: Sequence[Turn],
    timeline: Timeline | None,
    context: FittedContext | None,
    criteria: Criteria,
    config: Config,
) -> dict[str, Any]:
    """Columns in a completed score that the judge decides; without a judge, the total is null."""
    flags = set(context.flags) if context else set()
    if timeline is not None and is_self_judged(_models_of(turns), timeline.agent_models):
        flags.add("self_judged")
    if verdict is None:
        return {"total_score": None, "judge_fingerprint": None, "flags": sorted(flags)}
    who = verdict.total_turn
    grounding = verdict.grounding
    if context is not None:
        flags |= flags_of(turns, context, criteria)
    return {name: getattr(verdict, name) for name in _AS_STATED} | {
        "second_opinion": _as_dict(verdict.second_opinion),
        "judge_fingerprint": judge_fingerprint(
            criteria.criteria_hash,
            config.providers[who.provider],
            who,
            masking_of(config.masking_patterns).policy,
            has_reference=context is not None and context.has_reference,
        ),
        "rubric": _as_dict(verdict.rubric),
        "failure_tags": verdict.failure_tags,
        "samples": [{"total_score": total} for total in verdict.samples],
        "grounding": asdict(grounding) | {"share": grounding.share} if grounding else None,
        "flags": sorted(flags | verdict.flags),
    }


def sum_usage(turns: Iterable[Turn]) -> dict[str, int | float | None]:
    """Sums over turns. A sum is None where there is no turn or a turn does not report the value."""
    listed = list(turns)
    usage: dict[str, int | float | None] = {}
    for name in Usage.model_fields:
        values = [getattr(turn, name) for turn in listed]
        usage[name] = sum(values) if values and None not in values else None
    if (cost_usd := usage["cost_usd"]) is not None:
        usage["cost_usd"] = round(cost_usd, USD_DIGITS)
    return usage


def judge_fingerprint(
    criteria_hash: str,
    provider: ProviderSettings,
    turn: Turn,
    masking_policy: str = MASKING_POLICY,
    *,
    has_reference: bool = False,
) -> str:
    """SHA-256 over what defines who answered; scores with different fingerprints are not comparable."""
    who = {
        "criteria": criteria_hash,
        "provider": turn.provider,
        "model_requested": turn.model_requested,
        "model_served": turn.model_served,
        "temperature": provider.temperature,
        "max_reply_tokens": provider.max_reply_tokens,
        "context_window_tokens": provider.context_window_tokens,
        "context_policy": CONTEXT_POLICY,
        "masking_policy": masking_policy,
    } | ({"reference": REFERENCE_NOTICE} if has_reference else {})
    return hashlib.sha256(to_json(who)).hexdigest()


@dataclass(frozen=True, slots=True)
class Layers:
    """
    A session's interaction metrics, cost and gate results.

    Args:
        agent_cost_usd: See `evaluation.agent_cost`.
        gates: None until they have been checked.
    """

    interaction: Interaction
    agent_cost_usd: float | None = None
    gates: Sequence[GateResult] | None = None

    def columns(self) -> dict[str, Any]:
        """Metrics, diagnosis and gate results as columns for `session_scores`."""
        return {
            "interaction": self.interaction.document() | {"agent_cost_usd": self.agent_cost_usd},
            "diagnosis": [asdict(finding) for finding in diagnose(self.interaction)],
            "gates": [asdict(gate) for gate in self.gates or ()],
        }

    def totals(self) -> dict[str, Any]:
        """The interaction's totals and the gates' counts, as events carry them."""
        passed = None if self.gates is None else sum(gate.passed for gate in self.gates)
        return {
            "interaction": {name: getattr(self.interaction, name) for name in InteractionTotals.model_fields},
            "gates_passed": passed,
            "gates_total": None if self.gates is None else len(self.gates),
        }


# Counting more events takes some milliseconds, and lease renewals run on the same event loop.
INLINE_EVENTS = 2_000


async def measure(timeline: Timeline, chain: ChainSettings) -> Layers:
    """Measure the interaction; large sessions are measured in a thread. Gates are not checked here."""
    work = partial(measure_interaction, timeline, CommandRules(chain.command_pattern, chain.shell_tools))
    found = await asyncio.to_thread(work) if timeline.shown_event_count > INLINE_EVENTS else work()
    return Layers(found, agent_cost_usd(timeline))


def decided_columns(
    layers: Layers, settings: Settings, chain_id: str | None, criteria: Criteria, verdict: Verdict | None
) -> dict[str, Any]:
    """Decide threshold, outcome and composite score, as columns for `session_scores`."""
    gates = layers.gates or ()
    total = verdict.total_score if verdict else None
    weighted = verdict.rubric.weighted_score if verdict and verdict.rubric else None
    own, default = settings.pass_thresholds(chain_id)
    threshold = threshold_of(own, criteria.pass_threshold, default)
    outcome = decide_outcome(gates, total, threshold, weighted)
    weights = settings.chain(chain_id).composite
    return {
        "pass_threshold": threshold.value,
        "judge_passed": outcome.judge_passed,
        "outcome": outcome.value,
        "outcome_reason": outcome.reason,
        "composite_score": None
        if weights is None
        else composite_score(weights.model_dump(), gates, total, layers.interaction),
    }
