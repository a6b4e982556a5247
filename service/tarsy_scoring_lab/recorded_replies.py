"""
Recorded judgements of the example sessions, which the demo replays.

A large language model answered the prompts of the criteria `investigation`.
`examples/judgements` has its replies.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from tarsy_scoring.timeline.clean.injection import INSTRUCTION_REMOVED
from tarsy_scoring.timeline.files import parse_session
from tarsy_scoring.timeline.render.context import REFERENCE_NOTICE, build_context
from tarsy_scoring.timeline.render.fence import new_nonce
from tarsy_scoring_lab.scripted_replies import Messages, Task, read_transcript

MODEL = "recorded-judgements"
_ROOM_TOKENS = 1_000_000  # no example is shortened
_BANDS = {"correct": (60, 100), "partial": (35, 59), "wrong": (0, 34)}


def example_sessions() -> list[dict[str, Any]]:
    """The shipped example sessions, by id."""
    return _read("examples")


class RecordedReplies:
    """The recorded replies, found by the alert of the session in the prompt."""

    def __init__(self) -> None:
        by_session = {each["session_id"]: each["replies"] for each in _read("examples", "judgements")}
        self._by_alert: dict[str, Mapping[str, str]] = {}
        for session in example_sessions():
            # An alert may hold an injection, which the masked turn does not show.
            for is_masked in (False, True):
                context = build_context(
                    parse_session(session), new_nonce(), _ROOM_TOKENS, mask_injections=is_masked
                )
                self._by_alert[read_transcript(context.alert).alert] = by_session[session["session_id"]]

    def reply_to(self, task: Task, messages: Messages) -> str | None:
        """
        The recorded reply; None for other sessions, criteria with other bands, answers in JSON, reminders,
        and judgements against a reference.
        """
        if any(REFERENCE_NOTICE in content for _, content in messages):
            return None
        replies = self._by_alert.get(task.transcript.alert, {})
        if task.schema is not None or task.bands != _BANDS:
            return None
        is_masked = task.turn == "analysis" and any(INSTRUCTION_REMOVED in content for _, content in messages)
        return replies.get("masked" if is_masked else task.turn)


def _read(*folder: str) -> list[dict[str, Any]]:
    place = files(__package__).joinpath(*folder)
    texts = sorted(
        (f.name, f.read_text(encoding="utf-8")) for f in place.iterdir() if f.name.endswith(".json")
    )
    return [json.loads(text) for _, text in texts]
