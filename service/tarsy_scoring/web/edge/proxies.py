"""
Users that trusted proxies name: address and proof from the proxy, then user and groups.

An address alone proves little: every pod in a network may have such an address. So a proxy beyond
loopback also
sends a secret, or a JWT that the key file verifies. Each proof that is configured is required.
"""

import hmac
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from starlette.datastructures import Headers

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.edge.caller import ALL_SCOPES, READ_ONLY, Scope
from tarsy_scoring.web.edge.key_file import KeyFile
from tarsy_scoring.web.edge.problems import Problem, unauthorized
from tarsy_scoring.web.edge.tokens import NAME_MAX, bearer_token, is_name

Network = IPv4Network | IPv6Network

SECRET_HEADER = "X-Scoring-Proxy-Secret"  # noqa: S105 - a name


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


class TrustedProxies:
    """
    Proxies in `SCORING_TRUSTED_PROXIES`, which name users.

    With a secret, the configured headers name the user and the groups. With a key file, the claims `sub`
    and `groups` in the JWT do.
    If groups that may change things are configured, other users may only read.

    Raises:
        ConfigurationError: A network or the key file cannot be read, or proxies beyond loopback have no
            proof.
    """

    def __init__(self, settings: Settings) -> None:
        self._networks = trusted_proxies(settings.trusted_proxies)
        secret = settings.trusted_proxy_secret
        self._secret = secret.get_secret_value().encode() if secret else None
        self._keys = KeyFile(settings.trusted_proxy_jwks_file) if settings.trusted_proxy_jwks_file else None
        self._user_header = settings.trusted_proxy_user_header
        self._groups_header = settings.trusted_proxy_groups_header
        self._write_groups = frozenset(_listed(settings.trusted_proxy_write_groups))
        beyond = [str(network) for network in self._networks if not network.is_loopback]
        if beyond and self._secret is None and self._keys is None:
            raise ConfigurationError(
                f"SCORING_TRUSTED_PROXIES: {', '.join(beyond)} is beyond this machine, and every client with such an "
                f"address could pose as any user: set SCORING_TRUSTED_PROXY_SECRET (or _FILE) and let the proxy send "
                f"it as {SECRET_HEADER}, or set SCORING_TRUSTED_PROXY_JWKS_FILE to the keys of the JWT that it sends"
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
        user = _usable(_single(headers, self._user_header), self._user_header)
        return Forwarded(user, self._scopes(self._groups(headers)))

    def _has_secret(self, headers: Headers, secret: bytes) -> bool:
        given = headers.getlist(SECRET_HEADER)
        if not given:
            return False
        if len(given) > 1 or not hmac.compare_digest(given[0].encode("latin-1"), secret):
            raise unauthorized(
                f"{SECRET_HEADER} is wrong: give the proxy the secret of SCORING_TRUSTED_PROXY_SECRET"
            )
        return True

    def _of_jwt(self, headers: Headers, keys: KeyFile) -> Forwarded | None:
        """The user of a JWT, which is in the user header or in `Authorization`."""
        token, is_bearer_used = self._find_jwt(headers)
        if token is None:
            return None
        claims = keys.verify(token)
        if claims is None:
            raise unauthorized(
                "the JWT of the proxy is not valid: it has expired, or SCORING_TRUSTED_PROXY_JWKS_FILE lacks its key"
            )
        user = _usable(claims.get("sub"), "the claim sub")
        groups = claims.get("groups")
        names = [group for group in groups if isinstance(group, str)] if isinstance(groups, list) else []
        return Forwarded(user, self._scopes(names), is_bearer_used)

    def _find_jwt(self, headers: Headers) -> tuple[str | None, bool]:
        """The JWT, and whether it is the bearer token."""
        named = _single(headers, self._user_header) or ""
        bearer = (bearer_token(headers) or b"").decode("latin-1")
        if _is_jwt(named):
            return named, False
        return (bearer, True) if _is_jwt(bearer) else (None, False)

    def _groups(self, headers: Headers) -> list[str]:
        return _listed(_single(headers, self._groups_header) or "") if self._write_groups else []

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
        mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
        # `peer_address` converts IPv4-mapped addresses to IPv4, so their networks are converted as well.
        if mapped is not None and network.prefixlen >= 96:
            network = IPv4Network((mapped, network.prefixlen - 96))
        networks.append(network)
    return tuple(networks)


def _single(headers: Headers, header: str) -> str | None:
    """The value of a header; None: it is missing or blank. Raises: Problem: 400, it has several values."""
    values = {value.strip() for value in headers.getlist(header)} - {""}
    if len(values) > 1:
        raise _bad_header(header, "appear once")
    return _utf8(values.pop()) if values else None


def _usable(name: object, where: str) -> str | None:
    """A name that may stand for a caller. Raises: Problem: 400, it is none."""
    if name is None:
        return None
    # A proxy that joins two header lines puts ", " between them. A directory name such as CN=a,OU=b has no
    # blank.
    if not isinstance(name, str) or ", " in name or not is_name(name):
        raise _bad_header(
            where, f"hold one name of 1-{NAME_MAX} visible characters, without a comma followed by a blank"
        )
    return name


def _bad_header(where: str, must: str) -> Problem:
    detail = f"{where} must {must}: configure the proxy to replace the header that clients send"
    return Problem(400, "Bad forwarded user", detail)


def _is_jwt(text: str) -> bool:
    return text.startswith("eyJ") and text.count(".") == 2  # a JSON object in Base64, and two further parts


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _utf8(value: str) -> str:
    """A header value decoded as UTF-8; an invalid one becomes NUL, which no name may contain."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return "\0"
