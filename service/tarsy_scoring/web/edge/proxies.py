"""
Users that trusted proxies name: address and proof from the proxy, then user and groups.

An address alone proves little: every pod in a network may have such an address. So a proxy beyond loopback
also sends a secret, or a JWT that the key file verifies. Each proof that is configured is required.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any

import jwt
import structlog
from starlette.datastructures import Headers

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.config.watched_file import WatchedFile
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.edge.caller import ALL_SCOPES, READ_ONLY, Scope
from tarsy_scoring.web.edge.problems import Problem, unauthorized
from tarsy_scoring.web.edge.tokens import NAME_MAX, bearer_token, is_name

log = structlog.get_logger()

Network = IPv4Network | IPv6Network

SECRET_HEADER = "X-Scoring-Proxy-Secret"  # noqa: S105 - a name
# The headers of oauth2-proxy; the first that is set names the user.
USER_HEADERS = ("X-Forwarded-User", "X-Forwarded-Email")
# Asymmetric ones alone: with a symmetric one, each reader could sign.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
CLOCK_SKEW_S = 30
LEAST_SECRET = 32  # characters


@dataclass(frozen=True, slots=True)
class Forwarded:
    """
    What a proxy that proved itself says about a request.

    Args:
        user: None: the request has no user.
        is_bearer_used: Whether the `Authorization` header held the proxy's JWT, and so no API token.
    """

    user: str | None
    scopes: frozenset[Scope]
    is_bearer_used: bool = False


class KeyFile(WatchedFile[tuple[tuple[jwt.PyJWK, ...], str, str]]):
    """
    Public keys in `SCORING_TRUSTED_PROXY_JWKS_FILE`, a JWK set, and the issuer and audience that it names for
    JWT; "": any.

    Raises:
        ConfigurationError: At the start the file is missing or invalid, or has no usable key or a private
            one.
    """

    def verify(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a valid JWT that one of the keys signed; None for any other."""
        keys, issuer, audience = self.current()
        for key in keys:
            try:
                return jwt.decode(
                    token,
                    key,
                    algorithms=ALGORITHMS,
                    leeway=CLOCK_SKEW_S,
                    options={"require": ["exp", "sub"], "verify_aud": audience != ""},
                    issuer=issuer or None,
                    audience=audience,
                )
            except jwt.PyJWTError:
                continue
        return None

    def _parse(self, content: bytes) -> tuple[tuple[jwt.PyJWK, ...], str, str]:
        try:
            document = json.loads(content)
            entries = document["keys"]
            # Values other than text raise TypeError.
            issuer, audience = (document.get(name, "") + "" for name in ("issuer", "audience"))
            found = jwt.PyJWKSet(entries).keys
        except (ValueError, KeyError, TypeError, RecursionError, jwt.PyJWTError):
            raise ConfigurationError(
                f'{self._where} is no set of public keys: expected {{"keys": [...]}}, and texts as issuer, audience'
            ) from None
        if any(isinstance(entry, dict) and {"d", "k"} & entry.keys() for entry in entries):
            raise ConfigurationError(
                f"{self._where} holds a private or symmetric key: give public keys alone"
            )
        usable = tuple(
            key for key in found if key.algorithm_name in ALGORITHMS and key.public_key_use != "enc"
        )
        if not usable:
            raise ConfigurationError(f"{self._where} has no key for any of {', '.join(ALGORITHMS)}")
        return usable, issuer, audience


