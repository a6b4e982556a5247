"""
Start and end clients of the library, and say why one could not start.

Only documented behaviour of aiokafka is used; `docs/decisions/0015-kafka-by-public-means.md` lists what that
costs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError

from tarsy_scoring.errors import ScoringError
from tarsy_scoring.kafka.diagnose import UNREADABLE_LOGIN, Obstacle, find_obstacle

log = structlog.get_logger()

Headers = Sequence[tuple[str, bytes]]

RETRY_S = 1.0
# A refusal lasts until an operator changes something, so brokers and their logs get fewer attempts.
REFUSED_RETRY_S = 5.0
# Loop iterations for the fetcher to end its requests: three for each broker that it asks.
TURNS_TO_UNSUBSCRIBE = 100


class BrokerAway(ScoringError):
    """The brokers cannot be used at the moment. Nothing was lost, and the same work may succeed later."""


class BrokerRefuses(BrokerAway):
    """The brokers answer and refuse this client: login, certificate or protocol do not match."""


async def start_client(client: Any, options: Mapping[str, Any]) -> None:
    """
    Start a client of the library. The client is closed if that fails or is cancelled.

    Args:
        options: The result of `connection_options` that the client was built with.

    Raises:
        BrokerAway, BrokerRefuses: With the reason; the same may succeed later.
        KafkaError: The login succeeded, and the client lacks a permission.
    """
    try:
        if options.get("sasl_mechanism") == "OAUTHBEARER":
            # The library does not look at the answer to a token. A client with a refused token would start,
            # and find a cluster without brokers.
            await raise_if_away(options, None)
        await client.start()
    except (KafkaConnectionError, NodeNotReadyError, OSError, TimeoutError) as error:
        await _close(client)
        raise await why_away(options, error) from error
    except (KafkaError, *UNREADABLE_LOGIN) as error:
        await _close(client)
        await raise_if_away(options, error)
        raise
    except BaseException:
        await _close(client)
        raise


async def end_client(client: Any) -> None:
    """
    Close the connections of a client that was started; a consumer leaves its group.
    """
    # Otherwise `stop` of a consumer raises the cancellation of a failing fetch as if it were ours, and leaves
    # a task behind that asks for metadata until the process ends.
    if isinstance(client, AIOKafkaConsumer):
        client.unsubscribe()
        for _ in range(TURNS_TO_UNSUBSCRIBE):
            await asyncio.sleep(0)
    await _close(client)


async def _close(client: Any) -> None:
    try:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        log.debug("kafka.client_not_closed", reason="a fetch was under way")
    except (KafkaError, *UNREADABLE_LOGIN) as error:  # the error that ended one of its tasks comes once more
        log.debug("kafka.client_not_closed", reason=repr(error))


async def why_away(options: Mapping[str, Any], error: Exception) -> BrokerAway:
    """Find the reason for a failed connection; the library's own error only names the brokers it tried."""
    obstacle = await find_obstacle(options)
    if obstacle is None:
        return BrokerAway(
            f"the brokers at {options['bootstrap_servers']} could not be used a moment ago, and can now: "
            f"{str(error) or 'no answer in time'}"
        )
    return away_by(obstacle)


async def raise_if_away(options: Mapping[str, Any], error: Exception | None) -> None:
    """
    Check whether the brokers can be used, after a client got an error instead of an answer.

    Raises:
        BrokerAway, BrokerRefuses: They cannot; the same may succeed later.
    """
    obstacle = await find_obstacle(options)
    if obstacle is not None and obstacle.keeps_out:
        raise away_by(obstacle) from error


def away_by(obstacle: Obstacle) -> BrokerAway:
    """The error to raise for an obstacle: `BrokerRefuses` for a refusal, else `BrokerAway`."""
    kind = BrokerRefuses if obstacle.is_refusal else BrokerAway
    return kind(f"the brokers cannot be used: {obstacle.reason}")


async def wait_out(error: BrokerAway, what: str, *, is_news: bool = True) -> None:
    """Log that `what` waits for the brokers, if that is news, and sleep until the next attempt."""
    wait_s = REFUSED_RETRY_S if isinstance(error, BrokerRefuses) else RETRY_S
    if is_news:
        log_away(error, what, retry_in_s=wait_s)
    await asyncio.sleep(wait_s)


def log_away(error: BrokerAway, what: str, **fields: Any) -> None:
    """One line for an outage: a refusal at level error, all else as a warning."""
    if isinstance(error, BrokerRefuses):
        log.error("kafka.refused", what=what, reason=str(error), **fields)
    else:
        log.warning("kafka.away", what=what, reason=str(error), **fields)
