"""
Latency of the pages about quality over time with many scores stored: `python -m benchmarks.quality DIRECTORY`.

PostgreSQL and the API are processes of their own. Each page is requested once after a start of the API
(cold), then repeatedly, one request after the other, as a browsing user would. PostgreSQL runs over a directory filled by
`benchmarks.stored` and starts anew for each page as well; root empties the caches of the system.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg
import psutil

from benchmarks.meter import peak_rss
from benchmarks.programs import ProgramFailed, first_line, program
from benchmarks.stored import stored

TIMES = 30
TARGET_MS, COLD_TARGET_MS = 200.0, 1000.0  # the cold one: PostgreSQL and the system start with empty caches
SETTLED_S = 5.0
API = "/api/v1/scoring"


@dataclass(frozen=True, slots=True)
class Page:
    """
    Latency of a page in ms: of the first request after a start of the API, and of repeated ones.

    Args:
        cpu_ms: CPU of the API per repeated request.
        api_mb: Peak memory of the API, which has served this page alone.
    """

    path: str
    cold_ms: float
    p50_ms: float
    p99_ms: float
    answer_bytes: int
    cpu_ms: float
    api_mb: float


async def ask(client: aiohttp.ClientSession, address: str, path: str) -> tuple[float, int]:
    """
    Request a page as a browser does; returns its latency in ms and its size in bytes.

    Raises:
        ProgramFailed: The answer is not 200.
    """
    began = time.monotonic()
    async with client.get(address + path, headers={"Accept": "text/html, application/json"}) as answer:
        body = await answer.read()
        if answer.status != 200:
            raise ProgramFailed(f"GET {path} was answered with {answer.status}")
    return 1000 * (time.monotonic() - began), len(body)


async def measure_page(process: asyncio.subprocess.Process, address: str, path: str) -> Page:
    """Measure a page, one request at a time; the first one, `SETTLED_S` after the start, is the cold one."""
    api = psutil.Process(process.pid)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
        await asyncio.sleep(SETTLED_S)
        cold_ms, size = await ask(client, address, path)
        before = api.cpu_times()
        ordered = sorted([(await ask(client, address, path))[0] for _ in range(TIMES)])
        after = api.cpu_times()
    return Page(
        path,
        round(cold_ms, 1),
        round(ordered[len(ordered) // 2], 1),
        round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 1),
        size,
        round(1000 * (after.user + after.system - before.user - before.system) / TIMES, 1),
        round(peak_rss(api) / 1e6, 1),
    )


async def measure(directory: Path, only: str) -> list[Page]:
    """Measure the pages whose address contains `only`, each over a PostgreSQL that was just started."""
    async with stored(directory) as postgres:
        found = []
        for path in await paths(postgres.url):
            if only in path:
                await postgres.stop()
                empty_caches()
                await postgres.start()
                found.append(await measure_path(postgres.url, path))
                sys.stdout.write(row(found[-1]))
                sys.stdout.flush()
        return found


async def measure_path(url: str, path: str) -> Page:
    """Measure one page with an API of its own. Raises: ProgramFailed: it did not start, or refused the page."""
    with tempfile.TemporaryDirectory(prefix="tarsy-scoring-bench-") as place:
        log_file = Path(place) / "api.log"
        env = {"SCORING_DATABASE_URL": url, "SCORING_API_PORT": "0", "SCORING_LOG_LEVEL": "warning"}
        env["SCORING_API_RATE_PER_MINUTE"] = "100000"
        async with program("-m", "tarsy_scoring", "api", env=env, log_file=log_file) as process:
            line = await first_line(process, log_file)
            return await measure_page(process, line.split()[-1], path)


def empty_caches() -> None:
    """Let Linux forget all file contents that are in memory; others than root leave them there."""
    if os.geteuid() == 0:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")


async def paths(url: str) -> list[str]:
    """Addresses of the pages and of their data in the API; a page of a score shows one with labels."""
    connection = await asyncpg.connect(url)
    try:
        score_id = await connection.fetchval("SELECT score_id FROM score_labels ORDER BY label_id DESC LIMIT 1")
    finally:
        await connection.close()
    return [
        "/week",
        "/missing-tools",
        "/missing-tools?since=&until=",
        "/missing-tools?chain=chain-7",
        "/drift",
        "/drift?chain=chain-7",
        "/trends?chain=chain-7",
        "/trends",
        "/trends?since=",
        "/distribution",
        "/distribution?since=",
        "/failure-tags",
        "/review",
        f"/scores/{score_id}",
        "/",
        "/?chain=chain-7",
        "/?status=failed",
        "/?sort=score_asc",
        "/?q=session-123",
        "/?flag=breakdown_mismatch",
        "/sessions/session-4711",
        f"{API}/sessions?limit=200",
        f"{API}/analytics/trends",
        f"{API}/analytics/missing-tools",
        f"{API}/scores/{score_id}/turns",
    ]


def row(page: Page) -> str:
    """One line for people."""
    times = f"cold {page.cold_ms:6.0f}  p50 {page.p50_ms:6.0f}  p99 {page.p99_ms:6.0f} ms"
    size = f"{page.answer_bytes / 1000:5.0f} KB"
    return f"{page.path:62} {times}  {size}  CPU {page.cpu_ms:5.0f} ms  {page.api_mb:4.0f} MB\n"


def main() -> int:
    """
    Measure and print the latencies.

    Exit status 0: every page is within the target, cold and by its median; 1: one is not, or was not measured.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("directory", type=Path, help="which benchmarks.stored has filled")
    parser.add_argument("--only", default="", help="pages whose address contains this text")
    asked = parser.parse_args()
    try:
        found = asyncio.run(measure(asked.directory, asked.only))
    except (ProgramFailed, TimeoutError) as error:
        sys.stderr.write(f"benchmarks: {str(error) or 'the API did not start in time'}\n")
        return 1
    pages = [page for page in found if not page.path.startswith(API)]
    return 0 if all(page.cold_ms <= COLD_TARGET_MS and page.p50_ms <= TARGET_MS for page in pages) else 1


if __name__ == "__main__":
    sys.exit(main())
