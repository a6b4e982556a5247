"""
Logs and metrics: one structured line per event, one list of everything that is counted.

Log lines are JSON on stderr with stable dotted names (`attempt.finished`). Neither lines nor labels
ever hold a prompt, a transcript, an answer, a header or a key; labels come from closed sets.
"""

import logging
import re
import sys
from collections.abc import Collection
from typing import Any, Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector
from structlog.typing import EventDict, WrappedLogger

from tarsy_scoring import __version__

LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s@]+@")

# Judge turns take seconds to minutes, database steps milliseconds.
API_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
TURN_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
LAG_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# 5 s from an event to its request and 25 s from there to the score are together the promised 30 s, so both are edges.
REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86_400)
SCORE_BUCKETS_S = (1, 2.5, 5, 10, 15, 20, 25, 30, 45, 60, 120, 300, 600, 1800, 3600)
# The last total of each band of the pages (0-49, 50-74, 75-100), and tens between.
SCORE_BUCKETS_POINTS = (9, 19, 29, 39, 49, 59, 69, 74, 79, 89, 100)

OTHER_CHAINS = "other"
ASKED_BY = ("people", "automatic", "bulk")  # by `admission.Priority`
# A series that begins with its first count has no increase for Prometheus, so what alerts watch begins with zero.
DEAD_LETTER_REASONS = (
    *("empty", "not_utf8", "not_json", "not_an_object"),
    *("nul_character", "invalid_field", "not_storable"),
)
STATUSES_TAKEN_BACK = ("pending", "failed", "timed_out")
OUTCOMES = ("completed", "failed", "timed_out", "cancelled", "put_back", "released", "lease_lost")
SOURCES_IN_KAFKA = ("session-completed", "rescore-requested")
CIRCUIT_KINDS = ("circuit", "key", "quota")
CAUSES_OF_DRIFT = ("judge", "agents", "both")
# Counted, seen before, and left out of every window: too old, of a time still to come, or not understood.
INSIGHTS_RESULTS = ("counted", "late", "unreadable")
# What holds a chain up, as `errors.WaitingFor` has it without what holds up a single score.
HOLDS = ("nothing", "pause", "budget", "circuit", "key", "quota", "rate_limit")


