"""`notify` and `doctor`: they try a destination, and say in words what came of it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from click.testing import CliRunner, Result

from receiver import Receiver, open_receiver
from tarsy_scoring.cli import cli

FILE = """
destinations:
  oncall: {type: webhook, url_env: HOOK, secret_env: HOOK_SECRET}
  traces: {type: langfuse, base_url: https://langfuse.example, public_key: pk, secret_env: NOT_SET}
"""
SECRET = "a-key-of-signatures"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as opened:
        yield opened


async def notify(tmp_path: Path, *arguments: str, **environ: str) -> Result:
    file = tmp_path / "config.yaml"
    file.write_text(FILE)
    given = {"SCORING_CONFIG": str(file), "HOOK_SECRET": SECRET} | environ
    return await asyncio.to_thread(CliRunner().invoke, cli, ["notify", *arguments], env=given)


async def test_a_test_message_arrives(tmp_path: Path, receiver: Receiver) -> None:
    """It needs the settings of this destination alone."""
    result = await notify(tmp_path, "oncall", HOOK=receiver.url)
    assert (result.exit_code, result.output) == (0, "oncall has taken the message\n")
    [document] = receiver.documents
    assert document["type"] == "test"


async def test_a_message_that_is_not_taken_fails_the_command(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers.append(403)
    result = await notify(tmp_path, "oncall", HOOK=receiver.url)
    assert (result.exit_code, result.output) == (1, "oncall did not take the message: it answered 403\n")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("oncal", "did you mean 'oncall'?"), ("traces", "takes scores only")],
)
async def test_what_cannot_be_tried_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    result = await notify(tmp_path, name)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())


async def test_without_a_file_that_is_said(tmp_path: Path) -> None:
    result = await notify(tmp_path, "oncall", SCORING_CONFIG="")
    assert (result.exit_code, "SCORING_CONFIG names no file" in result.output) == (2, True)


async def test_a_certificate_is_verified(tmp_path: Path) -> None:
    """Without its CA no message gets through."""
    ca, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(tls)
    received: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response()

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0, ssl_context=tls).start()
    url = f"https://localhost:{runner.addresses[0][1]}/"
    try:
        refused = await notify(tmp_path, "oncall", HOOK=url)
    finally:
        await runner.cleanup()
    assert (refused.exit_code, received) == (1, [])
