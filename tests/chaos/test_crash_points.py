"""
Every point at which a process can crash; numbers are rows of the crash matrix in `docs/architecture.md`.

The law at every point: each request ends in one completed score, and all events of that score are published.
"""

import signal

import pytest

from infrastructure import wait_until
from processes import Process, Service, assert_whole
from proxy import DatabaseProxy
from tarsy_scoring_lab.scripted_judge import Fault

KILLED = -signal.SIGKILL
# Longer than a busy machine pauses a process, and short enough to wait for.
LONG_LEASE = {"SCORING_LEASE_S": "10"}


async def dies(worker: Process, point: str = "its point") -> None:
    """Wait until the worker has killed itself at this point."""
    assert await worker.ended() == KILLED, f"it reached {point}"


# --- processes die at exact points ---------------------------------------------------------------------


# Rows of the crash matrix by number, with the point of `dying_worker.py` that each process dies at.
INTAKE_POINTS = {
    "before-accept": "1, before the request is stored",
    "accepted-not-committed": "1, before the insert commits",
    "after-accept": "2, stored, offset not committed",
    "after-offset-commit": "2, stored and offset committed",
}
WORK_POINTS = {
    "after-claim": "4, claimed, judge not asked",
    "before-judge": "4, about to ask the judge",
    "after-judge": "6, answered, turn not stored",
    "after-record:2": "6, between the turns",
    "before-end": "6, judged, not ended",
    "after-end": "8, ended, not relayed",
    "between-sends:3": "9, some events sent",
    "marked-not-committed": "10, marked, not committed",
}


async def test_an_intake_that_dies_neither_loses_nor_repeats_a_request(service: Service) -> None:
    """Each process dies at another point; the next one also stores the records that it left."""
    events = []
    for nth, point in enumerate(INTAKE_POINTS):
        events += await service.announce(*service.add_sessions(3, f"session-{nth}"))
        await dies(service.worker("--only", "intake", dies_at=point), INTAKE_POINTS[point])
    service.worker()
    await service.all_end(len(events))
    await assert_whole(service, events)


async def test_a_worker_that_dies_neither_loses_nor_repeats_a_score(service: Service) -> None:
    """Each process dies at another point; the next one takes over the scores and events that it left."""
    service.env |= {"SCORING_MAX_ATTEMPTS": "50"}  # one score may be held by several dying workers
    service.worker("--only", "intake")  # one intake for all: a new member waits until the group has dropped a dead one
    events = []
    for nth, point in enumerate(WORK_POINTS):
        events += await service.announce(*service.add_sessions(3, f"session-{nth}"))
        await dies(service.worker("--only", "judge,relay", dies_at=point), WORK_POINTS[point])
    service.worker("--only", "judge,relay")
    await service.all_end(len(events), without_backoff=True)
    await assert_whole(service, events)


@pytest.mark.slow
async def test_3_a_rejected_offset_commit_is_harmless(service: Service) -> None:
    """The member freezes before its commit; meanwhile the group gives its partitions to another."""
    events = await service.announce(*service.add_sessions(5))
    late = service.worker("--only", "intake", dies_at="before-offset-commit", DYING_SIGNAL="STOP")
    await service.scores_reach(1, "status = 'pending'")
    service.worker()
    await wait_until(lambda: _has_arrived_again(service), 60, "another member has the records again")
    late.resume()

    async def was_refused() -> bool:
        return "offset_commits_refused_total 1.0" in (await late.get("/metrics"))[1]

    await wait_until(was_refused, 60, "the late commit is refused")
    more = await service.announce(*service.add_sessions(5, "later"))
    await service.all_end(10)
    await assert_whole(service, events + more)
    assert late.status is None, "it goes on"


async def _has_arrived_again(service: Service) -> bool:
    return bool(await service.value("SELECT count(*) FROM scoring_requests WHERE arrivals > 1"))


async def test_5_a_worker_killed_while_the_judge_thinks_costs_one_call_per_score(service: Service) -> None:
    service.judge.script(Fault(kind="hang", times=3))
    events = await service.announce(*service.add_sessions(3))
    worker = service.worker(**LONG_LEASE)
    await service.asked(3)
    await worker.kill()
    await service.let_leases_lapse()
    service.worker(**LONG_LEASE)
    await service.all_end(3, without_backoff=True)
    await assert_whole(service, events)
    assert service.judge.calls_by_turn == {"analysis": 6, "missing_tools": 3}


