"""
Login and TLS for the brokers.

Every Kafka client is built with `connection_options`.
"""

import asyncio
import re
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.errors import ConfigurationError

log = structlog.get_logger()

REQUEST_TIMEOUT_MS = 10_000
MAX_TOKEN_BYTES = 100_000

_TLS_ONLY = ("kafka_ca_file", "kafka_cert_file", "kafka_key_file")
_SASL_ONLY = ("kafka_sasl_username", "kafka_sasl_password", "kafka_oauth_token_file")
# OpenSSL also accepts its own form, TRUSTED CERTIFICATE, whose dates are not read here.
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# The validity of a certificate in DER: a sequence of two times, each UTCTime or GeneralizedTime, in UTC and
# with seconds. Only serial number and issuer precede it. The standard library shows dates of authorities
# alone, and another dependency for one warning is too much. Source: RFC 5280, section 4.1.2.5.
_TIME = rb"(?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)"
_VALIDITY = re.compile(rb"\x30." + _TIME + rb"(?P<not_after>" + _TIME + rb")", re.DOTALL)


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
        options["ssl_context"] = _ReloadingContext(_TlsFiles.of(settings))
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
    Check login and TLS as far as possible without a connection; warn of settings that are allowed but
    unlikely.

    Raises:
        ConfigurationError: It can never work. Names the variable and the file.
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
            # Only a warning: the brokers decide, and their clock may differ.
            if path is not None and (expired := _expired_in(path)):
                log.warning("settings.certificate_expired", variable=variable_of(name), file=str(path), ended=expired)


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """
    The OAUTHBEARER token, read from its file at each login.

    The platform keeps the file fresh: Kubernetes for a projected token, or an agent beside the worker.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        """Raises: NoToken: The file holds none; the client treats that like any failed login."""
        try:
            return await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise NoToken(f"cannot read the token in SCORING_KAFKA_OAUTH_TOKEN_FILE, {self._path}: {why}") from None

    def _read(self) -> str:
        with self._path.open("rb") as file:
            token = file.read(MAX_TOKEN_BYTES + 1).strip()
        if not token or len(token) > MAX_TOKEN_BYTES:
            raise ValueError("it is empty" if not token else f"it is larger than {MAX_TOKEN_BYTES} bytes")
        # Checked before decoding: an error of the codec would quote the token.
        if not token.isascii() or any(byte <= 0x20 for byte in token):
            raise ValueError("it is not one token")
        return token.decode("ascii")


class NoToken(KafkaError):  # type: ignore[misc]
    """There is no token to log in with."""


# --- TLS -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TlsFiles:
    """The files of a TLS context."""

    authorities: Path | None
    certificate: Path | None
    key: Path | None
    password: str = ""

    @classmethod
    def of(cls, settings: Settings) -> "_TlsFiles":
        password = settings.kafka_key_password
        return cls(
            settings.kafka_ca_file,
            settings.kafka_cert_file,
            settings.kafka_key_file,
            password.get_secret_value() if password is not None else "",
        )

    def stamp(self) -> list[tuple[int, int, int] | None]:
        """Changes when one of the files is written or replaced."""
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
        A context that checks host names and trusts `authorities` alone, or else those of the system.

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
        except OSError as error:  # the file vanished after the check: it is being replaced
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
                # Always with a password: without one OpenSSL asks for it at the terminal, and waits.
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


class _ReloadingContext(ssl.SSLContext):
    """
    A TLS context that loads its files again when they have changed, before the next connection.

    Certificates expire sooner than workers restart. Files that cannot be used, for example a new certificate
    whose key is not written yet, change nothing: the files loaded before stay in use.

    A new client for each change would do the same, at the price of a rebalance of the group.
    """

    def __new__(cls, _files: _TlsFiles) -> "_ReloadingContext":
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, files: _TlsFiles) -> None:
        self._files = files
        self._stamp = files.stamp()
        self._loaded = files.load()

    # Event loops call this for each TLS connection: asyncio and uvloop alike.
    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        if (stamp := self._files.stamp()) != self._stamp:
            try:
                self._loaded, self._stamp = self._files.load(), stamp
                log.info("kafka.certificates_read_again")
            except ConfigurationError as error:
                log.warning("kafka.certificates_unusable", reason=str(error), effect="the previous ones stay in use")
        return self._loaded.wrap_bio(*arguments, **options)


def _require_readable(variable: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigurationError(f"{variable}: cannot read {path}: {error.strerror}") from None


def _expired_in(path: Path) -> list[str]:
    """End dates of the expired certificates in a file, in ISO format, as far as they can be read."""
    now = datetime.fromtimestamp(time.time(), UTC)
    expired: list[str] = []
    for block in _CERTIFICATE.findall(path.read_text(encoding="ascii", errors="replace")):
        try:
            validity = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(block))
            ends = _read_time(validity["not_after"]) if validity is not None else now
        except ValueError:  # neither base64 nor a date
            continue
        if ends < now:
            expired.append(ends.isoformat())
    return expired


def _read_time(der: bytes) -> datetime:
    """UTCTime has a year of two digits, which RFC 5280 reads as 1950 to 2049; GeneralizedTime has four."""
    digits = der[2:].decode("ascii")
    if len(digits) == 13:
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
