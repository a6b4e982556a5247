"""Upstream's own server, built from the checkout that `TARSY_SOURCE` names and run as `docs/bridge.md` expects it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml
from upstream import CONFIGURATION, FAILS, PROVIDERS, Tarsy, environment, is_healthy

from builders import connected
from infrastructure import Postgres, fresh_database, run_apart, wait_until
from processes import PATIENCE_S, Process, service
from tarsy_grants import READER, WRITER, blocks_of_sql
from tarsy_scoring_lab.process import free_port
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

__all__ = ["service"]

VARIABLE = "TARSY_SOURCE"
MODEL = Path(__file__).parents[2] / "benchmarks" / "peer_model" / "main.go"
BUILD_S = 3600  # without Go's cache, on a busy machine
PASSWORD = "secret"  # of roles in a database on loopback


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both programs, `tarsy` and `peer_model`; skips the test where there is no source or no Go."""
    source = os.environ.get(VARIABLE)
    if not source:
        pytest.skip(f"{VARIABLE} names no checkout of github.com/codeready-toolchain/tarsy")
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go, which builds TARSy's server")
    folder = tmp_path_factory.mktemp("tarsy")
    # An overlay adds the model to the checkout without writing there.
    overlay = folder / "overlay.json"
    place = Path(source).resolve() / "cmd" / MODEL.parent.name / MODEL.name
    overlay.write_text(json.dumps({"Replace": {str(place): str(MODEL)}}), encoding="utf-8")
    command = [go, "build", "-buildvcs=false", f"-overlay={overlay}", "-o", f"{folder}/"]
    packages = ["./cmd/tarsy", f"./cmd/{MODEL.parent.name}"]
    built = subprocess.run(
        [*command, *packages], cwd=source, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def tarsy_urls(own_postgres: Postgres) -> Iterator[Mapping[str, str]]:
    """URLs of a database for TARSy's own role, `tarsy`, and for both roles of `docs/bridge.md`, by role."""
    with fresh_database(own_postgres) as url:
        roles = ("tarsy", READER, WRITER)
        of_roles, *_ = blocks_of_sql()
        run_apart(
            _execute(
                url,
                # The server's tables need it, and TARSy's role may not create it. The embedded server brings it.
                "CREATE EXTENSION vector",
                f"CREATE ROLE tarsy LOGIN PASSWORD '{PASSWORD}'",
                f'ALTER DATABASE "{urlsplit(url).path[1:]}" OWNER TO tarsy',
                of_roles.replace("...", PASSWORD),
            )
        )
        yield {role: _url_of(url, role) for role in roles}
        run_apart(_execute(url, *(f"DROP OWNED BY {role} CASCADE" for role in roles)))
    # Roles belong to the server. TARSy's own owned the database.
    run_apart(_execute(own_postgres.url, *(f"DROP ROLE {role}" for role in roles)))


@pytest.fixture
async def tarsy(
    request: pytest.FixtureRequest, programs: Path, tarsy_urls: Mapping[str, str], judge: ScriptedJudge, tmp_path: Path
) -> AsyncIterator[Tarsy]:
    """
    Upstream's server with its own tables, an agent, a tool and a stand-in for the model; the grants are given.

    With a parameter it has a memory, which the scripted judge embeds, and which is a tool of agents.
    """
    folder = tmp_path / "tarsy"
    folder.mkdir()
    memory = {"provider": "openai", "model": "words", "dimensions": 768, "api_key_env": "OPENAI_API_KEY"}
    remembers = {"memory": {"enabled": True, "embedding": memory | {"base_url": judge.base_url}}}
    more = remembers if hasattr(request, "param") else {}
    configuration = CONFIGURATION | {"defaults": CONFIGURATION["defaults"] | more}  # type: ignore[operator]
    (folder / "tarsy.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    (folder / "llm-providers.yaml").write_text(yaml.safe_dump(PROVIDERS), encoding="utf-8")
    model = Process([str(programs / "peer_model"), "-investigates", f"-fails={FAILS}"], os.environ, folder, "model")
    server = None
    try:
        await wait_until(lambda: model.stdout.endswith("\n"), PATIENCE_S, "the model listens")
        port = free_port()
        own = environment(tarsy_urls["tarsy"], model.stdout.strip(), port, str(folder))
        server = Process([str(programs / "tarsy")], os.environ | own, folder, "server")
        base_url = f"http://127.0.0.1:{port}"
        await wait_until(partial(is_healthy, base_url, server), PATIENCE_S, "TARSy's server is healthy")
        await _execute(tarsy_urls["tarsy"], blocks_of_sql()[1], blocks_of_sql()[3])
        yield Tarsy(base_url, tarsy_urls)
    finally:
        for process in filter(None, (server, model)):
            await process.kill()
            sys.stderr.write(f"--- {process.name}: {process.status}\n{process.log[-4000:]}\n")


async def _execute(url: str, *statements: str) -> None:
    async with connected(url) as connection:
        for statement in statements:
            await connection.execute(statement)


def _url_of(url: str, role: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}:{PASSWORD}@{parts.hostname}:{parts.port}"))
