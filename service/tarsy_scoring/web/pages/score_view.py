"""
A score as its page shows it. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tarsy_scoring.web.pages.markdown import cited_entries
from tarsy_scoring.web.pages.session import ShownSession, Unreadable
from tarsy_scoring.web.pages.stored import Number, Stored, number, text

MAX_REPLY_CHARACTERS = 50_000

_COUNTS = ("total_commands", "unique_commands", "error_count", "retry_count", "help_invocations")
_RATES = ("error_rate", "retry_rate", "first_try_success_rate")
_USAGE = ("input_tokens", "cached_input_tokens", "output_tokens", "cost_usd")


# --- the document --------------------------------------------------------------------------------------


def sound(document: Mapping[str, Any]) -> dict[str, Any]:
    """
    A score document in the shape that the template relies on, whatever its columns of `jsonb` hold.

    Beside its own keys it has `is_cut`: lists were too long to be shown whole.
    """
    stored = Stored()
    shapes: dict[str, Callable[[Any], Any]] = {
        "score_breakdown": stored.numbers,
        "rubric": lambda value: _rubric(stored, value),
        "samples": lambda value: _samples(stored, value),
        "failure_tags": stored.texts,
        "flags": stored.texts,
        "grounding": lambda value: _numbers(value, "checked", "held"),
        "interaction": lambda value: _interaction(stored, value),
        "diagnosis": lambda value: _texts_of(stored, value, "pattern", "likely_cause", "evidence"),
        "gates": lambda value: _gates(stored, value),
        "coverage": lambda value: _coverage(stored, value),
        "evidence": lambda value: {"missing": stored.texts(_get(value, "missing"))},
        "usage": lambda value: _numbers(value, *_USAGE),
        "missing_tools": lambda value: _texts_of(stored, value, "tool_name", "rationale"),
        "alternative_approaches": lambda value: _approaches(stored, value),
    }
    shown = {**document, **{key: shape(document.get(key)) for key, shape in shapes.items()}}
    return shown | {"is_cut": stored.is_cut}


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _numbers(value: Any, *names: str) -> dict[str, Number | None]:
    return {name: number(_get(value, name)) for name in names}


def _texts_of(stored: Stored, value: Any, *names: str) -> list[dict[str, str]]:
    return [{name: text(piece.get(name)) for name in names} for piece in stored.objects(value)]


def _rubric(stored: Stored, value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    confidence = value.get("confidence")
    return {
        "scores": stored.numbers(value.get("scores")),
        "weighted_score": number(value.get("weighted_score")),
        "confidence": f"{stated:g}" if (stated := number(confidence)) is not None else text(confidence),
        "issues": stored.texts(value.get("issues")),
        "highlights": stored.texts(value.get("highlights")),
    }


def _samples(stored: Stored, value: Any) -> list[str]:
    """Totals as texts; an unscored sample is told as one."""
    totals = [number(sample.get("total_score")) for sample in stored.objects(value)]
    return ["–" if total is None else f"{total:g}" for total in totals]


def _gates(stored: Stored, value: Any) -> list[dict[str, Any]]:
    gates = stored.objects(value)
    told = _texts_of(stored, gates, "name", "gate_type", "message")
    return [words | {"passed": gate.get("passed") is True} for words, gate in zip(told, gates, strict=True)]


def _coverage(stored: Stored, value: Any) -> dict[str, Any]:
    return {"shown_share": number(_get(value, "shown_share")), "cut_entries": stored.texts(_get(value, "cut_entries"))}


def _approaches(stored: Stored, value: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": text(approach.get("name")),
            "description": text(approach.get("description")),
            "steps": stored.texts(approach.get("steps")),
        }
        for approach in stored.objects(value)
    ]


def _interaction(stored: Stored, value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping) or not value:
        return None
    run, tokens = value.get("longest_identical_run"), value.get("agent_tokens")
    length = number(_get(run, "length"))
    return {
        "rows": _interaction_rows(stored, value),
        "repeated_after_failure": number(value.get("repeated_after_failure")),
        "longest_run": {"tool": text(_get(run, "tool")), "length": length} if length else None,
        "duration_s": number(value.get("duration_s")),
        "agent_tokens": _numbers(tokens, "input", "output") if isinstance(tokens, Mapping) else None,
    }


def _interaction_rows(stored: Stored, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All calls, those of each tool, and those of each subcommand."""
    by_tool, by_subcommand = stored.named(value.get("by_tool")), stored.named(value.get("by_subcommand"))
    found = [("All", value), *by_tool.items(), *((f"› {name}", one) for name, one in by_subcommand.items())]
    return [{"name": name} | _numbers(one, *_COUNTS, *_RATES) for name, one in found]


