"""
An attempt's results as columns for `session_scores`, for stored scores and for scores made offline.

    interaction metrics (always) -> gates (per chain) -> [judge] -> outcome, composite score

Metrics never decide an outcome; gates and the threshold do.
"""

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
from tarsy_scoring.evaluation.outcome import (
    GateResult,
    composite_score,
    decide_outcome,
    judged_wrong,
    threshold_of,
)
from tarsy_scoring.events import InteractionTotals, Usage
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import Turn, Verdict
from tarsy_scoring.scores.shapes import no_results
from tarsy_scoring.scoring.providers import flags_of, is_self_judged
from tarsy_scoring.timeline.clean.masking import MASKING_POLICY, Masking, masking_of
from tarsy_scoring.timeline.computing import compute_on
from tarsy_scoring.timeline.model import Timeline, sum_if_known
from tarsy_scoring.timeline.record_gaps import find_gaps
from tarsy_scoring.timeline.render.context import CONTEXT_POLICY, REFERENCE_NOTICE, FittedContext

# Columns that the verdict holds under the same name.
_AS_STATED = (
    *("total_score", "score_analysis", "score_breakdown", "missing_tools_analysis", "judge_outcome"),
    "failure_tags",
)


@dataclass(kw_only=True, slots=True)
class Findings:
    """
    What an attempt has found so far, apart from the verdict.

    Args:
        agent_cost_usd: See `evaluation.agent_cost`.
        gates: None until they have been checked.
        context: As shown to the judge that gave the total.
    """

    timeline: Timeline | None = None
    interaction: Interaction | None = None
    agent_cost_usd: float | None = None
    gates: Sequence[GateResult] | None = None
    context: FittedContext | None = None

    @property
    def has_reference(self) -> bool:
        """Whether the judge was shown a reference."""
        return self.context is not None and self.context.has_reference

    async def measure(self, timeline: Timeline, chain: ChainSettings, masking: Masking) -> None:
        """Measure the interaction."""
        rules = CommandRules(chain.command_pattern, chain.shell_tools, masking)
        self.interaction = await compute_on(timeline, partial(measure_interaction, timeline, rules))
        self.agent_cost_usd = agent_cost_usd(timeline)

    def columns(self, turns: Iterable[Turn]) -> dict[str, Any]:
        """The columns that every ended score has, without results of a judge."""
        columns = no_results() | {"usage": sum_usage(turns)}
        if self.context is not None:
            columns["coverage"] = self.context.coverage
        if self.timeline is not None:
            columns["evidence"] = evidence_of(self.timeline)
        if self.interaction is not None:
            columns["interaction"] = self.interaction.document() | {"agent_cost_usd": self.agent_cost_usd}
            columns["diagnosis"] = [asdict(finding) for finding in diagnose(self.interaction)]
        return columns | {"gates": [asdict(gate) for gate in self.gates or ()]}

    def totals(self) -> dict[str, Any]:
        """The interaction's totals and the gates' counts, as events carry them."""
        names = InteractionTotals.__dataclass_fields__
        return {
            "interaction": {name: getattr(self.interaction, name) for name in names},
            "gates_passed": None if self.gates is None else sum(gate.passed for gate in self.gates),
            "gates_total": None if self.gates is None else len(self.gates),
        }


def evidence_of(timeline: Timeline) -> dict[str, Any]:
    """How much could be read from the session."""
    evidence, gaps = timeline.evidence, find_gaps(timeline)
    return {
        "expected": evidence.expected,
        "read": evidence.read,
        "missing": list(evidence.missing),
        "cut_by_source": gaps.cut_results,
        "calls_recorded": gaps.calls_recorded,
    }


def completed_columns(
    found: Findings,
    verdict: Verdict | None,
    turns: Sequence[Turn],
    criteria: Criteria,
    settings: Settings,
    chain_id: str | None,
) -> dict[str, Any]:
    """
    The columns of a completed score that judge, gates and thresholds decide; without a judge, the total is
    null.

    Args:
        turns: Those behind the total.
    """
    columns = decided_columns(found, verdict, criteria, settings, chain_id)
    flags = set(found.context.flags) if found.context else set()
    models = {model for t in turns for model in (t.model_requested, t.model_served)}
    if found.timeline is not None and is_self_judged(models, found.timeline.agent_models):
        flags.add("self_judged")
    if verdict is not None:
        flags |= verdict.flags
        columns |= stated_columns(found, verdict, criteria, settings.config)
        if found.context is not None:
            flags |= flags_of(turns, found.context, criteria)
            if found.context.shown_share < settings.config.evidence.min_shown_share:
                flags.add("mostly_unseen")
    return columns | {"flags": sorted(flags)}


def stated_columns(found: Findings, verdict: Verdict, criteria: Criteria, config: Config) -> dict[str, Any]:
    """What the verdict says, and the fingerprint of the judge that gave the total."""
    who, grounding = verdict.total_turn, verdict.grounding
    return {name: getattr(verdict, name) for name in _AS_STATED} | {
        "judge_fingerprint": judge_fingerprint(
            criteria.criteria_hash,
            config.providers[who.provider],
            who,
            masking_of(config.masking_patterns).policy,
            has_reference=found.has_reference,
        ),
        "samples": [{"total_score": total} for total in verdict.samples],
        "rubric": asdict(verdict.rubric) if verdict.rubric else None,
        "second_opinion": asdict(verdict.second_opinion) if verdict.second_opinion else None,
        "grounding": asdict(grounding) | {"share": grounding.share} if grounding else None,
    }


def decided_columns(
    found: Findings, verdict: Verdict | None, criteria: Criteria, settings: Settings, chain_id: str | None
) -> dict[str, Any]:
    """Threshold, outcome and composite score."""
    gates, interaction = found.gates or (), found.interaction
    total = verdict.total_score if verdict else None
    weighted = verdict.rubric.weighted_score if verdict and verdict.rubric else None
    own, default = settings.pass_thresholds(chain_id)
    threshold = threshold_of(own, criteria.pass_threshold, default)
    wrong = judged_wrong(verdict.judge_outcome, verdict.flags) if verdict else None
    outcome = decide_outcome(gates, total, threshold, weighted, wrong)
    weights, composite = settings.chain(chain_id).composite, None
    if weights is not None and interaction is not None:
        composite = composite_score(weights.model_dump(), gates, total, interaction)
    return {
        "pass_threshold": threshold.value,
        "judge_passed": outcome.judge_passed,
        "outcome": outcome.value,
        "outcome_reason": outcome.reason,
        "composite_score": composite,
    }


def sum_usage(turns: Iterable[Turn]) -> dict[str, int | float | None]:
    """Sums over turns. A sum is None where there is no turn or a turn does not report the value."""
    listed = list(turns)
    usage = {name: sum_if_known(getattr(turn, name) for turn in listed) for name in Usage.model_fields}
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
