"""Why brokers do not let us in: whom we ask, and what is said of their answers."""

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.conn import SaslPlainAuthenticator, ScramAuthenticator
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

from tarsy_scoring.kafka import diagnose
from tarsy_scoring.kafka.diagnose import NAMED_LIMIT, find_obstacle
from tarsy_scoring.kafka.security import NotProven

PLANTED = "planted7Secret"
SCRAM = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}


class Cluster:
    """Stands where `create_conn` stands: brokers by their names, and what becomes of a connection to each."""

    def __init__(self, **faults: BaseException | None) -> None:
        self.faults = faults
        self.names = list(faults)
        self.asked: list[str] = []

    async def connect(self, host: str, port: int, **_: Any) -> Any:
        self.asked.append(host)
        if (fault := self.faults[host]) is not None:
            raise fault
        answer = SimpleNamespace(brokers=[(number, name, port, None) for number, name in enumerate(self.names)])

        async def send(_: Any) -> Any:
            return answer

        return SimpleNamespace(send=send, close=lambda: None)

    async def look(self, monkeypatch: pytest.MonkeyPatch, *given: str) -> Any:
        monkeypatch.setattr(diagnose, "create_conn", self.connect)
        return await find_obstacle({"bootstrap_servers": ",".join(f"{name}:9092" for name in given)} | SCRAM)


def gone() -> BaseException:
    return ConnectionRefusedError()


def refusal() -> BaseException:
    return SaslAuthenticationFailed("no")


@pytest.mark.parametrize(
    ("faults", "given", "expected"),
    [
        pytest.param({"a": None, "b": None}, ["a"], None, id="all-let-us-in"),
        pytest.param({"a": None, "b": gone()}, ["a", "b"], (False, False), id="one-that-was-given-is-away"),
        pytest.param({"a": None, "b": gone()}, ["a"], (False, False), id="one-that-was-named-is-away"),
        pytest.param({"a": gone(), "b": gone()}, ["a", "b"], (False, True), id="all-are-away"),
        pytest.param({"a": gone(), "b": refusal()}, ["a", "b"], (True, True), id="away-and-refused"),
        pytest.param({"a": None, "b": refusal()}, ["a", "b"], (True, False), id="one-refuses"),
    ],
)
async def test_an_obstacle_stands_in_every_way_or_in_some(
    monkeypatch: pytest.MonkeyPatch,
    faults: dict[str, BaseException | None],
    given: list[str],
    expected: tuple[bool, bool] | None,
) -> None:
    """A refusal is told before a fault, whichever came first."""
    found = await Cluster(**faults).look(monkeypatch, *given)

    assert (found and (found.is_refusal, found.is_everywhere)) == expected


async def test_who_gets_no_further_than_to_the_first_has_not_got_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers may call themselves by names that only their own network knows."""
    cluster = Cluster(front=None, inside=gone(), beside=gone())
    cluster.names = ["inside", "beside"]

    found = await cluster.look(monkeypatch, "front")

    assert found.is_everywhere
    assert "beside:9092: connection refused" in found.reason


async def test_a_large_cluster_is_not_asked_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker that looks would log in everywhere."""
    cluster = Cluster(front=None, **{f"broker-{number:03}": None for number in range(200)})

    assert await cluster.look(monkeypatch, "front") is None

    assert len(cluster.asked) == 1 + NAMED_LIMIT


async def test_brokers_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten that say nothing take as long as one."""
    both_are_there = asyncio.Barrier(2)

    async def connect(host: str, port: int, **_: Any) -> Any:
        await both_are_there.wait()
        raise ConnectionRefusedError

    monkeypatch.setattr(diagnose, "create_conn", connect)

    async with asyncio.timeout(30):
        found = await find_obstacle({"bootstrap_servers": "a:1,b:2"} | SCRAM)

    assert found is not None
    assert "connection refused" in found.reason


async def test_a_broker_that_never_answers_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the way in which a deadline is kept."""
    monkeypatch.setattr(diagnose, "KNOCK_TIMEOUT_S", 0.05)

    async def connect(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(diagnose, "create_conn", connect)

    found = await find_obstacle({"bootstrap_servers": "a:1"} | SCRAM)

    assert found is not None
    assert found.reason == "a:1: no answer in time; is it running and the network open?"
    assert not found.is_refusal


async def test_a_deadline_inside_of_the_library_is_told_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors carry the deadline as their cause, and the deadline a cancel."""
    error = KafkaConnectionError("a:1")
    error.__cause__ = TimeoutError()
    error.__cause__.__cause__ = asyncio.CancelledError()

    found = await Cluster(a=error).look(monkeypatch, "a")

    assert "no answer in time" in found.reason


# --- logins that make no sense -------------------------------------------------------------------------


class Broker:
    """The broker's half of a login by SCRAM, which knows nothing."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.client = ScramAuthenticator(
            loop=loop, sasl_plain_password=PLANTED, sasl_plain_username="u", sasl_mechanism="SCRAM-SHA-256"
        )

    async def first(self, nonce: str = "", salt: str = "c2FsdA==", iterations: str = "4096") -> bytes:
        opening, _ = await self.client.step(None)
        nonce = nonce or opening.decode().rpartition("r=")[2] + "x"
        return f"r={nonce},s={salt},i={iterations}".encode()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"nonce": "another"}, id="nonce"),
        pytest.param({"salt": "c"}, id="salt"),
        pytest.param({"iterations": "many"}, id="iterations"),
        pytest.param({"iterations": str(2**40)}, id="more-iterations-than-there-are"),
    ],
)
async def test_a_first_answer_that_makes_no_sense_is_a_login_that_failed(changes: dict[str, str]) -> None:
    """And not an error of the parser, which would end the client's own tasks."""
    broker = Broker()
    answer = await broker.first(**changes)

    with pytest.raises(NotProven) as refused:
        await broker.client.step(answer)

    assert PLANTED not in str(refused.value)


@pytest.mark.parametrize(
    ("final", "kind"),
    [
        pytest.param(b"v=" + base64.b64encode(b"wrong"), NotProven, id="wrong-signature"),
        pytest.param(b"hello", NotProven, id="no-message"),
        pytest.param(b"\xff", NotProven, id="no-text"),
        pytest.param(b"e=invalid-proof", SaslAuthenticationFailed, id="refused"),
    ],
)
async def test_a_broker_must_prove_that_it_knows_the_password(final: bytes, kind: type[Exception]) -> None:
    """Whoever took its name does not."""
    broker = Broker()
    await broker.client.step(await broker.first())

    with pytest.raises(SaslAuthenticationFailed) as refused:
        await broker.client.step(final)

    assert type(refused.value) is kind


async def test_an_answer_to_a_plain_login_must_be_empty() -> None:
    """Else this is no broker."""
    loop = asyncio.get_running_loop()
    client = SaslPlainAuthenticator(loop=loop, sasl_plain_password=PLANTED, sasl_plain_username="u")
    await client.step(None)

    with pytest.raises(NotProven):
        await client.step(b"hello")


async def test_a_broker_without_proof_is_a_refusal_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has to look whose broker that is."""
    found = await Cluster(a=NotProven("no")).look(monkeypatch, "a")

    assert found.is_refusal
    assert "the broker could not prove that it knows the password (SCRAM-SHA-256)" in found.reason
