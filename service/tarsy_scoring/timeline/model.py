"""
The timeline of a session, independent of the source: session, stages, executions, events, tools.

Frozen records without I/O. All text in them is untrusted: alerts, tools and language models wrote it.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from tarsy_scoring.errors import SessionNotTerminal
from tarsy_scoring.timeline.text import storable

TERMINAL_STATUSES = frozenset({"completed", "failed", "cancelled", "timed_out"})

# The judge sees the stages of these types. Stages of unknown types are not shown, and listed as such.
SHOWN_STAGE_TYPES = frozenset({"investigation", "synthesis", "exec_summary", "action"})

LONGEST_SESSION = timedelta(days=7)
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """
    One call of a tool.

    `arguments` is the recorded string: JSON, and sometimes invalid JSON.
    """

    server_name: str
    tool_name: str
    arguments: str
    is_error: bool | None = None
    exit_code: int | None = None

    @property
    def name(self) -> str:
        """`server.tool`, or the tool's name where no server is recorded."""
        return f"{self.server_name}.{self.tool_name}" if self.server_name else self.tool_name


@dataclass(frozen=True, slots=True)
class Event:
    """
    One step of an execution.

    `event_type` is TARSy's (`llm_thinking`, `llm_response`, `llm_tool_call`, `mcp_tool_summary`,
    `final_analysis`, `error`, ...); unknown types are kept and shown under their name. `tool` is set on
    tool calls. A `status` other than `completed` means that the step itself failed.
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
    The work of one agent in a stage; `events` are ordered by `sequence_number`.

    `model_names` holds every provider and model name recorded for the agent. They are hidden from the judge,
    and compared with the judge's model to detect self-judging. The tokens are the sums over all calls of a
    model; None where a call lacks the number.
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
    """
    One stage; `executions` are ordered by `agent_index` and include sub-agents, which name their parent.
    """

    stage_id: str
    stage_name: str
    stage_index: int
    stage_type: str
    status: str
    executions: tuple[Execution, ...] = ()
    expected_agent_count: int | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class AvailableTool:
    """
    A tool that an agent could use. What the source does not record is empty; TARSy records no parameters.

    `parameters` is text: as recorded, or the recorded structure as JSON.
    """

    server_name: str
    tool_name: str
    description: str = ""
    agent_name: str = ""
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    Counts of the evidence that the source declares and of the evidence that could be read.

    Both maps count `stages`, `executions`, `events`, `results` and `final_analysis` (0 or 1). `missing`
    describes each declared thing that was not read, e.g. `stage 2 (mitigation): declares 3 agents, 1 could
    be read`. An agent that never wrote a final analysis declares none.
    """

    expected: dict[str, int]
    read: dict[str, int]
    missing: tuple[str, ...] = ()

    @property
    def missing_share(self) -> float:
        """Share of the declared things that could not be read, 0-1; 0 where none is declared."""
        declared = sum(self.expected.values())
        lacking = sum(max(0, self.expected[k] - self.read.get(k, 0)) for k in self.expected)
        return lacking / declared if declared else 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """
    Everything that happened in one terminal session, in order.

    `created_at` is the time when the session was created, `started_at` the time when work on it began.
    Without `has_real_times` the times are synthetic: they give an order and no duration.

    `reference` is what people found out about the incident later, which a judgement with a reference shows to
    the judge. No source sets it.
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
    reference: str | None = None

    @property
    def shown_stages(self) -> tuple[Stage, ...]:
        """The stages that the judge sees, in order."""
        return tuple(s for s in self.stages if s.stage_type in SHOWN_STAGE_TYPES)

    @property
    def shown_executions(self) -> list[Execution]:
        """The executions in shown stages, in order."""
        return [execution for stage in self.shown_stages for execution in stage.executions]

    @property
    def shown_events(self) -> list[Event]:
        """The events in shown stages; a session without one cannot be judged."""
        return [event for execution in self.shown_executions for event in execution.events]

    @property
    def agent_models(self) -> frozenset[str]:
        """Model and provider names of the judged agents, those of shown stages; lower case."""
        return frozenset(n.lower() for e in self.shown_executions for n in e.model_names if n)


def sum_if_known(numbers: Iterable[Number | None]) -> Number | None:
    """The sum; None without numbers, or where one is unknown."""
    listed = list(numbers)
    known = [n for n in listed if n is not None]
    return sum(known) if known and len(known) == len(listed) else None


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A terminal session as a source lists it; `completed_at` is None where the source has no end time."""

    session_id: str
    chain_id: str | None
    status: str
    completed_at: datetime | None


def require_terminal(session_id: str, status: str) -> None:
    """Raises: SessionNotTerminal: The session has not ended."""
    if status not in TERMINAL_STATUSES:
        raise SessionNotTerminal(
            f"the session {session_id} has not ended: its status is {storable(status[:40])}, not one of "
            f"{', '.join(sorted(TERMINAL_STATUSES))}"
        )


class TimelineSource(Protocol):
    """
    Reads sessions from one place; registered in `config/timeline_sources.py`.

    A source never writes. It returns the timeline of a terminal session or raises; it never returns an empty
    timeline in place of an error.
    """

    may_change: bool
    """False where a second read cannot show more than the first (`files`)."""

    reads_at_once: int
    """Timelines that may be read at the same time, >= 1; attempts wait in line for more."""

    async def fetch_timeline(self, session_id: str) -> Timeline:
        """
        Read one session.

        Raises:
            SessionNotFound: The session does not exist, or was deleted.
            SessionNotTerminal: The session still runs.
            SessionTooLarge: The session has more than `SCORING_MAX_SESSION_BYTES`; found out before it is in
                memory.
            TimelineUnavailable: The source cannot be read right now.
        """
        ...

    async def find_session(self, session_id: str) -> FoundSession:
        """
        Check that the session exists and is terminal, without reading the timeline.

        Raises:
            SessionNotFound: The session does not exist, or was deleted.
            SessionNotTerminal: The session still runs.
            SessionTooLarge: This source has to read the session for that, and it is too large.
            TimelineUnavailable: The source cannot be read right now.
        """
        ...

    def finished_sessions(self, since: datetime) -> AsyncIterator[FoundSession]:
        """
        List the terminal sessions that ended at `since` or later, each once, in no particular order.

        A session without an end time counts by creation time. Holds one page in memory at a time.

        Args:
            since: A time with a time zone.

        Raises:
            TimelineUnavailable: The source cannot be read right now; sessions listed before are valid.
        """
        ...

    async def check(self) -> None:
        """
        Ask the source for an answer that depends on no session.

        Cheap, and reads whatever else a timeline needs: a worker calls it after a failed read, to tell a
        source that is away from a session that cannot be read.

        Raises:
            TimelineUnavailable: The source cannot be read right now.
            StartRefused: It lacks a table, a column or a privilege; the message names all of them.
        """
        ...

    async def recent_agent_models(self) -> frozenset[str]:
        """
        Model and provider names, in lower case, of the judged agents of some of the newest terminal sessions.

        Cheap: no timeline is read. Unreadable sessions are left out.

        Raises:
            TimelineUnavailable: The source cannot be read right now.
        """
        ...

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        ...
