"""
Every metric of the service, declared once.

Labels come from closed sets and never hold an id. The table in `docs/operations.md` is generated from the
declarations.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector

from tarsy_scoring import __version__

PREFIX = "tarsy_scoring_"
OTHER_CHAINS = "other"

# Upper edges. Judge turns take seconds to minutes, database steps milliseconds.
API_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
TURN_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
LAG_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# The promise of 30 s is 5 s from an event to its request and 25 s from there to the score, so both are edges.
REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86_400)
SCORE_BUCKETS_S = (1, 2.5, 5, 10, 15, 20, 25, 30, 45, 60, 120, 300, 600, 1800, 3600)
# The last total of each band on the pages (0-49, 50-74, 75-100), and steps of ten.
SCORE_BUCKETS_POINTS = (9, 19, 29, 39, 49, 59, 69, 74, 79, 89, 100)

# Values of labels.
ASKED_BY = ("people", "automatic", "bulk")  # in the order of `admission.Priority`
CAUSES_OF_DRIFT = ("judge", "agents", "both")
CIRCUIT_KINDS = ("circuit", "key", "quota")
DEAD_LETTER_REASONS = (
    "empty",
    "not_utf8",
    "not_json",
    "not_an_object",
    "nul_character",
    "invalid_field",
    "not_storable",
)
# Why a chain is held up: `errors.WaitingFor` without the reasons that hold up a single score.
HOLDS = ("nothing", "pause", "budget", "circuit", "key", "quota", "rate_limit")
INSIGHTS_RESULTS = ("counted", "late", "unreadable")
OUTCOMES = ("completed", "failed", "timed_out", "cancelled", "put_back", "released", "lease_lost")
SOURCES_IN_KAFKA = ("session-completed", "rescore-requested")
STATUSES_TAKEN_BACK = ("pending", "failed", "timed_out")

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Declared:
    """
    One metric.

    Args:
        over_processes: How to aggregate it over processes. Every process measures the same database, so a sum
            of those gauges counts a score several times.
        starts_with: Label values whose series exist from the start, at zero. Prometheus sees no increase in a
            series that begins with its first count, so alerts need them.
    """

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    over_processes: str = "sum"
    buckets: tuple[float, ...] = ()
    starts_with: tuple[str, ...] = ()

    def build(self, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
        name = PREFIX + self.name
        metric: Counter | Gauge | Histogram
        if self.kind == "counter":
            metric = Counter(name, self.help, self.labels, registry=registry)
        elif self.kind == "gauge":
            metric = Gauge(name, self.help, self.labels, registry=registry)
        else:
            metric = Histogram(name, self.help, self.labels, registry=registry, buckets=self.buckets)
        for value in self.starts_with:
            metric.labels(value)
        return metric


# The next three declare an attribute of `Metrics`, which `Metrics()` replaces by the metric of the returned
# type.


def _counter(name: str, help_text: str, *labels: str, starts_with: tuple[str, ...] = ()) -> Counter:
    return cast(Counter, Declared("counter", name, help_text, labels, starts_with=starts_with))


def _gauge(
    name: str, help_text: str, *labels: str, over_processes: str = "sum", starts_with: tuple[str, ...] = ()
) -> Gauge:
    return cast(Gauge, Declared("gauge", name, help_text, labels, over_processes, starts_with=starts_with))


def _histogram(
    name: str, help_text: str, buckets: tuple[float, ...], *labels: str, starts_with: tuple[str, ...] = ()
) -> Histogram:
    return cast(Histogram, Declared("histogram", name, help_text, labels, buckets=buckets, starts_with=starts_with))


class Metrics:
    """
    All metrics in a registry of their own; built once per process and passed down.

    Args:
        chains: Chain names of the configuration. Events may name any chain, so all others share the label
            `other`.
    """

    # --- the process ---

    build_info = _gauge("build_info", "Always 1; the label is the running version.", "version", over_processes="count")
    role = _gauge("role", "1 for each role of the process: intake, judging, relay, api, bridge, insights.", "role")
    database_up = _gauge("database_up", "1 while the database answers.", over_processes="max")

    # --- intake ---

    requests = _counter(
        "requests_total",
        "Requests received from Kafka and over HTTP, by disposition; repeated: the request was known already.",
        "source",
        "disposition",
    )
    request_delay = _histogram(
        "request_delay_seconds",
        "Time from the Kafka timestamp of an event to its stored request; accepted requests only.",
        REQUEST_BUCKETS_S,
        "source",
        starts_with=SOURCES_IN_KAFKA,
    )
    dead_letters = _counter(
        "dead_letters_total",
        "Messages that could not be read as a request, by reason.",
        "reason",
        starts_with=DEAD_LETTER_REASONS,
    )
    offset_commits_refused = _counter(
        "offset_commits_refused_total", "Offset commits refused because the group had rebalanced."
    )
    intake_paused = _gauge(
        "intake_paused", "1 while intake is paused because too many scores are due.", over_processes="max"
    )
    intake_last_pass = _gauge(
        "intake_last_pass_timestamp_seconds",
        "Unix time of the last intake pass; process start until the first one, 0 without intake and after its end. "
        "A pass stores records, finds none, or is paused on purpose.",
        over_processes="min of those above 0",
    )
    kafka_up = _gauge(
        "kafka_up",
        "1 while brokers answer the intake of this worker; 0 until the first login, and about 20 s after the last "
        "answer (80 s for a worker without partitions); absent while a worker drains. In insights: 0 after a message "
        "that was not acknowledged; absent while it stands by.",
        "role",
        over_processes="min",
    )
    consumer_lag = _gauge(
        "consumer_lag_records", "Records of the assigned partitions that were not read yet, by the last fetch."
    )

    # --- judging ---

    attempts = _counter(
        "attempts_total",
        "Finished attempts, by outcome as in the log line attempt.finished.",
        "outcome",
        starts_with=OUTCOMES,
    )
    scores = _counter(
        "scores_total",
        "Scores that ended; error_kind is empty for completed ones, else as in events.md.",
        "status",
        "error_kind",
        "chain",
    )
    score = _histogram("score_points", "Totals of completed scores.", SCORE_BUCKETS_POINTS, "chain")
    score_outcomes = _counter(
        "score_outcomes_total", "Completed scores by outcome: pass, fail, none.", "outcome", "chain"
    )
    score_flags = _counter("score_flags_total", "Flags of completed scores.", "flag")
    score_delay = _histogram(
        "score_delay_seconds",
        "Time from a stored request to its completed score, by who asked: people, automatic, bulk.",
        SCORE_BUCKETS_S,
        "asked_by",
        starts_with=ASKED_BY,
    )
    attempt_duration = _histogram(
        "attempt_duration_seconds", "Duration of an attempt, from claim to end.", TURN_BUCKETS_S
    )
    turn_duration = _histogram(
        "turn_duration_seconds", "Duration of a judge call that was answered.", TURN_BUCKETS_S, "kind", "provider"
    )
    turns = _counter("turns_total", "Judge turns; how: asked, or answered from a stored reply.", "kind", "how")
    turns_failed = _counter(
        "turns_failed_total",
        "Judge turns without an answer; reason: an error_kind, or a waiting_for of the score.",
        "provider",
        "reason",
    )
    tokens = _counter(
        "tokens_total", "Tokens of judge calls: input, cached_input (a part of input), output.", "direction", "provider"
    )
    cost = _counter("cost_usd_total", "Cost of judge calls, as far as prices are configured.", "provider", "chain")
    budget_spent = _gauge(
        "budget_spent_ratio",
        "Charged and reserved share of today's budget (UTC); scope: chain, or all for all chains together.",
        "scope",
        "chain",
        over_processes="max",
    )
    circuit_open = _gauge(
        "circuit_open",
        "1 while a provider is not called, by kind: circuit, key, quota.",
        "provider",
        "kind",
        over_processes="max",
    )
    slots = _gauge("slots", "Scores that may be judged at once.")
    slots_busy = _gauge("slots_busy", "Scores being judged.")

    # --- the queue ---

    queue = _gauge("queue_scores", "Open scores, by status.", "status", over_processes="max")
    queue_due = _gauge(
        "queue_due_scores",
        "Due scores without bulk, by what holds their chain up: " + ", ".join(HOLDS) + ".",
        "waiting_for",
        over_processes="max",
        starts_with=HOLDS,
    )
    queue_age = _gauge(
        "queue_oldest_due_seconds",
        "Waiting time of the oldest due score; without bulk, pauses and spent budgets.",
        over_processes="max",
    )
    leases_lost = _counter("leases_lost_total", "Attempts that lost their score to another worker.")
    taken_back = _counter(
        "scores_taken_back_total",
        "Scores taken back from lost workers, by their status afterwards.",
        "status",
        starts_with=STATUSES_TAKEN_BACK,
    )

    # --- events out ---

    outbox_backlog = _gauge(
        "outbox_backlog_events", "Events that no broker has acknowledged yet.", over_processes="max"
    )
    outbox_age = _gauge("outbox_oldest_seconds", "Age of the oldest unacknowledged event.", over_processes="max")
    events_published = _counter("events_published_total", "Events that the brokers acknowledged.", "type")
    write_backs = _counter(
        "write_backs_total",
        "Scores for TARSy's tables, by result: written, repeated, session_gone, session_open, refused.",
        "result",
    )
    write_back_backlog = _gauge(
        "write_back_backlog_events", "Scoring events that the write-back has not processed yet.", over_processes="max"
    )

    # --- the WebSocket gateway ---

    gateway_clients = _gauge("gateway_clients", "Connected WebSocket clients.")
    gateway_subscriptions = _gauge("gateway_subscriptions", "Channels that clients are subscribed to.")
    gateway_events = _counter(
        "gateway_events_total",
        "Events read by the gateway, by source: kafka, or database for events that the topic did not bring in time.",
        "source",
    )
    gateway_sent = _counter("gateway_sent_total", "Events sent to clients, counted once per client.")
    gateway_closed = _counter(
        "gateway_closed_total",
        "Connections closed by the gateway, by reason: slow, old, not_ready, flood, too_big, renumbered, stopping.",
        "reason",
    )
    gateway_lag = _histogram(
        "gateway_lag_seconds", "Time from emitting an event to writing it to the sockets.", LAG_BUCKETS_S
    )

    # --- drift ---

    anchor_sessions = _gauge(
        "anchor_sessions",
        "Anchors, by their state under the current judge: judged, under_way, lacking, given_up, gone, no_judge.",
        "state",
        over_processes="max",
    )
    anchors_asked = _counter("anchors_asked_total", "Judgements of anchors that workers requested.")
    drift_events = _counter(
        "drift_events_total",
        "Published changes of judge or agents, by cause: judge, agents, both.",
        "cause",
        starts_with=CAUSES_OF_DRIFT,
    )

    # --- HTTP ---

    api_requests = _counter(
        "api_requests_total",
        "HTTP requests answered; route is the pattern, never the path.",
        "route",
        "method",
        "status",
    )
    api_request_duration = _histogram(
        "api_request_duration_seconds",
        "Time from the head of an HTTP request to the end of its answer.",
        API_BUCKETS_S,
        "route",
    )
    api_refused = _counter(
        "api_refused_total",
        "Requests (http) and handshakes (websocket) refused before routing, by status (401, 403, 429, 503, ...).",
        "protocol",
        "status",
    )

    # --- rolling signals ---

    insights_events = _counter(
        "insights_events_total",
        "Ended production scores read from events: counted (their chain is marked as changed), late (in no window), "
        "unreadable (no scoring event).",
        "result",
        starts_with=INSIGHTS_RESULTS,
    )
    insights_published = _counter("insights_published_total", "Messages with windows that the brokers acknowledged.")
    insights_delay = _histogram(
        "insights_delay_seconds", "Time from the end of a score to its published windows.", REQUEST_BUCKETS_S
    )
    insights_chains = _gauge("insights_chains", "Chains with a score in the published windows; 0 while standing by.")

    # --- the bridge ---

    bridge_leading = _gauge("bridge_leading", "1 in the bridge that works; the others stand by.")
    bridge_announced = _counter("bridge_announced_total", "Announced sessions of TARSy, by status.", "status")
    bridge_swept = _gauge(
        "bridge_last_sweep_timestamp_seconds",
        "Unix time of the end of the last whole sweep of this process; 0: none yet.",
        over_processes="max",
    )
    bridge_sweep_every = _gauge(
        "bridge_sweep_interval_seconds",
        "SCORING_BRIDGE_SWEEP_S of a bridge; 0 in other processes.",
        over_processes="max",
    )

    def __init__(self, chains: Collection[str] = ()) -> None:
        self._chains = frozenset(chains)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        for attribute, declared in declarations():
            setattr(self, attribute, declared.build(self.registry))
        self.build_info.labels(__version__).set(1)

    def begin(self, *roles: str) -> None:
        """
        Record the roles of the process.

        The time of the last intake pass starts here, so that an intake that never reaches its topics shows as
        well.
        """
        for role in roles:
            self.role.labels(role).set(1)
        if "intake" in roles:
            self.intake_last_pass.set_to_current_time()
            self.kafka_up.labels("intake").set(0)

    def chain(self, chain_id: str | None) -> str:
        """The label of a chain: its name if the configuration has it, else `other`."""
        return chain_id if chain_id in self._chains and chain_id is not None else OTHER_CHAINS


def declarations() -> Iterator[tuple[str, Declared]]:
    """Attribute and declaration of each metric, in the order above."""
    attributes: dict[str, Any] = dict(vars(Metrics))
    for attribute, declared in attributes.items():
        if isinstance(declared, Declared):
            yield attribute, declared


def metrics_table() -> str:
    """The table of `docs/operations.md`."""
    lines = ["| metric | kind | labels | over processes | meaning |", "|---|---|---|---|---|"]
    for _, metric in declarations():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(
            f"| `{PREFIX}{metric.name}` | {metric.kind} | {labels} | {metric.over_processes} | {metric.help} |"
        )
    return "\n".join(lines) + "\n"
