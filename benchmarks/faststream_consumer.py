"""
A minimal FastStream consumer that scores sessions: `python -m benchmarks.faststream_consumer`.

docs/benchmarks.md lists what it leaves out.
"""

import logging
from typing import Any

import uvloop
from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker

from benchmarks.pipeline import Pipeline, slots


async def main() -> None:
    """Consume until SIGTERM."""
    logging.basicConfig(level=logging.WARNING)  # not a line per message
    async with Pipeline() as pipeline:
        settings = pipeline.settings
        broker = KafkaBroker(settings.require_kafka(), logger=logging.getLogger(__name__), graceful_timeout=5.0)

        # FastStream handles a partition's messages concurrently only if it commits offsets before the work.
        @broker.subscriber(
            settings.topic_session_completed,
            group_id=settings.kafka_group,
            auto_offset_reset="earliest",
            max_workers=slots(),
            ack_policy=AckPolicy.ACK_FIRST,
        )
        @broker.publisher(settings.topic_scoring_events)
        async def score(event: dict[str, Any]) -> bytes:
            return await pipeline.score(event["session_id"])

        await FastStream(broker).run()


if __name__ == "__main__":
    uvloop.run(main())
