"""
Consumes scoring events from Kafka with Faust, to report that figures may have changed.

The figures come from the database. A record that is read twice therefore changes nothing, and a lost one
delays the figures by up to a minute (see `publisher`). So Faust's own commits, assignments and restarts
suffice, and Faust tables, changelogs and offsets are not used.
"""

import asyncio
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faust
import structlog
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.security import REQUEST_TIMEOUT_MS, connection_options

log = structlog.get_logger()

RETRY_S = 5.0
STOP_WITHIN_S = 5.0


async def consume(settings: Settings, take: Callable[[bytes | None], None]) -> None:
    """
    Call `take` with the value of each scoring event, until cancelled.

    Starts with the events that the group has not committed, the first time with new ones. A failure of Faust
    is logged, and a new app replaces it after `RETRY_S`. A cancel waits for Faust to leave the group, for
    `STOP_WITHIN_S` longer than the session timeout at most.

    Args:
        take: Called for each record. Must not raise: Faust would restart the agent and skip the record.
    """
    while True:
        # Faust creates directories at start, also without tables. In containers only the temporary directory
        # is writable.
        with tempfile.TemporaryDirectory(
            prefix="tarsy-scoring-insights-", ignore_cleanup_errors=True
        ) as directory:
            reason = await _run_app(settings, take, Path(directory))
        log.warning("insights.consumer_failed", reason=repr(reason), retry_in_s=RETRY_S)
        await asyncio.sleep(RETRY_S)


async def _run_app(
    settings: Settings, take: Callable[[bytes | None], None], directory: Path
) -> BaseException | None:
    """Run one app until it ends by itself; returns the error that ended it, if known."""
    app = None
    try:
        app = faust_app(settings, directory)

        @app.agent(app.topic(settings.topic_scoring_events, key_type=bytes, value_type=bytes), concurrency=1)
        async def mark(values: Any) -> None:
            async for value in values:
                take(value)

        await app.start()
        await app.wait_until_stopped()
        return app.crash_reason
    except Exception as error:  # noqa: BLE001 - figures are still published, and Faust is retried
        return error
    finally:
        if app is not None:
            stopping = asyncio.ensure_future(app.stop())
            # A join that has begun is not interrupted. It lasts until the brokers give up a member that left
            # without a word; a thread that is left behind before fails at the end.
            # The wait is bounded: when brokers are away, Faust's consumer thread dies unnoticed by the app,
            # which then waits for it forever. `wait` does not cancel, as a timeout would: a cancel interrupts
            # an orderly stop and may not end a stuck one.
            await asyncio.wait({stopping}, timeout=settings.kafka_session_timeout_s + STOP_WITHIN_S)


def faust_app(settings: Settings, directory: Path) -> faust.App:
    """
    Build the Faust app; it is not started and connects to nothing.

    Raises:
        ConfigurationError: A certificate or key cannot be used.
    """
    session_s = settings.kafka_session_timeout_s
    level = logging.INFO if settings.log_level == "debug" else logging.CRITICAL
    for name in ("faust", "mode"):  # our own log lines report what matters
        logging.getLogger(name).setLevel(level)
    return faust.App(
        f"{settings.kafka_group}-insights",  # also the consumer group
        broker=[f"kafka://{server.strip()}" for server in settings.require_kafka().split(",")],
        broker_credentials=credentials(settings),
        broker_session_timeout=session_s,
        broker_heartbeat_interval=max(0.2, min(3.0, session_s / 5)),
        broker_request_timeout=max(session_s, REQUEST_TIMEOUT_MS / 1000),
        consumer_auto_offset_reset="latest",  # the first publication covers everything that is older
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        datadir=str(directory),
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_wait_empty=False,  # partitions may move at once: a mark needs no draining
        web_enabled=False,
        autodiscover=False,
    )


def credentials(settings: Settings) -> Any:
    """The Kafka login of the settings as Faust takes it; None: neither login nor TLS."""
    options = connection_options(settings)
    context = options.get("ssl_context")
    if "sasl_oauth_token_provider" in options:
        return OAuthCredentials(oauth_cb=options["sasl_oauth_token_provider"], ssl_context=context)
    if "sasl_plain_username" in options:
        return SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            mechanism=options["sasl_mechanism"],
            ssl_context=context,
        )
    return SSLCredentials(context) if context is not None else None
