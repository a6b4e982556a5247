"""PostgreSQL over TLS: the URL's TLS options hold for every connection, and errors name the problem."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infrastructure import wait_until
from secured_kafka import Authority
from tarsy_scoring.errors import StartRefused, TimelineUnavailable
from tarsy_scoring.postgres.database import Database, DatabaseAway
from tarsy_scoring.postgres.migrate import migrate
from tarsy_scoring.tarsy.timeline_db import TarsyDatabase
from tls_proxy import TlsProxy

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def other(folder: Path) -> Authority:
    return Authority(folder, "other")


def server_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(HOST))
    return context


@pytest.fixture
async def proxy(database_url: str, authority: Authority) -> AsyncIterator[TlsProxy]:
    """A migrated database behind TLS."""
    async with TlsProxy(database_url, server_context(authority)) as proxy:
        yield proxy


async def select_one(url: str) -> int:
    """Run `SELECT 1` over this URL."""
    database = Database(url, "public", pool_size=1)
    await database.open()
    try:
        return int(await database.once(lambda c: c.fetchval("SELECT 1")))
    finally:
        await database.close()


async def test_every_connection_speaks_tls(proxy: TlsProxy, authority: Authority) -> None:
    url = proxy.url(sslmode="verify-full", sslrootcert=authority.file)
    here, there = (Database(url, "public", pool_size=1) for _ in range(2))
    timeline = TarsyDatabase(url)
    await here.open()
    await there.open()
    listening = asyncio.create_task(there.exchange_notifications())
    ringing = asyncio.create_task(here.exchange_notifications())

    async def is_heard() -> bool:
        here.notify("scores")
        began = time.monotonic()
        await there.wait_notified("scores", 1)
        return time.monotonic() - began < 1

    try:
        assert await here.once(lambda c: c.fetchval("SELECT 1")) == 1
        assert await asyncio.to_thread(migrate, url) == []
        await wait_until(is_heard, 30, "a bell is heard by LISTEN")
        with pytest.raises(TimelineUnavailable, match="the table alert_sessions"):  # connected, but no TARSy
            await timeline.recent_agent_models()
    finally:
        for task in (listening, ringing):
            task.cancel()
        for opened in (here, there, timeline):
            await opened.close()


@pytest.mark.parametrize(
    ("host", "options", "says"),
    [
        pytest.param("localhost", {"sslrootcert": "{ours}"}, "is not valid for 'localhost'", id="another-name"),
        pytest.param(HOST, {"sslrootcert": "{other}"}, "unable to get local issuer certificate", id="another-ca"),
        pytest.param(HOST, {"sslrootcert": "{key}"}, "no certificate or crl found", id="not-a-ca"),
    ],
)
async def test_an_untrusted_server_is_reported_and_waited_for(
    proxy: TlsProxy, authority: Authority, other: Authority, host: str, options: dict[str, str], says: str
) -> None:
    """The service waits, because a certificate may be renewed; migrations fail at once."""
    files = {"ours": authority.file, "other": other.file, "key": authority.issue("x")[1]}
    url = proxy.url(host, sslmode="verify-full", **{name: value.format(**files) for name, value in options.items()})

    with pytest.raises(DatabaseAway) as away:
        await select_one(url)
    with pytest.raises(StartRefused) as failed:
        await asyncio.to_thread(migrate, url)

    for told in (str(away.value), str(failed.value)):
        assert says in told
        assert told.endswith("; check its TLS certificate and sslmode in SCORING_DATABASE_URL")
