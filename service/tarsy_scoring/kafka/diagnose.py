"""
Why the brokers did not let us in.

The library tells a refused login like a broker that is away, so `find_obstacle` asks once more over connections of
its own and puts the answers into words.
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

from tarsy_scoring.kafka.security import NoToken, NotProven

# For connecting, login and one question at one broker: a reason must not hold up the next try for long.
KNOCK_TIMEOUT_S = 5.0
NAMED_LIMIT = 10  # of the brokers that others name: what keeps us out of a large cluster shows at a few

_NAME_MISMATCH = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


@dataclass(frozen=True, slots=True)
class Obstacle:
    """
    Why the brokers cannot be used, and what would help.

    Args:
        is_refusal: They are there and do not let us in: somebody has to change something.
        is_everywhere: No broker lets us in; False: others do.
    """

    reason: str
    is_refusal: bool
    is_everywhere: bool = True


async def find_obstacle(options: Mapping[str, Any]) -> Obstacle | None:
    """
    Connect and log in to the brokers once more, as a client would, and say what stands in the way.

    Asks the brokers that we were given, then some of those which they name; all of them at once, so that it takes
    at most 10 s.

    Args:
        options: Those of `connection_options`.

    Returns:
        The first refusal, else the first fault; None: nothing stands in the way now.
    """
    how = {name: value for name, value in options.items() if name != "bootstrap_servers"}
    given = {(host, port) for host, port, _ in collect_hosts(options["bootstrap_servers"], randomize=False)}
    answers = await _knock(sorted(given), how)
    named = {place for answer in answers.values() if not isinstance(answer, Obstacle) for place in answer}
    answers |= await _knock(sorted(named - given)[:NAMED_LIMIT], how)
    found = [answer for answer in answers.values() if isinstance(answer, Obstacle)]
    if not found:
        return None
    let_in = {place for place, answer in answers.items() if not isinstance(answer, Obstacle)}
    # Whoever is let in by those that were given, and by none of those that have the topics, is no further.
    is_everywhere = not (let_in & given and let_in & named)
    return replace(next((o for o in found if o.is_refusal), found[0]), is_everywhere=is_everywhere)


_Place = tuple[str, int]


async def _knock(places: Collection[_Place], how: Mapping[str, Any]) -> dict[_Place, Obstacle | set[_Place]]:
    """Try to get in at all places at once: for each what stands in the way, or the brokers that were named."""
    return dict(zip(places, await asyncio.gather(*(_knock_at(place, how) for place in places)), strict=True))


async def _knock_at(place: _Place, how: Mapping[str, Any]) -> Obstacle | set[_Place]:
    host, port = place
    try:
        async with asyncio.timeout(KNOCK_TIMEOUT_S):
            connection = await create_conn(host, port, **how)
            try:
                answer = await connection.send(MetadataRequest([]))
            finally:
                connection.close()
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        reason, is_refusal = _in_words(error, how)
        return Obstacle(f"{host}:{port}: {reason}", is_refusal)
    return {(broker[1], broker[2]) for broker in answer.brokers}


def _in_words(error: BaseException, how: Mapping[str, Any]) -> tuple[str, bool]:
    """What happened and what would help, and whether it is a refusal."""
    mechanism = how.get("sasl_mechanism")
    # A deadline is the reason; that it is kept by a cancel is none.
    while error.__cause__ is not None and not isinstance(error, TimeoutError):
        error = error.__cause__
    if isinstance(error, NoToken):
        return str(error.args[0]), True
    if isinstance(error, NotProven):
        return f"the broker could not prove that it knows the password ({mechanism}); is it one of yours?", True
    if isinstance(error, SaslAuthenticationFailed):
        return f"the login was refused ({mechanism}); {_login_advice(mechanism)}", True
    if isinstance(error, UnsupportedSaslMechanismError | IllegalSaslStateError):
        return f"there is no login by {mechanism}; correct SCORING_KAFKA_SASL_MECHANISM, or the port", True
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _tls_in_words(error), True
    if isinstance(error, ConnectionRefusedError):
        return "connection refused; start the broker, or correct SCORING_KAFKA_BOOTSTRAP_SERVERS", False
    if isinstance(error, TimeoutError):
        return "no answer in time; is it running and the network open?", False
    if isinstance(error, EOFError | ConnectionError | KafkaError | ssl.SSLError):
        # A broker hangs up when it ends, and on what it does not understand.
        return f"it hangs up on us; does this port speak {how['security_protocol']}?", False
    words = (error.strerror or str(error)) if isinstance(error, OSError) else type(error).__name__
    return f"{words}; correct SCORING_KAFKA_BOOTSTRAP_SERVERS", False


def _login_advice(mechanism: str | None) -> str:
    if mechanism == "OAUTHBEARER":
        return "look whether the brokers take the token in SCORING_KAFKA_OAUTH_TOKEN_FILE"
    return "correct SCORING_KAFKA_SASL_USERNAME and SCORING_KAFKA_SASL_PASSWORD, or make that user"


def _tls_in_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NAME_MISMATCH:
            return f"TLS: {error.verify_message}; brokers must be called by a name that their certificate holds"
        return f"TLS: {error.verify_message}; SCORING_KAFKA_CA_FILE must hold the CA of the brokers"
    words = (error.reason or "the handshake failed").replace("_", " ").lower()
    if "alert" in words:
        return f"TLS: {words}; look at SCORING_KAFKA_CERT_FILE: they may ask for another certificate than ours"
    return f"TLS: {words}; does this port speak TLS? Correct SCORING_KAFKA_SECURITY_PROTOCOL or the port"
