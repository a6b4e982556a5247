"""Providers that fail, in worker processes."""

import json
from functools import partial

import pytest

from infrastructure import wait_until
from processes import PATIENCE_S, Process, Service, assert_whole
from tarsy_scoring_lab.scripted_judge import Fault


@pytest.mark.slow
async def test_the_second_provider_continues_the_first_ones_turns(service: Service) -> None:
    """The first provider's analysis is paid for once; the second is asked only for what the first refused."""
    provider = {"base_url": service.judge.base_url, "api_key_env": None}
    providers = {"main": provider | {"model": "main-model"}, "spare": provider | {"model": "spare-model"}}
    config = {"providers": providers, "defaults": {"providers": ["main", "spare"]}}
    (service.folder / "limits.yaml").write_text(json.dumps(config), "utf-8")  # JSON is YAML
    service.judge.script(Fault(kind="status", status=401, turn="missing_tools", match="main-model"))
    service.worker(SCORING_CONFIG=str(service.folder / "limits.yaml"))
    events = await service.announce(*service.add_sessions(1))
    await service.all_end(1)
    await assert_whole(service, events)
    turns = await service.rows("SELECT kind, model_requested FROM judge_turns ORDER BY ordinal")
    assert [tuple(t) for t in turns] == [("analysis", "main-model"), ("missing_tools", "spare-model")]
    assert await service.count("flags @> '[\"missing_tools_unavailable\"]'") == 0


SUSPENDED = {"error": {"message": "This organization is not active.", "type": "billing", "code": "ORG_INACTIVE"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [Fault(kind="status", status=412, json=SUSPENDED), Fault(kind="status", status=404)],
    ids=["an account", "a gateway"],
)
async def test_a_provider_that_rejects_everything_for_a_while_fails_no_score(service: Service, fault: Fault) -> None:
    """After a few calls of two workers the scores wait, and all are judged when a probe is answered."""
    service.judge.script(fault)
    workers = [service.worker(SCORING_SLOTS="4") for _ in range(2)]
    await service.announce(*service.add_sessions(40))
    await service.scores_reach(40, "status = 'pending'")
    await service.scores_reach(1, "waiting_reason = 'rejected'")
    for worker in workers:
        await worker.ready()
        await wait_until(partial(_shows, worker), PATIENCE_S, "the circuit is seen")
    opened = service.judge.calls

    async def hurry() -> None:
        await service.let_retries_be_due()
        await service.rows("UPDATE provider_states SET open_until = now() WHERE kind IS NOT NULL")

    async def is_tried() -> bool:
        await hurry()
        return service.judge.calls >= opened + 3

    async def is_judged() -> bool:
        await hurry()
        return await service.count("status = 'completed' AND attempts_burned = 0") == 40

    await wait_until(is_tried, PATIENCE_S, "three more scores are tried")
    rejected = service.judge.calls
    assert await service.count("status <> 'failed' AND attempts_burned = 0") == 40
    service.judge.clear()
    await wait_until(is_judged, PATIENCE_S, "all are judged")

    assert rejected <= 24, "two workers with four slots, a trial for each, and three probes"


async def _shows(worker: Process) -> bool:
    """Whether a ready worker says which provider is not called, and why."""
    return (await worker.get("/readyz")) == (200, '{"status":"ready","not_called":{"default":"rejected"}}') and (
        'tarsy_scoring_circuit_open{kind="rejected",provider="default"} 1.0' in (await worker.get("/metrics"))[1]
    )


@pytest.mark.slow
async def test_a_request_that_is_rejected_alone_fails_at_once(service: Service) -> None:
    """Among others that are answered, and in an empty queue."""
    service.judge.script(Fault(kind="status", status=400, match="poison"))
    service.worker()
    for poisoned, others in (("poison-1", service.add_sessions(5)), ("poison-2", [])):
        service.add_session(poisoned)
        before = service.judge.calls
        await service.announce(poisoned, *others)
        await service.all_end(6 if others else 7)
    ends = await service.rows("SELECT error_kind, attempt FROM session_scores WHERE status = 'failed'")
    assert [tuple(end) for end in ends] == [("judge_rejected_request", 1)] * 2
    assert service.judge.calls - before == 3, "the request, its trial, and the request again"
