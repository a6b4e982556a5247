"""
Find out why the brokers cannot be used.

The library reports a refused login like a broker that is down. `find_obstacle` therefore connects once more,
to each broker by itself, and puts the error of each connection into words.
"""

import asyncio
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from tarsy_scoring.kafka.security import NoToken

# For connection, login and one request to one broker. The next attempt waits for the diagnosis.
CONNECT_TIMEOUT_S = 5.0
NAMED_LIMIT = 10  # brokers of a large cluster usually fail for the same reason

# What the library's parser raises for a login reply that breaks its protocol (RFC 5802, RFC 4616).
UNREADABLE_LOGIN = (ValueError, LookupError, ArithmeticError, AssertionError)

_Place = tuple[str, int]


class TokenRefused(SaslAuthenticationFailed):  # type: ignore[misc]
    """The brokers do not accept the token."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """
    Why the brokers cannot be used, and how to mend it.

    Args:
        is_refusal: The broker answers and refuses us: an operator has to change something.
        is_everywhere: No broker lets us in; False: at least one does.
    """

    reason: str
    is_refusal: bool
    is_everywhere: bool = True

    @property
    def keeps_out(self) -> bool:
        """Whether work has to wait. A single broker that is down is handled by the cluster."""
        return self.is_refusal or self.is_everywhere


async def find_obstacle(options: Mapping[str, Any]) -> Obstacle | None:
    """
    Connect and log in to the brokers over connections of our own, and report what prevents it.

    Asks the bootstrap servers, then up to `NAMED_LIMIT` of the brokers that they name. Takes at most 10 s,
    because each group is asked at once.

    Args:
        options: The result of `connection_options`.

    Returns:
        The first refusal, else the first fault; None: the brokers can be used now.
    """
    login = {name: value for name, value in options.items() if name != "bootstrap_servers"}
    given = {(host, port) for host, port, _ in collect_hosts(options["bootstrap_servers"], randomize=False)}
    answers = await _ask_all(sorted(given), login)
    named = {place for answer in answers.values() if not isinstance(answer, Obstacle) for place in answer}
    answers |= await _ask_all(sorted(named - given)[:NAMED_LIMIT], login)
    found = [answer for answer in answers.values() if isinstance(answer, Obstacle)]
    if not found:
        return None
    let_in = {place for place, answer in answers.items() if not isinstance(answer, Obstacle)}
    # A bootstrap server alone is not enough: it may advertise addresses that cannot be reached from here.
    is_everywhere = not (let_in & given and let_in & named)
    return replace(next((o for o in found if o.is_refusal), found[0]), is_everywhere=is_everywhere)


async def _ask_all(
    places: Collection[_Place], login: Mapping[str, Any]
) -> dict[_Place, Obstacle | set[_Place]]:
    """Ask all brokers at once: for each its obstacle, or the brokers that it names."""
    return dict(zip(places, await asyncio.gather(*(_ask(place, login) for place in places)), strict=True))


async def _ask(place: _Place, login: Mapping[str, Any]) -> Obstacle | set[_Place]:
    """Log in to one broker and ask which brokers the cluster has; return these, or the obstacle."""
    host, port = place
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await create_conn(host, port, **login)
            try:
                answer = await connection.send(MetadataRequest([]))
            finally:
                connection.close()
        # RFC 7628, section 3.2.3: a broker that refuses a token sends the reason and expects one more
        # message. The library sends none, so the broker answers the next request with an error, which reads
        # as an empty cluster.
        if not answer.brokers and login.get("sasl_mechanism") == "OAUTHBEARER":
            raise TokenRefused
    except (KafkaError, OSError, TimeoutError, *UNREADABLE_LOGIN) as error:
        reason, is_refusal = _describe(error, login)
        return Obstacle(f"{host}:{port}: {reason}", is_refusal)
    return {(broker[1], broker[2]) for broker in answer.brokers}


def _describe(error: BaseException, login: Mapping[str, Any]) -> tuple[str, bool]:
    """The error with a remedy in words, and whether it is a refusal."""
    mechanism = login.get("sasl_mechanism")
    # The cause of a TimeoutError is the cancellation that enforces it, which explains nothing.
    while error.__cause__ is not None and not isinstance(error, TimeoutError):
        error = error.__cause__
    if isinstance(error, NoToken):
        return str(error.args[0]), True
    if isinstance(error, SaslAuthenticationFailed):
        advice = "correct SCORING_KAFKA_SASL_USERNAME and SCORING_KAFKA_SASL_PASSWORD, or create that user"
        if mechanism == "OAUTHBEARER":
            advice = "check whether the brokers accept the token in SCORING_KAFKA_OAUTH_TOKEN_FILE"
        return f"the login was refused ({mechanism}); {advice}", True
    if isinstance(error, UnsupportedSaslMechanismError | IllegalSaslStateError):
        return f"there is no login by {mechanism}; correct SCORING_KAFKA_SASL_MECHANISM, or the port", True
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return f"TLS: {_describe_tls(error)}", True
    # A host name that cannot be encoded is a plain `UnicodeError`, and no reply of a broker.
    is_reply = not isinstance(error, UnicodeError) or isinstance(error, UnicodeDecodeError)
    if mechanism is not None and is_reply and isinstance(error, UNREADABLE_LOGIN):
        return (
            f"the broker could not prove that it knows the password ({mechanism}); is it one of yours?",
            True,
        )
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; start the broker, or correct SCORING_KAFKA_BOOTSTRAP_SERVERS", False
    if isinstance(error, TimeoutError):
        return "no answer in time; is it running and the network open?", False
    if isinstance(error, EOFError | ConnectionError | KafkaError | ssl.SSLError):
        # A broker closes the connection when it stops, and on bytes that it does not understand.
        return f"it hangs up on us; does this port speak {login['security_protocol']}?", False
    words = (error.strerror or str(error)) if isinstance(error, OSError) else type(error).__name__
    return f"{words}; correct SCORING_KAFKA_BOOTSTRAP_SERVERS", False


def _describe_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        # The message names a wrong host name or the fault of the chain.
        advice = (
            "SCORING_KAFKA_CA_FILE must hold the CA of the brokers, and their certificate the name used here"
        )
        return f"{error.verify_message}; {advice}"
    words = (error.reason or "the handshake failed").replace("_", " ").lower()
    if "alert" in words:
        return f"{words}; check SCORING_KAFKA_CERT_FILE: the brokers may require another client certificate"
    return f"{words}; does this port speak TLS? Correct SCORING_KAFKA_SECURITY_PROTOCOL or the port"
