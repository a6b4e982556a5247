"""
The score document: the one JSON shape of a score, for the API, pages, exports and scores made offline.
"""

import re
import textwrap
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tarsy_scoring.events import Usage
from tarsy_scoring.scores.shapes import SHOWN_COLUMNS, PromptHashes, no_results

CurrentHash = Callable[[str | None, str | None], str | None]
"""The hash that criteria of this name have now for a chain; None if the name is unknown."""

_OUTCOMES = {True: "pass", False: "fail", None: None}
NO_USAGE = dict.fromkeys(Usage.model_fields)

SUMMARY_CHARACTERS = 300
_OUTCOME_SECTION = re.compile(r"^#{1,6} [^\n]*\boutcome\b", re.IGNORECASE | re.MULTILINE)
_LIST_MARK = re.compile(r"^(?:[-*>]|\d{1,2}[.)])\s+")
# A question goes on with its answer.
_SENTENCE = re.compile(r"""[^\n]+?[.!]["'`”)\]]*(?=\s+["'`“(\[]*[A-Z])""")

LISTS = ("missing_tools", "alternative_approaches", "turns")


def document(row: Mapping[str, Any], current_hash: CurrentHash) -> dict[str, Any]:
    """
    Build the document of a score, with plain JSON values except for ids and times.

    Args:
        row: A row of `session_scores`, with the `LISTS` that are not empty, and all `prompt_hashes` of its
            criteria where these are known.
    """
    shown: dict[str, Any] = {name: row[name] for name in SHOWN_COLUMNS}
    shown["usage"] = row["usage"] or NO_USAGE
    shown["summary"] = summary_of(row["score_analysis"])
    shown["scored_at"] = row["completed_at"]
    hashes = row.get("prompt_hashes")
    shown["prompt_hashes"] = hashes and {name: hashes.get(name) for name in PromptHashes.model_fields}
    shown["is_current_criteria"] = is_current(row, current_hash)
    shown["spread"] = _spread([sample["total_score"] for sample in row["samples"]])
    passed, total = _counts(row["gates"], is_checked=row["status"] == "completed")
    shown["gates_passed"], shown["gates_total"] = passed, total
    shown["layers"] = {
        "interaction": None,
        "gates": _OUTCOMES[passed == total if total else None],
        "judge": _OUTCOMES[row["judge_passed"]],
    }
    shown |= {name: row.get(name) or [] for name in LISTS}
    if row["status"] == "in_progress":
        shown["current_stage"] = row["current_stage"]
    return shown


def summary_of(analysis: str | None) -> str | None:
    """
    The first sentence of the judge's section about the outcome, else of the analysis; None: there is none.

    At most `SUMMARY_CHARACTERS`, without marks of lists and bold text.
    """
    text = analysis or ""
    if section := _OUTCOME_SECTION.search(text):
        text = text[section.end() :].partition("\n")[2]
    lines = (line.strip() for line in text.splitlines())
    line = next((one for one in lines if one and not one.startswith("#") and not one.endswith(":")), "")
    line = _LIST_MARK.sub("", line.replace("**", ""))
    sentence = found[0] if (found := _SENTENCE.match(line)) else line
    return textwrap.shorten(sentence, SUMMARY_CHARACTERS, placeholder=" …") or None


def is_current(row: Mapping[str, Any], current_hash: CurrentHash) -> bool:
    """Whether the criteria of that name still have the hash of this score."""
    return row["criteria_hash"] is not None and row["criteria_hash"] == current_hash(
        row["criteria"], row["chain_id"]
    )


def unstored_row(
    session_id: str, chain_id: str | None, criteria: str, criteria_hash: str | None, started_at: datetime
) -> dict[str, Any]:
    """A row of `session_scores` for a score that ends now and is not stored. It has no results yet."""
    return {
        **dict.fromkeys(SHOWN_COLUMNS),
        **no_results(),
        "score_id": uuid.uuid4(),
        "session_id": session_id,
        "chain_id": chain_id,
        "purpose": "production",
        "attempt": 1,
        "score_triggered_by": "cli",
        "created_at": started_at,
        "started_at": started_at,
        "completed_at": datetime.now(UTC),
        "criteria": criteria,
        "criteria_hash": criteria_hash,
    }


def _spread(totals: Sequence[int]) -> int | None:
    return max(totals) - min(totals) if totals else None


def _counts(gates: Sequence[Mapping[str, Any]], *, is_checked: bool) -> tuple[int | None, int | None]:
    """Gates that passed, and all; None where no attempt got so far."""
    if not (gates or is_checked):
        return None, None
    return sum(gate["passed"] for gate in gates), len(gates)
