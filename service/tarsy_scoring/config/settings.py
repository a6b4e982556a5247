"""
The settings: environment variables, and the YAML file as `config`.

The texts below the fields are the source of `docs/configuration.md`.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from tarsy_scoring.config.chains import DEFAULT_MODEL, ChainSettings, Config
from tarsy_scoring.config.timeline_sources import TimelineSourceName
from tarsy_scoring.config.values import (
    Brokers,
    DatabaseUrl,
    Days,
    Frozen,
    HeaderName,
    HttpUrl,
    LogFormat,
    NotBlank,
    Port,
    Positive,
    SaslMechanism,
    SchemaName,
    Security,
    Topic,
)
from tarsy_scoring.errors import SettingMissing

# Eight times the largest of 91 recorded sessions. TARSy keeps at most 32 KB of a tool's result, so 250 full
# results fit. With 16 slots, sessions of this size take 340 MB (docs/operations.md, Sizing).
DEFAULT_MAX_SESSION_BYTES = 8 * 1024 * 1024
LEAST_CONNECTIONS = 4  # of one process to our database


class Settings(BaseSettings):
    """All settings: each field from `SCORING_` + the name in capitals, and the YAML as `config`."""

    model_config = SettingsConfigDict(**Frozen.model_config, env_prefix="SCORING_")  # type: ignore[typeddict-item]

    enabled: bool = True
    """`false`: nothing is scored automatically."""
    database_url: DatabaseUrl | None = None
    """Own PostgreSQL, `postgresql://user:password@host/db`."""
    database_schema: SchemaName = "public"
    """Schema that holds our tables."""
    database_connections: int = Field(16, ge=LEAST_CONNECTIONS)
    """Most connections of one worker or API to our database."""
    database_statement_cache: int = Field(100, ge=0)
    """Prepared statements per connection; 0 behind a PgBouncer that does not track them."""
    kafka_bootstrap_servers: Brokers | None = None
    """`host:port,...`."""
    kafka_group: NotBlank = "tarsy-scoring"
    """Intake's consumer group."""
    kafka_session_timeout_s: Positive = 15
    """Time after which brokers remove a silent member."""
    kafka_security_protocol: Security = "PLAINTEXT"
    """TLS and login at the brokers."""
    kafka_sasl_mechanism: SaslMechanism = "PLAIN"
    """SASL mechanism."""
    kafka_sasl_username: str | None = None
    """SASL user."""
    kafka_sasl_password: SecretStr | None = None
    """SASL password."""
    kafka_oauth_token_file: Path | None = None
    """File with the token for `OAUTHBEARER`, read at each login."""
    kafka_ca_file: Path | None = None
    """The brokers' CA, PEM; default: the system's."""
    kafka_cert_file: Path | None = None
    """Client certificate for mutual TLS, PEM."""
    kafka_key_file: Path | None = None
    """The client certificate's key, PEM."""
    create_topics: bool = False
    """Create missing topics at the start."""
    topic_partitions: int = Field(6, ge=1)
    """Partitions for topics created at the start."""
    topic_replication: int = Field(1, ge=1)
    """Replication for topics created at the start."""
    topic_session_completed: Topic = "session-completed"
    """Topic with finished sessions."""
    topic_rescore_requested: Topic = "rescore-requested"
    """Topic with re-score requests."""
    topic_scoring_events: Topic = "scoring-events"
    """Topic with scoring events."""
    topic_dead_letters: Topic = "scoring-dead-letters"
    """Topic for messages that could not be read."""
    topic_scoring_insights: Topic = "scoring-insights"
    """Topic for rolling signals and drift."""
    events_choose_chains: bool = False
    """The chain that an event names counts before the chain that the source gives."""
    timeline_source: TimelineSourceName | None = None
    """Where sessions are read."""
    timeline_database_url: DatabaseUrl | None = None
    """TARSy's PostgreSQL, a read-only role."""
    timeline_database_connections: int = Field(8, ge=1)
    """Most connections of one worker or API to TARSy's PostgreSQL."""
    timeline_database_statement_cache: int = Field(100, ge=0)
    """Prepared statements per connection there; 0 behind a pooler that does not track them."""
    timeline_api_url: HttpUrl | None = None
    """TARSy's REST API."""
    timeline_api_token: SecretStr | None = None
    """Bearer token for TARSy's API."""
    timeline_api_ca_file: Path | None = None
    """CA that signs TARSy's API certificate."""
    timeline_dir: Path | None = None
    """Folder with session files."""
    max_session_bytes: int = Field(DEFAULT_MAX_SESSION_BYTES, ge=1)
    """Bytes of a session at its source above which it is not read and its score fails; workers and API need
    the memory for it."""
    timeline_grace_s: float = Field(120, ge=0)
    """How long to wait for an event's session."""
    write_back_database_url: DatabaseUrl | None = None
    """TARSy's PostgreSQL, with a role that may insert scores and stages: finished scores are written into its
    tables, for its dashboard. Default: they are not."""
    judge_model: str | None = Field(
        None, description=f"Model of the default provider; default `{DEFAULT_MODEL}`."
    )
    slots: int = Field(16, ge=1, le=10_000)
    """Scores judged at once in one worker."""
    lease_s: float = Field(60, ge=1)
    """Time after which a silent worker's score is taken back."""
    attempt_timeout_s: Positive = 600
    """Time limit for one attempt, waits excluded."""
    max_attempts: int = Field(5, ge=1)
    """Attempts that may fail or be lost before the score fails."""
    deadline_s: Positive = 3600
    """Time limit for all attempts at a score and their backoff, waits excluded."""
    drain_timeout_s: float = Field(180, ge=0)
    """Time for running attempts after SIGTERM."""
    max_pending: int = Field(100_000, ge=1)
    """Number of due scores above which intake pauses. Scores held up by a pause, a spent budget or an open
    circuit do not count; intake pauses above ten times as many of those."""
    unknown_criteria_grace_s: Positive = 900
    """Time after which a score fails if no worker has known its criteria, or names its chain."""
    dead_letter_max_share: float = Field(0.5, gt=0, le=1)
    """Share of invalid messages among the last 1,000 (at least 100) of a topic above which intake pauses
    it; 1: no limit."""
    dead_letter_max_streak: int = Field(100, ge=1)
    """Number of invalid messages in a row above which intake pauses the topic, for 30 s to 15 minutes."""
    retention_days: Days | None = None
    """Days to keep scores (`prune`); default: for ever."""
    api_host: str = "127.0.0.1"
    """Address that the API listens on."""
    api_port: Port = 8080
    """The API's port."""
    metrics_host: NotBlank = "127.0.0.1"
    """Address that `/metrics` listens on."""
    metrics_port: Port | None = None
    """Port of `/metrics`, and of `/healthz` and `/readyz` of workers, bridge and insights; 0: any. Default:
    9090, of the API 9091."""
    api_hosts: str = ""
    """Comma-separated host names that API and `/metrics` answer to, probes apart. Default: loopback names."""
    public_url: HttpUrl | None = None
    """Address at which people reach the pages, for links in notifications; default: no links."""
    trusted_proxies: str = ""
    """Comma-separated CIDRs of proxies that name users."""
    trusted_proxy_secret: SecretStr | None = None
    """Secret that these proxies send as `X-Scoring-Proxy-Secret`. Proxies beyond loopback need it, or a
    JWT."""
    trusted_proxy_jwks_file: Path | None = None
    """JWK set that verifies these proxies' JWT, read again when it changes."""
    trusted_proxy_user_header: HeaderName | None = None
    """Header that names the user. Default: `X-Forwarded-User`, else `X-Forwarded-Email`."""
    trusted_proxy_groups_header: HeaderName = "X-Forwarded-Groups"
    """Header with the user's groups, comma-separated; a JWT has a claim `groups`."""
    trusted_proxy_write_groups: str = ""
    """Comma-separated groups whose users may change things; others read. Default: every user may."""
    tarsy_url: HttpUrl | None = None
    """TARSy's dashboard: pages link each session to its page there, `URL/sessions/SESSION_ID`."""
    api_rate_per_minute: int = Field(60, ge=1)
    """Changing requests per minute and caller."""
    api_tokens_file: Path | None = None
    """File with the API's bearer tokens."""
    api_open: bool = False
    """Let the API listen beyond loopback without access control."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    log_format: LogFormat | None = None
    """Default: `console` on a terminal, else `json`."""
    config: Annotated[Config, NoDecode] = Config()
    unknown_variables: Annotated[tuple[str, ...], NoDecode] = ()
    """`SCORING_*` variables without a meaning."""

    @classmethod
    def settings_customise_sources(  # type: ignore[override]
        cls,
        _: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        **_others: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only arguments: `load_settings` reads variables, files with secrets and the YAML file."""
        return (init_settings,)

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
            variable = variable_of(field)
            other = taken.setdefault(getattr(self, field), variable)
            if other != variable:
                raise ValueError(f"{variable}: the same topic is used by {other}; give each its own")
        return self

    def chain(self, chain_id: str | None) -> ChainSettings:
        """A chain's settings; `defaults` for an unknown one or None."""
        return self.config.chains.get(chain_id or "", self.config.defaults)

    def pass_thresholds(self, chain_id: str | None) -> tuple[float | None, float | None]:
        """
        The chain's own threshold and the one in `defaults`, 0-100.

        A chain with `pass_threshold: null` has no threshold, and the one in `defaults` does not apply.
        """
        chain, default = self.config.chains.get(chain_id or ""), self.config.defaults.pass_threshold
        if chain is None or "pass_threshold" not in chain.model_fields_set:
            return None, default
        return chain.pass_threshold, None

    def require_database(self) -> str:
        """Our database's URL. Raises: SettingMissing: `SCORING_DATABASE_URL` is not set."""
        if self.database_url is None:
            raise SettingMissing(
                "SCORING_DATABASE_URL is not set: give the PostgreSQL that holds the scores, "
                "postgresql://user:password@host:5432/database"
            )
        return self.database_url.get_secret_value()

    def require_kafka(self) -> str:
        """The brokers. Raises: SettingMissing: `SCORING_KAFKA_BOOTSTRAP_SERVERS` is not set."""
        if self.kafka_bootstrap_servers is None:
            raise SettingMissing("SCORING_KAFKA_BOOTSTRAP_SERVERS is not set: give host:port,...")
        return self.kafka_bootstrap_servers

    def require_write_back(self) -> None:
        """Raises: SettingMissing: A chain has a memory and `SCORING_WRITE_BACK_DATABASE_URL` is not set."""
        if self.config.memories and self.write_back_database_url is None:
            raise SettingMissing("SCORING_WRITE_BACK_DATABASE_URL is not set; memory needs it")


TOPICS = tuple(n for n, f in Settings.model_fields.items() if n.startswith("topic_") and f.annotation is str)
SECRETS = tuple(n for n, f in Settings.model_fields.items() if "SecretStr" in str(f.annotation))


def variable_of(field: str) -> str:
    """The environment variable that sets a field of `Settings`."""
    return "SCORING_" + field.upper()
