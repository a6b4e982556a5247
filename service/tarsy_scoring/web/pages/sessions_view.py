"""The list of sessions: its form, and its rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode
from uuid import uuid4

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.records.session_list import Filters, ListedSession, Sort
from tarsy_scoring.web.pages import words
from tarsy_scoring.web.pages.words import Badge
from tarsy_scoring.web.queries import SessionsQuery, read_form

PAGE_SIZE = 50  # half of the channels that a client may follow, and a page follows each open score on it
FOLDED = ("criteria", "outcome", "since", "until", "label", "flag")  # behind "More filters" unless one is set
OUTCOMES = {"pass": "passed", "fail": "did not pass"}
SORTS = {"newest": "newest first", "score_asc": "worst first", "score_desc": "best first"}
# Name of each field of the form, and of its parameter in the API.
FIELDS = {name: name for name in ("q", "chain", "status", *FOLDED, "sort", "cursor")} | {
    "min": "min_score",
    "max": "max_score",
}


@dataclass(frozen=True, slots=True)
class ListForm:
    """
    The form as read from the address of the list.

    Args:
        values: Text of each field as given, to fill the form again.
        cursor: Place in the list; None: its first page.
        faults: Errors for the user. The list stays empty then.
    """

    values: Mapping[str, str]
    filters: Filters
    sort: Sort
    cursor: str | None = None
    faults: list[str] = field(default_factory=list)

    def query(self, **more: str) -> str:
        """The form as a query string, with `more` values added or replaced."""
        return urlencode({name: value for name, value in {**self.values, **more}.items() if value})

    @property
    def is_narrowed(self) -> bool:
        return any(value for name, value in self.values.items() if name != "sort")

    @property
    def shows_folded(self) -> bool:
        """Whether a filter behind "More filters" is set."""
        return any(self.values[name] for name in FOLDED)

    @property
    def session(self) -> str | None:
        """Search text that may be a session id. The source may know a session that the list does not."""
        sought = self.values["q"]
        return sought if not self.faults and SESSION_ID_PATTERN.fullmatch(sought) else None


def read_list_form(query_string: bytes) -> ListForm:
    """Read the address of the list. Empty fields are ignored; both days (UTC) are included."""
    form = read_form(query_string, SessionsQuery, FIELDS)
    query = form.query or SessionsQuery()
    values = {name: value for name, value in form.values.items() if name != "cursor"}
    return ListForm(values, query.filters(query.status), query.sort, query.cursor, form.faults)


@dataclass(frozen=True, slots=True)
class Row:
    """
    A session in the list.

    Args:
        badge: Of the session's newest score.
        before: Of its latest completed score, if that is not the newest.
        key: Idempotency key of the row's form.
    """

    session: ListedSession
    badge: Badge
    before: Badge | None
    is_open: bool
    key: str

    @property
    def action(self) -> str:
        """Label of the button."""
        return "Score" if self.session.status == "not_scored" else "Re-score"

    @property
    def tags(self) -> list[tuple[str, str]]:
        """CSS class and text of each remark about the score, except flags."""
        score = self.session.score
        if score is None:
            return []
        found = [("weak" if score.outcome == "fail" else "good", OUTCOMES[score.outcome])] if score.outcome else []
        found += [("", tag.replace("_", " ")) for tag in score.failure_tags]
        if not score.is_current_criteria:
            found.append(("", "criteria not current"))
        return found

    @property
    def flags(self) -> list[str]:
        return self.session.score.flags if self.session.score else []

    @property
    def labels(self) -> Mapping[str, str]:
        return self.session.labels


def row(session: ListedSession) -> Row:
    """A session as a row of the list."""
    latest, score = session.latest_attempt, session.score
    completed = words.badge("completed", score.total_score) if score else None
    if latest is None:
        newest = completed or words.badge(None)
    else:
        newest = words.badge(latest.status, None, latest.current_stage, latest.waiting_for)
    return Row(session, newest, completed if latest else None, session.status in words.OPEN, str(uuid4()))


def explained(rows: Iterable[Row]) -> dict[str, str]:
    """Meaning of each flag that the rows show, in the order of `words.FLAGS`. Unknown flags are left out."""
    shown = {flag for row in rows for flag in row.flags}
    return {flag: meaning for flag, meaning in words.FLAGS.items() if flag in shown}
