"""
Logs and metrics: one structured line per event, one list of everything that is counted.

Log lines are JSON on stderr with stable dotted names (`attempt.finished`). Neither lines nor labels
ever hold a prompt, a transcript, an answer, a header or a key; labels come from closed sets.
"""

import logging
import re
import sys
from typing import Any, Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.typing import EventDict, WrappedLogger

LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s@]+@")

# Judge turns take seconds to minutes, database steps milliseconds.
API_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
TURN_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
LAG_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """
    Everything that is counted, in a registry of its own: built once in `cli`, passed down.

    Names end in their unit; `_total` counts. See `docs/operations.md` for what to watch.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"tarsy_scoring_{name}", help_text, labels, registry=self.registry)

        def gauge(name: str, help_text: str, *labels: str) -> Gauge:
            return Gauge(f"tarsy_scoring_{name}", help_text, labels, registry=self.registry)

        def histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"tarsy_scoring_{name}", help_text, labels, registry=self.registry, buckets=buckets)

        self.requests = counter("requests_total", "Requests taken in, by what became of them.", "source", "disposition")
        self.dead_letters = counter("dead_letters_total", "Messages nobody could understand.", "reason")
        self.offset_commits_refused = counter("offset_commits_refused_total", "Commits that came after a rebalance.")
        self.intake_paused = gauge("intake_paused", "1 while too many scores are waiting.")
        self.consumer_lag = gauge("consumer_lag_records", "Records of our partitions that were not taken yet.")
        self.attempts = counter("attempts_total", "Finished attempts, by how they ended.", "outcome")
        self.scores = counter("scores_total", "Ended scores.", "status", "error_kind")
        self.score = histogram("score_points", "Totals of completed scores.", tuple(range(10, 101, 10)))
        self.attempt_duration = histogram("attempt_duration_seconds", "From claim to end.", TURN_BUCKETS_S)
        self.turn_duration = histogram("turn_duration_seconds", "One call of the judge.", TURN_BUCKETS_S, "kind")
        self.turns = counter("turns_total", "Calls of the judge: asked, or answered from a checkpoint.", "kind", "how")
        self.tokens = counter("tokens_total", "Tokens of judge calls.", "direction")
        self.cost = counter("cost_usd_total", "What judge calls cost, where prices are known.")
        self.circuit_open = gauge("circuit_open", "1 while a provider is not called because it fails.", "provider")
        self.slots = gauge("slots", "Scores that may be judged at once.")
        self.slots_busy = gauge("slots_busy", "Scores being judged.")
        self.queue = gauge("queue_scores", "Open scores.", "status")
        self.queue_age = gauge("queue_oldest_due_seconds", "How long the oldest due score has been waiting.")
        self.leases_lost = counter("leases_lost_total", "Attempts whose score another worker took.")
        self.taken_back = counter("scores_taken_back_total", "Scores taken back from lost workers.", "status")
        self.outbox_backlog = gauge("outbox_backlog_events", "Events that no broker has acknowledged.")
        self.outbox_age = gauge("outbox_oldest_seconds", "Age of the oldest of them.")
        self.events_published = counter("events_published_total", "Events the broker acknowledged.", "type")
        self.gateway_clients = gauge("gateway_clients", "Connected WebSocket clients.")
        self.gateway_subscriptions = gauge("gateway_subscriptions", "Channels they are subscribed to.")
        self.gateway_events = counter("gateway_events_total", "Events the gateway took in, by where from.", "source")
        self.gateway_sent = counter("gateway_sent_total", "Events sent to clients, once for each.")
        self.gateway_closed = counter("gateway_closed_total", "Connections that we ended.", "reason")
        self.gateway_lag = histogram("gateway_lag_seconds", "From emitting an event to its sockets.", LAG_BUCKETS_S)
        self.database_up = gauge("database_up", "1 while the database answers.")
        self.api_requests = counter("api_requests_total", "HTTP requests answered.", "route", "method", "status")
        self.api_request_duration = histogram(
            "api_request_duration_seconds",
            "From the head of a request to the end of its answer.",
            API_BUCKETS_S,
            "route",
        )


def set_up_logging(
    level: Literal["debug", "info", "warning", "error"], style: Literal["json", "console"] | None
) -> None:
    """Send our lines and those of libraries to stderr; `style` None: console on a terminal, else JSON."""
    as_console = style == "console" or (style is None and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_credentials,
    ]
    renderer: Any = structlog.dev.ConsoleRenderer() if as_console else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer] if not as_console else [*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LOG_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # aiokafka tells every reconnect as an error; what matters of it is said by our own lines.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL if level != "debug" else logging.INFO)


def hide_credentials(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Take user and password out of every URL in a line: driver errors like to quote connection strings."""
    for key, value in line.items():
        if isinstance(value, str) and "@" in value:
            line[key] = _CREDENTIALS.sub(r"\g<scheme>***@", value)
    return line
