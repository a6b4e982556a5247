"""Every reader uses the same latest completed score of a session, also where two ended at the same time."""

from datetime import timedelta
from uuid import UUID

import pytest

from builders import Scoring, policy
from stored import NOON, store_score
from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.labels.labels import scores_by_judge
from tarsy_scoring.missing_tools import demand
from tarsy_scoring.queue.selection import obsolete_sessions
from tarsy_scoring.retention import pruning as retention
from tarsy_scoring.scores.bands import DEFAULT_BANDS
from tarsy_scoring.scores.export import export_scores
from tarsy_scoring.scores.session_list import Filters, list_sessions
from tarsy_scoring.studies.stored_scores import scores_by_label
from tarsy_scoring.web.queries import ExportQuery

LATEST, SAME_TIME, OLDER = (UUID(int=n) for n in (2, 3, 1))
SESSION = {"labels": {"guidance": "v1"}}


@pytest.fixture
async def tied(scoring: Scoring) -> Scoring:
    """A session with two scores that ended together, the smaller id being the latest, and an older one."""
    later = NOON + timedelta(hours=1)
    scores = ((SAME_TIME, 40, later, "hash-other"), (LATEST, 80, later, "hash-default"), (OLDER, 10, NOON, "hash-old"))
    for score_id, total, at, criteria_hash in scores:
        columns = {"criteria_hash": criteria_hash, "usage": {"input_tokens": total, "output_tokens": 0}}
        await store_score(
            scoring,
            "s",
            total,
            at=at,
            missing_tools=(f"tool-{total}",),
            session=SESSION,
            score_id=str(score_id),
            **columns,
        )
    return scoring


async def test_lists_documents_and_exports(tied: Scoring) -> None:
    page = await list_sessions(tied.reader, Filters(), "newest", None, 10)
    shown = await tied.reader.score_of_session("s")
    [[exported]] = [batch async for batch in export_scores(tied.reader, ExportQuery(latest=True).chosen)]

    assert page.sessions[0].score is not None
    assert shown is not None
    assert {page.sessions[0].score.score_id, shown["score_id"], exported.document["score_id"]} == {LATEST}


async def test_a_session_has_its_own_latest_score(tied: Scoring) -> None:
    await store_score(tied, "other", 60, at=NOON + timedelta(hours=2), session=SESSION)

    shown = [await tied.reader.score_of_session(session) for session in ("s", "other")]
    by_label = await scores_by_label(tied.database, "guidance", None, None)

    assert [document and document["total_score"] for document in shown] == [80, 60]
    assert sorted(score.total_score or 0 for score in by_label) == [60, 80]


async def test_analytics_calibrate_and_compare(tied: Scoring) -> None:
    [found] = (await analytics.distribution(tied.database, Selection(), lambda _: DEFAULT_BANDS)).criteria
    by_judge = await scores_by_judge(tied.database, ["s"], None)
    by_label = await scores_by_label(tied.database, "guidance", None, None)

    assert [b.band for b in found.bands if b.count] == ["75-100"]
    assert {(s.criteria_hash, s.total) for s in by_judge} == {
        ("hash-default", 80),
        ("hash-other", 40),
        ("hash-old", 10),
    }
    assert [s.total_score for s in by_label] == [80]


async def test_rescoring_and_pruning(tied: Scoring) -> None:
    """The latest score decides what is obsolete, and what pruning keeps."""
    assert await obsolete_sessions(tied.database, policy(), None, None) == []

    old = await tied.rows(retention.SCORES.find.format(schema="public"), 1, retention.BEGINNING, 10)
    assert {r["score_id"] for r in old} == {SAME_TIME, OLDER}


async def test_missing_tools(tied: Scoring) -> None:
    found = await demand.read_demand(tied.database, Selection())

    assert found.sessions() == {"tool-80": 1}
