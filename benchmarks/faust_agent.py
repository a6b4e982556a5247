"""
A minimal Faust agent that scores sessions: `python -m benchmarks.faust_agent`.

docs/benchmarks.md lists what it leaves out.
"""

import json

import faust
from mode.loop import use

use("uvloop")

from benchmarks.pipeline import Pipeline, slots  # noqa: E402 - the event loop is chosen before anything makes one

pipeline = Pipeline()
settings = pipeline.settings


class App(faust.App):
    """The app with the pipeline's connections as its own."""

    async def on_start(self) -> None:
        await self.add_async_context(pipeline)
        await super().on_start()


app = App(
    settings.kafka_group,
    broker=f"aiokafka://{settings.require_kafka()}",
    value_serializer="raw",
    key_serializer="raw",
    store="memory://",
    web_enabled=False,
    topic_partitions=settings.topic_partitions,
    topic_disable_leader=True,
    consumer_auto_offset_reset="earliest",
)
requests = app.topic(settings.topic_session_completed, value_type=bytes)
scored = app.topic(settings.topic_scoring_events, value_type=bytes)


@app.agent(requests, concurrency=slots())
async def score(stream: faust.StreamT[bytes]) -> None:
    async for message in stream:
        await scored.send(value=await pipeline.score(json.loads(message)["session_id"]))


if __name__ == "__main__":
    faust.Worker(app, loglevel="warning").execute_from_commandline()
