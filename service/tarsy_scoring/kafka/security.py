"""
How this service proves itself to the brokers.

Every client of Kafka is built with `connection_options`.
"""

import asyncio
import re
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import (
    AIOKafkaConnection,
    BaseSaslAuthenticator,
    OAuthAuthenticator,
)
from aiokafka.errors import KafkaError, SaslAuthenticationFailed

from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.errors import ConfigurationError

log = structlog.get_logger()

REQUEST_TIMEOUT_MS = 10_000
MAX_TOKEN_BYTES = 100_000

_TLS_ONLY = ("kafka_ca_file", "kafka_cert_file", "kafka_key_file")
_SASL_ONLY = ("kafka_sasl_username", "kafka_sasl_password", "kafka_oauth_token_file")
# OpenSSL's own form, TRUSTED CERTIFICATE, may be used and not be read here.
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)


def connection_options(settings: Settings) -> dict[str, Any]:
    """
    What every client needs to reach the brokers.

    Raises:
        ConfigurationError: No brokers are given, or a certificate or key cannot be used.
    """
    protocol = settings.kafka_security_protocol
    options: dict[str, Any] = {
        "bootstrap_servers": settings.require_kafka(),
        "security_protocol": protocol,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
    }
    if protocol.endswith("SSL"):
        options["ssl_context"] = _FollowingContext(_Files.of(settings))
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
    See what can be seen of the login without connecting; warns of what is allowed and hardly meant.

    Raises:
        ConfigurationError: It can never work. Names the variable and the file.
    """
    connection_options(settings)
    protocol, mechanism = settings.kafka_security_protocol, settings.kafka_sasl_mechanism
    if protocol == "SASL_PLAINTEXT" and not mechanism.startswith("SCRAM"):
        log.warning(
            "settings.kafka_login_in_clear",
            mechanism=mechanism,
            advice="whoever reads the network reads the login: let SCORING_KAFKA_SECURITY_PROTOCOL be SASL_SSL",
        )
    unused = [] if protocol.endswith("SSL") else list(_TLS_ONLY)
    unused += [] if protocol.startswith("SASL") else list(_SASL_ONLY)
    if names := [variable_of(name) for name in unused if getattr(settings, name)]:
        log.warning(
            "settings.kafka_security_unused",
            variables=names,
            advice=f"SCORING_KAFKA_SECURITY_PROTOCOL is {protocol}, which makes no use of them",
        )
    if protocol.endswith("SSL"):
        for name in ("kafka_ca_file", "kafka_cert_file"):
            path = getattr(settings, name)
            if path is not None and (ended := _ended_in(path)):
                log.warning("settings.certificate_expired", variable=variable_of(name), file=str(path), ended=ended)


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """
    The token for OAUTHBEARER as it stands in its file at the moment of a login.

    Whoever writes the file keeps it fresh: a projected token of Kubernetes, or an agent beside us.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """Raises: KafkaError: There is none; the client treats it like any login that failed."""
        try:
            token = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise NoToken(f"cannot read the token in SCORING_KAFKA_OAUTH_TOKEN_FILE, {self._path}: {why}") from None
        return token

    def _read(self) -> str:
        with self._path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES + 1).strip()
        if not token or len(token) > MAX_TOKEN_BYTES:
            raise ValueError("it is empty" if not token else f"it is larger than {MAX_TOKEN_BYTES} bytes")
        # Checked by ourselves: an error of the codec would quote the token.
        if not token.isascii() or any(byte <= 0x20 for byte in token):
            raise ValueError("it is not one token")
        return token.decode("ascii")


class NoToken(KafkaError):  # type: ignore[misc]
    """There is no token to log in with."""


class _HearingAuthenticator(OAuthAuthenticator):  # type: ignore[misc]
    """
    A login by token that hears the brokers refuse it.

    The library's own does not look at the answer to a token: a client whose token was refused would go on as if it
    were let in, and find a cluster without brokers and topics. RFC 7628, section 3.2.3: a refusal is answered with
    one more message, and that one fails the login.
    """

    _has_answered = False

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        if not payload:
            step: tuple[bytes, bool] | None = await super().step(payload)
            return step
        if self._has_answered:
            raise SaslAuthenticationFailed("the token was refused")
        self._has_answered = True
        return b"\x01", True


def _authenticate_by_token(connection: AIOKafkaConnection) -> _HearingAuthenticator:
    return _HearingAuthenticator(sasl_oauth_token_provider=connection._sasl_oauth_token_provider)


class NotProven(SaslAuthenticationFailed):  # type: ignore[misc]
    """The broker answered the login as nobody does who knows the password."""


_take_step = BaseSaslAuthenticator._step


def _take_step_or_refuse(authenticator: BaseSaslAuthenticator, payload: bytes | None) -> tuple[bytes, bool] | None:
    """
    The next step of a login by password; an answer that makes no sense is a login that failed.

    The library's own lets the errors of its parser out, which end whatever of its tasks was about to connect.
    """
    try:
        step: tuple[bytes, bool] | None = _take_step(authenticator, payload)
    except (ValueError, LookupError, ArithmeticError, AssertionError):
        # RFC 5802, section 7: a final message that begins with "e=" is a refusal in so many words.
        if payload is not None and payload.startswith(b"e="):
            raise SaslAuthenticationFailed("the login was refused") from None
        raise NotProven("the answer to the login is not what it must be") from None
    return step


