"""Every metric, declared once in `metrics.yaml`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector

from tarsy_scoring import __version__
from tarsy_scoring.config.packaged import packaged_yaml

PREFIX = "tarsy_scoring_"
OTHER_CHAINS = "other"

# Label values.
ASKED_BY = ("people", "automatic", "bulk")  # ordered as `admission.Priority`
CIRCUIT_KINDS = ("circuit", "key", "quota", "rejected")
# Why a chain is held up: `errors.WaitingFor` without the reasons that hold up a single score.
HOLDS = ("nothing", "pause", "budget", "circuit", "key", "quota", "rejected", "rate_limit")


@dataclass(frozen=True)
class Declared:
    """How one metric is declared; `metrics.yaml` explains the fields."""

    name: str
    help: str
    labels: Sequence[str] = ()
    buckets: Sequence[float] = ()
    starts_with: Sequence[str] = ()


@cache
def declarations() -> Mapping[str, Declared]:
    """Declarations by attribute in `Metrics`, ordered as in the file."""
    return {
        attribute: Declared(**fields)
        for attribute, fields in packaged_yaml(__package__, "metrics.yaml").items()
    }


class Metrics:
    """
    All metrics in one registry; built once per process and passed down.

    Args:
        chains: Configured chain names. All other chains share the label `other`, because events may
            name any chain.
    """

    # --- the process ---

    build_info: Gauge
    role: Gauge
    database_up: Gauge

    # --- intake ---

    requests: Counter
    request_delay: Histogram
    dead_letters: Counter
    offset_commits_refused: Counter
    intake_paused: Gauge
    intake_last_pass: Gauge
    kafka_up: Gauge
    consumer_lag: Gauge
    intake_stopped: Gauge

    # --- judging ---

    attempts: Counter
    scores: Counter
    score: Histogram
    score_outcomes: Counter
    score_flags: Counter
    score_delay: Histogram
    attempt_duration: Histogram
    turn_duration: Histogram
    turns_failed: Counter
    tokens: Counter
    cost: Counter
    budget_spent: Gauge
    circuit_open: Gauge
    source_away: Gauge
    slots: Gauge
    slots_busy: Gauge

    # --- the queue ---

    queue: Gauge
    queue_due: Gauge
    queue_age: Gauge
    leases_lost: Counter
    taken_back: Counter

    # --- events out ---

    outbox_backlog: Gauge
    outbox_age: Gauge
    events_published: Counter
    events_cut: Counter
    write_backs: Counter
    write_back_backlog: Gauge
    notifications: Counter
    notification_target_away: Gauge

    # --- the WebSocket gateway ---

    gateway_clients: Gauge
    gateway_subscriptions: Gauge
    gateway_events: Counter
    gateway_closed: Counter
    gateway_lag: Histogram

    # --- drift ---

    anchor_sessions: Gauge
    drift_events: Counter

    # --- HTTP ---

    api_requests: Counter
    api_request_duration: Histogram

    # --- rolling signals ---

    insights_events: Counter

    # --- the bridge ---

    bridge_leading: Gauge
    bridge_announced: Counter
    bridge_swept: Gauge

    def __init__(self, chains: Collection[str] = ()) -> None:
        self._chains = frozenset(chains)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        for attribute, kind in get_type_hints(Metrics).items():
            declared = declarations()[attribute]
            options: dict[str, Any] = {"buckets": declared.buckets} if declared.buckets else {}
            name = PREFIX + declared.name
            metric = kind(name, declared.help, declared.labels, registry=self.registry, **options)
            for value in declared.starts_with:
                metric.labels(value)
            setattr(self, attribute, metric)
        self.build_info.labels(__version__).set(1)

    def begin(self, *roles: str) -> None:
        """
        Record which roles run.

        For an intake, the last pass is set to now, so that one that never reaches the topics
        shows.
        """
        for role in roles:
            self.role.labels(role).set(1)
        if "intake" in roles:
            self.intake_last_pass.set_to_current_time()
            self.kafka_up.labels("intake").set(0)

    def chain(self, chain_id: str | None) -> str:
        """The label for a chain: the name if it is configured, else `other`."""
        return chain_id if chain_id in self._chains and chain_id is not None else OTHER_CHAINS
