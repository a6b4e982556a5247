"""
Reads sessions whose outcome is known from a CSV file.

The words of outcomes are those of `calibration`.
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.labels.calibration import OUTCOME_WORDS, read_outcome

Outcome = Literal["right", "partial", "wrong", "unknown"]

_OUTCOMES: Mapping[str, Outcome] = {"highest": "right", "middle": "partial", "lowest": "wrong"}
_COLUMNS = ("session_id", "outcome", "source", "incident", "score", "basis")
_REQUIRED = _COLUMNS[:2]


@dataclass(frozen=True, slots=True)
class KnownOutcome:
    """
    A session with the known outcome of its investigation.

    Args:
        source: Where the session was recorded; empty where the file does not say.
        incident: Sessions of one source and incident are not independent; without the column, the session id.
        score: A person's or a benchmark's number on any scale, higher is better.
        basis: How the outcome is known.
    """

    session_id: str
    outcome: Outcome
    source: str
    incident: str
    score: float | None
    basis: str


def read_known_outcomes(path: Path) -> list[KnownOutcome]:
    """
    Read the outcomes of sessions, one per line, from a CSV file with a header, in UTF-8.

    Every line has a `session_id` and an `outcome` (`correct`, `partial`, `wrong` and their synonyms; empty or
    `unknown`: not known). `source`, `incident`, `score` and `basis` are optional; other columns are ignored.

    Raises:
        ConfigurationError: The file cannot be read or a line is invalid; with line and reason.
    """
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")), strict=True)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8; export it as CSV in UTF-8"
        raise ConfigurationError(f"cannot read {path}: {why}") from error
    found: dict[str, KnownOutcome] = {}
    try:
        reader.fieldnames = [name.strip().casefold() for name in reader.fieldnames or ()]
        if missing := [name for name in _REQUIRED if name not in reader.fieldnames]:
            has, known = ", ".join(reader.fieldnames) or "nothing", ", ".join(_COLUMNS)
            raise ConfigurationError(
                f"{path} has no column {missing[0]!r} (its first line has: {has}); the columns are {known}"
            )
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"it does not have the {len(reader.fieldnames)} fields of the header")
            one = _known_outcome({name: row.get(name, "").strip() for name in _COLUMNS})
            if one.session_id in found:
                raise ValueError(
                    f"the session {one.session_id} has an outcome already; keep one line of a session"
                )
            found[one.session_id] = one
    except (ValueError, csv.Error) as error:
        raise ConfigurationError(f"{path}, line {reader.line_num}: {error}") from None
    return list(found.values())


def _known_outcome(cells: Mapping[str, str]) -> KnownOutcome:
    session_id = cells["session_id"]
    if SESSION_ID_PATTERN.fullmatch(session_id) is None:
        raise ValueError(f"{session_id[:80]!r} is not a session id")
    word = read_outcome(cells["outcome"], ())
    return KnownOutcome(
        session_id,
        outcome="unknown" if word is None else _OUTCOMES[OUTCOME_WORDS[word]],
        source=cells["source"],
        incident=cells["incident"] or session_id,
        score=_score(cells["score"]),
        basis=cells["basis"],
    )


def _score(text: str) -> float | None:
    if not text:
        return None
    try:
        score = float(text)
    except ValueError:
        raise ValueError(f"the score {text[:80]!r} is not a number") from None
    if not math.isfinite(score):
        raise ValueError(f"the score {text[:80]!r} is not a finite number")
    return score
