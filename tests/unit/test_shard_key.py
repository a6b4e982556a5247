"""
The session is the shard: each statement of the path of a score finds its rows by `session_id`, or is listed here.

A statement whose caller does not know the session would have to ask every shard (docs/operations.md, Large fleets).
"""

import re
from collections.abc import Iterator
from dataclasses import fields

import pytest

from tarsy_scoring.outbox import outbox
from tarsy_scoring.queue import claims, inbox, leases, session_states, store
from tarsy_scoring.queue.admission import Request
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.store import Ending, Step

_STATEMENT = re.compile(r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b")
_CONDITION = re.compile(r"\bsession_id = (\$\d|ANY\((\(SELECT )?\$\d)")  # given, not of another row
_INSERTED = re.compile(r"INSERT INTO \{schema\}\.\w+(?: AS \w+)? \([^)]*\bsession_id\b")

ONE_SHARD = "It works on one shard by nature: a worker claims, takes back and relays shard by shard."
HELD_SCORE = "Its rows belong to a score whose row the transaction holds, so it runs where that row is."
CLAIMED = "It finds scores by their primary key, and its caller holds them as `ClaimedScore`, which has the session."
REQUEST = "It finds a request by its id, which is a hash of the session; a request outlives its erased session."
EXCEPTIONS = {
    "claims.MOVE_CLAIM_FLOOR": ONE_SHARD,
    "claims.CLAIM": ONE_SHARD,
    "leases.EXPIRED": ONE_SHARD,
    "leases.RELEASE_UNTRACKED": ONE_SHARD,
    "leases.TAKE_BACK": "It takes the scores that `EXPIRED` found on the same shard.",
    "leases.BEGIN_ATTEMPT": CLAIMED,
    "leases.PUT_BACK": CLAIMED,
    "leases.RENEW": CLAIMED,
    "leases.RENEW_LOCKED": CLAIMED,
    "store.RECORD_PHASES": CLAIMED,
    "store.STILL_HELD": CLAIMED,
    "store.BIND": CLAIMED,
    "store.LEARN_SESSIONS": CLAIMED,
    "store.END": CLAIMED,
    "store.STANDING_ENDS": CLAIMED,
    "leases.CANCEL": "It takes the score whose session is locked.",
    "leases.SESSION_OF_SCORE": "A caller of the API names the score alone: it finds the shard.",
    "outbox.EMIT": HELD_SCORE,
    "outbox.ASSIGN_POSITIONS": ONE_SHARD,
    "outbox.RAISE_ENTRY": ONE_SHARD,
    "outbox.UNPUBLISHED": ONE_SHARD,
    "outbox.LOOK": ONE_SHARD,
    "outbox.RAISE_PUBLISHED": ONE_SHARD,
    "outbox.MARK_PUBLISHED": ONE_SHARD,
    "store.TURNS": HELD_SCORE,
    "store.ADD_TURNS": HELD_SCORE,
    "store.ADD_MISSING_TOOLS": HELD_SCORE,
    "store.ADD_APPROACHES": HELD_SCORE,
    "store.KEEP_CRITERIA": "Criteria are the same on every shard.",
    "store.KEEP_TOOLS": "Sets of tools are the same on every shard.",
    "inbox.KNOWN_REQUESTS": REQUEST,
    "inbox.COUNT_ARRIVALS": REQUEST,
    "inbox.SUPERSEDE": REQUEST,
    "inbox.SET_DISPOSITION": REQUEST,
    "inbox.SCORES_OF_REQUESTS": REQUEST,
    "inbox.REQUESTS_BY_EVENT": "A command looks for a run of its own, of many sessions.",
    "inbox.REQUESTS_OF_SCORE": "It takes the requests of a score whose session is locked.",
    "inbox.DEFER_JOINED": "It takes the requests of scores whose sessions are locked.",
    "inbox.RAISE_PRIORITIES": "It takes the open scores of sessions that are locked.",
}


def statements() -> Iterator[tuple[str, str]]:
    """Every whole statement of the path of a score, with its name."""
    for module in (claims, inbox, leases, outbox, session_states, store):
        for name, value in vars(module).items():
            is_own = isinstance(value, str) and name.isupper() and "{schema}" in value
            if is_own and _STATEMENT.match(value):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value


def has_key(statement: str) -> bool:
    is_given = "JOIN {schema}" not in statement
    return bool(_CONDITION.search(statement) or (is_given and _INSERTED.search(statement)))


@pytest.mark.parametrize(("name", "statement"), [pytest.param(n, s, id=n) for n, s in statements()])
def test_a_statement_finds_its_rows_by_session(name: str, statement: str) -> None:
    assert has_key(statement) != (name in EXCEPTIONS), EXCEPTIONS.get(name, "it needs session_id, or a reason")


def test_every_exception_is_a_statement() -> None:
    assert EXCEPTIONS.keys() <= {name for name, _ in statements()}


def test_claimed_scores_and_requests_have_a_session() -> None:
    """So the shard is known before a statement is sent."""
    assert all("session_id" in {f.name for f in fields(record)} for record in (ClaimedScore, Request))
    assert all(fields(record)[0].type in (ClaimedScore, "ClaimedScore") for record in (Step, Ending))
