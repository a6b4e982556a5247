"""Secured brokers: every client logs in, or reports why it was refused."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from infrastructure import run_apart, wait_until
from secured_kafka import PASSWORD, USER, Authority, SecuredKafka, unsigned_token
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka import consumer as consuming
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import Consumer
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import Tail, ensure_topics, read_topic
from tarsy_scoring_lab.broker import kafka_lacks

pytestmark = pytest.mark.skipif(kafka_lacks() is not None, reason=f"Apache Kafka cannot run here: {kafka_lacks()}")

Login = Callable[..., dict[str, str]]
LISTENERS = ["SCRAM", "CERTIFICATE", "TOKEN"]
RECORD = (b"key", b"value", [("header", b"h")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[SecuredKafka]:
    server = SecuredKafka(authority)
    run_apart(server.start())
    try:
        yield server
    finally:
        run_apart(server.close())


@pytest.fixture(scope="module")
def login(broker: SecuredKafka, authority: Authority, folder: Path) -> Login:
    """Variables for the login at a listener; `changes` by short names, where an empty value unsets one."""
    certificate, key = authority.issue("client")
    token = folder / "token"
    token.write_text(unsigned_token("scoring"), encoding="utf-8")
    ways = {
        "SCRAM": {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": USER,
            "sasl_password": PASSWORD,
        },
        "CERTIFICATE": {"security_protocol": "SSL", "cert_file": str(certificate), "key_file": str(key)},
        "TOKEN": {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "oauth_token_file": str(token)},
    }

    def variables(listener: str, **changes: object) -> dict[str, str]:
        names = ways[listener] | {"bootstrap_servers": broker.servers(listener), "ca_file": str(authority.file)}
        names |= {name: str(value) for name, value in changes.items()}
        return {f"SCORING_KAFKA_{name.upper()}": value for name, value in names.items()}

    return variables


def new_topic() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


async def make_topic(login: Login) -> str:
    topic = new_topic()
    await ensure_topics(load_settings(login("SCRAM") | {"SCORING_CREATE_TOPICS": "true"}), [topic])
    return topic


async def read_all(settings: Settings, topic: str) -> list[bytes | None]:
    return [record.value async for record in read_topic(settings, topic)]


@pytest.mark.parametrize("listener", LISTENERS)
async def test_every_client_logs_in(login: Login, listener: str) -> None:
    settings = load_settings(login(listener, group=new_topic()) | {"SCORING_CREATE_TOPICS": "true"})
    topic = new_topic()
    publisher, consumer = Publisher(settings), Consumer(settings, [topic])
    tail = Tail(connection_options(settings), topic)
    async with asyncio.timeout(120):
        await ensure_topics(settings, [topic])
        assert await publisher.publish(topic, [RECORD], 30) == [True]
        await consumer.start()
        taken = await wait_until(lambda: consumer.take(0.2, 10), 30, "the record is taken")
        assert await consumer.commit(taken)
        await tail.start()
        followed = await wait_until(lambda: tail.take(0.2), 30, "the record is followed")
        assert await read_all(settings, topic) == [taken[0].value] == [followed[0].value] == [b"value"]
        for client in (publisher, consumer, tail):
            await client.stop()
    assert publisher.is_idempotent


@pytest.fixture
def wrong(folder: Path, authority: Authority) -> dict[str, Path]:
    """Files that the broker refuses."""
    other = Authority(folder, "other")
    certificate, key = other.issue("client")
    old = folder / "old-token"
    old.write_text(unsigned_token("scoring", lifetime_s=-60), encoding="utf-8")
    return {"ca": other.file, "cert": certificate, "key": key, "old": old, "none": folder / "nowhere"}


REFUSALS: list[tuple[str, dict[str, str], str]] = [
    ("SCRAM", {"sasl_password": "planted-x"}, "SaslAuthenticationFailed"),
    ("SCRAM", {"sasl_mechanism": "PLAIN"}, "UnsupportedSaslMechanismError"),
    ("SCRAM", {"ca_file": "{ca}"}, "CERTIFICATE_VERIFY_FAILED"),
    ("SCRAM", {"bootstrap_servers": "localhost:{port}"}, "certificate is not valid for 'localhost'"),
    ("CERTIFICATE", {"cert_file": "", "key_file": ""}, "closed"),
    ("TOKEN", {"oauth_token_file": "{old}"}, "SCORING_KAFKA_OAUTH_TOKEN_FILE"),
    ("TOKEN", {"oauth_token_file": "{none}"}, "cannot read the token"),
]


async def test_a_refused_client_reports_why(broker: SecuredKafka, login: Login, wrong: dict[str, Path]) -> None:

    async def is_refused(listener: str, changes: dict[str, str], says: str) -> None:
        port = broker.servers(listener).rpartition(":")[2]
        values = {name: value.format(**wrong, port=port) for name, value in changes.items()}
        settings = load_settings(login(listener, **values))
        with pytest.raises(BrokerAway) as refused:
            await read_all(settings, "any")
        assert says in str(refused.value)
        assert settings.require_kafka() in str(refused.value)
        assert "planted" not in str(refused.value)

    async with asyncio.TaskGroup() as group:
        for case in REFUSALS:
            group.create_task(is_refused(*case), name=str(case))


async def test_a_login_that_is_refused_later_is_reported_and_survived(
    login: Login, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The library reports no error, so its silence is diagnosed. A new token in the file ends the outage.

    The brokers end connections of this listener after a second.
    """
    monkeypatch.setattr(consuming, "QUIET_S", 0.3)
    monkeypatch.setattr(consuming, "WATCH_S", 0.1)
    topic, token = await make_topic(login), folder / "renewed-token"
    token.write_text(unsigned_token("scoring"), encoding="utf-8")
    consumer = Consumer(load_settings(login("TOKEN", oauth_token_file=token, group=new_topic())), [topic])
    await consumer.start()

    with capture_logs() as lines:

        async def is_reported() -> bool:
            await consumer.take(0.1, 1)
            return bool(lines)

        token.write_text(unsigned_token("scoring", lifetime_s=-60), encoding="utf-8")
        await wait_until(is_reported, 30, "the refusal is reported")
    token.write_text(unsigned_token("scoring"), encoding="utf-8")
    publisher = Publisher(load_settings(login("SCRAM")))
    assert await publisher.publish(topic, [RECORD], 30) == [True]
    taken = await wait_until(lambda: consumer.take(0.2, 10), 30, "it goes on")
    await consumer.stop()
    await publisher.stop()

    assert [record.value for record in taken] == [b"value"]
    assert {(line["event"], line["what"]) for line in lines} == {("kafka.away", "intake")}
