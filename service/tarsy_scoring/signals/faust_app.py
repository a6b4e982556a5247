"""
The Faust app as this service needs it: the names of its topics, its settings, its login, and what tells a hang.

Faust's own fetching, assignments and restoring are used; its commits, its topics and its logging are not.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faust
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.security import REQUEST_TIMEOUT_MS, connection_options
from tarsy_scoring.kafka.topics import Place

# Longer than the rolling restart of a broker; then the process ends, and its successor waits loudly.
ACKNOWLEDGE_WITHIN_S = 60.0
TABLE = "scores"
# Faust's own are for records that cost more to count than to hold: 4096 records, 1 MiB per partition.
MOST_WAITING = 512
FETCH_BYTES = 2**17


def topics_of_insights(settings: Settings) -> tuple[list[str], list[str]]:
    """The topics that it needs: plain ones, and those that keep the newest message of every key."""
    return (
        [settings.topic_scoring_events, grouped_topic(settings)],
        [changelog_topic(settings), settings.topic_scoring_insights],
    )


def app_id(settings: Settings) -> str:
    """Name of the app and of its consumer group."""
    return f"{settings.kafka_group}-insights"


def grouped_topic(settings: Settings) -> str:
    """Ended scores by chain, between the two halves of the app."""
    return f"{app_id(settings)}-by-chain"


def changelog_topic(settings: Settings) -> str:
    """What the table is restored from; the name is Faust's."""
    return f"{app_id(settings)}-{TABLE}-changelog"


def faust_app(settings: Settings, directory: Path) -> Any:
    """
    The app, not started; connects to nothing.

    Raises:
        ConfigurationError: A certificate or key cannot be used.
    """
    session_s = settings.kafka_session_timeout_s
    level = logging.INFO if settings.log_level == "debug" else logging.CRITICAL
    for name in ("faust", "mode"):  # what matters of what they tell is said by our own lines
        logging.getLogger(name).setLevel(level)
    return faust.App(
        app_id(settings),
        broker=[f"kafka://{server.strip()}" for server in settings.require_kafka().split(",")],
        broker_credentials=credentials(settings),
        broker_session_timeout=session_s,
        broker_heartbeat_interval=max(0.2, min(3.0, session_s / 5)),
        broker_request_timeout=max(session_s, REQUEST_TIMEOUT_MS / 1000),
        producer_request_timeout=ACKNOWLEDGE_WITHIN_S,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=FETCH_BYTES,
        stream_buffer_maxsize=MOST_WAITING,
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        datadir=str(directory),
        topic_partitions=settings.topic_partitions,
        topic_replication_factor=settings.topic_replication,
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_wait_empty=False,  # records are settled by us, and a rebalance does not wait for that
        stream_recovery_delay=0.0,
        web_enabled=False,
        autodiscover=False,
    )


def credentials(settings: Settings) -> Any:
    """The same as every other client of ours, in Faust's words; None: no proof is asked for."""
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


class StuckWatch:
    """Whether an app has not moved for too long though it could. Pure: it is told what is, and when."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waiting: dict[str, tuple[int | None, float]] = {}

    def forget(self) -> None:
        """Begin to wait anew: it could not move."""
        self._waiting.clear()

    def look(self, restored: int | None, places: Mapping[tuple[str, int], Place], now_s: float) -> str | None:
        """
        What has not moved for too long, in words; None: nothing.

        Args:
            restored: Rows that are there so far; None: the app is ready.
            places: Of the partitions that are ours.
        """
        waiting = {"the app does not get ready": restored}
        if restored is None:
            behind = {place: at.committed for place, at in places.items() if at.behind > 0}
            waiting = {f"records of {topic}, partition {n}, are not taken": at for (topic, n), at in behind.items()}
        before, self._waiting = self._waiting, {}
        for what, state in waiting.items():
            known = before.get(what)
            self._waiting[what] = known if known is not None and known[0] == state else (state, now_s)
        return next((w for w, (_, since_s) in self._waiting.items() if now_s - since_s >= self._patience_s), None)
