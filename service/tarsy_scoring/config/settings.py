"""
The settings as frozen records: types, defaults, bounds and rules for variables and the YAML.

The YAML holds no secrets, and no representation of these records shows one. The descriptions are the source
of `docs/configuration.md`.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from tarsy_scoring.config.destinations import DestinationName, DestinationSettings
from tarsy_scoring.config.gates import AnyGate, CommandGate, FileGate, Gate, compile_pattern, not_blank
from tarsy_scoring.config.timeline_sources import TimelineSourceName
from tarsy_scoring.config.urls import is_plain_http
from tarsy_scoring.errors import SettingMissing

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-4.1"
# Eight times the largest of 91 recorded sessions. TARSy keeps at most 32 KB of a tool's result, so 250 full
# results fit. With 16 slots, sessions of this size take 340 MB (docs/operations.md, Sizing).
DEFAULT_MAX_SESSION_BYTES = 8 * 1024 * 1024
LEAST_CONNECTIONS = 4  # of one process to our database

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SessionStatus = Literal["completed", "failed", "cancelled", "timed_out"]


_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/?#@\[\]]*)(?::\d{1,5})?"
_POSTGRESQL_URL = re.compile(rf"postgres(?:ql)?://(?:[^/?#]*@)?{_HOST}(?:,{_HOST})*(?:[/?]|$)")
_BROKER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+)(?::(?P<port>\d{1,5}))?")
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


def _http_url(value: str) -> str:
    if not is_plain_http(value):
        raise ValueError("expected https://host:port, without user or password in it")
    return value


def _judge_url(value: str) -> str:
    if not is_plain_http(value):
        raise ValueError(
            "expected https://host:port/path, without user, password or query in it: a key comes from "
            "api_key_env or api_key_file, what else a request must carry from extra_headers"
        )
    return value.rstrip("/")


def _postgresql_url(value: SecretStr) -> SecretStr:
    """Reject a malformed database URL at start; later it would look like a database that never answers."""
    if not _POSTGRESQL_URL.match(value.get_secret_value()):
        raise ValueError("expected postgresql://user:password@host:5432/database")
    return value


def _broker_list(value: str) -> str:
    for place in value.split(","):
        found = _BROKER.fullmatch(place.strip())
        if found is None or not 0 < int(found["port"] or 9092) < 65_536:
            raise ValueError("expected host:port, several separated by commas, each port from 1 to 65535")
    return value


def _topic_name(value: str) -> str:
    if not _TOPIC.fullmatch(value):
        raise ValueError(
            "not a topic name: Kafka allows 1 to 249 of A-Z a-z 0-9 . _ - and neither . nor .. alone"
        )
    return value


def _command_pattern(value: str) -> str:
    if compile_pattern(value).search("") is not None:
        raise ValueError("matches the empty text, so it would find commands everywhere")
    return value


def _directory_name(value: str) -> str:
    if set(not_blank(value).replace("{session_id}", "")) & {"{", "}"}:
        raise ValueError("may hold `{session_id}`, and nothing else in braces")
    return value


def _secret_pattern(value: str) -> str:
    if compile_pattern(value).search("") is not None:
        raise ValueError("matches the empty text, so it would mask nothing everywhere")
    return value


def _off_as_none(value: object) -> object:
    return None if value is False or value == "off" else value  # YAML reads a bare `off` as false


HttpUrl = Annotated[str, AfterValidator(_http_url)]
JudgeUrl = Annotated[str, AfterValidator(_judge_url)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_postgresql_url)]
Brokers = Annotated[str, AfterValidator(_broker_list)]
CommandPattern = Annotated[str, AfterValidator(_command_pattern)]
Notes = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4000)]
SecretPattern = Annotated[str, AfterValidator(_secret_pattern)]
SecretKind = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,19}$")]
WorkDir = Annotated[str, AfterValidator(_directory_name)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
Topic = Annotated[str, AfterValidator(_topic_name)]
NotBlank = Annotated[str, AfterValidator(not_blank)]
Days = Annotated[int, Field(ge=1, le=36_500)]
Usd = Annotated[float, Field(ge=0)]
Total = Annotated[float, Field(ge=0, le=100)]
SecondOpinions = Annotated[Literal["edges"] | None, BeforeValidator(_off_as_none)]
Port = Annotated[int, Field(ge=0, le=65_535)]
SchemaName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Statuses = tuple[SessionStatus, ...]
LogFormat = Literal["json", "console"]
Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, protected_namespaces=())


# --- the YAML ------------------------------------------------------------------------------------------


class Prices(_Frozen):
    """USD per million tokens."""

    input: float = Field(ge=0, description="Price of input tokens.")
    cached_input: Usd | None = Field(None, description="Default: the price of `input`.")
    output: float = Field(ge=0, description="Price of output tokens.")


class AgentPrices(_Frozen):
    """USD per million tokens of a model of the agents."""

    input: float = Field(ge=0, description="Below the name of a model: price of its input tokens.")
    output: float = Field(ge=0, description="Below the name of a model: price of its output tokens.")


class ProviderSettings(_Frozen):
    """An OpenAI-compatible endpoint and the judge model there."""

    base_url: JudgeUrl = Field(DEFAULT_BASE_URL, description="Base URL of the API, usually ending in `/v1`.")
    api_key_env: str | None = Field(
        "OPENAI_API_KEY", description="Variable with the key; `null`: without key."
    )
    api_key_file: Path | None = Field(None, description="File that holds the key, instead of a variable.")
    model: str = Field(DEFAULT_MODEL, min_length=1, description="Model name at the endpoint.")
    context_window_tokens: int = Field(128_000, ge=4_000, description="The model's window: prompt and reply.")
    max_reply_tokens: int = Field(
        8_000,
        ge=256,
        description="Tokens reserved for the reply; more than 1 MiB and 16 bytes for each are not read.",
    )
    temperature: float | None = Field(None, ge=0, le=2, description="`null`: not sent.")
    timeout_s: Positive = Field(300, description="Deadline of one call.")
    max_concurrency: int | None = Field(
        None, ge=1, description="Calls at once per worker; `null`: as many as slots."
    )
    extra_headers: dict[str, str] = Field(default_factory=dict, description="Sent with every call.")
    proxy: str | None = Field(None, description="HTTP proxy for this provider.")
    ca_file: Path | None = Field(None, description="CA bundle for a private endpoint.")
    requests_per_minute: int | None = Field(None, ge=1, description="Limit over all workers; `null`: none.")
    tokens_per_minute: int | None = Field(None, ge=1, description="Limit over all workers; `null`: none.")
    prices_usd_per_million_tokens: Prices | None = Field(None, description="`{input, cached_input, output}`.")

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.max_reply_tokens > self.context_window_tokens // 2:
            raise ValueError("max_reply_tokens takes more than half of context_window_tokens")
        return self


class JudgeSettings(_Frozen):
    enabled: bool = Field(True, description="`false`: metrics and gates without a judge, and no total.")


class CompositeWeights(_Frozen):
    """Weights of the composite score; only their proportions count."""

    gate_weight: Weight = Field(0.0, description="Weight of the share of passed gates.")
    judge_weight: Weight = Field(0.0, description="Weight of the total, divided by 100.")
    interaction_weight: Weight = Field(0.0, description="Weight of the mean of three interaction rates.")

    @model_validator(mode="after")
    def _weigh_something(self) -> Self:
        if not (self.gate_weight or self.judge_weight or self.interaction_weight):
            raise ValueError("all weights are 0: leave `composite` out where no composite score is wanted")
        return self


class ChainSettings(_Frozen):
    """How the sessions of a chain are scored; `defaults` has the same keys."""

    enabled: bool = Field(True, description="Score finished sessions automatically.")
    criteria: str = Field("investigation", description="Name of the criteria.")
    criteria_notes: Notes | None = Field(
        None, description="A paragraph about its domain that the judge reads with the criteria."
    )
    providers: tuple[str, ...] = Field(
        (), description="Providers that may receive its data, tried in this order."
    )
    auto_score_statuses: Statuses = Field(
        ("completed",), description="Session statuses that are scored automatically."
    )
    sample_rate: Share = Field(
        1.0, description="Share of sessions scored automatically, by a hash of the session id."
    )
    samples: int = Field(1, ge=1, le=25, description="Judgements per score.")
    second_opinion: SecondOpinions = Field(
        None,
        description="`edges`: also ask the next provider of the chain where a total is near the edge of a band; "
        "`null` or `off`: never.",
    )
    max_reminders: int = Field(
        2, ge=0, le=10, description="Reminders to a judge whose answer holds no total."
    )
    judge: JudgeSettings = Field(
        JudgeSettings(), description="`{enabled: false}`: metrics and gates without a judge."
    )
    pass_threshold: Total | None = Field(
        None,
        description="Least `total_score` that passes, 0-100. That of a chain counts before that of its criteria, and "
        "that of the criteria before that of `defaults`.",
    )
    daily_budget_usd: Usd | None = Field(None, description="Per UTC day; `null`: no limit.")
    command_pattern: CommandPattern | None = Field(
        None, description="RE2 that finds the commands of a shell tool."
    )
    shell_tools: tuple[NotBlank, ...] = Field(
        (), description="Tools (`server.tool`) whose argument is a command line."
    )
    gates: tuple[Gate, ...] = Field((), description="Pass/fail checks, in order: see [gates](gates.md).")
    # Annotated, so that the generated page shows one key instead of one for each weight.
    composite: Annotated[CompositeWeights, Field()] | None = Field(
        None, description="Weights of the composite score: `{gate_weight, judge_weight, interaction_weight}`."
    )

    @property
    def may_judge_again(self) -> bool:
        """Whether another provider may judge as well, depending on the total."""
        return self.second_opinion is not None and len(self.providers) > 1

    def next_provider(self, answered: str) -> str | None:
        """
        The provider after the one that answered, in their order and around its end; None without another.
        """
        place = self.providers.index(answered) + 1 if answered in self.providers else 0
        return next((p for p in (*self.providers[place:], *self.providers[:place]) if p != answered), None)

    def gates_that_cannot_pass(self, settings: "GateSettings") -> list[str]:
        """Titles of gates that need a work directory, or to run commands, which the settings do not allow."""
        has_work_dir = settings.work_dir is not None

        def can_pass(gate: AnyGate) -> bool:
            if isinstance(gate, CommandGate):
                return has_work_dir and settings.allow_commands
            return has_work_dir or not isinstance(gate, FileGate)

        return [gate.title for gate in self.gates if not can_pass(gate)]


class BudgetSettings(_Frozen):
    daily_usd: Usd | None = Field(None, description="Per UTC day over all chains; `null`: no limit.")


class EvidenceSettings(_Frozen):
    max_missing_share: Share = Field(
        0.0,
        description="Share of the declared evidence that may be missing; above it a session is not scored.",
    )


class GateSettings(_Frozen):
    allow_commands: bool = Field(False, description="Allow gates to run commands of this configuration.")
    sandbox: Literal["landlock", "container"] = Field(
        "landlock",
        description="What keeps commands from secrets: `landlock` restricts the files that they can read; `container` "
        "states that their container holds no secret in a file.",
    )
    work_dir: WorkDir | None = Field(
        None, description="Work directory of commands and files; may hold `{session_id}`."
    )
    timeout_s: Positive = Field(30, description="Time limit of a command.")
    max_output_bytes: int = Field(1_000_000, ge=1, description="Bytes kept of the output of a command.")


class MaskingSettings(_Frozen):
    extra_patterns: dict[SecretKind, SecretPattern] = Field(
        default_factory=dict,
        description="RE2 patterns of your own secrets by kind: `badge` becomes `[REDACTED:badge#1]`. The secret is the "
        "group of a pattern, or all of it. A change makes a new `judge_fingerprint`.",
    )


class Config(_Frozen):
    """The contents of the YAML file; each section that the file omits has its defaults."""

    providers: dict[str, ProviderSettings] = Field(default_factory=dict, description="Judges by name.")
    defaults: ChainSettings = Field(
        ChainSettings(), description="For every chain, unless it sets its own value."
    )
    chains: dict[str, ChainSettings] = Field(default_factory=dict, description="Overrides per chain.")
    budget: BudgetSettings = Field(BudgetSettings(), description="`{daily_usd}`: over all chains.")
    destinations: dict[DestinationName, DestinationSettings] = Field(
        default_factory=dict, description="Where notifications and scores are sent, by name."
    )
    agent_prices_usd_per_million_tokens: dict[str, AgentPrices] = Field(
        default_factory=dict,
        description="Prices of the models of the agents by model name, for the cost of sessions.",
    )
    criteria_dirs: tuple[Path, ...] = Field((), description="Folders with your own criteria files.")
    evidence: EvidenceSettings = Field(EvidenceSettings(), description="`{max_missing_share}`: 0-1.")
    max_event_age_s: Positive | None = Field(
        86_400, description="Age above which a `session-completed` record is `stale`; `null`: no limit."
    )
    masking: MaskingSettings = Field(
        MaskingSettings(), description="`{extra_patterns}`: shapes of your own secrets."
    )
    gates: GateSettings = Field(
        GateSettings(), description="Limits for gates that run commands or read files."
    )

    @property
    def named_chains(self) -> dict[str, ChainSettings]:
        """`defaults` and each chain, by their path in the file."""
        return {"defaults": self.defaults} | {f"chains.{name}": chain for name, chain in self.chains.items()}


# --- the environment -----------------------------------------------------------------------------------


class Settings(_Frozen):
    """All settings: each field from `SCORING_` + its name in capitals, and the YAML as `config`."""

    enabled: bool = Field(True, description="`false`: nothing is scored automatically.")
    database_url: DatabaseUrl | None = Field(
        None, description="Own PostgreSQL, `postgresql://user:password@host/db`."
    )
    database_schema: SchemaName = Field("public", description="Schema of our tables.")
    database_connections: int = Field(
        16, ge=LEAST_CONNECTIONS, description="Most connections of one worker or API to our database."
    )
    database_statement_cache: int = Field(
        100,
        ge=0,
        description="Prepared statements per connection; 0 behind a PgBouncer that does not track them.",
    )
    kafka_bootstrap_servers: Brokers | None = Field(None, description="`host:port,...`.")
    kafka_group: NotBlank = Field("tarsy-scoring", description="Consumer group of the intake.")
    kafka_session_timeout_s: Positive = Field(
        15, description="Time after which brokers remove a silent member."
    )
    kafka_security_protocol: Security = Field("PLAINTEXT", description="TLS and login at the brokers.")
    kafka_sasl_mechanism: SaslMechanism = Field("PLAIN", description="SASL mechanism.")
    kafka_sasl_username: str | None = Field(None, description="SASL user.")
    kafka_sasl_password: SecretStr | None = Field(None, description="SASL password.")
    kafka_oauth_token_file: Path | None = Field(
        None, description="File with the token for `OAUTHBEARER`, read at each login."
    )
    kafka_ca_file: Path | None = Field(
        None, description="CA of the brokers, PEM; default: those of the system."
    )
    kafka_cert_file: Path | None = Field(None, description="Client certificate for mutual TLS, PEM.")
    kafka_key_file: Path | None = Field(None, description="Key of the client certificate, PEM.")
    create_topics: bool = Field(False, description="Create missing topics at the start.")
    topic_partitions: int = Field(6, ge=1, description="Partitions of topics created at the start.")
    topic_replication: int = Field(1, ge=1, description="Replication of topics created at the start.")
    topic_session_completed: Topic = Field("session-completed", description="Topic of finished sessions.")
    topic_rescore_requested: Topic = Field("rescore-requested", description="Topic of re-score requests.")
    topic_scoring_events: Topic = Field("scoring-events", description="Topic of scoring events.")
    topic_dead_letters: Topic = Field(
        "scoring-dead-letters", description="Topic of messages that could not be read."
    )
    topic_scoring_insights: Topic = Field(
        "scoring-insights", description="Topic of rolling signals and of drift."
    )
    events_choose_chains: bool = Field(
        False, description="The chain that an event names counts before the chain that the source gives."
    )
    timeline_source: TimelineSourceName | None = Field(None, description="Where sessions are read.")
    timeline_database_url: DatabaseUrl | None = Field(
        None, description="TARSy's PostgreSQL, a read-only role."
    )
    timeline_database_connections: int = Field(
        8, ge=1, description="Most connections of one worker or API to TARSy's PostgreSQL."
    )
    timeline_database_statement_cache: int = Field(
        100,
        ge=0,
        description="Prepared statements per connection there; 0 behind a pooler that does not track them.",
    )
    timeline_api_url: HttpUrl | None = Field(None, description="TARSy's REST API.")
    timeline_api_token: SecretStr | None = Field(None, description="Bearer token for TARSy's API.")
    timeline_api_token_file: Path | None = Field(
        None, description="File with the bearer token, read for each call."
    )
    timeline_api_ca_file: Path | None = Field(None, description="CA of TARSy's API.")
    timeline_dir: Path | None = Field(None, description="Folder of session files.")
    max_session_bytes: int = Field(
        DEFAULT_MAX_SESSION_BYTES,
        ge=1,
        description="Bytes of a session at its source above which it is not read and its score fails; workers and API "
        "need the memory for it.",
    )
    timeline_grace_s: float = Field(120, ge=0, description="How long to wait for the session of an event.")
    write_back: bool = Field(
        False, description="Write finished scores into TARSy's own tables, for its dashboard."
    )
    write_back_database_url: DatabaseUrl | None = Field(
        None, description="TARSy's PostgreSQL, with a role that may insert scores and stages."
    )
    judge_model: str | None = Field(
        None, description=f"Model of the default provider; default `{DEFAULT_MODEL}`."
    )
    slots: int = Field(16, ge=1, le=10_000, description="Scores judged at once in one worker.")
    lease_s: float = Field(
        60, ge=1, description="Time after which the score of a silent worker is taken back."
    )
    attempt_timeout_s: Positive = Field(600, description="Time limit of one attempt, without its waits.")
    max_attempts: int = Field(
        5, ge=1, description="Attempts that may fail or be lost before the score fails."
    )
    deadline_s: Positive = Field(
        3600, description="Time limit of all attempts of a score, without waits, and their backoff."
    )
    drain_timeout_s: float = Field(180, ge=0, description="Time for running attempts after SIGTERM.")
    max_pending: int = Field(
        100_000,
        ge=1,
        description="Number of due scores above which intake pauses. Scores held up by a pause, a spent budget or an "
        "open circuit do not count; intake pauses above ten times as many of those.",
    )
    unknown_criteria_grace_s: Positive = Field(
        900,
        description="Time after which a score fails if no worker has known its criteria, or names its chain.",
    )
    dead_letter_max_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of invalid messages among the last 1,000 (at least 100) of a topic above which intake stops "
        "reading it; 1: no limit.",
    )
    dead_letter_max_streak: int = Field(
        100,
        ge=1,
        description="Number of invalid messages in a row above which intake stops reading the topic.",
    )
    retention_days: Days | None = Field(None, description="Days to keep scores (`prune`); default: for ever.")
    api_host: str = Field("127.0.0.1", description="Address that the API listens on.")
    api_port: Port = Field(8080, description="Port of the API.")
    metrics_host: NotBlank = Field("127.0.0.1", description="Address that `/metrics` listens on.")
    metrics_port: Port | None = Field(
        None,
        description=(
            "Port of `/metrics`, and of `/healthz` and `/readyz` of workers, bridge and insights; 0: any. "
            "Default: 9090, of the API 9091."
        ),
    )
    api_hosts: str = Field(
        "",
        description="Comma-separated host names that the API answers to, probes apart. Default: those of loopback.",
    )
    public_url: HttpUrl | None = Field(
        None,
        description="Address of the pages as people reach them, for the links in notifications; default: no links.",
    )
    trusted_proxies: str = Field("", description="Comma-separated CIDRs of proxies that name users.")
    trusted_proxy_secret: SecretStr | None = Field(
        None,
        description="Secret that these proxies send as `X-Scoring-Proxy-Secret`. Proxies beyond loopback need it, or a "
        "JWT.",
    )
    trusted_proxy_jwks_file: Path | None = Field(
        None, description="JWK set that verifies the JWT of these proxies, read again when it changes."
    )
    trusted_proxy_user_header: HeaderName = Field(
        "X-Forwarded-User", description="Header that names the user."
    )
    trusted_proxy_groups_header: HeaderName = Field(
        "X-Forwarded-Groups",
        description="Header with the user's groups, comma-separated; a JWT has a claim `groups`.",
    )
    trusted_proxy_write_groups: str = Field(
        "",
        description="Comma-separated groups whose users may change things; others read. Default: every user may.",
    )
    tarsy_url: HttpUrl | None = Field(
        None,
        description="TARSy's dashboard: pages link each session to its page there, `URL/sessions/SESSION_ID`.",
    )
    api_rate_per_minute: int = Field(60, ge=1, description="Changing requests per minute and caller.")
    api_tokens_file: Path | None = Field(None, description="File with the bearer tokens of the API.")
    api_open: bool = Field(False, description="Let the API listen beyond loopback without access control.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged."
    )
    log_format: LogFormat | None = Field(None, description="Default: `console` on a terminal, else `json`.")
    config: Config = Config()
    unknown_variables: tuple[str, ...] = Field((), description="`SCORING_*` variables without a meaning.")

    @model_validator(mode="after")
    def _one_timeline_token(self) -> Self:
        if self.timeline_api_token and self.timeline_api_token_file:
            raise ValueError(
                "SCORING_TIMELINE_API_TOKEN and SCORING_TIMELINE_API_TOKEN_FILE are both set: keep one"
            )
        return self

    @model_validator(mode="after")
    def _kafka_security_is_whole(self) -> Self:
        if self.kafka_security_protocol.startswith("SASL"):
            if self.kafka_sasl_mechanism == "OAUTHBEARER":
                if self.kafka_oauth_token_file is None:
                    raise ValueError("OAUTHBEARER needs SCORING_KAFKA_OAUTH_TOKEN_FILE")
            elif not (self.kafka_sasl_username and self.kafka_sasl_password):
                raise ValueError("SASL needs SCORING_KAFKA_SASL_USERNAME and SCORING_KAFKA_SASL_PASSWORD")
        if (self.kafka_cert_file is None) != (self.kafka_key_file is None):
            raise ValueError(
                "SCORING_KAFKA_CERT_FILE and SCORING_KAFKA_KEY_FILE belong together: give both, "
                "the same file twice where it holds both"
            )
        return self

    @model_validator(mode="after")
    def _topics_differ(self) -> Self:
        """Reject a topic that two settings name: we could read what we write, such as dead letters."""
        taken: dict[str, str] = {}
        for field in TOPICS:
            name, variable = getattr(self, field), variable_of(field)
            if name in taken:
                raise ValueError(f"{variable}: the same topic is used by {taken[name]}; give each its own")
            taken[name] = variable
        return self

    def chain(self, chain_id: str | None) -> ChainSettings:
        """The settings of a chain; `defaults` for an unknown one or None."""
        return self.config.chains.get(chain_id or "", self.config.defaults)

    def pass_thresholds(self, chain_id: str | None) -> tuple[float | None, float | None]:
        """
        The chain's own threshold and that of `defaults`, 0-100.

        A chain with `pass_threshold: null` has no threshold of its own and does without that of `defaults`.
        """
        chain, default = self.config.chains.get(chain_id or ""), self.config.defaults.pass_threshold
        if chain is None or "pass_threshold" not in chain.model_fields_set:
            return None, default
        return chain.pass_threshold, None

    def require_database(self) -> str:
        """The URL of our database. Raises: SettingMissing: `SCORING_DATABASE_URL` is not set."""
        if self.database_url is None:
            raise SettingMissing(
                "SCORING_DATABASE_URL is not set: give the PostgreSQL that holds the scores, "
                "postgresql://user:password@host:5432/database"
            )
        return self.database_url.get_secret_value()

    def require_kafka(self) -> str:
        """The brokers. Raises: SettingMissing: `SCORING_KAFKA_BOOTSTRAP_SERVERS` is not set."""
        if self.kafka_bootstrap_servers is None:
            raise SettingMissing(
                "SCORING_KAFKA_BOOTSTRAP_SERVERS is not set: give the brokers as host:port,..."
            )
        return self.kafka_bootstrap_servers


TOPICS = tuple(n for n, f in Settings.model_fields.items() if n.startswith("topic_") and f.annotation is str)
SECRETS = tuple(n for n, f in Settings.model_fields.items() if "SecretStr" in str(f.annotation))
# Secrets read from `*_FILE` once, at the start. A secret with a field of its own for the file is read at each
# use.
SECRETS_FROM_FILES = tuple(n for n in SECRETS if f"{n}_file" not in Settings.model_fields)


def variable_of(field: str) -> str:
    """The environment variable of a field of `Settings`."""
    return "SCORING_" + field.upper()
