"""
Thirty clean sessions made after the shape of public traces: no text in them addresses a judge.

`clean_traces.json` has made-up tool calls by program. A secret stands in ⟦ ⟧, and ⟪picture⟫ stands for 100 KB of base64.
"""

import base64
import json
import random
from dataclasses import dataclass
from pathlib import Path

from tarsy_scoring.timeline.model import Timeline
from unit.timeline.sessions import call, event, execution, stage, timeline

_PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n\0" + random.Random(35).randbytes(102_391)).decode()
_PROGRAMS: dict[str, list[list[str]]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


@dataclass(frozen=True)
class Trace:
    """A session, and how many secrets it holds."""

    session: Timeline
    secrets: int


def _trace(program: str, number: int) -> Trace:
    calls = _PROGRAMS[program][number::3]
    texts = [text.replace("⟪picture⟫", f"data:image/png;base64,{_PICTURE}") for *_, text in calls]
    events = [
        call(text.replace("⟦", "").replace("⟧", ""), number=2 + n, name=name, arguments=arguments)
        for n, ((name, arguments, _), text) in enumerate(zip(calls, texts, strict=True))
    ]
    thought = event("llm_thinking", "Let me update the task list and mark the first task as completed.")
    agent = execution(thought, *events, event("final_analysis", "The limit of 128Mi is too low (E3).", number=9))
    fields = {"session_id": f"{program}-{number}", "final_analysis": "The limit of 128Mi is too low (E3)."}
    return Trace(timeline(stage(agent), **fields), sum(text.count("⟦") for text in texts))


TRACES = {trace.session.session_id: trace for trace in (_trace(program, n) for program in _PROGRAMS for n in range(3))}
