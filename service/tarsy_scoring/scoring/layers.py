"""
Layers of a score that need no model, and the outcome that they and the judge decide.

    interaction metrics (always) -> gates (per chain) -> [judge] -> outcome, composite score

Metrics never decide an outcome; gates and the threshold do.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from tarsy_scoring.config.chains import AgentPrices, ChainSettings, GateSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.evaluation.agent_cost import agent_cost_usd
from tarsy_scoring.evaluation.diagnosis import diagnose
from tarsy_scoring.evaluation.interaction import CommandRules, Interaction, measure_interaction
from tarsy_scoring.evaluation.outcome import GateResult, composite_score, decide_outcome, threshold_of
from tarsy_scoring.events import InteractionTotals
from tarsy_scoring.gates.run import run_gates
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import Verdict
from tarsy_scoring.timeline.model import Timeline


@dataclass(frozen=True, slots=True)
class Layers:
    """
    Interaction metrics, cost and gate results of a session.

    Args:
        agent_cost_usd: See `evaluation.agent_cost`.
        gates: None until they have been checked.
    """

    interaction: Interaction
    agent_cost_usd: float | None = None
    gates: Sequence[GateResult] | None = None

    def columns(self) -> dict[str, Any]:
        """Metrics, diagnosis and gate results as columns of `session_scores`."""
        gates = self.gates
        return {
            "interaction": self.interaction.document() | {"agent_cost_usd": self.agent_cost_usd},
            "diagnosis": [asdict(finding) for finding in diagnose(self.interaction)],
            "gates": [asdict(gate) for gate in gates or ()],
            "gates_passed": None if gates is None else sum(gate.passed for gate in gates),
            "gates_total": None if gates is None else len(gates),
        }

    def totals(self) -> dict[str, Any]:
        """The totals of the interaction, as events carry them."""
        return {name: getattr(self.interaction, name) for name in InteractionTotals.model_fields}


# Counting more events takes some milliseconds, and lease renewals run on the same event loop.
INLINE_EVENTS = 2_000


async def measure(timeline: Timeline, chain: ChainSettings, prices: Mapping[str, AgentPrices]) -> Layers:
    """
    Measure the interaction; large sessions are measured in a thread. Gates are not checked here.

    Args:
        prices: Of the agents' models.
    """
    work = partial(measure_interaction, timeline, CommandRules(chain.command_pattern, chain.shell_tools))
    found = await asyncio.to_thread(work) if timeline.shown_event_count > INLINE_EVENTS else work()
    return Layers(found, agent_cost_usd(timeline, prices))


async def check_gates(
    layers: Layers, timeline: Timeline, chain: ChainSettings, settings: GateSettings, *, deadline_s: float
) -> Layers:
    """
    Check the gates of the chain, in their order. A cancel kills the processes that they started.

    Args:
        deadline_s: For all gates together; a gate that was not checked by then has not passed.
    """
    return replace(layers, gates=await run_gates(chain.gates, timeline, settings, deadline_s=deadline_s))


def decided_columns(
    layers: Layers, settings: Settings, chain_id: str | None, criteria: Criteria, verdict: Verdict | None
) -> dict[str, Any]:
    """Decide threshold, outcome and composite score of a completed score, as columns of `session_scores`."""
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
