"""
The latest completed production score of a session, as SQL.

"Latest" is decided here and nowhere else: the greatest `completed_at` wins, and of equal times the smaller
`score_id`. That is the order of the index `session_scores_latest`, so a reader that walks it finds the latest
score first. Equal times are rare but possible: `completed_at` is the start of the transaction that ended the
score, and one transaction ends a batch.

A view was rejected: readers filter and join the row in different ways, and behind a view the planner has to
prove again for each of them that the partial indexes apply.
"""

from typing import Literal

Kind = Literal["without", "with"]
"""
Scores that were judged without a reference, or with one. They measure different things, so no statistic
counts both, and for statistics a session has a latest score of each kind.
"""

# Behind `ORDER BY`; the first row of each session is the latest.
NEWEST_FIRST = "completed_at DESC, score_id"


def is_completed(alias: str) -> str:
    """Condition: the row is a completed production score. It is the predicate of the partial indexes."""
    return f"{alias}.status = 'completed' AND {alias}.purpose = 'production'"


def is_of_kind(alias: str, kind: Kind) -> str:
    """Condition: the row is a score of this kind."""
    return f"{alias}.reference IS {'NOT ' if kind == 'with' else ''}NULL"


def is_latest(alias: str, kind: Kind | None = None) -> str:
    """
    Condition: the row is the session's latest. For statements that read many sessions.

    Args:
        kind: Of the scores of this kind; None: of all.
    """
    of_kind = "" if kind is None else f" AND {is_of_kind(alias, kind)}"
    return f"{is_completed(alias)}{of_kind}\n  AND {has_no_later(alias, of_its_kind=kind is not None)}"


def has_no_later(alias: str, purpose: str = "'production'", *, of_its_kind: bool = False) -> str:
    """
    Condition: the session has no later completed score of this purpose.

    Args:
        purpose: SQL of the purpose to compare with. Only the constant lets PostgreSQL use the partial
            indexes.
        of_its_kind: Whether later scores of the other kind do not count.
    """
    same_kind = f"\n      AND (later.reference IS NULL) = ({alias}.reference IS NULL)" if of_its_kind else ""
    # An anti-join, which PostgreSQL may turn into a merge or a hash join where it pays. `>=` stands alone
    # because an index can answer it; the two directions of the order make one row comparison impossible.
    return f"""NOT EXISTS (
    SELECT FROM {{schema}}.session_scores later
    WHERE later.session_id = {alias}.session_id AND later.status = 'completed' AND later.purpose = {purpose}
      AND later.completed_at >= {alias}.completed_at
      AND (later.completed_at > {alias}.completed_at OR later.score_id < {alias}.score_id){same_kind})"""


def latest_of(session_id: str, columns: str, kind: Kind | None = None, kind_of: str = "") -> str:
    """
    Subquery: these columns of the latest score of one session, of one kind or of all. For statements that
    look up few sessions.

    Behind `CROSS JOIN LATERAL` it makes PostgreSQL look up each session by the index, where `is_latest` would
    let it read all scores because it expects more sessions than there are.

    Args:
        kind_of: Alias of a score; the latest has the same kind.
    """
    of_kind = "" if kind is None else f" AND {is_of_kind('latest', kind)}"
    if kind_of:
        of_kind = f" AND (latest.reference IS NULL) = ({kind_of}.reference IS NULL)"
    return f"""(
    SELECT {columns} FROM {{schema}}.session_scores latest
    WHERE latest.session_id = {session_id} AND {is_completed("latest")}{of_kind}
    ORDER BY {NEWEST_FIRST} LIMIT 1)"""
