"""
The list of sessions: what the form above it asks for, and the rows below. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any, cast, get_args
from urllib.parse import urlencode
from uuid import uuid4

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.records.session_list import Filters, ListedSession, Sort
from tarsy_scoring.web.pages import words
from tarsy_scoring.web.pages.days import read_day
from tarsy_scoring.web.pages.markdown import legible
from tarsy_scoring.web.pages.stored import Stored
from tarsy_scoring.web.pages.words import Badge

PAGE_SIZE = 50  # as many channels as a client may follow twice over: the open ones of a page are among them
MAX_FIELD = 255
RARER = ("criteria", "outcome", "since", "until", "label", "flag")  # what stands folded up while it asks for nothing
FIELDS = ("q", "chain", "status", "min", "max", *RARER, "sort")
OUTCOMES = {"pass": "passed", "fail": "did not pass"}
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

    @property
    def shows_rarer(self) -> bool:
        """Whether something is asked of what is folded up otherwise."""
        return any(self.values[name] for name in RARER)

    @property
    def session(self) -> str | None:
        """The id that may have been meant where nothing is found: the source may know it."""
        sought = self.values["q"]
        return sought if not self.faults and SESSION_ID_PATTERN.fullmatch(sought) else None


def asked(query: Mapping[str, str]) -> Asked:
    """
    Read a form's fields; one that is empty or unknown asks for nothing.

    Days are of UTC, and both belong to what is looked for.
    """
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
    if values["outcome"] and values["outcome"] not in OUTCOMES:
        faults.append("outcome: there is no such outcome")
    since, until = (read_day(values[name], name, faults) for name in ("since", "until"))
    if since is not None and until is not None and since > until:
        faults.append("ended from: the earlier day comes first")
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
        outcome=values["outcome"] or None,
        since=datetime.combine(since, time(), UTC) if since else None,
        until=datetime.combine(until + timedelta(days=1), time(), UTC) if until else None,
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
    def tags(self) -> list[tuple[str, str]]:
        """CSS class and word of what stands beside the score; flags apart."""
        score: Any = self.session.score
        if score is None:
            return []
        found = [("weak" if score.outcome == "fail" else "good", OUTCOMES[score.outcome])] if score.outcome else []
        found += [("", tag.replace("_", " ")) for tag in Stored().texts(score.failure_tags)]
        if not score.is_current_criteria:
            found.append(("", "criteria not current"))
        return found

    @property
    def flags(self) -> list[str]:
        """Of the score."""
        return Stored().texts(self.session.score.flags) if self.session.score else []

    @property
    def labels(self) -> dict[str, str]:
        """Of the session, as texts."""
        return Stored().labels(self.session.labels)


def row(session: ListedSession) -> Row:
    """A session as a row."""
    latest, score = session.latest_attempt, session.score
    completed = words.badge("completed", score.total_score) if score else None
    if latest is None:
        newest = completed or words.badge(None)
    else:
        newest = words.badge(latest.status, None, latest.current_stage, latest.waiting_for)
    return Row(session, newest, completed if latest else None, session.status in words.OPEN, str(uuid4()))


def explained(rows: Iterable[Row]) -> dict[str, str]:
    """The flags that rows show, with what they mean, each once; in the order in which `words` has them."""
    shown = {flag for row in rows for flag in row.flags}
    return {flag: meaning for flag, meaning in words.FLAGS.items() if flag in shown}
