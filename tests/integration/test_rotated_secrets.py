"""Secrets in files are replaced while the service runs: the key of a judge, and the URL of a database."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from aiohttp import web

from builders import connected
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.secrets import database_url_source
from tarsy_scoring.errors import WaitFor
from tarsy_scoring.judge.ask.client import JudgeClient, create_clients
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Message, Question
from tarsy_scoring.postgres.database import Connection, Database, DatabaseAway
from tarsy_scoring.tarsy.database import TarsyPool

QUESTION = Question("analysis", [Message("user", "Why?")])
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "67"}, "finish_reason": "stop"}]}


class Provider:
    """Accepts one key, and records the keys that it is given."""

    def __init__(self) -> None:
        self.accepts = "old"
        self.keys: list[str] = []
        self.url = ""
        self.on_request: Callable[[], object] = lambda: None

    async def handle(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers["Authorization"].removeprefix("Bearer "))
        self.on_request()
        if self.keys[-1] != self.accepts:
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        return web.json_response(ANSWER)


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", provider.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield provider
    await runner.cleanup()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("old\n", encoding="utf-8")
    return path


@pytest.fixture(params=["in-the-yaml", "in-the-environment"])
async def client(
    request: pytest.FixtureRequest, provider: Provider, key_file: Path, tmp_path: Path
) -> AsyncIterator[JudgeClient]:
    """The client of a provider whose key file is named in either place."""
    is_in_yaml = request.param == "in-the-yaml"
    where = f"api_key_file: {key_file}" if is_in_yaml else "api_key_env: JUDGE_KEY"
    config = tmp_path / "scoring.yaml"
    config.write_text(f"providers:\n  main: {{base_url: '{provider.url}', model: m, {where}}}\n", encoding="utf-8")
    settings = load_settings({"SCORING_CONFIG": str(config)})
    client = create_clients(settings, {} if is_in_yaml else {"JUDGE_KEY_FILE": str(key_file)})["main"]
    yield client
    await client.close()


def replace(file: Path, secret: str) -> None:
    file.write_text(f"{secret}\n", encoding="utf-8")


async def ask(client: JudgeClient) -> str:
    return (await client.ask(QUESTION, clock=AttemptClock(30))).reply


async def test_the_next_call_has_the_new_key(provider: Provider, client: JudgeClient, key_file: Path) -> None:
    assert await ask(client) == "67"
    replace(key_file, "newer")
    provider.accepts = "newer"

    assert await ask(client) == "67"
    assert provider.keys == ["old", "newer"]


async def test_a_call_under_way_is_repeated_once_with_the_new_key(
    provider: Provider, client: JudgeClient, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the file looks unchanged."""
    provider.accepts = "newer"
    provider.on_request = lambda: replace(key_file, "newer")
    monkeypatch.setattr("tarsy_scoring.config.watched_file.WatchedFile._signature", lambda _: (1, 1, 1))

    assert await ask(client) == "67"
    assert provider.keys == ["old", "newer"]


async def test_a_key_that_stays_rejected_is_sent_once(provider: Provider, client: JudgeClient) -> None:
    provider.accepts = "another"

    with pytest.raises(WaitFor, check=lambda error: error.waiting_for == "key"):
        await ask(client)
    assert provider.keys == ["old"]


async def test_an_emptied_key_file_leaves_the_key_in_force(
    provider: Provider, client: JudgeClient, key_file: Path
) -> None:
    replace(key_file, "")

    assert await ask(client) == "67"


def with_login(url: str, name: str, password: str) -> str:
    """The URL with another user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{name}:{password}@{parts.netloc.rpartition('@')[2]}"))


@pytest.fixture
async def role(database_url: str) -> AsyncIterator[str]:
    """A role with the password `old`."""
    name = f"rotating_{urlsplit(database_url).path[1:]}"
    async with connected(database_url) as admin:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'old'")
        yield name
        await admin.execute(f"DROP ROLE {name}")


async def test_new_connections_to_a_database_use_the_new_password(
    database_url: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is open stays. Until the file follows, the database counts as away and is waited for."""
    file = tmp_path / "url"
    replace(file, with_login(database_url, role, "old"))
    monkeypatch.setenv("SCORING_DATABASE_URL_FILE", str(file))
    source = database_url_source(load_settings())
    ours = Database(source, "public", pool_size=2)
    tarsys = TarsyPool(source, "SCORING_TIMELINE_DATABASE_URL", {}, is_read_only=True, max_connections=2)
    await ours.open()
    try:
        assert await ours.once(user) == role
        async with tarsys.transaction() as (connection, _):
            assert await user(connection) == role
        async with connected(database_url) as admin:
            await admin.execute(f"ALTER ROLE {role} PASSWORD 'new'")
        with pytest.raises(DatabaseAway):
            await ours.once(lambda _: ours.once(user))
        replace(file, with_login(database_url, role, "new"))

        assert await ours.once(lambda _: ours.once(user)) == role
        async with tarsys.transaction(), tarsys.transaction() as (connection, _):
            assert await user(connection) == role
    finally:
        await ours.close()
        await tarsys.close()


async def user(connection: Connection, *_: object) -> str:
    return str(await connection.fetchval("SELECT current_user"))
