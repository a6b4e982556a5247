"""
Finds what a session file probably misspells, for the author of the file.

A file may hold keys that no source reads, such as further columns of TARSy's records. So an unknown key is
reported only if it resembles a known one that its object lacks, an unknown type always.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
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


def misspellings(session: Mapping[str, Any]) -> list[str]:
    """
    Remarks on the JSON of a session, in the order of the file; at most `MOST_REMARKS`.

    Each names a key or a type (untrusted text), the nearest known name, and the first place. Passes over parts
    of a wrong shape, which are missing evidence.
    """
    places: dict[str, str] = {}
    for kind, where, raw in _objects(session):
        for remark in _remarks(kind, raw):
            places.setdefault(remark, where)
            if len(places) == MOST_REMARKS:
                return [f"{where}: {remark}" for remark, where in places.items()]
    return [f"{where}: {remark}" for remark, where in places.items()]


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


def _remarks(kind: str, raw: Mapping[str, Any]) -> Iterator[str]:
    for key in raw:
        if key not in KEYS[kind] and (near := _nearest(kind, key[:_LONGEST_NAME])) and near not in raw:
            yield f"the key {key[:_LONGEST_NAME]!r} is ignored; did you mean {near!r}?"
    for name, types in (("stage_type", STAGE_TYPES), ("event_type", EVENT_TYPES)):
        found = raw.get(name)
        if name in KEYS[kind] and isinstance(found, str) and found not in types:
            yield f"the {name} {found[:_LONGEST_NAME]!r} is unknown{suggest(found[:_LONGEST_NAME], types)}"


@lru_cache(1_000)
def _nearest(kind: str, key: str) -> str | None:
    """The known key of an object that an unknown key resembles, also `finalAnalysis` or `Final-Analysis`."""
    known = {_plain(name): name for name in KEYS[kind]}
    close = get_close_matches(_plain(key), known, n=1, cutoff=_LEAST_LIKENESS)
    return known[close[0]] if close else None


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")
