"""
What a score says of itself, as columns of `session_scores`: the same for a stored score and for one made offline.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json

from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.evaluation.interaction import LONGEST_NAME
from tarsy_scoring.evaluation.tool_names import normalise
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import Turn, Verdict
from tarsy_scoring.scoring.providers import flags_of, is_self_judged
from tarsy_scoring.timeline.context import CONTEXT_POLICY, FittedContext
from tarsy_scoring.timeline.masking import MASKING_POLICY
from tarsy_scoring.timeline.model import Timeline

MOST_TOOLS = 4000  # names in a set, two for each tool
USD_DIGITS = 6  # behind the point: a sum of binary fractions has an end that no price has


def evidence_columns(timeline: Timeline | None, context: FittedContext | None) -> dict[str, Any]:
    """What could be read of the session, and how much of it the judge saw."""
    evidence = timeline.evidence if timeline else None
    return {
        "coverage": {"shown_share": context.shown_share, "cut_entries": list(context.cut_entries)} if context else None,
        "evidence": {"expected": evidence.expected, "read": evidence.read, "missing": list(evidence.missing)}
        if evidence
        else None,
        "tools_hash": tools_hash_of(tool_names(timeline)) if timeline else None,
    }


def tool_names(timeline: Timeline) -> list[str]:
    """
    What the tools that the agents had are known by, with and without their server, sorted.

    Of names without end the first ones; none that no reader could see or no database hold.
    """
    tools = [t for t in timeline.available_tools if t.tool_name.isprintable() and t.server_name.isprintable()]
    written = [t.tool_name for t in tools] + [f"{t.server_name}.{t.tool_name}" for t in tools if t.server_name]
    return sorted({normalise(name) for name in written if 0 < len(name) <= LONGEST_NAME})[:MOST_TOOLS]


def tools_hash_of(names: Sequence[str]) -> str | None:
    """SHA-256 of a set of tools; None where it is empty, as nobody can tell that from one that was not told."""
    return hashlib.sha256(to_json(list(names))).hexdigest() if names else None


def judgement_columns(
    verdict: Verdict | None,
    turns: Sequence[Turn],
    timeline: Timeline | None,
    context: FittedContext | None,
    criteria: Criteria,
    providers: Mapping[str, ProviderSettings],
) -> dict[str, Any]:
    """What a completed score says of its judgement; without a verdict (no judge) there is no number."""
    flags = set(context.flags) if context else set()
    judges = {model for t in turns for model in (t.model_requested, t.model_served)}
    if timeline is not None and is_self_judged(judges, timeline.agent_models):
        flags.add("self_judged")
    if verdict is None:
        return {"total_score": None, "judge_fingerprint": None, "flags": sorted(flags)}
    who = verdict.total_turn
    grounding, rubric = verdict.grounding, verdict.rubric
    if context is not None:
        flags |= flags_of(turns, context, criteria)
    return {
        "total_score": verdict.total_score,
        "score_analysis": verdict.score_analysis,
        "score_breakdown": verdict.score_breakdown,
        "missing_tools_analysis": verdict.missing_tools_analysis,
        "judge_fingerprint": judge_fingerprint(criteria.criteria_hash, providers[who.provider], who),
        "judge_outcome": verdict.judge_outcome,
        "rubric": asdict(rubric) if rubric else None,
        "samples": [{"total_score": total} for total in verdict.samples],
        "spread": verdict.spread,
        "failure_tags": verdict.failure_tags,
        "grounding": {"checked": grounding.checked, "held": grounding.held, "share": grounding.share}
        if grounding
        else None,
        "flags": sorted(flags | verdict.flags),
    }


def sum_usage(turns: Iterable[Turn]) -> dict[str, int | float | None]:
    """Sums over turns; a sum is None where any part of it is unknown, or there is no turn."""
    listed = list(turns)

    def total(values: list[Any]) -> Any:
        return sum(values) if values and all(v is not None for v in values) else None

    cost_usd = total([t.cost_usd for t in listed])
    return {
        "input_tokens": total([t.input_tokens for t in listed]),
        "cached_input_tokens": total([t.cached_input_tokens for t in listed]),
        "output_tokens": total([t.output_tokens for t in listed]),
        "cost_usd": None if cost_usd is None else round(cost_usd, USD_DIGITS),
    }


def judge_fingerprint(criteria_hash: str, provider: ProviderSettings, turn: Turn) -> str:
    """Who answered, as SHA-256: scores under different fingerprints are not comparable without a break."""
    who = {
        "criteria": criteria_hash,
        "provider": turn.provider,
        "model_requested": turn.model_requested,
        "model_served": turn.model_served,
        "temperature": provider.temperature,
        "max_reply_tokens": provider.max_reply_tokens,
        "context_window_tokens": provider.context_window_tokens,
        "context_policy": CONTEXT_POLICY,
        "masking_policy": MASKING_POLICY,
    }
    return hashlib.sha256(to_json(who)).hexdigest()