class TrustedProxies:
    """
    Proxies in `SCORING_TRUSTED_PROXIES`, which name users.

    With a secret, the configured headers name the user and the groups. With a key file, the claims `sub`
    and `groups` in the JWT do. If groups that may change things are configured, other users may only read.

    Raises:
        ConfigurationError: A network or the key file cannot be read, the secret is short, or proxies beyond
            loopback have no proof.
    """

    def __init__(self, settings: Settings) -> None:
        self._networks = trusted_proxies(settings.trusted_proxies)
        secret = settings.trusted_proxy_secret
        self._secret = secret.get_secret_value().encode() if secret else None
        jwks = settings.trusted_proxy_jwks_file
        self._keys = KeyFile(jwks, "SCORING_TRUSTED_PROXY_JWKS_FILE") if jwks else None
        own_header = settings.trusted_proxy_user_header
        self._user_headers = (own_header,) if own_header else USER_HEADERS
        self._groups_header = settings.trusted_proxy_groups_header
        self._write_groups = frozenset(_listed(settings.trusted_proxy_write_groups))
        self._require_proof()

    def _require_proof(self) -> None:
        if self._secret is not None and len(self._secret) < LEAST_SECRET:
            raise ConfigurationError(
                f"SCORING_TRUSTED_PROXY_SECRET has not {LEAST_SECRET} characters: use `openssl rand -hex 32`"
            )
        if self._keys is not None and "" in self._keys.current():
            log.warning("api.jwt_unbound", effect="a JWT for another service names users here")
        beyond = [str(network) for network in self._networks if not network.is_loopback]
        if beyond and self._secret is None and self._keys is None:
            raise ConfigurationError(
                f"SCORING_TRUSTED_PROXIES: {', '.join(beyond)} is beyond this machine, and every client with "
                "such an address could pose as any user: set SCORING_TRUSTED_PROXY_SECRET (or _FILE), which the "
                f"proxy sends as {SECRET_HEADER}, or SCORING_TRUSTED_PROXY_JWKS_FILE with the keys of its JWT"
            )

    def __bool__(self) -> bool:
        return bool(self._networks)

    def include(self, address: IPv4Address | IPv6Address | None) -> bool:
        """Whether a proxy has this address."""
        return address is not None and any(address in network for network in self._networks)

    def identify(self, headers: Headers) -> Forwarded | None:
        """
        What the proxy says in a request from its address; None: the request lacks the proof that it came from
        a proxy.

        Raises:
            Problem: 401, a wrong proof; 400, a user or groups that the client may have sent.
        """
        if self._secret is not None and not self._has_secret(headers, self._secret):
            return None
        if self._keys is not None:
            return self._of_jwt(headers, self._keys)
        named = (_usable(_single(headers, header), header) for header in self._user_headers)
        user = next(filter(None, named), None)
        groups = (_single(headers, self._groups_header) or "") if self._write_groups else ""
        return Forwarded(user, self._scopes(_listed(groups)))

    def _has_secret(self, headers: Headers, secret: bytes) -> bool:
        given = headers.getlist(SECRET_HEADER)
        if not given:
            return False
        if len(given) > 1 or not hmac.compare_digest(given[0].encode("latin-1"), secret):
            raise unauthorized(f"{SECRET_HEADER} is wrong: it must be SCORING_TRUSTED_PROXY_SECRET")
        return True

    def _of_jwt(self, headers: Headers, keys: KeyFile) -> Forwarded | None:
        """The user of a JWT, which is in the user header or in `Authorization`."""
        named = _single(headers, self._user_headers[0]) or ""
        bearer = (bearer_token(headers) or b"").decode("latin-1")
        token = named if _is_jwt(named) else bearer
        if not _is_jwt(token):
            return None
        claims = keys.verify(token)
        if claims is None:
            raise unauthorized("the JWT has expired, or SCORING_TRUSTED_PROXY_JWKS_FILE lacks its key")
        user = _usable(claims.get("sub"), "the claim sub")
        groups = claims.get("groups")
        names = [group for group in groups if isinstance(group, str)] if isinstance(groups, list) else []
        return Forwarded(user, self._scopes(names), is_bearer_used=token is bearer)

    def _scopes(self, groups: list[str]) -> frozenset[Scope]:
        return READ_ONLY if self._write_groups and self._write_groups.isdisjoint(groups) else ALL_SCOPES


def trusted_proxies(text: str) -> tuple[Network, ...]:
    """
    The networks in `SCORING_TRUSTED_PROXIES`: CIDRs or single addresses, separated by commas.

    Raises:
        ConfigurationError: An entry is not a CIDR.
    """
    networks = []
    for part in _listed(text):
        try:
            network = ip_network(part)
        except ValueError as error:
            raise ConfigurationError(
                f"SCORING_TRUSTED_PROXIES: {part!r} is not a CIDR such as 192.0.2.10/32: {error}"
            ) from None
        networks.append(network)
    return tuple(networks)


def _single(headers: Headers, header: str) -> str | None:
    """The value of a header; None: it is missing or blank. Raises: Problem: 400, it has several values."""
    values = {value.strip() for value in headers.getlist(header)} - {""}
    if len(values) > 1:
        raise _bad_header(header, "appear once")
    # A byte that is not UTF-8 becomes a character that no name may contain.
    return values.pop().encode("latin-1").decode(errors="surrogateescape") if values else None


def _usable(name: object, where: str) -> str | None:
    """A name that may stand for a caller. Raises: Problem: 400, it is none."""
    if name is None:
        return None
    # A proxy that joins two header lines puts ", " between them. A directory name such as CN=a,OU=b has no
    # blank.
    if not isinstance(name, str) or ", " in name or not is_name(name):
        raise _bad_header(where, f"hold one name of 1-{NAME_MAX} visible characters, without `, `")
    return name


def _bad_header(where: str, must: str) -> Problem:
    detail = f"{where} must {must}: configure the proxy to replace the header that clients send"
    return Problem(400, "Bad forwarded user", detail)


def _is_jwt(text: str) -> bool:
    return text.startswith("eyJ") and text.count(".") == 2  # a JSON object in Base64, and two further parts


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
