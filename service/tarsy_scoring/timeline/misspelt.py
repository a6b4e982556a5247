"""
Finds what a session file probably misspells, for the author of the file.

A file may hold keys that no source reads, such as further columns of TARSy's records, so an unknown key is
reported
only if it resembles a known one that its object lacks. Types are few, so every unknown type is reported.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tarsy_scoring.config.explain import suggest
from tarsy_scoring.timeline.model import SHOWN_STAGE_TYPES
from tarsy_scoring.timeline.render.rendering import EVENT_TYPES

# The keys of each object of a session file, which docs/session-files.md explains.
KEYS: dict[str, tuple[str, ...]] = {
    "session": (
        *("session_id", "status", "alert_data", "stages", "alert_type", "chain_id", "final_analysis"),
        *("executive_summary", "created_at", "started_at", "completed_at", "timestamps_synthetic", "labels"),
        *("available_tools", "runbook", "runbook_url", "error_message", "deleted_at"),
    ),
    "tool": ("server_name", "tool_name", "description", "agent_name", "parameters"),
    "stage": (
        *("stage_type", "stage_id", "stage_name", "stage_index", "status", "expected_agent_count"),
        *("referenced_stage_id", "error_message", "executions"),
    ),
    "execution": (
        *("agent_name", "status", "execution_id", "parent_execution_id", "agent_index", "task", "model_name"),
        *("llm_provider", "original_model_name", "original_llm_provider", "input_tokens", "output_tokens"),
        *("error_message", "events"),
    ),
    "event": ("event_type", "content", "event_id", "sequence_number", "status", "created_at", "metadata"),
    "tool call": ("server_name", "tool_name", "arguments", "is_error", "exit_code", "duration_ms"),
}
STAGE_TYPES = SHOWN_STAGE_TYPES | {"chat", "scoring", "compose"}
MOST_REMARKS = 20
_LEAST_LIKENESS = 0.8  # `user_message`, a key of other recorders, is 0.78 like `error_message`
_LONGEST_NAME = 40
_MOST_NAMES = 1000  # unknown keys that are compared with known ones: a comparison takes 0.1 ms

_Nearest = Callable[[str, str], str | None]


def misspellings(session: Mapping[str, Any]) -> list[str]:
    """
    Remarks on the JSON of a session, in the order of the file; at most `MOST_REMARKS`, and one that counts
    the rest.

    Each names a key or a type (untrusted text), the nearest known names, and the first place. Passes over
    parts of a wrong shape, which are missing evidence.
    """
    nearest = _comparison()
    places: dict[str, list[str]] = defaultdict(list)
    for kind, where, raw in _objects(session):
        for remark in _remarks(kind, raw, nearest):
            places[remark].append(where)
    remarks = [f"{_shortened(found)}: {remark}" for remark, found in places.items()]
    rest = len(remarks) - MOST_REMARKS
    return remarks[:MOST_REMARKS] + ([f"{rest:,} more remarks of this kind"] if rest > 0 else [])


def _shortened(places: list[str]) -> str:
    return places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1:,} more"


def _objects(session: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Each object of the file: what it is, its place, and its keys."""
    yield "session", "the session", session
    for where, tool in _listed(session, "available_tools", ""):
        yield "tool", where, tool
    for stage_place, stage in _listed(session, "stages", ""):
        yield "stage", stage_place, stage
        for execution_place, execution in _listed(stage, "executions", f"{stage_place}."):
            yield "execution", execution_place, execution
            for event_place, event in _listed(execution, "events", f"{execution_place}."):
                yield "event", event_place, event
                metadata = event.get("metadata")
                if event.get("event_type") == "llm_tool_call" and isinstance(metadata, dict):
                    yield "tool call", f"{event_place}.metadata", metadata


def _listed(raw: Mapping[str, Any], key: str, within: str) -> Iterator[tuple[str, dict[str, Any]]]:
    items = raw.get(key)
    for position, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            yield f"{within}{key}[{position}]", item


def _remarks(kind: str, raw: Mapping[str, Any], nearest: _Nearest) -> Iterator[str]:
    for key in raw:
        if key not in KEYS[kind] and (near := nearest(kind, key)) is not None and near not in raw:
            yield f"the key {_quoted(key)} is ignored; did you mean {near!r}?"
    stage_type, event_type = raw.get("stage_type"), raw.get("event_type")
    if kind == "stage" and isinstance(stage_type, str) and stage_type not in STAGE_TYPES:
        found = f"the stage_type {_quoted(stage_type)} is unknown, so the judge does not see the stage"
        yield found + suggest(stage_type, STAGE_TYPES)
    if kind == "event" and isinstance(event_type, str) and event_type not in EVENT_TYPES:
        found = (
            f"the event_type {_quoted(event_type)} is unknown, so the judge reads the event under this name"
        )
        yield found + suggest(event_type, EVENT_TYPES)


def _quoted(name: str) -> str:
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")


def _comparison() -> _Nearest:
    """
    Finds the known key of an object that an unknown key resembles; None: there is none, or the file has too
    many.
    """
    known = {kind: {_plain(key): key for key in keys} for kind, keys in KEYS.items()}
    found: dict[tuple[str, str], str | None] = {}

    def nearest(kind: str, key: str) -> str | None:
        if (kind, key) not in found:
            close: list[str] = []
            if len(found) < _MOST_NAMES and len(key) <= _LONGEST_NAME:
                from difflib import get_close_matches  # few files have an unknown key

                close = get_close_matches(_plain(key), known[kind], n=1, cutoff=_LEAST_LIKENESS)
            found[kind, key] = known[kind][close[0]] if close else None
        return found[kind, key]

    return nearest


def _plain(key: str) -> str:
    """The key without the differences between `final_analysis`, `finalAnalysis` and `Final-Analysis`."""
    return key.lower().replace("_", "").replace("-", "")
