"""`notify` and `doctor`: they try a destination, and say in words what came of it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from click.testing import CliRunner, Result

from receiver import Receiver, open_receiver
from tarsy_scoring.cli import cli
from tarsy_scoring.config.chains import Config
from tarsy_scoring.config.destinations import DestinationSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor import checks
from tarsy_scoring.doctor.destinations import destination_checks

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


async def examine(
    monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], ca_file: Path | None = None
) -> list[checks.Result]:
    for name, value in ({"HOOK_SECRET": SECRET} | dict(environ)).items():
        monkeypatch.setenv(name, value)
    webhook = DestinationSettings(type="webhook", url_env="HOOK", secret_env="HOOK_SECRET", ca_file=ca_file)
    return await checks.run_checks(destination_checks(Settings(config=Config(destinations={"oncall": webhook}))))


async def test_doctor_connects_and_sends_nothing(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
    [result] = await examine(monkeypatch, {"HOOK": receiver.url})
    assert (result.state, result.found) == ("ok", "oncall: can be reached")
    assert receiver.received == []


async def test_doctor_names_a_destination_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    [result] = await examine(monkeypatch, {"HOOK": "http://127.0.0.1:9/T0KEN"})
    assert (result.state, result.found) == ("failed", "oncall: no connection (ConnectionRefusedError)")
    assert "T0KEN" not in str(result)


async def test_a_certificate_is_verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its CA the destination is reached, without it neither doctor nor a message gets through."""
    ca, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(tls)
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
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
        [untrusted] = await examine(monkeypatch, {"HOOK": url})
        [trusted] = await examine(monkeypatch, {"HOOK": url}, tmp_path / "ca.pem")
        refused = await notify(tmp_path, "oncall", HOOK=url)
    finally:
        await runner.cleanup()
    assert (untrusted.state, trusted.state) == ("failed", "ok")
    assert "certificate is not trusted" in untrusted.found
    assert (refused.exit_code, received) == (1, [])