async def test_27_a_dead_listen_connection_costs_a_poll_and_no_more(service: Service) -> None:
    """The next poll finds the scores although no notification arrives."""
    async with DatabaseProxy(service.database_url) as proxy:
        judging = service.worker("--only", "judge", SCORING_DATABASE_URL=proxy.url)
        service.worker("--only", "relay")
        intake = service.worker("--only", "intake")
        await intake.ready()
        await judging.ready()
        proxy.silence_listeners()
        events = []
        for nth in range(1, 4):
            events += await service.announce(*service.add_sessions(1, f"session-{nth}"))
            await service.all_end(nth)
        await assert_whole(service, events)
        assert proxy.bytes_silenced > 0, "there were notifications to be missed"
        await judging.stop()
    # The least of three, because a pause of the machine may delay single scores.
    waited_s = await service.value("SELECT min(extract(epoch FROM started_at - created_at)) FROM session_scores")
    assert waited_s < 5, "a poll of 1 s, and some for a busy machine"


async def test_24_a_session_that_kills_its_worker_fails_alone(service: Service) -> None:
    """The scores in flight beside it are lost with the first workers, and then judged apart from it."""
    service.env |= {"SCORING_MAX_ATTEMPTS": "3"}  # two with the others beside it, and one alone
    service.judge.latency_s = 0.5
    events = await service.announce(*service.add_sessions(6))
    [poison] = await service.announce(*service.add_sessions(1, "poison"))
    service.worker("--only", "intake,relay")
    await service.scores_reach(7, "status = 'pending'")
    for nth in range(1, 4):
        worker = service.worker("--only", "judge", dies_at="read-poison-0000")

        async def is_dead(worker: Process = worker) -> bool:
            await service.let_retries_be_due()
            return worker.status is not None

        await wait_until(is_dead, 60, f"worker {nth} reads the session that kills it")
        await service.let_leases_lapse()
    service.worker("--only", "judge")
    await service.all_end(7, without_backoff=True)
    await assert_whole(service, events, failed=[poison])
    ended = await service.rows("SELECT error_kind, losses FROM session_scores WHERE status = 'failed'")
    assert [tuple(row) for row in ended] == [("worker_lost", 3)]


# --- zombies and races ---------------------------------------------------------------------------------


async def test_11_a_zombie_that_wakes_up_writes_nothing(service: Service) -> None:
    service.hold()
    events = await service.announce(*service.add_sessions(3))
    zombie = service.worker(**LONG_LEASE)
    await service.asked(3)
    zombie.pause()
    service.judge.clear()  # the judge answers while the process is stopped
    service.worker(**LONG_LEASE)
    # It may be stopped in a transaction, whose locks end after 40 s.
    await service.all_end(3, timeout_s=120, without_backoff=True)
    zombie.resume()
    await wait_until(lambda: len(zombie.lines("attempt.finished")) == 3, 60, "the zombie has given up")
    await assert_whole(service, events)
    assert await service.count("attempt = 2 AND attempts_burned = 1") == 3
    assert {line["outcome"] for line in zombie.lines("attempt.finished")} == {"lease_lost"}
    assert "leases_lost_total 3.0\n" in (await zombie.get("/metrics"))[1]
    assert await zombie.stop() == 0


@pytest.mark.slow
async def test_19_rebalances_lose_nothing(service: Service) -> None:
    first = service.worker()
    await first.ready()
    events = await service.announce(*service.add_sessions(10, "first"))
    second = service.worker()
    events += await service.announce(*service.add_sessions(10, "second"))
    await second.ready()
    events += await service.announce(*service.add_sessions(10, "third"))
    assert await first.stop() == 0
    events += await service.announce(*service.add_sessions(10, "fourth"))
    third = service.worker()
    await second.kill()
    await third.ready()
    events += await service.announce(*service.add_sessions(10, "fifth"))
    await service.all_end(50)
    await assert_whole(service, events)