class Metrics:
    """
    Everything that is counted, in a registry of its own: built once in `cli`, passed down.

    Names end in their unit; `_total` counts. What is measured in the database is the same in every process that
    measures it; `docs/operations.md` says which, and what to watch.

    Args:
        chains: Names that the configuration has; all others share the label `other`, as events may name anything.
    """

    def __init__(self, chains: Collection[str] = ()) -> None:  # noqa: PLR0915 - one list
        self._chains = frozenset(chains)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"tarsy_scoring_{name}", help_text, labels, registry=self.registry)

        def gauge(name: str, help_text: str, *labels: str) -> Gauge:
            return Gauge(f"tarsy_scoring_{name}", help_text, labels, registry=self.registry)

        def histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"tarsy_scoring_{name}", help_text, labels, registry=self.registry, buckets=buckets)

        self.build_info = gauge("build_info", "1, with the version that runs.", "version")
        self.build_info.labels(__version__).set(1)
        self.role = gauge("role", "1 for each role that the process plays.", "role")
        self.requests = counter("requests_total", "Requests taken in, by what became of them.", "source", "disposition")
        self.request_delay = histogram(
            "request_delay_seconds", "From an event in Kafka to its stored request.", REQUEST_BUCKETS_S, "source"
        )
        self.dead_letters = counter("dead_letters_total", "Messages nobody could understand.", "reason")
        self.offset_commits_refused = counter("offset_commits_refused_total", "Commits that came after a rebalance.")
        self.intake_paused = gauge("intake_paused", "1 while too many scores are waiting.")
        self.intake_last_pass = gauge(
            "intake_last_pass_timestamp_seconds", "When intake last came round, at first when it began."
        )
        self.kafka_up = gauge("kafka_up", "1 while brokers answer this process, for a role that listens.", "role")
        self.consumer_lag = gauge("consumer_lag_records", "Records of our partitions that were not taken yet.")
        self.attempts = counter("attempts_total", "Finished attempts, by how they ended.", "outcome")
        self.scores = counter("scores_total", "Ended scores.", "status", "error_kind", "chain")
        self.score = histogram("score_points", "Totals of completed scores.", SCORE_BUCKETS_POINTS, "chain")
        self.score_outcomes = counter("score_outcomes_total", "Completed scores by outcome.", "outcome", "chain")
        self.score_flags = counter("score_flags_total", "Flags of completed scores.", "flag")
        self.score_delay = histogram(
            "score_delay_seconds", "From a stored request to its completed score.", SCORE_BUCKETS_S, "asked_by"
        )
        self.attempt_duration = histogram("attempt_duration_seconds", "From claim to end.", TURN_BUCKETS_S)
        self.turn_duration = histogram(
            "turn_duration_seconds", "One answered call of the judge.", TURN_BUCKETS_S, "kind", "provider"
        )
        self.turns = counter("turns_total", "Calls of the judge: asked, or answered from a checkpoint.", "kind", "how")
        self.turns_failed = counter("turns_failed_total", "Turns that gave no answer, by why.", "provider", "reason")
        self.tokens = counter("tokens_total", "Tokens of judge calls.", "direction", "provider")
        self.cost = counter("cost_usd_total", "What judge calls cost, where prices are known.", "provider", "chain")
        self.budget_spent = gauge(
            "budget_spent_ratio", "Charged and reserved share of a budget of this UTC day.", "scope", "chain"
        )
        self.circuit_open = gauge("circuit_open", "1 while a provider is not called, by why.", "provider", "kind")
        self.slots = gauge("slots", "Scores that may be judged at once.")
        self.slots_busy = gauge("slots_busy", "Scores being judged.")
        self.queue = gauge("queue_scores", "Open scores.", "status")
        self.queue_due = gauge("queue_due_scores", "Due scores, bulk aside, by what holds them up.", "waiting_for")
        self.queue_age = gauge(
            "queue_oldest_due_seconds", "How long the oldest due score waits; not bulk, pauses and spent budgets."
        )
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
        self.bridge_leading = gauge("bridge_leading", "1 in the one bridge that works.")
        self.bridge_announced = counter("bridge_announced_total", "Sessions of TARSy announced, by status.", "status")
        self.bridge_swept = gauge("bridge_last_sweep_timestamp_seconds", "When the last whole sweep ended.")
        self.bridge_sweep_every = gauge("bridge_sweep_interval_seconds", "How often a bridge wants to sweep.")
        self.insights_events = counter("insights_events_total", "Ended scores read from events, by use.", "result")
        self.insights_published = counter(
            "insights_published_total", "Messages with windows that the brokers acknowledged."
        )
        self.insights_delay = histogram(
            "insights_delay_seconds", "From the end of a score to its published windows.", REQUEST_BUCKETS_S
        )
        self.insights_chains = gauge("insights_chains", "Chains with a score in the published windows.")
        self.write_backs = counter("write_backs_total", "Scores for TARSy's tables, by what became of them.", "result")
        self.write_back_backlog = gauge("write_back_backlog_events", "Scoring events not looked at for TARSy yet.")
        self.anchor_sessions = gauge("anchor_sessions", "Anchors, by how far they are under the judge of now.", "state")
        self.anchors_asked = counter("anchors_asked_total", "Judgements of anchors that the worker asked for.")
        self.drift_events = counter("drift_events_total", "Changes of judge or agents told of, by cause.", "cause")
        self.database_up = gauge("database_up", "1 while the database answers.")
        self.api_requests = counter("api_requests_total", "HTTP requests answered.", "route", "method", "status")
        self.api_request_duration = histogram(
            "api_request_duration_seconds",
            "From the head of a request to the end of its answer.",
            API_BUCKETS_S,
            "route",
        )
        self.api_refused = counter(
            "api_refused_total", "Requests and handshakes refused before any route saw them.", "protocol", "status"
        )
        for reason in DEAD_LETTER_REASONS:
            self.dead_letters.labels(reason)
        for status in STATUSES_TAKEN_BACK:
            self.taken_back.labels(status)
        for outcome in OUTCOMES:
            self.attempts.labels(outcome)
        for source in SOURCES_IN_KAFKA:
            self.request_delay.labels(source)
        for who in ASKED_BY:
            self.score_delay.labels(who)
        for hold in HOLDS:
            self.queue_due.labels(hold)
        for result in INSIGHTS_RESULTS:
            self.insights_events.labels(result)
        for cause in CAUSES_OF_DRIFT:
            self.drift_events.labels(cause)

    def begin(self, *roles: str) -> None:
        """Say what this process does from now on. Intake's silence counts from here: it may never get to its topics."""
        for role in roles:
            self.role.labels(role).set(1)
        if "intake" in roles:
            self.intake_last_pass.set_to_current_time()
            self.kafka_up.labels("intake").set(0)

    def chain(self, chain_id: str | None) -> str:
        """The label of a chain: its name where the configuration has it, else `other`."""
        return chain_id if chain_id in self._chains and chain_id is not None else OTHER_CHAINS


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
