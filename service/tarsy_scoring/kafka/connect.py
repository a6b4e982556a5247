"""
Start, check and end clients of the library.

aiokafka reports every failed start as "unable to bootstrap" and logs the cause. `BrokerAway` carries that log
line.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError

from tarsy_scoring.errors import ScoringError

log = structlog.get_logger()

Headers = Sequence[tuple[str, bytes]]

RETRY_S = 2.0
CHECK_TIMEOUT_S = 10.0
ASK_AGAIN_S = 0.2
# Loop iterations for the fetcher to end requests: three for each broker that it asks.
TURNS_TO_UNSUBSCRIBE = 100


class BrokerAway(ScoringError):
    """The brokers do not answer or refuse this client. Nothing was lost; the same work may succeed later."""


async def start_client(client: Any, options: Mapping[str, Any]) -> None:
    """
    Start a client of the library. The client is closed if that fails or is cancelled.

    Args:
        options: The result of `connection_options` that the client was built with.

    Raises:
        BrokerAway: With the reason; the same may succeed later.
        KafkaError: The login succeeded, and the client lacks a permission.
    """
    try:
        if options.get("sasl_mechanism") == "OAUTHBEARER":
            await check_brokers(options)  # a client whose token was refused starts all the same
        with _library_errors() as said:
            await client.start()
    except (KafkaConnectionError, NodeNotReadyError, OSError, TimeoutError) as error:
        await _close(client)
        raise _away(options, error, said) from error
    except KafkaError:
        await _close(client)
        await check_brokers(options)
        raise
    except BaseException:
        await _close(client)
        raise


async def check_brokers(options: Mapping[str, Any]) -> None:
    """
    Log in and ask for the brokers of the cluster.

    Args:
        options: The result of `connection_options`.

    Raises:
        BrokerAway: They do not answer within `CHECK_TIMEOUT_S`, or refuse the login.
    """
    admin = AIOKafkaAdminClient(**options)
    with _library_errors() as said:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await admin.start()
                await _wait_for_answer(admin)
        except (KafkaError, OSError, TimeoutError) as error:
            raise _away(options, error, said) from error
        finally:
            await _close(admin)


async def _wait_for_answer(admin: AIOKafkaAdminClient) -> None:
    """Ask brokers that the cluster names, at random, until one answers."""
    while True:
        with suppress(KafkaConnectionError, NodeNotReadyError):
            if (await admin.describe_cluster())["brokers"]:
                return
        await asyncio.sleep(ASK_AGAIN_S)


def _away(options: Mapping[str, Any], error: Exception, said: Sequence[str]) -> BrokerAway:
    reason = said[-1] if said else str(error) or "no answer in time"
    # The library sees no refused token, but an empty cluster.
    if options.get("sasl_mechanism") == "OAUTHBEARER":
        reason += "; do they accept the token in SCORING_KAFKA_OAUTH_TOKEN_FILE?"
    return BrokerAway(f"the brokers at {options['bootstrap_servers']} cannot be used: {reason}")


@contextmanager
def _library_errors() -> Iterator[list[str]]:
    """Collect the errors that the library logs in this task."""
    said: list[str] = []
    task = asyncio.current_task()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if asyncio.current_task() is task:
                said.append(record.getMessage())

    logger, listener = logging.getLogger("aiokafka"), Listener(logging.WARNING)
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)


@asynccontextmanager
async def connected(client: Any, options: Mapping[str, Any], purpose: str) -> AsyncIterator[Any]:
    """
    The client, started; closed at the end of the block.

    Raises:
        BrokerAway: It, or the block, failed; the message names the `purpose`.
    """
    try:
        await start_client(client, options)
        try:
            yield client
        finally:
            await end_client(client)
    except KafkaError as error:
        raise BrokerAway(f"cannot {purpose}: {error!r}") from error


async def end_client(client: Any) -> None:
    """
    Close the connections of a client that was started; a consumer leaves the group.
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
    except KafkaError:
        pass  # the error that ended one of the client's tasks, once more


async def wait_out(error: BrokerAway, what: str, *, is_news: bool = True) -> None:
    """Log that `what` waits for the brokers, if that is news, and sleep until the next attempt."""
    if is_news:
        log.warning("kafka.away", what=what, reason=str(error), retry_in_s=RETRY_S)
    await asyncio.sleep(RETRY_S)
