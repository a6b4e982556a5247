"""The installation that is upgraded: its processes, and the load that they carry meanwhile."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import aiohttp

from builders import connected
from infrastructure import wait_until
from processes import PATIENCE_S, Process, Service
from upgrade.visiting import visit_everything

WORKERS, STEP = 2, 15
STEADY_PAUSE_S, WATCH_S = 0.25, 0.1
LOAD_S = 600.0  # bound of a wait for scores: all of them, on a busy machine
COMPLETED = "SELECT count(*) FROM session_scores WHERE created_at >= $1 AND status = 'completed'"

Version = Mapping[str, str]
"""The variables that make a process run the code of a version."""


class Load:
    """
    Sessions that end, and the progress of their scores.

    `longest_pause_s` has the longest time without a completed score in each phase, and `took_s` how long it took.
    """

    def __init__(self, service: Service) -> None:
        self.events: list[str] = []
        self.completed = 0
        self.longest_pause_s: dict[str, float] = {}
        self.took_s: dict[str, float] = {}
        self._service = service
        self._since: datetime | None = None
        self._phase = ""

    async def open_many(self, count: int) -> None:
        """Announce so many sessions, and wait until each has an open score; the judge must hold its calls."""
        self._since = await self._service.value("SELECT now()")
        self.events += await self._service.announce(*self._service.add_sessions(count, "live-open"))
        await self._service.scores_reach(count, "status IN ('pending', 'in_progress')", LOAD_S)

    async def announce_steadily(self, stop: asyncio.Event) -> None:
        """Announce sessions one by one until `stop` is set."""
        while not stop.is_set():
            session_id = f"live-steady-{len(self.events):05d}"
            self._service.add_session(session_id)
            self.events += await self._service.announce(session_id)
            await asyncio.sleep(STEADY_PAUSE_S)

    async def repeat_some(self) -> None:
        """Send each tenth event again, as after a reset of offsets: other versions have taken it in."""
        await self._service.announce(*(event.removeprefix("event-") for event in self.events[::10]))

    async def watch(self) -> None:
        """Follow the progress, until cancelled."""
        grew_at = time.monotonic()
        async with connected(self._service.database_url) as connection:
            while True:
                completed, now = await connection.fetchval(COMPLETED, self._since), time.monotonic()
                self.longest_pause_s[self._phase] = max(now - grew_at, self.longest_pause_s.get(self._phase, 0.0))
                if completed > self.completed:
                    self.completed, grew_at = completed, now
                await asyncio.sleep(WATCH_S)

    async def has_completed(self, total: int) -> None:
        """Wait until so many scores are completed."""
        await wait_until(lambda: self.completed >= total, LOAD_S, f"{total} scores are completed")

    async def goes_on(self) -> None:
        """Wait until `STEP` further scores are completed."""
        await self.has_completed(self.completed + STEP)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._phase, began = name, time.monotonic()
        yield
        self._phase, self.took_s[name] = "", time.monotonic() - began

    def __str__(self) -> str:
        pauses = [f"{self.longest_pause_s.get(p, 0.0):.1f} of {t:.1f} s ({p})" for p, t in self.took_s.items()]
        return f"longest time without a completed score: {', '.join(pauses)}"


class Fleet:
    """Workers and an API process, which `roll` replaces one by one by those of another version."""

    def __init__(self, service: Service, known: Mapping[str, str]) -> None:
        self._service, self._known = service, known
        self._workers: list[Process] = []
        self._api: Process | None = None

    async def start(self, version: Version) -> None:
        for _ in range(WORKERS):
            self._workers.append(await self._started_worker(version))
        self._api = await self._started_api(version)

    async def roll(self, version: Version, load: Load) -> None:
        """End each process after its successor is ready and has worked beside it."""
        for number, former in enumerate(self._workers):
            self._workers[number] = await self._started_worker(version)
            await load.goes_on()
            assert await former.stop() == 0
        former_api, self._api = self._api, await self._started_api(version)
        assert former_api is not None
        await asyncio.gather(self.visit(former_api), self.visit(self._api))
        assert await former_api.stop() == 0

    async def stop(self) -> None:
        for process in (*self._workers, self._api):
            assert process is not None
            assert await process.stop() == 0
        self._workers, self._api = [], None

    async def visit(self, api: Process | None = None) -> None:
        """Every page and resource of an API process answers; default: of the newest one."""
        await visit_everything(await self._address(api), self._known)

    async def request(self, session_id: str, key: str) -> Any:
        """Request a score over HTTP; gives its id."""
        url = f"{await self._address()}/api/v1/scoring/sessions/{session_id}/score"
        async with (
            aiohttp.ClientSession() as client,
            client.post(url, json={}, headers={"Idempotency-Key": key}) as answer,
        ):
            assert answer.status == 202, await answer.text()
            return (await answer.json())["score_id"]

    async def _started_worker(self, version: Version) -> Process:
        worker = self._service.worker(**version)
        await worker.ready()
        return worker

    async def _started_api(self, version: Version) -> Process:
        api = self._service.command("api", SCORING_API_PORT="0", **version)
        address = await self._address(api)

        async def is_ready() -> bool:
            async with aiohttp.ClientSession() as client, client.get(f"{address}/readyz") as answer:
                return answer.status == 200

        await wait_until(is_ready, PATIENCE_S, "the API is ready")
        return api

    async def _address(self, api: Process | None = None) -> str:
        process = api or self._api
        assert process is not None
        return str((await process.says("api.listening"))["address"])