# The library makes its connections by itself and leaves no other place to put this.
AIOKafkaConnection.authenticator_oauth = _authenticate_by_token
BaseSaslAuthenticator._step = _take_step_or_refuse


# --- TLS -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Files:
    """What a TLS context is made of."""

    authorities: Path | None
    certificate: Path | None
    key: Path | None
    password: str = ""

    @classmethod
    def of(cls, settings: Settings) -> "_Files":
        password = settings.kafka_key_password
        return cls(
            settings.kafka_ca_file,
            settings.kafka_cert_file,
            settings.kafka_key_file,
            password.get_secret_value() if password is not None else "",
        )

    def stamp(self) -> list[tuple[int, int, int] | None]:
        """Differs after one of them was changed or exchanged."""
        stamps: list[tuple[int, int, int] | None] = []
        for path in (self.authorities, self.certificate, self.key):
            try:
                status = path.stat() if path is not None else None
            except OSError:
                status = None
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino) if status else None)
        return stamps

    def load(self) -> ssl.SSLContext:
        """
        A context that trusts our authorities alone, or those of the system, and checks names.

        Raises:
            ConfigurationError: Naming the variable and the file.
        """
        for variable, path in (
            ("SCORING_KAFKA_CA_FILE", self.authorities),
            ("SCORING_KAFKA_CERT_FILE", self.certificate),
            ("SCORING_KAFKA_KEY_FILE", self.key),
        ):
            _require_readable(variable, path)
        try:
            return self._load()
        except OSError as error:  # gone since we looked: somebody exchanges files at this moment
            raise ConfigurationError(
                f"SCORING_KAFKA_*_FILE: a file cannot be read any more: {error.strerror}"
            ) from None

    def _load(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.authorities)
        except ssl.SSLError:
            raise ConfigurationError(
                f"SCORING_KAFKA_CA_FILE: {self.authorities} holds no certificates in PEM format"
            ) from None
        if self.certificate is not None:
            try:
                # Always with a password: without one OpenSSL would ask for it at the terminal, and wait.
                context.load_cert_chain(self.certificate, self.key, self.password)
            except (ssl.SSLError, ValueError) as error:
                raise ConfigurationError(self._why_unusable(error)) from None
        return context

    def _why_unusable(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            return f"SCORING_KAFKA_KEY_FILE: {self.key} is not the key of the certificate in {self.certificate}"
        assert self.certificate is not None
        assert self.key is not None
        if b"-----BEGIN CERTIFICATE-----" not in self.certificate.read_bytes():
            return f"SCORING_KAFKA_CERT_FILE: {self.certificate} holds no certificate in PEM format"
        key = self.key.read_bytes()
        if b"ENCRYPTED" in key:
            return f"SCORING_KAFKA_KEY_PASSWORD does not open {self.key}, which is encrypted"
        if b"PRIVATE KEY-----" not in key:
            return f"SCORING_KAFKA_KEY_FILE: {self.key} holds no key in PEM format"
        return f"SCORING_KAFKA_CERT_FILE, SCORING_KAFKA_KEY_FILE: {self.certificate} and {self.key} cannot be used"


class _FollowingContext(ssl.SSLContext):
    """
    A TLS context whose next connection uses the files as they are then.

    Certificates live shorter than workers, and whoever renews them exchanges files. Files that cannot be used,
    as in the middle of an exchange, change nothing.
    """

    def __new__(cls, _files: _Files) -> "_FollowingContext":
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._stamp = files.stamp()
        self._loaded = files.load()

    # Where event loops begin a TLS connection; both asyncio's and uvloop's.
    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        if (stamp := self._files.stamp()) != self._stamp:
            try:
                self._loaded, self._stamp = self._files.load(), stamp
                log.info("kafka.certificates_read_again")
            except ConfigurationError as error:
                log.warning("kafka.certificates_unusable", reason=str(error), effect="going on with those of before")
        return self._loaded.wrap_bio(*arguments, **options)


def _require_readable(variable: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigurationError(f"{variable}: cannot read {path}: {error.strerror}") from None


def _ended_in(path: Path) -> list[str]:
    """When certificates of a file ended, as far as their dates can be read; those still in force are left out."""
    ended: list[str] = []
    for block in _CERTIFICATE.findall(path.read_bytes()):
        with tempfile.NamedTemporaryFile() as alone:
            alone.write(block)
            alone.flush()
            try:
                # The one place of the standard library that reads the dates of a certificate which is no
                # authority; it wants a file, and looks at the first one in it.
                ends: str = ssl._ssl._test_decode_cert(alone.name)["notAfter"]  # type: ignore[attr-defined]
            except ssl.SSLError:
                continue
        if ssl.cert_time_to_seconds(ends) < time.time():
            ended.append(ends)
    return ended
