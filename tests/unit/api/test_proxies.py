"""Users that trusted proxies name: the proof of the proxy, the user's name, and groups that may change things."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from starlette.datastructures import Headers
from structlog.testing import capture_logs

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.edge.proxies import Forwarded, TrustedProxies

NETWORK = {"SCORING_TRUSTED_PROXIES": "10.1.2.3/32"}
SECRET = "of-the-proxy-and-long-enough-for-it"
WITH_SECRET = {**NETWORK, "SCORING_TRUSTED_PROXY_SECRET": SECRET}
PROOF = {"x-scoring-proxy-secret": SECRET}
READ, BOTH = frozenset({"read"}), frozenset({"read", "score"})

Pairs = Mapping[str, str] | Sequence[tuple[str, str]]


def proxies(env: Mapping[str, str]) -> TrustedProxies:
    return TrustedProxies(load_settings(env))


def headers(given: Pairs) -> Headers:
    pairs = given.items() if isinstance(given, Mapping) else given
    return Headers(raw=[(name.encode(), value.encode()) for name, value in pairs])


def identified(rules: TrustedProxies, given: Pairs) -> Forwarded | None:
    return rules.identify(headers(given))


def refusal(rules: TrustedProxies, given: Pairs) -> Problem:
    with pytest.raises(Problem) as refused:
        identified(rules, given)
    assert SECRET not in refused.value.detail
    return refused.value


# --- networks ------------------------------------------------------------------------------------------


def test_invalid_proxy_network_refuses_the_start() -> None:
    for text in ("10.0.0.0/33", "10.0.0.1/8", "proxy.example", "10.0.0.0/8;fd00::/8", "fd00::/129", "/8"):
        with pytest.raises(ConfigurationError, match="SCORING_TRUSTED_PROXIES"):
            proxies({"SCORING_TRUSTED_PROXIES": text})


def test_proxies_beyond_loopback_need_a_proof() -> None:
    for text in ("10.1.2.3", "127.0.0.1,10.1.2.3", "fd00::1", "0.0.0.0/0"):
        with pytest.raises(ConfigurationError) as refused:
            proxies({"SCORING_TRUSTED_PROXIES": text})
        advice = "SCORING_TRUSTED_PROXY_SECRET", "X-Scoring-Proxy-Secret", "SCORING_TRUSTED_PROXY_JWKS_FILE"
        assert [word for word in advice if word not in str(refused.value)] == []
    for text in ("", "127.0.0.1", "127.0.0.0/8,::1"):
        proxies({"SCORING_TRUSTED_PROXIES": text})


# --- the secret ----------------------------------------------------------------------------------------


def test_a_request_counts_as_the_proxys_only_with_its_secret() -> None:
    rules, claim = proxies(WITH_SECRET), {"x-forwarded-user": "alice"}
    assert identified(rules, claim | PROOF) == Forwarded("alice", BOTH)
    assert identified(rules, PROOF) == Forwarded(None, BOTH)
    assert identified(rules, claim) is None
    for wrong in ("", SECRET[:-1], f"{SECRET}2", SECRET.upper(), f"{SECRET}, {SECRET}", "ö"):
        assert refusal(rules, claim | {"x-scoring-proxy-secret": wrong}).status == 401, wrong
    assert refusal(rules, [*claim.items(), *PROOF.items(), *PROOF.items()]).status == 401


def test_a_short_secret_refuses_the_start() -> None:
    with pytest.raises(ConfigurationError, match="32 characters") as refused:
        proxies(WITH_SECRET | {"SCORING_TRUSTED_PROXY_SECRET": SECRET[:31]})
    assert SECRET[:31] not in str(refused.value)


# --- names ---------------------------------------------------------------------------------------------


FORWARDED: list[tuple[Pairs, str | None]] = [
    ({"x-forwarded-user": "alice"}, "alice"),
    ({"x-forwarded-email": "a@example.com", "x-forwarded-user": "alice"}, "alice"),
    ({"x-forwarded-email": "a@example.com"}, "a@example.com"),
    ({"x-forwarded-email": "a@example.com", "x-forwarded-user": ""}, "a@example.com"),
    ({"x-auth-request-user": "alice"}, None),
    ({"x-forwarded-user": " "}, None),
    ({"x-forwarded-user": "CN=alice,OU=sre"}, "CN=alice,OU=sre"),
    ({"x-forwarded-user": "José Ñandú"}, "José Ñandú"),
    ({"x-forwarded-user": "a" * 255}, "a" * 255),
    ([("x-forwarded-user", "alice"), ("x-forwarded-user", "alice")], "alice"),
]
UNUSABLE_NAMES: list[Pairs] = [
    {"x-forwarded-user": "a" * 256},
    {"x-forwarded-user": "a\tb"},
    {"x-forwarded-user": "a\u202eb"},  # direction override
    {"x-forwarded-user": "a\u200bb"},  # invisible blank
    {"x-forwarded-user": "a\u3164"},  # invisible letter
    [("x-forwarded-user", "mallory"), ("x-forwarded-user", "alice")],
    {"x-forwarded-user": "a\tb", "x-forwarded-email": "a@example.com"},
    {"x-forwarded-user": "mallory, alice"},  # two headers that were joined on the way
]


def test_one_header_names_the_user() -> None:
    rules = proxies({"SCORING_TRUSTED_PROXIES": "127.0.0.1"})
    for given, name in FORWARDED:
        assert identified(rules, given) == Forwarded(name, BOTH), given
    for given in UNUSABLE_NAMES:
        assert refusal(rules, given).status == 400, given
    with pytest.raises(Problem):
        rules.identify(Headers(raw=[(b"x-forwarded-user", b"\xff\xfe")]))


def test_the_header_of_the_user_is_a_setting() -> None:
    named = {"SCORING_TRUSTED_PROXIES": "127.0.0.1", "SCORING_TRUSTED_PROXY_USER_HEADER": "X-Auth-Request-User"}
    rules = proxies(named)
    given = {"x-forwarded-user": "mallory", "x-forwarded-email": "m@b"}
    assert identified(rules, given) == Forwarded(None, BOTH)
    assert identified(rules, given | {"x-auth-request-user": "alice"}) == Forwarded("alice", BOTH)
    with pytest.raises(ConfigurationError, match="SCORING_TRUSTED_PROXY_USER_HEADER"):
        proxies(named | {"SCORING_TRUSTED_PROXY_USER_HEADER": "X-User: alice"})


def test_users_without_a_write_group_only_read() -> None:
    grouped = {**WITH_SECRET, "SCORING_TRUSTED_PROXY_WRITE_GROUPS": "sre, on call"}
    cases: list[tuple[Pairs, frozenset[str]]] = [
        ({}, READ),
        ({"x-forwarded-groups": ""}, READ),
        ({"x-forwarded-groups": "dev,SRE,sre-readers"}, READ),
        ({"x-forwarded-groups": "dev, on call"}, BOTH),
        ({"x-forwarded-groups": "sre"}, BOTH),
    ]
    alice = PROOF | {"x-forwarded-user": "alice"}
    for given, scopes in cases:
        assert identified(proxies(grouped), alice | dict(given)) == Forwarded("alice", scopes), given
    other = proxies(grouped | {"SCORING_TRUSTED_PROXY_GROUPS_HEADER": "X-Auth-Request-Groups"})
    assert identified(other, alice | {"x-forwarded-groups": "sre"}) == Forwarded("alice", READ)
    assert identified(other, alice | {"x-auth-request-groups": "sre"}) == Forwarded("alice", BOTH)
    doubled = [*alice.items(), ("x-forwarded-groups", "sre"), ("x-forwarded-groups", "dev")]
    assert refusal(proxies(grouped), doubled).status == 400


# --- JWT -----------------------------------------------------------------------------------------------

EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


def public(key: Any, **more: str) -> dict[str, Any]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return json.loads(algorithm.to_jwk(key.public_key())) | more


def token(key: Any = EC_KEY, algorithm: str = "ES256", kid: str | None = None, **claims: Any) -> str:
    """A JWT of alice that is valid for a minute."""
    payload = {"sub": "alice", "exp": time.time() + 60} | claims
    payload = {name: value for name, value in payload.items() if value is not None}
    return jwt.encode(payload, key, algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [public(EC_KEY, kid="a"), public(RSA_KEY, kid="b")]}), encoding="utf-8")
    return path


@pytest.fixture
def with_keys(key_file: Path) -> dict[str, str]:
    return {**NETWORK, "SCORING_TRUSTED_PROXY_JWKS_FILE": str(key_file)}


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def test_a_jwt_names_the_user(with_keys: dict[str, str]) -> None:
    rules = proxies(with_keys)
    for text in (token(kid="a"), token(), token(RSA_KEY, "RS256", kid="b"), token(exp=time.time() - 10, aud="other")):
        assert identified(rules, bearer(text)) == Forwarded("alice", BOTH, is_bearer_used=True)
    # Some proxies send the JWT itself in the header of the user.
    in_header = proxies(with_keys | {"SCORING_TRUSTED_PROXY_USER_HEADER": "Cf-Access-Jwt-Assertion"})
    given = {"cf-access-jwt-assertion": token()} | bearer("of-the-api")
    assert identified(in_header, given) == Forwarded("alice", BOTH)
    assert identified(rules, {"x-forwarded-user": "alice"}) is None
    assert identified(rules, {"x-forwarded-user": "alice"} | bearer("of-the-api")) is None


def test_an_invalid_jwt_is_refused(with_keys: dict[str, str]) -> None:
    rules = proxies(with_keys)
    point = EC_KEY.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    invalid = {
        "another key": token(OTHER_KEY),
        "another key under a known id": token(OTHER_KEY, kid="a"),
        "expired": token(exp=time.time() - 120),
        "no expiry": token(exp=None),
        "not valid yet": token(nbf=time.time() + 120),
        "no subject": token(sub=None),
        "no signature": jwt.encode({"sub": "alice", "exp": time.time() + 60}, None, "none"),
        "the public key as a symmetric one": jwt.encode({"sub": "alice", "exp": time.time() + 60}, point, "HS256"),
        "changed": token()[:-4] + "AAAA",
        "no JWT": "eyJ.e30.e30",
    }
    for case, text in invalid.items():
        assert refusal(rules, bearer(text)).status == 401, case
        assert text not in refusal(rules, bearer(text)).detail
    assert refusal(rules, bearer(token(sub="a\u202eb"))).status == 400


BOUND = {"issuer": "https://sso.example", "audience": "tarsy-scoring"}


def test_a_jwt_has_the_issuer_and_the_audience_of_the_key_file(key_file: Path, with_keys: dict[str, str]) -> None:
    """A file without them admits a JWT for another service, which a warning says at the start."""
    with capture_logs() as lines:
        rules = proxies(with_keys)
    assert [line["event"] for line in lines] == ["api.jwt_unbound"]
    keys = json.loads(key_file.read_text())
    key_file.write_text(json.dumps(keys | BOUND))
    with capture_logs() as lines:
        proxies(with_keys)
    assert lines == []
    valid = {"iss": BOUND["issuer"], "aud": ["grafana", BOUND["audience"]]}
    assert identified(rules, bearer(token(**valid))) == Forwarded("alice", BOTH, is_bearer_used=True)
    for wrong in ({"iss": "https://other.example"}, {"iss": None}, {"aud": "grafana"}, {"aud": None}):
        assert refusal(rules, bearer(token(**valid | wrong))).status == 401, wrong


def test_groups_of_a_jwt_are_those_of_its_claim(with_keys: dict[str, str]) -> None:
    rules = proxies(with_keys | {"SCORING_TRUSTED_PROXY_WRITE_GROUPS": "sre"})
    claim = {"x-forwarded-groups": "sre"}
    for groups, scopes in ((None, READ), ("sre", READ), ([], READ), (["dev", {}], READ), (["dev", "sre"], BOTH)):
        found = identified(rules, bearer(token(groups=groups)) | claim)
        assert found == Forwarded("alice", scopes, is_bearer_used=True), groups


def test_secret_and_jwt_are_both_required_where_both_are_configured(with_keys: dict[str, str]) -> None:
    rules = proxies(with_keys | WITH_SECRET)
    assert identified(rules, bearer(token()) | PROOF) == Forwarded("alice", BOTH, is_bearer_used=True)
    assert identified(rules, bearer(token())) is None
    assert identified(rules, PROOF | {"x-forwarded-user": "alice"}) is None


BROKEN = {
    "no JSON": "{",
    "no set": json.dumps([public(EC_KEY)]),
    "empty": json.dumps({"keys": []}),
    "no key": json.dumps({"keys": ["a"]}),
    "a key for encryption": json.dumps({"keys": [public(RSA_KEY, use="enc")]}),
    "a symmetric key": json.dumps({"keys": [public(EC_KEY), {"kty": "oct", "k": "cGxhbnRlZC1zZWNyZXQ"}]}),
    "a private key": json.dumps({"keys": [json.loads(ECAlgorithm.to_jwk(EC_KEY))]}),
    "nested": "[" * 100_000,
    "an audience that is no text": json.dumps({"keys": [public(EC_KEY)], "audience": ["a"]}),
}


def test_a_broken_or_missing_key_file_refuses_the_start(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    for case, content in BROKEN.items():
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ConfigurationError) as refused:
            proxies({**NETWORK, "SCORING_TRUSTED_PROXY_JWKS_FILE": str(path)})
        assert "SCORING_TRUSTED_PROXY_JWKS_FILE" in str(refused.value), case
        assert "cGxhbnRlZC1zZWNyZXQ" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="SCORING_TRUSTED_PROXY_JWKS_FILE"):
        proxies({**NETWORK, "SCORING_TRUSTED_PROXY_JWKS_FILE": str(tmp_path / "nowhere")})
