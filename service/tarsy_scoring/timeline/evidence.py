"""
Compares the evidence that a source declares with the evidence that could be read.

Evidence is missing when the source declares it and it could not be read, or was read with an error. A step
that an agent did not take is not missing: the judge has to see that the agent did not take it.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from tarsy_scoring.errors import EvidenceIncomplete, NothingToJudge
from tarsy_scoring.timeline.model import SHOWN_STAGE_TYPES, Event, Evidence, Execution, Stage, Timeline

# In a stage with such a status, some declared agents may never have started.
_MAY_LACK_AGENTS = frozenset({"pending", "cancelled"})


KINDS = ("stages", "executions", "events", "results", "final_analysis")
_NAMED = 5  # missing things that an error message names


def take_stock(
    stages: Iterable[Stage],
    final_analysis: str | None,
    *,
    losses: Iterable[tuple[str, str]] = (),
    unread_calls: Container[str] = (),
    unread_results: Container[str] = (),
    declared_calls: Mapping[str, int] | None = None,
) -> Evidence:
    """
    Count the evidence that the source declares in shown stages, and how much of it could be read.

    The source declares how many agents a stage has, each event, each tool call's result, a final analysis
    where the session or an agent wrote one, and the parent that a sub-agent names. An event that is still
    `streaming` in a terminal session is incomplete.

    Args:
        losses: Things that the source could not read at all: one of `KINDS` and a description.
        unread_calls: Event ids where a call's tool and arguments could not be read.
        unread_results: Event ids where a call's result could not be read.
        declared_calls: Tool calls per execution id, from the source's second record. If they are more than
            the tool-call events, events are missing.
    """
    shown = [s for s in stages if s.stage_type in SHOWN_STAGE_TYPES]
    stock = _Stock(unread_calls, unread_results, declared_calls or {})
    for kind, words in losses:
        stock.count(kind, words)
    for stage in shown:
        stock.count_stage(stage)
    events = (event for stage in shown for execution in stage.executions for event in execution.events)
    analyses = [event.content for event in events if event.event_type == "final_analysis"]
    if final_analysis or analyses:
        is_empty = not any(text.strip() for text in (final_analysis or "", *analyses))
        stock.count("final_analysis", "final analysis: written, but empty" if is_empty else None)
    return Evidence(dict(stock.expected), dict(stock.read), tuple(stock.missing))


@dataclass(slots=True)
class _Stock:
    """Counts of declared and read things by kind, and descriptions of those missing."""

    unread_calls: Container[str]
    unread_results: Container[str]
    declared_calls: Mapping[str, int]
    expected: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    read: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    missing: list[str] = field(default_factory=list)

    def count(self, kind: str, problem: str | None = None, number: int = 1) -> None:
        """Count declared things: as missing where there is a problem, else as read."""
        self.expected[kind] += number
        if problem is None:
            self.read[kind] += number
        else:
            self.missing.append(problem)

    def count_stage(self, stage: Stage) -> None:
        self.count("stages")
        name = f"stage {stage.stage_index} ({stage.stage_name})"
        if lacking := _lacking_agents(stage):
            declared = stage.expected_agent_count or 0
            problem = f"{name}: declares {declared} agents, {declared - lacking} could be read"
            self.count("executions", problem, lacking)
        ids = {e.execution_id for e in stage.executions}
        for execution in stage.executions:
            where = f"{name}, {execution.agent_name}"
            self.count("executions")
            parent = execution.parent_execution_id
            if parent and parent not in ids:
                self.count("executions", f"{where}: its parent execution {parent} could not be read")
            self._count_events(execution, where)

    def _count_events(self, execution: Execution, where: str) -> None:
        for event in execution.events:
            self._count_event(event, where)
        calls = sum(e.event_type == "llm_tool_call" for e in execution.events)
        unseen = self.declared_calls.get(execution.execution_id, 0) - calls
        if unseen > 0:
            self.count("events", f"{where}: {unseen} recorded tool calls have no event", unseen)
            self.expected["results"] += unseen

    def _count_event(self, event: Event, where: str) -> None:
        is_cut = event.status == "streaming"
        problem = (
            f"{where}: {event.event_type} {event.event_id} was not written to its end" if is_cut else None
        )
        if event.event_id in self.unread_calls:
            problem = f"{where}: call {event.event_id} could not be read"
        self.count("events", problem)
        if event.event_type == "llm_tool_call":
            tool = event.tool.name if event.tool else "tool call"
            is_unread = is_cut or event.event_id in self.unread_results
            problem = f"{where}: result of {tool} ({event.event_id}) could not be read" if is_unread else None
            self.count("results", problem)


def require_events(timeline: Timeline) -> None:
    """
    Refuse a session without an event that the judge would see, unless the source declares some.

    Raises:
        NothingToJudge: There is no such event, and none is missing. The rows of a session that has just ended
            may still be on their way.
    """
    if not timeline.shown_events and not timeline.evidence.missing:
        types = Counter(s.stage_type for s in timeline.stages)
        found = ", ".join(f"{name} ({count})" for name, count in types.items()) or "none"
        why = f"no stage that the judge sees has an event; its stages: {found}"
        raise NothingToJudge(f"session {timeline.session_id} has nothing to judge: {why}")


def check_evidence(timeline: Timeline, max_missing_share: float, *, may_change: bool) -> None:
    """
    Refuse a session whose evidence is too incomplete for a fair judgement.

    Args:
        max_missing_share: 0-1, `evidence.max_missing_share` of the configuration.
        may_change: `TimelineSource.may_change`: whether a later read may show more.

    Raises:
        NothingToJudge: See `require_events`.
        EvidenceIncomplete: More is missing than tolerated, or all that the judge would see.
    """
    require_events(timeline)
    evidence = timeline.evidence
    missing = list(evidence.missing)
    if not timeline.shown_events:
        reason = "no event could be read in any stage that the judge sees"
    elif evidence.missing_share > max_missing_share:
        reason = (
            f"{evidence.missing_share:.1%} of what the source declares could not be read, "
            f"evidence.max_missing_share tolerates {max_missing_share:.1%}"
        )
    else:
        return
    named = "; ".join(missing[:_NAMED]) + (f"; and {len(missing) - _NAMED} more" if missing[_NAMED:] else "")
    message = f"session {timeline.session_id} cannot be judged: {reason}; missing: {named}"
    raise EvidenceIncomplete(message, missing, permanent=not may_change)


def _lacking_agents(stage: Stage) -> int:
    """
    The number of declared agents that could not be read.

    A declared number counts neither sub-agents nor the nameless execution that holds a stage's own events.
    """
    if stage.status in _MAY_LACK_AGENTS:
        return 0
    agents = sum(e.parent_execution_id is None and e.agent_name != "" for e in stage.executions)
    return max(0, (stage.expected_agent_count or 0) - agents)
