"""
What a source declares against what could be read, and the refusal to judge what is not there.

Missing means declared or read with an error. What an agent simply did not do is not missing: it is
what the judge is there to see.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tarsy_scoring.errors import EvidenceIncomplete
from tarsy_scoring.timeline.model import SHOWN_STAGE_TYPES, Event, Evidence, Execution, Stage, Timeline

# In stages that ended like this, agents may never have been started: the declared number does not bind.
_MAY_LACK_AGENTS = frozenset({"pending", "cancelled"})


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that the source holds and that could not be read: its kind in `Evidence`, and words for people."""

    kind: str
    words: str


def take_stock(
    stages: Iterable[Stage],
    final_analysis: str | None,
    *,
    losses: Iterable[Loss] = (),
    unread_results: frozenset[str] = frozenset(),
    declared_calls: Mapping[str, int] | None = None,
) -> Evidence:
    """
    Count what the judge would see; hidden stages do not count.

    Declared are: a stage's number of agents, each event, the result of each tool call, a final analysis
    where the session or an agent wrote one, the parent that a sub-agent names. An event that is still
    `streaming` in a session that has ended was not written to its end.

    Args:
        losses: What the source could not read at all.
        unread_results: Event ids of tool calls whose result could not be read.
        declared_calls: Tool calls per execution id by a second record of the source; more of them than
            events means that events are missing.
    """
    expected: Counter[str] = Counter(dict.fromkeys(("stages", "executions", "events", "results", "final_analysis"), 0))
    read = Counter(expected)
    missing: list[str] = []

    def lose(kind: str, words: str, count: int = 1) -> None:
        expected[kind] += count
        missing.append(words)

    def count(kind: str, *, was_read: bool, words: str) -> None:
        if was_read:
            expected[kind] += 1
            read[kind] += 1
        else:
            lose(kind, words)

    for loss in losses:
        lose(loss.kind, loss.words)
    analyses = [final_analysis] if final_analysis else []
    for stage in (s for s in stages if s.stage_type in SHOWN_STAGE_TYPES):
        count("stages", was_read=True, words="")
        if (lacking := _lacking_agents(stage)) > 0:
            there = stage.expected_agent_count or 0
            words = f"{_name(stage)}: declares {there} agents, {there - lacking} could be read"
            lose("executions", words, lacking)
        ids = {e.execution_id for e in stage.executions}
        for execution in stage.executions:
            where = f"{_name(stage)}, {execution.agent_name}"
            count("executions", was_read=True, words="")
            if execution.parent_execution_id and execution.parent_execution_id not in ids:
                lose("executions", f"{where}: its parent execution {execution.parent_execution_id} could not be read")
            for event in execution.events:
                complete = event.status != "streaming"
                words = f"{where}: {event.event_type} {event.event_id} was not written to its end"
                count("events", was_read=complete, words=words)
                if event.event_type == "llm_tool_call":
                    has_result = complete and event.event_id not in unread_results
                    count("results", was_read=has_result, words=f"{where}: result of {_call(event)}")
                elif event.event_type == "final_analysis":
                    analyses.append(event.content)
            unseen = (declared_calls or {}).get(execution.execution_id, 0) - _calls(execution)
            if unseen > 0:
                lose("events", f"{where}: {unseen} recorded tool calls have no event", unseen)
                expected["results"] += unseen
    if analyses:
        count("final_analysis", was_read=any(a.strip() for a in analyses), words="final analysis: written, but empty")
    return Evidence(dict(expected), dict(read), tuple(missing))


def check_evidence(timeline: Timeline, max_missing_share: float, *, may_change: bool) -> None:
    """
    Let through only what can be judged fairly.

    Args:
        max_missing_share: 0-1, `evidence.max_missing_share` of the configuration.
        may_change: `TimelineSource.may_change`: whether a later look may show more.

    Raises:
        EvidenceIncomplete: More is missing than tolerated; or no stage that the judge sees has an event.
    """
    evidence = timeline.evidence
    missing = list(evidence.missing)
    if timeline.shown_event_count == 0:
        hidden = sum(s.stage_type not in SHOWN_STAGE_TYPES for s in timeline.stages)
        missing.append(f"events: none in a stage that the judge sees ({hidden} other stages are not shown)")
        reason = "no event could be read in any stage that the judge sees"
    elif evidence.missing_share > max_missing_share:
        reason = (
            f"{evidence.missing_share:.1%} of what the source declares could not be read, "
            f"evidence.max_missing_share tolerates {max_missing_share:.1%}"
        )
    else:
        return
    message = f"session {timeline.session_id} cannot be judged: {reason}; missing: {_summary(missing)}"
    raise EvidenceIncomplete(message, missing, permanent=not may_change)


_NAMED = 5


def _summary(missing: list[str]) -> str:
    more = len(missing) - _NAMED
    return "; ".join(missing[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _lacking_agents(stage: Stage) -> int:
    """Sub-agents do not count, nobody declares them; nor does what holds a stage's own events."""
    if stage.status in _MAY_LACK_AGENTS:
        return 0
    agents = sum(e.parent_execution_id is None and e.agent_name != "" for e in stage.executions)
    return max(0, (stage.expected_agent_count or 0) - agents)


def _name(stage: Stage) -> str:
    return f"stage {stage.stage_index} ({stage.stage_name})"


def _call(event: Event) -> str:
    return f"{event.tool.name if event.tool else 'tool call'} ({event.event_id}) could not be read"


def _calls(execution: Execution) -> int:
    return sum(e.event_type == "llm_tool_call" for e in execution.events)
