"""
Login and TLS for the brokers.

Every Kafka client is built with `connection_options`.
"""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError

log = structlog.get_logger()

REQUEST_TIMEOUT_MS = 10_000


def connection_options(settings: Settings) -> dict[str, Any]:
    """
    Keyword arguments that every client needs to reach the brokers.

    Raises:
        ConfigurationError: No brokers are configured, or a certificate or key cannot be used.
    """
    protocol = settings.kafka_security_protocol
    options: dict[str, Any] = {
        "bootstrap_servers": settings.require_kafka(),
        "security_protocol": protocol,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }
    if protocol.endswith("SSL"):
        options["ssl_context"] = _ReloadingContext(settings)
    if protocol.startswith("SASL"):
        options["sasl_mechanism"] = settings.kafka_sasl_mechanism
        if settings.kafka_sasl_mechanism == "OAUTHBEARER":
            assert settings.kafka_oauth_token_file is not None
            options["sasl_oauth_token_provider"] = TokenFile(settings.kafka_oauth_token_file)
        else:
            assert settings.kafka_sasl_password is not None
            options["sasl_plain_username"] = settings.kafka_sasl_username
            options["sasl_plain_password"] = settings.kafka_sasl_password.get_secret_value()
    return options


def check_login(settings: Settings) -> None:
    """
    Check login and TLS without a connection; warn of a login in clear text.

    Raises:
        ConfigurationError: The settings can never work. Names the variable and the file.
    """
    connection_options(settings)
    protocol, mechanism = settings.kafka_security_protocol, settings.kafka_sasl_mechanism
    # SCRAM never sends the password itself.
    if protocol == "SASL_PLAINTEXT" and not mechanism.startswith("SCRAM"):
        log.warning(
            "settings.kafka_login_in_clear",
            mechanism=mechanism,
            advice="the login can be read on the network: set SCORING_KAFKA_SECURITY_PROTOCOL to SASL_SSL",
        )


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """
    The OAUTHBEARER token, read from the file at each login.

    The platform keeps the file fresh: Kubernetes for a projected token, or an agent beside the worker.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """The token. Raises: KafkaError: The file holds none; the client treats that like any failed login."""
        try:
            token = (await asyncio.to_thread(self._path.read_text, "ascii")).strip()
        except (OSError, ValueError) as error:  # an error of the codec would quote the token
            raise self._no_token(type(error).__name__) from None
        if not token or not token.isprintable() or " " in token:
            raise self._no_token("it is not one token")
        return token

    def _no_token(self, why: str) -> KafkaError:
        return KafkaError(f"cannot read the token in SCORING_KAFKA_OAUTH_TOKEN_FILE, {self._path}: {why}")


# --- TLS -----------------------------------------------------------------------------------------------


class _ReloadingContext(ssl.SSLContext):
    """
    A TLS context that loads the files again for each connection.

    Certificates expire sooner than workers restart. Files that cannot be used, for example a new certificate
    whose key is not written yet, change nothing: the files loaded before stay in use.
    """

    # A new client for each change was rejected: it would cost a rebalance of the group.

    def __new__(cls, _settings: Settings) -> "_ReloadingContext":
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded = _load_context(settings)

    # Event loops call this for each TLS connection: asyncio and uvloop alike.
    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        try:
            self._loaded = _load_context(self._settings)
        except ConfigurationError as error:
            log.warning(
                "kafka.certificates_unusable", reason=str(error), effect="the previous ones stay in use"
            )
        return self._loaded.wrap_bio(*arguments, **options)


class _Session(ssl.SSLObject):
    """
    Ends with its own closing alert and awaits none. With an answer still under way uvloop would wait 30 s for
    the broker's (github.com/MagicStack/uvloop/issues/471).
    """

    def unwrap(self) -> None:
        with suppress(ssl.SSLWantReadError):
            super().unwrap()


def _load_context(settings: Settings) -> ssl.SSLContext:
    """
    A context that checks host names and trusts the configured authorities alone, or else those of the system.

    Raises:
        ConfigurationError: Naming the variables and the files.
    """
    authorities, certificate, key = settings.kafka_ca_file, settings.kafka_cert_file, settings.kafka_key_file
    variables = "SCORING_KAFKA_CA_FILE"
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authorities)
        context.sslobject_class = _Session
        if certificate is not None and key is not None:
            variables = "SCORING_KAFKA_CERT_FILE, SCORING_KAFKA_KEY_FILE"
            # With an empty password, or OpenSSL asks at the terminal for that of an encrypted key, and waits.
            context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        files = [str(path) for path in (authorities, certificate, key) if path is not None]
        raise ConfigurationError(f"{variables}: cannot use {', '.join(files)}: {error}") from None
    return context
