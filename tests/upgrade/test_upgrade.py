"""
An upgrade to the next version and the way back, under load, on 4,000 stored and 300 open scores.

Both directions replace the processes one by one, so that old and new ones work on one database, one broker and one
consumer group. The environment enlarges the run: `UPGRADE_STORED` and `UPGRADE_OPEN`, the numbers of scores.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from builders import connected
from next_version import ROOT, NextVersion
from processes import Service, assert_whole
from upgrade.conftest import CountingJudge
from upgrade.fleet import LOAD_S, Fleet, Load, Version

STORED = Path(__file__).with_name("stored.sql").read_text(encoding="utf-8")
STORED_SCORES = int(os.environ.get("UPGRADE_STORED", "4000"))
OPEN_SCORES = int(os.environ.get("UPGRADE_OPEN", "300"))
KNOWN_COLUMNS = """
SELECT table_name, array_agg(column_name::text ORDER BY ordinal_position) AS columns
FROM information_schema.columns WHERE table_schema = 'public' AND table_name IN (
  'sessions', 'session_scores', 'scoring_requests', 'judge_turns', 'scoring_events', 'score_missing_tools',
  'score_labels') GROUP BY 1
"""


async def rows_of(service: Service, sessions: str, columns: Mapping[str, list[str]]) -> dict[str, tuple[int, int]]:
    """By table: number and checksum of the rows of these sessions, in these columns."""
    found = {}
    for table, names in columns.items():
        of_them = "session_id LIKE $1"
        if "session_id" not in names:
            of_them = f"score_id IN (SELECT score_id FROM session_scores WHERE {of_them})"
        [row] = await service.rows(
            f"SELECT count(*), sum(hashtextextended(ROW({', '.join(names)})::text, 0)::numeric) FROM {table} "
            f"WHERE {of_them}",
            sessions,
        )
        found[table] = tuple(row)
    return found


async def known_ids(service: Service) -> dict[str, str]:
    """A completed score, its session, its event and its criteria, by the names of path parameters."""
    [row] = await service.rows(
        """SELECT score_id, s.session_id, criteria_hash, event_id FROM session_scores s
        JOIN scoring_requests r USING (score_id) WHERE total_score = 50 ORDER BY created_at LIMIT 1"""
    )
    return {name: str(value) for name, value in row.items()}


async def store_scores(service: Service, version: Version) -> None:
    """Let this version score one session, and copy its score."""
    # On a topic of its own, because the copies have no records on the topic.
    topic = {"SCORING_TOPIC_SCORING_EVENTS": f"{service.topics.scoring_events}-first", "SCORING_CREATE_TOPICS": "true"}
    worker = service.worker(**version, **topic)
    await service.announce(*service.add_sessions(1, "stored"))
    await service.score_becomes("stored-0000", "completed")
    assert await worker.stop() == 0
    async with connected(service.database_url) as connection:
        await connection.execute(STORED.replace(":sessions", f"{STORED_SCORES * 4 // 5}"), timeout=LOAD_S)
        await connection.execute("VACUUM ANALYZE", timeout=LOAD_S)
    await succeeds(service, "recount", **version)  # the copies were made by hand


async def succeeds(service: Service, *command: str, **env: str) -> str:
    done = await service.run(*command, timeout_s=LOAD_S, **env)
    assert done.status == 0, done.stderr
    return done.stdout


async def test_an_upgrade_and_the_way_back_under_load(
    service: Service, judge: CountingJudge, next_version: NextVersion, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost, no question is paid twice, every page answers, and stored scores stay as they were."""
    old, new = {"PYTHONPATH": str(ROOT / "service")}, {"PYTHONPATH": next_version.package}
    await succeeds(service, "migrate", **old)
    await store_scores(service, old)
    columns = dict(await service.rows(KNOWN_COLUMNS))
    stored = await rows_of(service, "stored-%", columns)
    stored_events = await service.value("SELECT position FROM relay_position")
    assert stored["session_scores"][0] == STORED_SCORES

    fleet, load = Fleet(service, await known_ids(service)), Load(service)
    service.hold()
    await fleet.start(old)
    await load.open_many(OPEN_SCORES)
    judge.clear()
    async with asyncio.TaskGroup() as beside:
        stop = asyncio.Event()
        watching = beside.create_task(load.watch())
        announcing = beside.create_task(load.announce_steadily(stop))
        await load.goes_on()

        with load.phase("migration"):
            await succeeds(service, "migrate", "--phase", "pre", **new)
        assert await service.value("SELECT version_num FROM tarsy_scoring_version") == next_version.revision
        with load.phase("old version on new tables"):
            await load.goes_on()
            await fleet.visit()
        service.add_session("live-asked-1")
        requested = await fleet.request("live-asked-1", "key-1")
        with load.phase("roll"):
            await fleet.roll(new, load)
        assert await fleet.request("live-asked-1", "key-1") == requested, "the new version knows the former's answer"
        await load.repeat_some()
        with load.phase("new version"):
            await load.goes_on()
        with load.phase("roll back"):
            await fleet.roll(old, load)
        await load.repeat_some()
        with load.phase("old version again"):
            await load.goes_on()
        stop.set()
        await announcing
        await load.has_completed(len(load.events) + 1)  # and the one requested over HTTP
        watching.cancel()
    await fleet.stop()
    with capsys.disabled():
        sys.stderr.write(f"{load}\n")
    await assert_whole(service, load.events, sessions="live-%", earlier_events=stored_events)
    assert set(judge.questions.values()) == {1}, "no question was paid twice"
    assert not await service.dead_letters()
    assert not service.all_lines("api.failed")

    live = await rows_of(service, "live-%", columns)
    await succeeds(service, "migrate", "--phase", "post", **new)
    await succeeds(service, "migrate", "--down", next_version.before, **new)
    assert await rows_of(service, "live-%", columns) == live
    assert await rows_of(service, "stored-%", columns) == stored
    worker = service.worker(**old)
    await service.announce(*service.add_sessions(1, "live-last"))
    await service.score_becomes("live-last-0000", "completed")
    assert await worker.stop() == 0
