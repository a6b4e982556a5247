"""Says in a sentence why a session has no score, for rows, pages and the API."""

from collections.abc import Mapping
from typing import Any

from tarsy_scoring.config.packaged import packaged_yaml

_TEXTS: Mapping[str, Mapping[str, str]] = packaged_yaml(__package__, "why_no_score.yaml")
DISPOSITIONS = _TEXTS["dispositions"]
WAITING_FOR = _TEXTS["waiting_for"]
ERROR_KINDS = _TEXTS["error_kinds"]
NO_REQUEST = "no stored request asks for its score"


def why_no_score(newest: Mapping[str, Any] | None, disposition: str | None) -> str | None:
    """
    Why a session has no score; None where the newest one is completed, runs, or waits only for its turn.

    Args:
        newest: `status` of the newest score, and what there is of `waiting_for`, `error_kind` and
            `error_message`; None: the session has no score.
        disposition: Of the newest request; None: no request is stored.
    """
    kind = newest and newest.get("error_kind")
    if newest is None:
        why = DISPOSITIONS.get(disposition or "", NO_REQUEST)
    elif newest["status"] == "pending":
        why = in_words(WAITING_FOR, newest.get("waiting_for") or "")
    elif kind == "cancelled":  # the message says who did it, or why the chain declined it
        why = newest["error_message"] or ERROR_KINDS[kind]
    else:
        why = in_words(ERROR_KINDS, kind or "")
    return f"{why[0].upper()}{why[1:].rstrip('.')}." if why else None


def in_words(words: Mapping[str, str], word: str) -> str:
    """Text for an identifier; without one, the identifier as words."""
    return words.get(word) or word.replace("_", " ")
