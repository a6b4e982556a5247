"""The Kafka login as far as it needs no broker: files, warnings, renewed certificates, tokens."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError
from structlog.testing import capture_logs

from secured_kafka import Authority
from tables import table
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.kafka.security import TokenFile, check_login, connection_options

PLANTED = "planted7Secret"
TLS = {"security_protocol": "SSL"}
Show = tuple[Callable[[], bytes | None], Path, Path]


def kafka_settings(**changes: object) -> Settings:
    """Settings with these Kafka variables, given by their short names."""
    names = {"bootstrap_servers": "broker.internal:9093"} | changes
    return load_settings({f"SCORING_KAFKA_{name.upper()}": str(value) for name, value in names.items()})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def test_the_name_of_a_broker_is_checked(authority: Authority) -> None:
    """Otherwise any holder of a certificate of the CA could pose as a broker."""
    context = connection_options(kafka_settings(**TLS, ca_file=authority.file))["ssl_context"]

    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


# --- files ---------------------------------------------------------------------------------------------


@table
def test_a_file_that_cannot_be_used_is_named(
    change: dict[str, str], variable: str, *, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("us")
    _, other = authority.issue("them")
    (tmp_path / "text").write_text("hello", encoding="utf-8")
    places = {"tmp": tmp_path, "other": other}
    files = {"ca_file": authority.file, "cert_file": certificate, "key_file": key}
    files |= {name: value.format(**places) for name, value in change.items()}

    with pytest.raises(ConfigurationError, match=variable) as refused:
        check_login(kafka_settings(**TLS, **files))

    assert all(value.format(**places) in str(refused.value) for value in change.values())


# --- warnings ------------------------------------------------------------------------------------------


def warnings_of(settings: Settings) -> dict[str, dict[str, object]]:
    with capture_logs() as lines:
        check_login(settings)
    return {line["event"]: dict(line) for line in lines}


def test_a_login_that_can_be_read_on_the_network_is_warned_of() -> None:
    """These are passwords and tokens without TLS; SCRAM never sends the password."""
    login = {"sasl_username": "u", "sasl_password": PLANTED, "oauth_token_file": "/run/token"}
    table = [
        ("SASL_PLAINTEXT", "PLAIN", True),
        ("SASL_PLAINTEXT", "OAUTHBEARER", True),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", False),
        ("SASL_SSL", "PLAIN", False),
    ]
    for protocol, mechanism, is_warned in table:
        found = warnings_of(kafka_settings(security_protocol=protocol, sasl_mechanism=mechanism, **login))

        assert ("settings.kafka_login_in_clear" in found) == is_warned, (protocol, mechanism)
        assert PLANTED not in str(found)


# --- what changes while we run -------------------------------------------------------------------------


def certificate_shown(context: ssl.SSLContext, server: ssl.SSLContext) -> bytes | None:
    """The certificate that a client with this context shows to a server, without a network."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="broker")
    peer = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, peer):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return peer.getpeercert(binary_form=True)


@pytest.fixture
def server(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("broker"))
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def show(authority: Authority, server: ssl.SSLContext) -> Show:
    """The certificate of the next connection of one client, and the files of certificate and key."""
    certificate, key = authority.issue("us")
    files = {"ca_file": authority.file, "cert_file": certificate, "key_file": key}
    context = connection_options(kafka_settings(**TLS, **files))["ssl_context"]
    return lambda: certificate_shown(context, server), certificate, key


def exchange(path: Path, content: bytes) -> None:
    """Replace a file atomically, as tools that renew certificates do."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)


def test_the_next_connection_uses_a_renewed_certificate(authority: Authority, show: Show) -> None:
    shown, certificate, key = show
    first = shown()
    new_certificate, new_key = authority.issue("renewed")

    exchange(certificate, new_certificate.read_bytes())
    exchange(key, new_key.read_bytes())

    assert shown() == der(new_certificate) != first


def test_new_certificate_is_not_used_without_its_key(authority: Authority, show: Show) -> None:
    shown, certificate, key = show
    first = shown()
    new_certificate, new_key = authority.issue("renewed")

    exchange(certificate, new_certificate.read_bytes())
    with capture_logs() as lines:
        assert shown() == first
    exchange(key, new_key.read_bytes())

    assert [line["event"] for line in lines] == ["kafka.certificates_unusable"]
    assert shown() == der(new_certificate)


async def test_a_token_is_read_at_every_login(tmp_path: Path) -> None:
    file = tmp_path / "token"
    provider = TokenFile(file)
    file.write_text("one\n", encoding="utf-8")
    first = await provider.token()
    file.write_text("two", encoding="utf-8")

    assert (first, await provider.token()) == ("one", "two")


@pytest.mark.parametrize("content", [None, b" \n", b"two words", b"a\x01b", "schlüssel".encode()])
async def test_a_token_that_cannot_be_read_is_a_refusal(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(KafkaError, match="SCORING_KAFKA_OAUTH_TOKEN_FILE") as refused:
        await TokenFile(file).token()

    assert not (content or b"").strip() or content.decode() not in str(refused.value)


def der(certificate: Path) -> bytes:
    """The first certificate of a file."""
    text = certificate.read_text(encoding="utf-8")
    return ssl.PEM_cert_to_DER_cert(text[: text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)])
