"""Sends records to brokers and waits for their acknowledgement."""

import asyncio
import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.kafka.connect import BrokerAway, Headers, check_brokers, end_client, start_client, wait_out
from tarsy_scoring.kafka.security import connection_options

log = structlog.get_logger()

MAX_REQUEST_BYTES = 1_048_576
MAX_BATCH_BYTES = 65_536  # an event costs the broker half as much CPU as in batches of a quarter of this
STOP_TIMEOUT_S = 5.0
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class TooLarge(ScoringError):
    """
    Some messages were refused, each because it or the batch is larger than the client or the topic allows.

    Args:
        acknowledged: For each message of the call whether it was acknowledged.
        refused: For each message of the call whether it was refused.
    """

    def __init__(self, message: str, acknowledged: Sequence[bool] = (), refused: Sequence[bool] = ()) -> None:
        super().__init__(message)
        self.acknowledged = acknowledged
        self.refused = refused


class Publisher:
    """
    Sends records and reports which ones all in-sync replicas acknowledged.

    Idempotent if the brokers allow it. One batch per partition is under way at a time, so records of one key
    keep their order in either case.

    An idempotent producer retries without end and cannot take a message back. So messages that were not
    acknowledged in time stay with the producer, and nothing else is sent before they are answered: a resend
    never overtakes them. The same record may then be on the topic twice.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: AIOKafkaProducer | None = None
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._outage: BrokerAway | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self.is_idempotent = True
        # A larger message forms a batch alone, so that the size can cost no other message. Brokers compare
        # the size of a batch with the limit of the topic.
        self.batch_bytes = MAX_BATCH_BYTES

    @cached_property
    def _options(self) -> dict[str, Any]:
        return connection_options(self._settings)  # built once, as for the consumer

    async def start(self, timeout_s: float) -> None:
        """
        Connect, if that was not done yet, and wait for the answers to earlier messages.

        Raises:
            BrokerAway: The brokers did not answer in time, or refuse us. Finding the reason may take 10 s
                longer.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect()
                if self._unanswered:
                    await asyncio.wait(self._unanswered)
        except TimeoutError:
            if not self._unanswered:
                why = self._outage or "no answer"
                raise BrokerAway(f"the brokers could not be reached within {timeout_s:g} s: {why}") from None
            await check_brokers(self._options)
            # They let us in, so this producer has failed and is abandoned. One at a time: a topic without a
            # leader looks the same, and each abandoned producer goes on asking for it.
            if not self._stopping:
                await self.stop()
            raise BrokerAway(f"the brokers did not answer earlier messages within {timeout_s:g} s") from None
        if any(f.exception() is not None for f in self._unanswered):
            await self.stop()  # this producer may have failed for good
            await self.start(timeout_s)
        self._unanswered.clear()

    async def _connect(self) -> None:
        while self._producer is None:
            producer = AIOKafkaProducer(
                **self._options,
                acks="all",
                enable_idempotence=self.is_idempotent,
                max_batch_size=self.batch_bytes,
                max_request_size=MAX_REQUEST_BYTES,
            )
            try:
                await start_client(producer, self._options)
                self._producer, self._outage = producer, None
            except BrokerAway as error:
                is_news, self._outage = self._outage is None, error
                await wait_out(error, "publisher", is_news=is_news)
            except KafkaError as error:
                if not self.is_idempotent:
                    raise BrokerAway(f"cannot publish: {error!r}") from error
                log.warning("kafka.not_idempotent", reason=repr(error), effect="a retry may repeat an event")
                self.is_idempotent = False

    async def publish(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[bool]:
        """
        Send (key, value, headers) in order.

        Returns:
            For each message whether it was acknowledged in time. One that was not may still arrive later.

        Raises:
            TooLarge: Some messages were refused. It says which, and which of the others were acknowledged.
            BrokerAway: Nothing was sent: the brokers cannot be reached, or did not answer earlier messages.
        """
        await self.start(timeout_s)
        futures = await self._send_all(topic, messages, timeout_s)
        errors = list(map(_error_of, futures))
        if any(errors) and not self._unanswered:
            # All were answered, some with an error: the producer may have failed for good. After a refused
            # batch an idempotent one has: it numbers the records behind the batch as if that had been stored.
            await self.stop()
        not_sent = [False] * (len(messages) - len(futures))
        acknowledged = [f.done() and e is None for f, e in zip(futures, errors, strict=True)] + not_sent
        refused = [isinstance(e, _TOO_LARGE) for e in errors] + not_sent
        if any(refused):
            sizes = [len(m[1] or b"") for m in itertools.compress(messages, refused)]
            raise TooLarge(self._explain_refusal(topic, sizes), acknowledged, refused)
        return acknowledged

    def _explain_refusal(self, topic: str, sizes: Sequence[int]) -> str:
        """Say why messages with these sizes were refused; send single messages if batches are refused."""
        if min(sizes) <= self.batch_bytes:
            self.batch_bytes = 1
        return (
            f"{len(sizes)} messages for topic {topic} were refused, the largest of {max(sizes)} bytes: "
            "the topic (max.message.bytes) or the client allows less"
        )

    async def _send_all(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[asyncio.Future[Any]]:
        """Send as many messages as time allows, in order, and await answers; `_unanswered` has the rest."""
        assert self._producer is not None
        futures: list[asyncio.Future[Any]] = []
        try:
            async with asyncio.timeout(timeout_s):
                for key, value, headers in messages:
                    try:
                        sent = await self._producer.send(topic, value=value, key=key, headers=list(headers))
                    except MessageSizeTooLargeError as error:
                        sent = asyncio.get_running_loop().create_future()
                        sent.set_exception(error)
                    futures.append(sent)
                if futures:
                    await asyncio.wait(futures)
        except (KafkaError, TimeoutError) as error:
            log.warning("kafka.publish_failed", topic=topic, reason=repr(error))
        finally:
            self._unanswered = {f for f in futures if not f.done()}
            for future in self._unanswered:
                future.add_done_callback(_take_error)
        return futures

    async def stop(self) -> None:
        """
        Close the producer.

        Waits up to 5 s for acknowledgements, then closes in the background.
        """
        producer, self._producer = self._producer, None
        self._unanswered.clear()
        if producer is None:
            return
        stopping = asyncio.create_task(end_client(producer))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
        await asyncio.wait({stopping}, timeout=STOP_TIMEOUT_S)


def _error_of(answer: asyncio.Future[Any]) -> BaseException | None:
    return answer.exception() if answer.done() else None


def _take_error(answer: asyncio.Future[Any]) -> None:
    """Mark the error of a late answer as seen: asyncio would report it as never retrieved."""
    if not answer.cancelled():
        answer.exception()