# --- the page ------------------------------------------------------------------------------------------


def cited(document: Mapping[str, Any]) -> list[str]:
    """Every entry that the texts of a sound document refer to."""
    rubric = document["rubric"] or {}
    return cited_entries(
        document["score_analysis"],
        document["missing_tools_analysis"],
        *(tool["rationale"] for tool in document["missing_tools"]),
        *(approach["description"] for approach in document["alternative_approaches"]),
        *rubric.get("issues", ()),
        *rubric.get("highlights", ()),
    )


def about_session(row: Mapping[str, Any] | None, session: ShownSession | Unreadable) -> dict[str, Any]:
    """What is known of the session by name: from a row of its scores, else from the source."""
    row = row or {}
    return {
        "alert_type": row.get("alert_type") or getattr(session, "alert_type", None),
        "chain_id": row.get("chain_id") or getattr(session, "chain_id", None),
        "labels": Stored().labels(row.get("labels")),
        "status": getattr(session, "status", None),
    }


def with_changes(history: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str | None]]:
    """Each score with the hash of the one before it, where the same criteria had another one."""
    shown: list[tuple[Mapping[str, Any], str | None]] = []
    for place, score in enumerate(history):
        older = (d for d in history[place + 1 :] if d["criteria_hash"] and d["criteria"] == score["criteria"])
        before = next(older, None)
        changed = before is not None and score["criteria_hash"] and before["criteria_hash"] != score["criteria_hash"]
        shown.append((score, before["criteria_hash"] if before is not None and changed else None))
    return shown


def judged_by(content: Any) -> dict[str, dict[str, Number]]:
    """What each category of stored criteria gives at most, and the weight of each of a rubric's items, by id."""
    stored = Stored()
    return {
        "max_points": _by_id(stored.objects(_get(content, "categories")), "max_points"),
        "weights": _by_id(stored.objects(_get(content, "rubric")), "weight"),
    }


def _by_id(pieces: Iterable[Mapping[str, Any]], name: str) -> dict[str, Number]:
    found = {text(piece.get("id")): number(piece.get(name)) for piece in pieces}
    return {key: value for key, value in found.items() if key and value is not None}


def in_order(values: Mapping[str, Number], known: Iterable[str]) -> dict[str, Number]:
    """As the criteria list them, for `jsonb` keeps no order of names; what they do not know comes last."""
    first = [name for name in known if name in values]
    return {name: values[name] for name in [*first, *(name for name in values if name not in first)]}


def shortened(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn with as much of its reply as a page shows."""
    reply = turn["reply"] or ""
    return {**turn, "reply": reply[:MAX_REPLY_CHARACTERS], "left_out": max(0, len(reply) - MAX_REPLY_CHARACTERS)}


def values(
    session_id: str,
    document: Mapping[str, Any] | None,
    session: ShownSession | Unreadable,
    *,
    row: Mapping[str, Any] | None,
    history: Sequence[Mapping[str, Any]],
    newest: Mapping[str, Any] | None,
    turns: Iterable[Mapping[str, Any]],
    criteria_content: Any,
) -> dict[str, Any]:
    """
    What the template is told about a session and one of its scores.

    Args:
        document: A sound one; None: the session has no score.
        row: Of any score of the session.
        history: Documents of its scores, newest first.
        newest: Document of its newest production score.
        criteria_content: What is stored of the criteria that judged; anything.
    """
    judged = judged_by(criteria_content)
    if document is not None:
        document = dict(document) | {"score_breakdown": in_order(document["score_breakdown"], judged["max_points"])}
        if document["rubric"]:
            scores = in_order(document["rubric"]["scores"], judged["weights"])
            document["rubric"] = document["rubric"] | {"scores": scores}
    return {
        "session_id": session_id,
        "doc": document,
        "info": about_session(row, session),
        "newest": newest,
        "history": with_changes(history),
        "turns": [shortened(turn) for turn in turns],
        "is_awaited": document is None and isinstance(session, Unreadable) and session.is_running,
        "session": session if isinstance(session, ShownSession) else {"alert": None, "reason": session.reason},
        "anchors": session.anchors if isinstance(session, ShownSession) else frozenset(),
        "cited": cited(document) if document else [],
        **judged,
    }
