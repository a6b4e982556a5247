"""Load over HTTP on a fixed beat, on the service and on the bare API in turns, and what it took."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import aiohttp

from benchmarks.meter import Meter
from benchmarks.programs import first_line, program

PAIRS = 5
WARM_UP_S = 3.0
_METERED = {"service": "measured", "bare": "bare"}


@dataclass(frozen=True, slots=True)
class Latencies:
    """
    Latencies of the requests that were answered, in ms.

    Args:
        requests: All requests that were sent.
        failed: Number of the others by status or type of error.
        answer_bytes: Size of the largest answer.
    """

    requests: int
    failed: dict[str, int]
    answer_bytes: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Served:
    """
    Medians over the rounds of one server; the maximum, the requests and the failures are of all rounds.

    Args:
        cpu_ms: CPU time of the server for a request.
        database_cpu_ms: CPU time of PostgreSQL for a request, with whatever else it did meanwhile.
        others_share: Share (0-1) of the machine that programs used which are no part of the measurement.
    """

    latencies: Latencies
    cpu_ms: float
    database_cpu_ms: float
    others_share: float


def summarize(latencies_s: list[float], failed: Mapping[str, int], answer_bytes: int) -> Latencies:
    """Percentiles by nearest rank, upwards: each is a latency that was measured."""
    ordered = sorted(latencies_s)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    count = len(ordered) + sum(failed.values())
    return Latencies(count, dict(failed), answer_bytes, at(0.5), at(0.95), at(0.99), at(1.0))


def medians(rounds: Sequence[Latencies]) -> Latencies:
    """See `Served`."""
    failed: Counter[str] = Counter()
    for found in rounds:
        failed.update(found.failed)
    return Latencies(
        requests=sum(found.requests for found in rounds),
        failed=dict(failed),
        answer_bytes=max(found.answer_bytes for found in rounds),
        p50_ms=statistics.median(found.p50_ms for found in rounds),
        p95_ms=statistics.median(found.p95_ms for found in rounds),
        p99_ms=statistics.median(found.p99_ms for found in rounds),
        max_ms=max(found.max_ms for found in rounds),
    )


async def load(
    send: Callable[[aiohttp.ClientSession, int], AbstractAsyncContextManager[aiohttp.ClientResponse]],
    per_s: int,
    for_s: float,
    connections: int = 0,
) -> Latencies:
    """
    Send `per_s` requests a second for `for_s` seconds.

    Args:
        send: Sends a request with this number, from 0.
        connections: At most so many at once; 0: any number.
    """
    latencies: list[float] = []
    failed: Counter[str] = Counter()  # by status, or by type of error
    answer_bytes = 0
    timeout, connector = aiohttp.ClientTimeout(total=30), aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:

        async def one(number: int, at: float) -> None:
            nonlocal answer_bytes
            try:
                async with send(client, number) as answer:
                    body = await answer.read()
                    answer.raise_for_status()
            except aiohttp.ClientResponseError as error:
                failed[str(error.status)] += 1
                return
            except (aiohttp.ClientError, TimeoutError) as error:
                failed[type(error).__name__] += 1
                return
            answer_bytes = max(answer_bytes, len(body))
            latencies.append(time.monotonic() - at)

        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for n in range(int(per_s * for_s)):
                beat = start + n / per_s
                await asyncio.sleep(max(0.0, beat - time.monotonic()))
                group.create_task(one(n, beat))
    return summarize(latencies or [float("inf")], failed, answer_bytes)


@asynccontextmanager
async def servers(env: Mapping[str, str], folder: Path) -> AsyncIterator[dict[str, tuple[str, int]]]:
    """
    Run the API of the service and the bare one over the same database.

    Returns:
        Address and process id by `service` and `bare`.

    Raises:
        ProgramFailed, TimeoutError: One of them did not start.
    """
    own = env | {"SCORING_API_PORT": "0", "SCORING_LOG_LEVEL": "warning"}
    log_files = folder / "api.log", folder / "bare.log"
    async with (
        program("-m", "tarsy_scoring", "api", env=own, log_file=log_files[0]) as api,
        program("-m", "benchmarks.bare_api", env["SCORING_DATABASE_URL"], env={}, log_file=log_files[1]) as bare,
    ):
        lines = await first_line(api, log_files[0]), await first_line(bare, log_files[1])
        yield {
            name: (line.split()[-1], process.pid)
            for name, line, process in zip(("service", "bare"), lines, (api, bare), strict=True)
        }


async def in_turns(
    started: Mapping[str, tuple[str, int]],
    request: Callable[[str, float], Awaitable[Latencies]],
    for_s: float,
    pids: Mapping[str, int],
) -> dict[str, Served]:
    """
    Send the same load to each of the servers in turns, `PAIRS` times.

    Args:
        started: See `servers`.
        request: Sends the load to an address for some seconds.
        for_s: Seconds for each server in all, after `WARM_UP_S`.
        pids: Processes that belong to the measurement beside the servers; `database` is PostgreSQL.
    """
    meter = Meter(dict(pids) | {_METERED[name]: pid for name, (_, pid) in started.items()})
    for address, _ in started.values():
        await request(address, WARM_UP_S)
    rounds: dict[str, list[Served]] = {name: [] for name in started}
    for _ in range(PAIRS):
        for name, (address, _) in started.items():
            meter.sample()  # only here: a look at all processes takes as long as some requests
            found = await request(address, for_s / PAIRS)
            meter.sample()
            since, until = meter.times[-2:]
            cpu_s, database_s = (meter.used_s(n, since, until) for n in (_METERED[name], "database"))
            cpu_ms, database_ms = 1000 * cpu_s / found.requests, 1000 * database_s / found.requests
            rounds[name].append(Served(found, cpu_ms, database_ms, meter.bystanders_share(since, until)))
    return {name: _middle(served) for name, served in rounds.items()}


def _middle(rounds: Sequence[Served]) -> Served:
    figures = {f.name: statistics.median(getattr(r, f.name) for r in rounds) for f in fields(Served)[1:]}
    return Served(medians([r.latencies for r in rounds]), **{name: round(value, 2) for name, value in figures.items()})


def described(name: str, served: Served) -> str:
    """One line for people."""
    found = served.latencies
    return (
        f"  {name:8} p50 {found.p50_ms:.1f} ms, p95 {found.p95_ms:.1f} ms, p99 {found.p99_ms:.1f} ms, most "
        f"{found.max_ms:.1f} ms; CPU for a request {served.cpu_ms:.2f} ms, of PostgreSQL "
        f"{served.database_cpu_ms:.2f} ms; {found.requests} requests, answers of up to "
        f"{found.answer_bytes / 1000:.1f} KB, failed: {found.failed or 'none'}; others used {served.others_share:.0%} "
        "of the machine\n"
    )
