"""A worker with several processes: one intake, one address, and nothing is lost when a process dies."""

import os
import signal

import psutil
from prometheus_client.parser import text_string_to_metric_families

from infrastructure import wait_until
from processes import PATIENCE_S, Process, Service, assert_whole, everything_is_published

NAMES = {"tarsy_scoring_slots", "tarsy_scoring_slots_busy", "tarsy_scoring_process_restarts_total"}


async def metrics_of(worker: Process) -> dict[str, dict[str, float]]:
    """Samples of `NAMES` by process."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families((await worker.get("/metrics"))[1]):
        for sample in family.samples:
            if sample.name in NAMES:
                name = sample.name.removeprefix("tarsy_scoring_")
                found.setdefault(name, {})[sample.labels["process"]] = sample.value
    return found


async def is_restarted(worker: Process, number: int) -> None:
    """Kill a process of a worker and wait until the worker is ready again with another one."""
    os.kill(worker.lines("process.started", process=number)[-1]["pid"], signal.SIGKILL)

    async def restarted() -> bool:
        restarts = (await metrics_of(worker))["process_restarts_total"] if await worker.is_ready() else {}
        return restarts.get(str(number), 0) == 1

    await wait_until(restarted, PATIENCE_S, f"process {number} runs again")


async def test_two_processes_score_everything_though_each_is_killed_once(service: Service) -> None:
    env = {"SCORING_SLOTS": "5", "SCORING_LEASE_S": "5", "SCORING_KAFKA_SESSION_TIMEOUT_S": "6"}
    service.hold()
    events = await service.announce(*service.add_sessions(12))
    worker = service.worker("--processes", "2", **env)
    await service.asked(5)
    await worker.ready()
    busy = await metrics_of(worker)

    await is_restarted(worker, 2)
    await is_restarted(worker, 1)
    service.judge.clear()
    events += await service.announce(*service.add_sessions(4, "after"))
    await service.all_end(16, without_backoff=True)
    await assert_whole(service, events)
    judged_by = {line["process"] for line in worker.lines("attempt.finished", outcome="completed")}
    status = await worker.stop()

    assert busy["slots"] == busy["slots_busy"] == {"1": 3.0, "2": 2.0}
    assert judged_by == {1, 2}
    assert {line["process"] for line in worker.lines("intake.joined")} == {1}
    assert (status, len(worker.lines("service.stopped"))) == (0, 2)


async def test_a_stop_drains_all_processes(service: Service) -> None:
    service.hold()
    events = await service.announce(*service.add_sessions(4))
    worker = service.worker(SCORING_PROCESSES="2", SCORING_SLOTS="4")
    await service.asked(4)

    worker.signal(signal.SIGTERM)
    for number in (1, 2):
        await worker.says("worker.draining", process=number)
    second = worker.lines("process.started", process=2)[0]["pid"]
    os.kill(second, signal.SIGSTOP)
    service.judge.clear()
    await service.all_end(2)
    await everything_is_published(service)  # by the first process, which now waits for the second
    os.kill(second, signal.SIGCONT)

    assert await worker.ended() == 0
    await assert_whole(service, events)
    assert {line["process"] for line in worker.lines("attempt.finished")} == {1, 2}


async def test_no_process_outlives_a_killed_supervisor(service: Service) -> None:
    service.hold()
    await service.announce(*service.add_sessions(2))
    worker = service.worker("--processes", "2", SCORING_DRAIN_TIMEOUT_S="0")
    await service.asked(2)
    processes = psutil.Process(worker.pid).children()

    await worker.kill()
    _, alive = psutil.wait_procs(processes, PATIENCE_S)

    assert (len(processes), alive) == (2, [])
    assert await service.count("status = 'pending'") == 2


async def test_more_processes_than_slots_are_refused(service: Service) -> None:
    ended = await service.run("worker", "--processes", "3", SCORING_SLOTS="2")
    assert (ended.status, ended.stderr.count("\n")) == (2, 1)
    assert "SCORING_PROCESSES is 3, and SCORING_SLOTS is 2" in ended.stderr


async def test_a_refused_start_ends_all_processes(service: Service, empty_database_url: str) -> None:
    ended = await service.run("worker", "--processes", "2", SCORING_DATABASE_URL=empty_database_url)
    assert ended.status == 1
    assert "tarsy-scoring migrate" in ended.stderr
