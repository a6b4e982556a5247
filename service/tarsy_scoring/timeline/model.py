"""
What a session was, whatever source it came from: session, stages, executions, events, tools.

Plain frozen records without I/O. Everything textual in here is untrusted: it was written by alerts,
tools and language models.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

TERMINAL_STATUSES = frozenset({"completed", "failed", "cancelled", "timed_out"})

# `stage_type` decides what the judge sees; types nobody knows yet stay out and are listed as not shown.
SHOWN_STAGE_TYPES = frozenset({"investigation", "synthesis", "exec_summary", "action"})
HIDDEN_STAGE_TYPES = frozenset({"chat", "scoring"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """
    One call of a tool: `arguments` as recorded (JSON in a string, not always valid JSON).

    `duration_ms` is None where the source does not say how long it took.
    """

    server_name: str
    tool_name: str
    arguments: str
    is_error: bool | None = None
    exit_code: int | None = None
    duration_ms: int | None = None

    @property
    def name(self) -> str:
        """`server.tool`, or the tool alone where no server is recorded."""
        return f"{self.server_name}.{self.tool_name}" if self.server_name else self.tool_name


@dataclass(frozen=True, slots=True)
class Event:
    """
    One step of an execution.

    `event_type` is TARSy's (`llm_thinking`, `llm_response`, `llm_tool_call`, `mcp_tool_summary`,
    `final_analysis`, `error`, ...); unknown ones are kept and shown under their name. `tool` is set on
    tool calls. `status` other than `completed` means the step itself broke.
    """

    event_id: str
    sequence_number: int
    event_type: str
    status: str
    content: str
    tool: ToolCall | None = None
    created_at: datetime | None = None
    skill_name: str | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """
    One agent at work in a stage; `events` ordered by `sequence_number`.

    `model_names` holds every provider and model name recorded for the agent: the judge must not see
    them, the service needs them to know that a judge grades itself. The tokens are those of all its calls of a
    model, None where the source does not know of each.
    """

    execution_id: str
    agent_name: str
    agent_index: int
    status: str
    events: tuple[Event, ...] = ()
    parent_execution_id: str | None = None
    task: str | None = None
    error_message: str | None = None
    model_names: tuple[str, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage; `executions` ordered by `agent_index`, sub-agents among them with their parent's id."""

    stage_id: str
    stage_name: str
    stage_index: int
    stage_type: str
    status: str
    executions: tuple[Execution, ...] = ()
    expected_agent_count: int | None = None
    referenced_stage_id: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class AvailableTool:
    """A tool the agents could have used; `agent_name` is empty where the source does not say whose."""

    server_name: str
    tool_name: str
    description: str = ""
    agent_name: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    What the source declares against what could be read.

    Both maps count `stages`, `executions`, `events`, `results` and `final_analysis` (0 or 1). `missing`
    names each thing that is declared or was read with an error, e.g. `stage 2 (mitigation): declares 3
    agents, 1 could be read`. An agent that never wrote a final analysis declares none.
    """

    expected: dict[str, int]
    read: dict[str, int]
    missing: tuple[str, ...] = ()

    @property
    def missing_share(self) -> float:
        """Share of the declared things that could not be read, 0-1; 0 where nothing is declared."""
        declared = sum(self.expected.values())
        lacking = sum(max(0, self.expected[k] - self.read.get(k, 0)) for k in self.expected)
        return lacking / declared if declared else 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """
    Everything that happened in one terminal session, in order.

    `created_at` is when it was asked for, `started_at` when work on it began. Without `has_real_times` the source
    itself made its times up: they give an order and no duration.
    """

    session_id: str
    status: str
    chain_id: str | None
    alert_type: str | None
    alert_data: str
    final_analysis: str | None
    executive_summary: str | None
    stages: tuple[Stage, ...]
    available_tools: tuple[AvailableTool, ...] = ()
    runbook: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    created_at: datetime | None = None
    completed_at: datetime | None = None
    error_message: str | None = None
    evidence: Evidence = field(default_factory=lambda: Evidence({}, {}))
    started_at: datetime | None = None
    has_real_times: bool = True

    @property
    def shown_stages(self) -> tuple[Stage, ...]:
        """The stages that the judge sees, in order."""
        return tuple(s for s in self.stages if s.stage_type in SHOWN_STAGE_TYPES)

    @property
    def shown_event_count(self) -> int:
        """Events in stages that the judge sees; without one there is nothing to judge."""
        return sum(len(e.events) for s in self.shown_stages for e in s.executions)

    @property
    def agent_models(self) -> frozenset[str]:
        """Model and provider names of the judged agents, lower case."""
        return frozenset(n.lower() for s in self.stages for e in s.executions for n in e.model_names if n)


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A terminal session as a source lists it; `completed_at` is None where the source does not say."""

    session_id: str
    chain_id: str | None
    status: str
    completed_at: datetime | None


class TimelineSource(Protocol):
    """
    Where timelines come from.

    A source only reads. It gives a timeline of a terminal session or says why not; it never gives an
    empty one in place of an error.
    """

    may_change: bool
    """False where a second look cannot show more than the first (`files`)."""

    async def fetch_timeline(self, session_id: str) -> Timeline:
        """
        Read one session.

        Raises:
            SessionNotFound: There is none, or it was deleted.
            SessionNotTerminal: It still runs.
            TimelineUnavailable: The source could not be read now.
        """
        ...

    async def find_session(self, session_id: str) -> FoundSession:
        """
        Look whether there is such a session and whether it has ended, without reading its timeline.

        Raises:
            SessionNotFound: There is none, or it was deleted.
            SessionNotTerminal: It still runs.
            TimelineUnavailable: The source could not be read now.
        """
        ...

    def finished_sessions(self, since: datetime) -> AsyncIterator[FoundSession]:
        """
        List the terminal sessions that ended at `since` or later, each once, in no particular order.

        One that does not say when it ended counts from when it began. Holds a page in memory, whatever there is.

        Args:
            since: With its zone.

        Raises:
            TimelineUnavailable: The source could not be read now; what was listed before holds.
        """
        ...

    async def recent_agent_models(self) -> frozenset[str]:
        """
        Model and provider names, lower case, of some of the newest terminal sessions.

        A light look: no timeline is read, and what cannot be read is left out.

        Raises:
            TimelineUnavailable: The source could not be read now.
        """
        ...

    async def close(self) -> None:
        """Give connections back; safe to call twice."""
        ...
