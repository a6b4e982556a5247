"""
An Apache Kafka with one secured listener for each kind of login.

The plain listener of the embedded broker stays open, so that tests can read the result.
"""

import base64
import json
import time
from collections.abc import Sequence
from pathlib import Path

import trustme
from aiokafka.conn import create_conn
from aiokafka.protocol.admin import CreateAclsRequest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tarsy_scoring_lab.broker import EmbeddedKafka
from tarsy_scoring_lab.process import HOST, free_port

USER, PASSWORD = "scoring", "planted-kafka-password"
_PROTOCOLS = {"SCRAM": "SASL_SSL", "CERTIFICATE": "SSL", "TOKEN": "SASL_SSL"}
RESOURCES = {"topic": 2, "group": 3}
OPERATIONS = {"READ": 3, "WRITE": 4}
LITERAL = ALLOW = 3
_MODULES = "org.apache.kafka.common.security"


class Authority:
    """A certificate authority whose certificates are files in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._authority = trustme.CA(organization_name=name)
        self._folder = folder
        self.file = folder / f"{name}-ca.pem"
        self._authority.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key for a host name or address; the key as PKCS #8, which Java wants."""
        issued = self._authority.issue_cert(name)
        certificate, key = (self._folder / f"{self.file.stem}-{name}.{kind}" for kind in ("crt", "key"))
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        secret = load_pem_private_key(issued.private_key_pem.bytes(), None)
        key.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, key


class SecuredKafka(EmbeddedKafka):
    """
    Listens for `SCRAM` (SHA-512, over TLS), `CERTIFICATE` (mutual TLS) and `TOKEN` (OAUTHBEARER over TLS).

    Accepts unsigned tokens: checking the signature is a matter of the broker, not of its clients.

    Args:
        users: Users of `SCRAM`, all with the same password.
        is_open: Whether everyone may use what has no rule (see `allow`).
    """

    def __init__(self, authority: Authority, users: Sequence[str] = (USER,), *, is_open: bool = True) -> None:
        super().__init__()
        self._users, self._is_open = users, is_open
        self._ports = {name: free_port() for name in _PROTOCOLS}
        self._authority = authority

    async def close(self) -> None:
        await self.kill()  # an orderly end takes up to 10 s
        await super().close()

    def servers(self, listener: str) -> str:
        return f"{HOST}:{self._ports[listener]}"

    async def _run(self, command: list[str], what: str) -> None:
        # The only command is the one that formats the storage; it also creates users.
        users = [f"--add-scram=SCRAM-SHA-512=[name={user},password={PASSWORD}]" for user in self._users]
        await super()._run([*command, *users], what)

    def _settings(self) -> dict[str, str]:
        certificate, key = self._authority.issue(HOST)
        store = self.directory / "broker.pem"
        store.write_bytes(key.read_bytes() + certificate.read_bytes())
        settings = super()._settings()
        places = "".join(f",{name}://{self.servers(name)}" for name in _PROTOCOLS)
        protocols = _PROTOCOLS | {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        return settings | {
            "listeners": f"{settings['listeners']}{places}",
            "advertised.listeners": f"{settings['advertised.listeners']}{places}",
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
            "inter.broker.listener.name": "PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": str(self._is_open).lower(),
            "super.users": "User:ANONYMOUS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority.file),
            "listener.name.certificate.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
            # Forces a new login after this time, which the client does over a new connection.
            "listener.name.token.oauthbearer.connections.max.reauth.ms": 1_000,
            "listener.name.token.oauthbearer.sasl.jaas.config": (
                f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
            ),
        }

    async def allow(self, user: str, operation: str, resource: str, name: str) -> None:
        """Let this user do this with a topic or group, and all other users nothing."""
        connection = await create_conn(HOST, int(self.bootstrap_servers.rpartition(":")[2]))
        rule = RESOURCES[resource], name, LITERAL, f"User:{user}", "*", OPERATIONS[operation], ALLOW
        try:
            answer = await connection.send(CreateAclsRequest(*rule))
        finally:
            connection.close()
        assert answer.creation_responses[0][0] == 0, answer

    async def change_password(self, user: str, password: str) -> None:
        """Set the password of a user; creates the user."""
        command = await self._java("kafka.admin.ConfigCommand")
        entity = ["--bootstrap-server", self.bootstrap_servers, "--entity-type", "users", "--entity-name", user]
        change = ["--alter", "--add-config", f"SCRAM-SHA-512=[password={password}]"]
        await super()._run([*command, *entity, *change], "changing a password")


def unsigned_token(subject: str, lifetime_s: float = 3600) -> str:
    """A token that the broker accepts until it expires."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now, 'exp': now + lifetime_s})}."
