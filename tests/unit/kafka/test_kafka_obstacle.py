"""`find_obstacle`: which brokers it asks, and which obstacle it reports."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

from tarsy_scoring.kafka import connect, diagnose
from tarsy_scoring.kafka.connect import BrokerRefuses, start_client
from tarsy_scoring.kafka.diagnose import NAMED_LIMIT, Obstacle, find_obstacle

SCRAM = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
TOKEN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
Faults = dict[str, BaseException | None]


class Cluster:
    """Replaces `create_conn`: brokers by name, with the fault of a connection to each."""

    def __init__(self, faults: Faults, names: list[str] | None = None) -> None:
        self.faults = faults
        self.names = list(faults) if names is None else names
        self.asked: list[str] = []

    async def connect(self, host: str, port: int, **_: Any) -> Any:
        self.asked.append(host)
        if (fault := self.faults[host]) is not None:
            raise fault
        answer = SimpleNamespace(brokers=[(number, name, port, None) for number, name in enumerate(self.names)])

        async def send(_: Any) -> Any:
            return answer

        return SimpleNamespace(send=send, close=lambda: None)

    async def diagnose(
        self, monkeypatch: pytest.MonkeyPatch, *given: str, login: dict[str, str] = SCRAM
    ) -> Obstacle | None:
        monkeypatch.setattr(diagnose, "create_conn", self.connect)
        return await find_obstacle({"bootstrap_servers": ",".join(f"{name}:9092" for name in given)} | login)


GONE, REFUSAL = ConnectionRefusedError(), SaslAuthenticationFailed("no")


@pytest.mark.parametrize(
    ("faults", "given", "expected"),
    [
        pytest.param({"a": None, "b": None}, ["a"], None, id="all-let-us-in"),
        pytest.param({"a": None, "b": GONE}, ["a", "b"], (False, False), id="a-bootstrap-server-is-away"),
        pytest.param({"a": None, "b": GONE}, ["a"], (False, False), id="a-named-broker-is-away"),
        pytest.param({"a": GONE, "b": GONE}, ["a", "b"], (False, True), id="all-are-away"),
        pytest.param({"a": GONE, "b": REFUSAL}, ["a", "b"], (True, True), id="away-and-refused"),
        pytest.param({"a": None, "b": REFUSAL}, ["a", "b"], (True, False), id="one-refuses"),
    ],
)
async def test_a_refusal_is_reported_before_a_fault(
    monkeypatch: pytest.MonkeyPatch, faults: Faults, given: list[str], expected: tuple[bool, bool] | None
) -> None:
    found = await Cluster(faults).diagnose(monkeypatch, *given)

    assert (found and (found.is_refusal, found.is_everywhere)) == expected


async def test_a_reachable_bootstrap_server_alone_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers may advertise names that only their own network knows."""
    cluster = Cluster({"front": None, "inside": GONE, "beside": GONE}, names=["inside", "beside"])

    found = await cluster.diagnose(monkeypatch, "front")

    assert found is not None
    assert found.is_everywhere
    assert "beside:9092: connection refused" in found.reason


async def test_only_some_brokers_of_a_large_cluster_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({"front": None} | {f"broker-{number:03}": None for number in range(200)})

    assert await cluster.diagnose(monkeypatch, "front") is None

    assert len(cluster.asked) == 1 + NAMED_LIMIT


async def test_brokers_are_asked_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    both_are_asked = asyncio.Barrier(2)

    async def wait_for_both(host: str, port: int, **_: Any) -> Any:
        await both_are_asked.wait()
        raise ConnectionRefusedError

    monkeypatch.setattr(diagnose, "create_conn", wait_for_both)

    async with asyncio.timeout(30):
        found = await find_obstacle({"bootstrap_servers": "a:1,b:2"} | SCRAM)

    assert found is not None


def timed_out_inside_the_library() -> Exception:
    """An error of the library, caused by a timeout that a cancellation caused."""
    error = KafkaConnectionError("a:1")
    error.__cause__ = TimeoutError()
    error.__cause__.__cause__ = asyncio.CancelledError()
    return error


NOT_PROVEN = "could not prove that it knows the password \\(SCRAM-SHA-256\\)"


@pytest.mark.parametrize(
    ("fault", "says", "is_refusal"),
    [
        pytest.param(timed_out_inside_the_library(), "^a:9092: no answer in time", False, id="deadline-of-the-library"),
        pytest.param(ValueError("Server sent wrong signature!"), NOT_PROVEN, True, id="wrong-signature"),
        pytest.param(KeyError("v"), NOT_PROVEN, True, id="no-signature"),
        pytest.param(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), NOT_PROVEN, True, id="no-text"),
        pytest.param(OverflowError(), NOT_PROVEN, True, id="too-many-iterations"),
        pytest.param(AssertionError(), NOT_PROVEN, True, id="answer-to-a-plain-login"),
        pytest.param(UnicodeError("label too long"), "SCORING_KAFKA_BOOTSTRAP_SERVERS", False, id="host-name"),
    ],
)
async def test_a_fault_is_put_into_words(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, says: str, is_refusal: bool
) -> None:
    found = await Cluster({"a": fault}).diagnose(monkeypatch, "a")

    assert found is not None
    assert re.search(says, found.reason)
    assert found.is_refusal == is_refusal


async def test_a_broker_that_never_answers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(diagnose, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(diagnose, "create_conn", never)

    found = await find_obstacle({"bootstrap_servers": "a:1"} | SCRAM)

    assert found == Obstacle("a:1: no answer in time; is it running and the network open?", is_refusal=False)


async def test_an_empty_cluster_after_a_token_login_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library ignores the answer to a token. After another login a cluster may be empty."""
    cluster = Cluster({"a": None}, names=[])
    found = await cluster.diagnose(monkeypatch, "a", login=TOKEN)

    assert found is not None
    assert "the login was refused (OAUTHBEARER)" in found.reason
    assert found.is_refusal
    assert (without := await cluster.diagnose(monkeypatch, "a")) is None or not without.is_refusal


@pytest.mark.parametrize(
    "error", [ValueError("Server sent wrong signature!"), AssertionError()], ids=["scram", "plain"]
)
async def test_a_broker_without_proof_of_identity_refuses(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:

    class Client:
        is_closed = False

        async def start(self) -> None:
            raise error

        async def stop(self) -> None:
            self.is_closed = True

    async def refuses(_: Any) -> Obstacle:
        return Obstacle("not proven", is_refusal=True)

    monkeypatch.setattr(connect, "find_obstacle", refuses)
    client = Client()

    with pytest.raises(BrokerRefuses, match="not proven"):
        await start_client(client, {})
    assert client.is_closed
