"""
Upstream's TARSy, whose server scores sessions itself: how to run it on the same sessions.

The user builds both programs (see `docs/benchmarks.md`). This version of TARSy reads and writes one database.
"""

import asyncio
import io
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import asyncpg

from benchmarks.programs import START_S, ProgramFailed, first_line, program, require_running
from benchmarks.sessions import session_name
from benchmarks.tarsy import TABLES
from tarsy_scoring_lab.postgres import create_database
from tarsy_scoring_lab.process import HOST, free_port

# The fastest of 8 and 64 posters, and of 25 and 50 connections. 25 is TARSy's default; by default it keeps 10 of them.
POSTERS = 64
CONNECTIONS = 25
TEMPLATE = "peer"

# No chain scores by itself, so that every score is asked for; memory needs a service for embeddings. The built-in
# MCP server would be downloaded and started, but scoring does not use it.
_TARSY_YAML = """
mcp_servers:
  kubernetes-server: {transport: {type: http, url: "http://127.0.0.1:1/"}}
defaults:
  llm_provider: stand-in
  llm_backend: langchain
  scoring: {enabled: false}
  memory: {enabled: false}
"""
_PROVIDERS_YAML = """
llm_providers:
  stand-in: {type: openai, model: stand-in, api_key_env: OPENAI_API_KEY, max_tool_result_tokens: 100000}
"""

_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = 'public' AND table_name = $1 AND is_generated = 'NEVER'
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """
    The programs of TARSy.

    Args:
        server: The binary of `cmd/tarsy`.
        model: The binary of `benchmarks/peer_model`, which stands in for TARSy's model service.
    """

    server: Path
    model: Path

    async def create_template(self, server_url: str, sessions_url: str, count: int, folder: Path) -> None:
        """
        Create the database `TEMPLATE`: TARSy's own migrations, and the first `count` sessions of another database.

        Raises:
            ProgramFailed, TimeoutError: TARSy did not start.
        """
        config = folder / "peer"
        config.mkdir()
        (config / "tarsy.yaml").write_text(_TARSY_YAML, encoding="utf-8")
        (config / "llm-providers.yaml").write_text(_PROVIDERS_YAML, encoding="utf-8")
        url = await create_database(server_url, TEMPLATE)
        async with self.running(url, "127.0.0.1:1", folder):
            pass
        await _copy_sessions(sessions_url, url, [session_name(n) for n in range(count)])

    @asynccontextmanager
    async def running(
        self, database_url: str, model_address: str, folder: Path
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path, str]]:
        """
        Run TARSy until the end of the block; gives its process, its log and its URL. It listens on all interfaces.

        Raises:
            ProgramFailed, TimeoutError: It did not start.
        """
        port = free_port()
        env = {
            **_database_environment(database_url),
            "CONFIG_DIR": str(folder / "peer"),
            "HTTP_PORT": str(port),
            "LLM_SERVICE_ADDR": model_address,
            "LOG_LEVEL": "warn",
            "OPENAI_API_KEY": "stand-in",
        }
        log_file = folder / "peer.log"
        async with program(env=env, log_file=log_file, executable=str(self.server)) as process:
            base_url = f"http://{HOST}:{port}"
            async with asyncio.timeout(START_S):
                while not await _is_healthy(base_url):
                    require_running(process, log_file)
                    await asyncio.sleep(0.2)
            yield process, log_file, base_url

    @asynccontextmanager
    async def model_service(self, latency_s: float, folder: Path) -> AsyncIterator[tuple[str, int]]:
        """Run the stand-in of the model service; gives its address and process id. Raises: as `running`."""
        log_file = folder / "model.log"
        options = (f"-latency={latency_s}s",)
        async with program(*options, env={}, log_file=log_file, executable=str(self.model)) as process:
            line = await first_line(process, log_file)
            yield line, process.pid


async def post_scores(base_url: str, session_ids: Sequence[str]) -> None:
    """
    Ask for the score of each session, `POSTERS` at once; ends when TARSy has accepted all.

    Raises:
        ProgramFailed: TARSy refused one.
    """
    left = iter(session_ids)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(base_url, timeout=timeout) as session:

        async def poster() -> None:
            for session_id in left:
                async with session.post(f"/api/v1/sessions/{session_id}/score") as response:
                    if response.status != 202:
                        raise ProgramFailed(f"TARSy answered {response.status}: {(await response.text())[:200]}")

        await asyncio.gather(*(poster() for _ in range(POSTERS)))


async def _is_healthy(base_url: str) -> bool:
    try:
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{base_url}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _database_environment(url: str) -> Mapping[str, str]:
    parts = urlsplit(url)
    return {
        "DB_HOST": parts.hostname or "",
        "DB_PORT": str(parts.port),
        "DB_USER": parts.username or "",
        "DB_PASSWORD": parts.password or "",
        "DB_NAME": parts.path.lstrip("/"),
        "DB_MAX_OPEN_CONNS": str(CONNECTIONS),
        "DB_MAX_IDLE_CONNS": str(CONNECTIONS),
    }


async def _copy_sessions(source_url: str, target_url: str, session_ids: Sequence[str]) -> None:
    """Copy the rows of sessions, in the columns that both databases have."""
    source, target = await asyncpg.connect(source_url), await asyncpg.connect(target_url)
    try:
        for table in TABLES:
            of_source, of_target = [{r[0] for r in await c.fetch(_COLUMNS, table)} for c in (source, target)]
            columns = sorted(of_source & of_target)
            rows = io.BytesIO()
            query = f"SELECT {', '.join(columns)} FROM {table} WHERE session_id = ANY($1)"
            await source.copy_from_query(query, list(session_ids), output=rows)
            rows.seek(os.SEEK_SET)
            await target.copy_to_table(table, source=rows, columns=columns)
        await target.execute("VACUUM (ANALYZE)")
    finally:
        await source.close()
        await target.close()
