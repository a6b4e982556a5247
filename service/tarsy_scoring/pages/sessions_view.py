"""
The list of sessions: what the form above it asks for, and the rows below. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args
from urllib.parse import urlencode
from uuid import uuid4

from tarsy_scoring.browsing import Filters, ListedSession, Sort
from tarsy_scoring.pages import words
from tarsy_scoring.pages.markdown import legible
from tarsy_scoring.pages.words import Badge

PAGE_SIZE = 50  # as many channels as a client may follow twice over: the open ones of a page are among them
MAX_FIELD = 255
FIELDS = ("q", "chain", "status", "min", "max", "criteria", "label", "flag", "sort")
SORTS = {"newest": "newest first", "score_asc": "worst first", "score_desc": "best first"}


@dataclass(frozen=True, slots=True)
class Asked:
    """
    What a form asks for.

    Args:
        values: As given, to fill the form again.
        faults: What cannot be meant; nothing is looked for then.
    """

    values: Mapping[str, str]
    filters: Filters
    sort: Sort
    faults: list[str] = field(default_factory=list)

    def query(self, **more: str) -> str:
        """The form as a query string, with other values beside or in place of it."""
        return urlencode({name: value for name, value in {**self.values, **more}.items() if value})

    @property
    def is_narrowed(self) -> bool:
        return any(value for name, value in self.values.items() if name != "sort")


def asked(query: Mapping[str, str]) -> Asked:
    """Read a form's fields; one that is empty or unknown asks for nothing."""
    values = {name: query.get(name, "").strip() for name in FIELDS}
    faults = [
        f"{name}: at most {MAX_FIELD} characters, all of them visible"
        for name, value in values.items()
        if len(value) > MAX_FIELD or legible(value) != value or not _is_storable(value)
    ]
    low, high = (_points(values[name], name, faults) for name in ("min", "max"))
    if low is not None and high is not None and low > high:
        faults.append("score: the lower end comes first")
    label, separator, label_value = values["label"].partition("=")
    if values["label"] and not (label.strip() and separator):
        faults.append("label: write NAME=VALUE")
    status = values["status"]
    if status and status not in words.STATUSES:
        faults.append("status: there is no such status")
    sort = values["sort"] or "newest"
    if sort not in get_args(Sort):
        faults.append("sort: there is no such order")
        sort = "newest"
    filters = Filters(
        chain=values["chain"] or None,
        status=status or None,
        min_score=low,
        max_score=high,
        criteria=values["criteria"] or None,
        labels={label.strip(): label_value.strip()} if label.strip() and separator else {},
        flag=values["flag"] or None,
        prefix=values["q"] or None,
    )
    return Asked(values, filters, cast(Sort, sort), faults)


def _points(text: str, name: str, faults: list[str]) -> int | None:
    if not text:
        return None
    if not (len(text) <= 3 and text.isascii() and text.isdecimal() and int(text) <= 100):
        faults.append(f"{name}: a whole number of points, 0 to 100")
        return None
    return int(text)


def _is_storable(text: str) -> bool:
    try:
        return bool(text.encode()) or not text
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True)
class Row:
    """
    A session in the list.

    Args:
        badge: Of its newest score.
        before: Of the latest completed one, where that is another.
        key: Of the form that asks for a score.
    """

    session: ListedSession
    badge: Badge
    before: Badge | None
    is_open: bool
    key: str

    @property
    def asks(self) -> str:
        """What the button says."""
        return "Score" if self.session.status == "not_scored" else "Re-score"

    @property
    def tags(self) -> list[tuple[str, str, str]]:
        """CSS class, word and explanation of what stands beside the score."""
        score: Any = self.session.score
        if score is None:
            return []
        found = []
        if score.outcome == "fail":
            found.append(("weak", "did not pass", ""))
        elif score.outcome == "pass":
            found.append(("good", "passed", ""))
        found += [("", tag.replace("_", " "), "") for tag in score.failure_tags]
        found += [("fair", flag.replace("_", " "), words.FLAGS.get(flag, "")) for flag in score.flags]
        if not score.is_current_criteria:
            found.append(("", "criteria not current", ""))
        return found


def row(session: ListedSession) -> Row:
    """A session as a row."""
    latest, score = session.latest_attempt, session.score
    completed = words.badge("completed", score.total_score) if score else None
    if latest is None:
        newest = completed or words.badge(None)
    else:
        newest = words.badge(latest.status, None, latest.current_stage, latest.waiting_for)
    return Row(session, newest, completed if latest else None, session.status in words.OPEN, str(uuid4()))
