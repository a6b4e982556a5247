"""The helper `assert_whole`: it notices every kind of damage that it exists for."""

import contextlib

from processes import Service, assert_whole

DAMAGE = {
    "an event is lost from the log": "DELETE FROM scoring_events WHERE sequence = 3",
    "positions have a gap": "UPDATE scoring_events SET position = position + 1 WHERE type = 'scoring.completed'",
    "a score is stuck": "UPDATE session_scores SET status = 'pending', completed_at = NULL, total_score = NULL",
    "a turn was never stored": "DELETE FROM judge_turns WHERE kind = 'analysis'",
    "the event told another total": "UPDATE session_scores SET total_score = (total_score + 1) % 100",
    "an attempt began in silence": "UPDATE session_scores SET attempt = 2",
    "a request is lost": "DELETE FROM scoring_requests",
    "a request was refused and scored": "UPDATE scoring_requests SET disposition = 'disabled'",
    "the score failed": "UPDATE session_scores SET status = 'failed', total_score = NULL, error_kind = 'internal'",
    "a request made two scores": """
        INSERT INTO session_scores (session_id, request_id, priority, score_triggered_by, status, completed_at)
        SELECT session_id, request_id, priority, score_triggered_by, status, completed_at FROM session_scores""",
}


async def test_every_damage_is_noticed(service: Service) -> None:
    worker = service.worker()
    events = await service.announce(*service.add_sessions(1))
    await service.all_end(1)
    await assert_whole(service, events)
    await worker.stop()
    unseen = []
    for harm, statement in DAMAGE.items():
        await service.rows("BEGIN")
        await service.rows(statement)
        with contextlib.suppress(AssertionError):
            await assert_whole(service, events)
            unseen.append(harm)
        await service.rows("ROLLBACK")
    assert unseen == []
    await assert_whole(service, events)
