"""
Renders a timeline as entries: numbered pieces of safe text, each with a rank for shortening.

Decides text and order; `context` decides what fits.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise

from tarsy_scoring.timeline.clean.sanitizer import Sanitizer
from tarsy_scoring.timeline.model import SHOWN_STAGE_TYPES, AvailableTool, Event, Execution, Stage, Timeline
from tarsy_scoring.timeline.record_gaps import find_gaps
from tarsy_scoring.timeline.render.parts import EntryFacts, Rank, RenderedPart

_LABELS = {
    "llm_thinking": ("Reasoning", Rank.REASONING),
    "llm_response": ("Answer", Rank.REASONING),
    "mcp_tool_summary": ("Summary of a tool result", Rank.RESULT),
    "final_analysis": ("Final analysis", Rank.KEPT),
    "executive_summary": ("Executive summary", Rank.REST),
    "error": ("Error", Rank.REST),
    "task_assigned": ("Task", Rank.REST),
    "user_question": ("Question", Rank.REST),
    "code_execution": ("Code and its output", Rank.RESULT),
    "google_search_result": ("Web search", Rank.RESULT),
    "url_context_result": ("Web page", Rank.RESULT),
    "skill_loaded": ("Skill loaded", Rank.REST),
    "memory_injected": ("Memories given to the agent", Rank.REST),
    "provider_fallback": ("The agent's model changed", Rank.REST),
}

# Calling such a tool hands in an answer; `submit_job` and `submit_form` do not.
SUBMITS = re.compile(
    r"(?:\w_)?submit(?:_(?:tool|answer|solution|result|report))?|final_answer|attempt_completion"
)

_FAILED = frozenset({"failed", "timed_out"})  # statuses of steps; cancelled ones did not fail

CUT_MARK = "[... cut here in the record ...]\n"


class Rendering:
    """
    One timeline as text: `pieces`, joined.

    The alert comes first. The pieces from `conversation` on show everything else, those from `reference` on
    the reference, if any. `parts` are the pieces with session text.

    Entries are numbered E1, E2, ... as they are shown; the alert is E1, the reference the last. The judged
    agents' model and provider names are not rendered.
    """

    def __init__(self, timeline: Timeline, sanitizer: Sanitizer) -> None:
        self.pieces: list[str] = []
        self.parts: list[RenderedPart] = []
        self.not_shown: list[str] = []
        # Where entries begin, and headings between them, which have no id.
        self._sections: list[tuple[str, int]] = []
        self._timeline = timeline
        self._sanitizer = sanitizer
        self._gaps = find_gaps(timeline)
        self._next = "E1"
        # By an answer's or analysis's text: the entry that shows it, and the entry's rank.
        self._conclusions: dict[str, tuple[str, Rank]] = {}
        self._places: dict[str, str] = {}  # by entry that shows a final text: agent and stage
        self._place = ""
        self._here = EntryFacts()  # facts of the entries that are being rendered
        self.facts: dict[str, EntryFacts] = {}
        """Facts of each entry, in the order of their numbers."""
        self._submits = False  # the agent that is being rendered may answer for the session
        self._last_submission = ""
        self._final = (timeline.final_analysis or "").strip()
        self._render_alert()
        self.conversation = len(self.pieces)
        self._render_session()
        self._render_tools()
        self._heading("## Investigation")
        for number, stage in enumerate(timeline.shown_stages, start=1):
            self._render_stage(number, stage)
        self._here = EntryFacts()
        analysis = self._render_conclusion("Final analysis", timeline.final_analysis, Rank.KEPT)
        self._render_last_submission(analysis)
        self._render_conclusion("Executive summary", timeline.executive_summary, Rank.REST)
        self._list_not_shown()
        self.reference = len(self.pieces)
        if timeline.reference is not None:
            self._body(self._open("Reference"), timeline.reference, Rank.KEPT)
        raw = [part for part in self.parts if not self.pieces[part.place]]
        for part, text in zip(raw, sanitizer.texts([(p.entry, p.quoted) for p in raw]), strict=True):
            self.pieces[part.place] = part.quote(text)
        sections = pairwise((*self._sections, ("", len(self.pieces))))
        self.entries = [(entry, first, behind) for (entry, first), (_, behind) in sections if entry]
        """The id of each entry, the first piece, which is the heading, and the piece behind the last one."""

    # --- writing ---------------------------------------------------------------------------------------

    def _heading(self, text: str) -> None:
        """Add a heading; `text` must consist of safe names."""
        self._sections.append(("", len(self.pieces)))
        self.pieces.append(f"\n{text}\n")

    def _open(self, label: str, *, tool: str = "", failed: bool = False, at: datetime | None = None) -> str:
        """Begin an entry; `label` and `tool` must consist of safe names."""
        entry, here = self._next, self._here
        self.facts[entry] = EntryFacts(here.stage, here.execution, here.agent, tool, failed, at)
        self._next = f"E{len(self.facts) + 1}"
        self._sections.append((entry, len(self.pieces)))
        self.pieces.append(f"\n[{entry}] {label}\n")
        return entry

    def _body(self, entry: str, text: str, rank: Rank, *, absent: str = "", inline: bool = False) -> None:
        """Add session text to the entry, which is still empty; `absent` stands in place of an empty text."""
        if text or not absent:
            self.parts.append(RenderedPart(entry, len(self.pieces), rank, text, inline))
        self.pieces.append("" if text or not absent else f"{absent}\n")

    def _label(self, text: str) -> str:
        """A safe name for the heading of the next entry."""
        return self._sanitizer.line(self._next, text)

    # --- around the investigation -----------------------------------------------------------------------

    def _render_alert(self) -> None:
        kind = f" ({self._label(self._timeline.alert_type)})" if self._timeline.alert_type else ""
        entry = self._open(f"Alert{kind}")
        self._body(entry, self._timeline.alert_data, Rank.KEPT, absent="(the alert holds no data)")

    def _render_session(self) -> None:
        timeline = self._timeline
        self._sections.append(("", len(self.pieces)))
        self.pieces.append(f"The session ended as: {self._label(timeline.status)}\n")
        if timeline.error_message:
            self._body(self._open("Error of the session", failed=True), timeline.error_message, Rank.REST)
        if timeline.runbook:
            self._heading("## Runbook")
            self._body(self._open("Runbook as the session stored it"), timeline.runbook, Rank.REST)

    def _render_tools(self) -> None:
        self._heading("## Available tools")
        agents: dict[str, list[AvailableTool]] = {}
        for tool in dict.fromkeys(self._timeline.available_tools):
            agents.setdefault(tool.agent_name, []).append(tool)
        if not agents:
            self.pieces.append("(the record lists none)\n")
        for agent, tools in agents.items():
            entry = self._open(f"Tools of agent {self._label(agent)}" if agent else "Tools of the agents")
            for tool in tools:
                server = self._sanitizer.line(entry, tool.server_name)
                name = self._sanitizer.line(entry, tool.tool_name)
                name = f"{server}.{name}" if server else name
                described = self._sanitizer.line(entry, tool.description)
                parameters = self._sanitizer.line(entry, tool.parameters)
                if text := " ".join(filter(None, (described, parameters and f"Parameters: {parameters}"))):
                    self.pieces.append(f"- {name}: ")
                    self._body(entry, text, Rank.REST, inline=True)
                    self.pieces[-1] = self.parts[-1].quote(text)
                else:
                    self.pieces.append(f"- {name}\n")
            if unknown := _not_recorded(tools):
                self.pieces.append(f"(not recorded: {unknown})\n")

    def _render_conclusion(self, label: str, text: str | None, rank: Rank) -> str:
        """
        Render a conclusion of the session, or refer to the entry above that has the same text.

        Returns:
            The entry that shows it, empty where the session holds none.
        """
        self._heading(f"## {label}")
        if not text or not text.strip():
            self.pieces.append("(the session holds none)\n")
            return ""
        answer = " It is the final answer by default." if rank is Rank.KEPT else ""
        if shown := self._shown_in(text.strip(), rank):
            place = f", of {self._places[shown]}" if shown in self._places else ""
            self.pieces.append(f"The same as [{shown}]{place}.{answer}\n")
            return shown
        if answer:
            self.pieces.append(f"{answer.strip()}\n")
        entry = self._open(f"{label} of the session")
        self._body(entry, text, rank)
        self._conclusions[text.strip()] = (entry, rank)
        return entry

    def _render_last_submission(self, analysis: str) -> None:
        """
        Name the last answer that an agent handed in; `analysis` is the entry of the session's final analysis.
        """
        last = self._last_submission
        if not last or last == analysis:
            return
        answer = (
            "It stands beside the final analysis and does not replace it."
            if analysis
            else "It is the final answer by default, as there is no final analysis."
        )
        self._heading("## Last submission")
        self.pieces.append(f"In [{last}], of {self._places[last]}. {answer}\n")

    def _shown_in(self, text: str, rank: Rank) -> str | None:
        """The entry with the same text; where this text is `KEPT`, only an entry that is `KEPT` as well."""
        entry, its_rank = self._conclusions.get(text, (None, rank))
        return entry if rank is not Rank.KEPT or its_rank is Rank.KEPT else None

    def _list_not_shown(self) -> None:
        for stage in self._timeline.stages:
            if stage.stage_type not in SHOWN_STAGE_TYPES:
                events = sum(len(e.events) for e in stage.executions)
                name = self._sanitizer.line("not shown", stage.stage_name)
                kind = self._sanitizer.line("not shown", stage.stage_type)
                self.not_shown.append(f'stage "{name}" of type {kind}: {events} events')
        self.not_shown += (
            f"could not be read: {self._sanitizer.line('not shown', m)}"
            for m in self._timeline.evidence.missing
        )
        gaps = self._gaps
        if gaps.cut:
            length = (
                f" ({gaps.at_common_length} at {gaps.common_length} characters)" if gaps.common_length else ""
            )
            self.not_shown.append(
                f"the ends of {gaps.cut_results} tool results{length}, which the recorder cut at the mark "
                f"{CUT_MARK.strip()}: the agents may have seen more of them"
            )
        if not gaps.calls_recorded:
            self.not_shown.append(
                "the work of the agents: the record holds final texts alone and no call of a tool, so what the "
                "agents saw is unknown"
            )

    # --- the investigation ------------------------------------------------------------------------------

    def _render_stage(self, number: int, stage: Stage) -> None:
        details = f"{self._label(stage.stage_type)}, {self._label(stage.status)}"
        self._heading(f"### Stage {number}: {self._label(stage.stage_name)} ({details})")
        self._here = EntryFacts(stage=f"Stage {number}: {self._label(stage.stage_name)}")
        if stage.error_message:
            self._body(self._open("Error of the stage", failed=True), stage.error_message, Rank.REST)
        for execution, parent in _parents_first(stage.executions):
            agent = f"agent {execution.agent_index} {self._agent(execution)}"
            self._place = f"{agent} in stage {number}: {self._label(stage.stage_name)}"
            self._submits = parent is None and stage.stage_type != "exec_summary"
            self._render_execution(execution, parent)

    def _agent(self, execution: Execution) -> str:
        return self._label(execution.agent_name) or "(of the stage itself)"

    def _render_execution(self, execution: Execution, parent: Execution | None) -> None:
        name = self._agent(execution)
        under = f", sub-agent of {self._label(parent.agent_name)}" if parent else ""
        level = "#####" if parent else "####"
        title = f"Agent {execution.agent_index} {name}{under}"
        self._here = EntryFacts(self._here.stage, title, name)
        self._heading(f"{level} {title} ({self._label(execution.status)})")
        if execution.task and not any(e.event_type == "task_assigned" for e in execution.events):
            self._body(self._open("Task"), execution.task, Rank.REST)
        self._render_events(_without_repeated_answer(execution.events))
        if execution.error_message:
            self._body(self._open("Error of the agent", failed=True), execution.error_message, Rank.REST)

    def _render_events(self, events: list[Event]) -> None:
        position = 0
        while position < len(events):
            event = events[position]
            position += 1
            if event.event_type != "llm_tool_call":
                self._render_event(event)
                continue
            summaries: list[Event] = []
            while position < len(events) and events[position].event_type == "mcp_tool_summary":
                summaries.append(events[position])
                position += 1
            self._render_call(event, summaries)

    def _render_event(self, event: Event) -> None:
        known = _LABELS.get(event.event_type)
        label, rank = known or (self._label(event.event_type).replace("_", " "), Rank.REASONING)
        label += self._label_details(event)
        failed = event.event_type == "error" or event.status in _FAILED
        entry = self._open(label, failed=failed, at=event.created_at)
        if event.event_type != "provider_fallback":  # the text names providers and models
            self._render_text(entry, event, rank)

    def _label_details(self, event: Event) -> str:
        details = f" ({self._label(event.skill_name)})" if event.skill_name else ""
        if event.status != "completed" and event.event_type != "error":
            details += f" ({self._label(event.status)})"
        return details

    def _render_text(self, entry: str, event: Event, rank: Rank) -> None:
        """Render the text of an event, or refer to the entry that shows the same conclusion."""
        text = event.content.strip()
        if text and event.event_type == "final_analysis":
            self._note_answer(entry)
        if rank is Rank.KEPT and (shown := self._shown_in(text, rank)):
            self.pieces.append(f"The same as [{shown}].\n")
            return
        if text and text == self._final:
            rank = Rank.KEPT  # the session's final analysis is this answer
        self._body(entry, event.content, rank, absent="(empty)")
        self._note_conclusion(entry, event.event_type, text, rank)

    def _note_conclusion(self, entry: str, event_type: str, text: str, rank: Rank) -> None:
        """Remember a conclusion to which later entries may refer."""
        concludes = rank is Rank.KEPT or event_type == "executive_summary"
        if text and concludes and self._shown_in(text, rank) is None:
            self._conclusions[text] = (entry, rank)
            self._places[entry] = self._place

    def _render_call(self, event: Event, summaries: list[Event]) -> None:
        """Render a call, summaries and the raw result as one entry. Failed summaries are left out."""
        tool = event.tool
        name = self._label(tool.name) if tool else "(unnamed)"
        failed = tool is not None and bool(tool.is_error or tool.exit_code)
        is_failure = failed or event.status in _FAILED
        entry = self._open(f"Tool call {name}", tool=name, failed=is_failure, at=event.created_at)
        if tool is not None:
            self.pieces.append("Arguments: ")
            self._body(entry, tool.arguments, Rank.KEPT, absent="(none)", inline=True)
        useful = [s.content for s in summaries if s.status == "completed" and s.content.strip()]
        for summary in useful:
            self.pieces.append("Summary that the agent was given:\n")
            self._body(entry, summary, Rank.RESULT)
        self.pieces.append(f"{self._result_label(event, failed=failed)}\n")
        rank = Rank.SUMMARISED_RESULT if useful else Rank.RESULT
        self._body(entry, event.content, rank, absent="(empty)")
        if self._gaps.cut and event in self._gaps.cut:
            self.pieces.append(CUT_MARK)
        if tool is not None and not failed and SUBMITS.fullmatch(tool.tool_name):
            self._note_answer(entry)

    def _note_answer(self, entry: str) -> None:
        """
        Remember the entry and the place as the last answer so far. Sub-agents answer to their parents.
        """
        if self._submits:
            self._last_submission = entry
            self._places[entry] = self._place

    def _result_label(self, event: Event, *, failed: bool) -> str:
        label = "Error, the call failed" if failed else "Result"
        if event.tool is not None and event.tool.exit_code is not None:
            label += f", exit code {event.tool.exit_code}"
        if event.status != "completed" and not (failed and event.status == "failed"):
            label += f", the step is {self._label(event.status)}"
        return label + ":"


def _not_recorded(tools: list[AvailableTool]) -> str:
    """What the record does not say about the tools in a list."""
    described = any(tool.description for tool in tools)
    unknown = [] if tools[0].agent_name else ["which agent had which tool"]
    if not described:
        unknown.append("descriptions")
    if not any(tool.parameters for tool in tools):
        unknown.append("parameters beyond the descriptions" if described else "parameters")
    return "; ".join(unknown)


def _parents_first(executions: tuple[Execution, ...]) -> Iterable[tuple[Execution, Execution | None]]:
    """Yield each execution once with the parent, parents first; an unknown parent counts as none."""
    by_id = {e.execution_id: e for e in executions}
    children: dict[str, list[Execution]] = defaultdict(list)
    waiting = []
    for execution in executions:
        if execution.parent_execution_id in by_id:
            children[execution.parent_execution_id or ""].append(execution)
        else:
            waiting.append(execution)
    seen: set[str] = set()
    # Executions whose parents form a cycle have no root: they come last, in their given order.
    stack = [*reversed(executions), *reversed(waiting)]
    while stack:
        execution = stack.pop()
        if execution.execution_id in seen:
            continue
        seen.add(execution.execution_id)
        yield execution, by_id.get(execution.parent_execution_id or "")
        stack += reversed(children[execution.execution_id])


def _without_repeated_answer(events: tuple[Event, ...]) -> list[Event]:
    """The events without a last answer that a final analysis of the same execution repeats."""
    analyses = {e.content.strip() for e in events if e.event_type == "final_analysis"}
    last_answer = max((i for i, e in enumerate(events) if e.event_type == "llm_response"), default=-1)
    repeated = last_answer >= 0 and events[last_answer].content.strip() in analyses
    return [e for i, e in enumerate(events) if not (repeated and i == last_answer)]
