"""Rules of `Access` as tables: who is admitted, as whom, for what, and how often."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.requests import HTTPConnection
from structlog.testing import capture_logs

from tarsy_scoring.config.hosts import is_loopback
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.edge.access import ANONYMOUS, Access
from tarsy_scoring.web.edge.caller import Caller
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.edge.rates import Rates

PUBLIC = {"SCORING_API_HOST": "0.0.0.0", "SCORING_API_HOSTS": "scoring.example, localhost"}
PROXY, STRANGER = "10.1.2.3", "192.0.2.7"
PROXIES = {
    "SCORING_TRUSTED_PROXIES": "10.1.0.0/16, fd00::/80",
    "SCORING_TRUSTED_PROXY_SECRET": "of-the-proxy-and-long-enough-for-it",
}
PROXIED = {**PUBLIC, **PROXIES}
SECRET = ("x-scoring-proxy-secret", "of-the-proxy-and-long-enough-for-it")
OPEN = {**PUBLIC, "SCORING_API_OPEN": "true"}
READ, BOTH = frozenset({"read"}), frozenset({"read", "score"})

Headers = Mapping[str, str] | Sequence[tuple[str, str]]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def request(
    headers: Headers = (), *, method: str = "GET", peer: str | None = "127.0.0.1", kind: str = "http"
) -> HTTPConnection:
    """A request to localhost, unless the headers say another host. The proxies send their secret."""
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    if peer is not None and peer.removeprefix("::ffff:").startswith(("10.1.", "fd00:")):
        pairs.append(SECRET)
    if "host" not in dict(pairs):
        pairs.append(("host", "localhost:8080"))
    raw = [(name.encode(), value.encode()) for name, value in pairs]
    scope: dict[str, Any] = {"type": kind, "headers": raw, "path": "/", "client": (peer, 1) if peer else None}
    return HTTPConnection(scope | ({"method": method} if kind == "http" else {}))


def access(env: Mapping[str, str], clock: Clock | None = None) -> Access:
    return Access(load_settings(env), monotonic=clock or Clock())


def refusal(rules: Access, connection: HTTPConnection) -> Problem:
    with pytest.raises(Problem) as refused:
        rules.admit(connection)
    return refused.value


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


TOKENS = [
    {"name": "dashboard", "sha256": digest("reads"), "scope": "read"},
    {"name": "pipeline", "sha256": digest("scores"), "scope": "score"},
]


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump(TOKENS), encoding="utf-8")
    return path


@pytest.fixture
def with_tokens(tokens_file: Path) -> dict[str, str]:
    return {**PUBLIC, "SCORING_API_TOKENS_FILE": str(tokens_file)}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# --- the start -----------------------------------------------------------------------------------------


def test_start_beyond_loopback_needs_an_access_rule() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "scoring.example", "localhost.example"):
        with pytest.raises(ConfigurationError) as refused:
            access({"SCORING_API_HOST": host})
        for advice in ("SCORING_API_TOKENS_FILE", "SCORING_TRUSTED_PROXIES", "SCORING_API_OPEN=true", host):
            assert advice in str(refused.value)
    for host in ("127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST.", "::1", "[::1]", "api.localhost"):
        assert is_loopback(host)
        assert access({"SCORING_API_HOST": host}).admit(request()).name == ANONYMOUS


# --- proxies -------------------------------------------------------------------------------------------


def test_open_api_ignores_names_from_untrusted_peers() -> None:
    claim = {"x-forwarded-user": "alice"}
    assert access({}).admit(request(claim)) == Caller(ANONYMOUS, BOTH, "127.0.0.1")
    assert access(OPEN).admit(request(claim, peer=STRANGER)) == Caller(ANONYMOUS, BOTH, STRANGER)
    both = access(OPEN | PROXIES)
    assert both.admit(request(claim, peer=PROXY)).name == "alice"
    assert both.admit(request(claim, peer=STRANGER)).name == ANONYMOUS


def test_a_request_through_a_proxy_without_a_user_is_refused_in_every_mode() -> None:
    on_loopback = access({"SCORING_TRUSTED_PROXIES": "127.0.0.9/32"})
    assert on_loopback.admit(request({"x-forwarded-user": "alice"}, peer="127.0.0.9")).name == "alice"
    assert refusal(on_loopback, request(peer="127.0.0.9", method="POST")).status == 401
    assert on_loopback.admit(request()).name == ANONYMOUS  # a program of this machine
    assert refusal(access(OPEN | PROXIES), request(peer=PROXY)).status == 401


# --- tokens --------------------------------------------------------------------------------------------


def test_a_token_names_the_caller(with_tokens: dict[str, str]) -> None:
    for headers, expected in (
        (bearer("reads"), Caller("dashboard", READ)),
        (bearer("scores"), Caller("pipeline", BOTH)),
        ({"authorization": "bEARER  scores "}, Caller("pipeline", BOTH)),
    ):
        assert access(with_tokens).admit(request(headers, peer=STRANGER)) == expected


def test_without_a_good_token_callers_are_refused(with_tokens: dict[str, str]) -> None:
    cases: list[tuple[Headers, bool]] = [
        ({}, False),
        ({"authorization": "Bearer"}, False),
        ({"authorization": "Bearer  "}, False),
        ({"authorization": "Basic c2NvcmVzOg=="}, False),
        ([("authorization", "Bearer scores"), ("authorization", "Bearer reads")], False),
        (bearer("guess"), True),
        (bearer(digest("scores")), True),
        ({"authorization": "Bearer scörès"}, True),
        ({"x-forwarded-user": "alice"}, False),
    ]
    for env in (with_tokens, with_tokens | {"SCORING_API_HOST": "127.0.0.1"}, with_tokens | {"SCORING_API_OPEN": "1"}):
        rules = access(env)
        for headers, is_invalid in cases:
            refused = refusal(rules, request(headers))
            assert refused.status == 401
            assert refused.headers["WWW-Authenticate"].startswith("Bearer ")
            assert ("invalid_token" in refused.headers["WWW-Authenticate"]) == is_invalid


def test_a_token_with_scope_read_may_not_change_anything(with_tokens: dict[str, str]) -> None:
    rules = access(with_tokens)
    for method in ("POST", "PUT", "PATCH", "DELETE", "BREW"):
        refused = refusal(rules, request(bearer("reads"), method=method))
        assert refused.status == 403
        assert 'scope="score"' in refused.headers["WWW-Authenticate"]
    assert rules.admit(request(bearer("scores"), method="POST")).name == "pipeline"


def test_names_from_the_proxy_and_tokens_work_together(with_tokens: dict[str, str]) -> None:
    rules = access(with_tokens | PROXIES)
    claim = {"x-forwarded-user": "alice"}
    assert rules.admit(request(claim, peer=PROXY, method="POST")) == Caller("alice", BOTH)
    assert refusal(rules, request(claim, peer=STRANGER)).status == 401
    unnamed = refusal(rules, request({}, peer=PROXY))
    assert (unnamed.status, unnamed.headers["WWW-Authenticate"]) == (401, 'Bearer realm="tarsy-scoring"')
    assert [way for way in ("Authorization: Bearer TOKEN", "through the proxy") if way not in unnamed.detail] == []
    assert refusal(rules, request(claim | {"authorization": "Bearer wrong"}, peer=PROXY)).status == 401
    assert rules.admit(request(claim | bearer("reads"), peer=PROXY)) == Caller("alice", READ)
    assert rules.admit(request(claim | bearer("reads"), peer=STRANGER)) == Caller("dashboard", READ)


def test_callers_of_one_name_are_different(with_tokens: dict[str, str]) -> None:
    """So that none gets the answers kept for another, or uses up its rate."""
    rules = access(with_tokens | PROXIES)
    claim = {"x-forwarded-user": "pipeline"}
    token, user, both = (
        rules.admit(request(headers, peer=PROXY))
        for headers in (bearer("scores") | {}, claim, claim | bearer("scores"))
    )
    assert (token.name, user.name, both.name) == ("pipeline",) * 3
    assert (token.identity, user.identity, both.identity) == ("token:pipeline", "user:pipeline", "user:pipeline")
    assert access(OPEN).admit(request(peer=STRANGER)).identity == f"client:{STRANGER}"


def test_an_expired_token_is_refused_from_its_day_on(tokens_file: Path, with_tokens: dict[str, str]) -> None:
    """The day is one of UTC."""
    tokens_file.write_text(yaml.safe_dump([TOKENS[0] | {"expires": date(2026, 12, 1)}, TOKENS[1]]), encoding="utf-8")
    today = date(2026, 11, 30)
    rules = Access(load_settings(with_tokens), today=lambda: today)
    caller = rules.admit(request(bearer("reads")))
    assert (caller.name, rules.is_revoked(caller)) == ("dashboard", False)

    today = date(2026, 12, 1)
    refused = refusal(rules, request(bearer("reads")))

    assert (refused.status, "has expired" in refused.detail) == (401, True)
    assert 'error="invalid_token"' in refused.headers["WWW-Authenticate"]
    assert rules.is_revoked(caller)
    assert rules.admit(request(bearer("scores"))).name == "pipeline"


def test_tokens_that_expire_soon_are_logged_at_the_start(tokens_file: Path, with_tokens: dict[str, str]) -> None:
    tokens_file.write_text(yaml.safe_dump([TOKENS[0] | {"expires": "2026-12-15"}, TOKENS[1]]), encoding="utf-8")
    for today, states in (
        (date(2026, 11, 30), []),
        (date(2026, 12, 1), ["expires soon"]),
        (date(2026, 12, 15), ["expired"]),
    ):
        with capture_logs() as lines:
            Access(load_settings(with_tokens), today=lambda day=today: day)  # type: ignore[misc]
        found = [(line["name"], line["state"]) for line in lines if line["event"] == "api.token_expires"]
        assert found == [("dashboard", state) for state in states]


def test_a_caller_is_revoked_with_its_token_or_scope(tokens_file: Path, with_tokens: dict[str, str]) -> None:
    rules = access(with_tokens)
    callers = [rules.admit(request(bearer(token))) for token in ("reads", "scores")]
    assert [rules.is_revoked(caller) for caller in callers] == [False, False]
    replace(tokens_file, yaml.safe_dump([TOKENS[1] | {"name": "renamed"}]))
    assert [rules.is_revoked(caller) for caller in callers] == [True, False]
    replace(tokens_file, yaml.safe_dump([TOKENS[0], TOKENS[1] | {"scope": "read"}]))
    assert [rules.is_revoked(caller) for caller in callers] == [False, True]
    assert not rules.is_revoked(Caller("alice", BOTH))  # signed in at the proxy


BROKEN = {
    "an-impossible-day": yaml.safe_dump([TOKENS[0] | {"expires": "2026-02-30"}]),
    "an-impossible-day-of-yaml": "- {expires: 2026-02-30}",
    "no-yaml": "[{",
    "empty": "",
    "no-list": "name: x",
    "unknown-key": yaml.safe_dump([TOKENS[0] | {"scopes": "read"}]),
    "unknown-scope": yaml.safe_dump([TOKENS[0] | {"scope": "admin"}]),
    "the-token-itself": yaml.safe_dump([TOKENS[0] | {"sha256": "planted-secret"}]),
    "no-name": yaml.safe_dump([TOKENS[0] | {"name": ""}]),
    "the-same-token-twice": yaml.safe_dump([TOKENS[0], TOKENS[0] | {"name": "other", "scope": "score"}]),
    "too-large": yaml.safe_dump(TOKENS) + "# " + "x" * 1_000_000,
}


def test_a_broken_or_missing_tokens_file_refuses_the_start(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    for content in BROKEN.values():
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ConfigurationError) as refused:
            access({"SCORING_API_TOKENS_FILE": str(path)})
        assert str(path) in str(refused.value)
        assert "planted-secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="SCORING_API_TOKENS_FILE"):
        access({"SCORING_API_TOKENS_FILE": str(tmp_path / "nowhere")})


def replace(path: Path, content: str) -> None:
    """Replace a file atomically, which is also how a mounted secret changes."""
    new = path.with_suffix(".new")
    new.write_text(content, encoding="utf-8")
    os.replace(new, path)


def test_changed_tokens_file_takes_effect_without_a_restart(tokens_file: Path, with_tokens: dict[str, str]) -> None:
    rules = access(with_tokens)
    rules.admit(request(bearer("scores")))
    replace(tokens_file, yaml.safe_dump([{"name": "new", "sha256": digest("fresh"), "scope": "score"}]))
    with capture_logs() as lines:
        assert rules.admit(request(bearer("fresh"))).name == "new"
    assert refusal(rules, request(bearer("scores"))).status == 401
    assert [line["event"] for line in lines] == ["file.reloaded"]
    replace(tokens_file, "[]")
    assert refusal(rules, request(bearer("fresh"))).status == 401


def test_broken_tokens_file_keeps_the_last_good_tokens(tokens_file: Path, with_tokens: dict[str, str]) -> None:
    rules = access(with_tokens)
    for content in [*BROKEN.values(), None]:
        if content is None:
            tokens_file.unlink()
        else:
            replace(tokens_file, content)
        with capture_logs() as lines:
            for _ in range(2):
                assert rules.admit(request(bearer("scores"))).name == "pipeline"
                assert refusal(rules, request(bearer("guess"))).status == 401
        assert [(line["event"], line["log_level"]) for line in lines] == [("file.broken", "error")]
        assert "planted-secret" not in str(lines)
    replace(tokens_file, yaml.safe_dump(TOKENS[:1]))
    assert refusal(rules, request(bearer("scores"))).status == 401


# --- other sites ---------------------------------------------------------------------------------------

HOST = {"host": "scoring.example"}
SAME_SITE: list[dict[str, str]] = [
    {},
    {"sec-fetch-site": "same-origin", "origin": "https://scoring.example"},
    {"sec-fetch-site": "none"},
    {"origin": "https://scoring.example"},
    {"origin": "http://scoring.example"},
    {"origin": "https://scoring.example", "host": "scoring.example:443"},
    {"origin": "https://Scoring.Example"},
    {"sec-fetch-site": "same-origin", "origin": "https://elsewhere.example"},
    {"origin": "https://scoring.example", "x-forwarded-proto": "https"},
    {"origin": "https://scoring.example", "x-forwarded-proto": "http"},  # a further proxy ended TLS
]
OTHER_SITE: list[dict[str, str]] = [
    {"sec-fetch-site": "cross-site", "origin": "https://scoring.example"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "yes"},
    {"origin": "https://evil.example"},
    {"origin": "https://scoring.example:8443"},
    {"origin": "null"},
    {"origin": "https://scoring.example.evil.example"},
    {"origin": "https://scoring.example@evil.example"},
    {"origin": "file://scoring.example"},
    {"origin": "app://scoring.example:8443", "host": "scoring.example:8443"},
    {"origin": "https://scoring.example:port"},
    {"origin": ""},
    {"origin": "http://scoring.example", "x-forwarded-proto": "https"},
    {"origin": "http://scoring.example:443", "x-forwarded-proto": "HTTPS, http"},
]


def test_changes_from_pages_of_other_sites_are_refused() -> None:
    for headers in SAME_SITE:
        access(OPEN).admit(request(HOST | headers, method="POST"))
    for headers in OTHER_SITE:
        assert refusal(access(OPEN), request(HOST | headers, method="POST")).status == 403, headers
        assert access(OPEN).admit(request(HOST | headers)).name == ANONYMOUS  # the page does not see the answer


def test_websockets_from_pages_of_other_sites_are_refused() -> None:
    ours, evil = {"origin": "https://scoring.example"}, {"origin": "https://evil.example"}
    for headers, is_admitted in (
        ({}, True),
        (ours, True),
        (ours | {"sec-fetch-site": "cross-site", "x-forwarded-proto": "wss"}, True),  # some browsers send this wrongly
        (ours | {"sec-fetch-site": "cross-site"}, False),
        ({"origin": "http://scoring.example", "x-forwarded-proto": "https"}, False),
        ({"origin": "http://scoring.example", "x-forwarded-proto": "wss", "sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "same-origin"}, True),
        (evil, False),
        (evil | {"sec-fetch-site": "same-origin"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
    ):
        connection = request(HOST | headers, kind="websocket")
        if is_admitted:
            assert access(OPEN).admit(connection).name == ANONYMOUS
        else:
            assert refusal(access(OPEN), connection).status == 403, headers


FOREIGN_HOSTS = (
    *("evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "", "evil.example@localhost"),
    *("localhost/evil.example", "localhost@evil.example", "scoring.example.evil.example", "evil.scoring.example"),
)


def test_foreign_host_names_are_refused_in_every_mode(with_tokens: dict[str, str]) -> None:
    # A site that makes its own name resolve to our address would otherwise be same-origin with us.
    named = {"x-forwarded-user": "alice"}
    modes: list[tuple[dict[str, str], dict[str, str], str]] = [
        ({}, {}, "127.0.0.1"),
        (OPEN, {}, STRANGER),
        (with_tokens, bearer("reads"), STRANGER),
        (PROXIED, named, PROXY),
        ({"SCORING_TRUSTED_PROXIES": "127.0.0.9"}, named, "127.0.0.9"),
    ]
    for env, headers, peer in modes:
        for host in FOREIGN_HOSTS:
            for kind in ("http", "websocket"):
                refused = refusal(access(env), request(headers | {"host": host}, peer=peer, kind=kind))
                assert (refused.status, "SCORING_API_HOSTS" in refused.detail) == (403, True), (env, host)
        access(env).admit(request(headers | {"host": "localhost:8080"}, peer=peer))


def test_the_api_answers_to_loopback_names_unless_it_has_others() -> None:
    for host in ("localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST.", "127.8.9.1"):
        assert access({}).admit(request({"host": host})).name == ANONYMOUS
        assert access({**OPEN, "SCORING_API_HOSTS": ""}).admit(request({"host": host})).name == ANONYMOUS
    hosts = {**OPEN, "SCORING_API_HOSTS": "Scoring.example., 192.0.2.1 ,::1,scoring-api.ns.svc"}
    for host in ("scoring.example", "SCORING.EXAMPLE:443", "192.0.2.1:80", "[::1]:80", "scoring-api.ns.svc"):
        assert access(hosts).admit(request({"host": host})).name == ANONYMOUS, host
    assert refusal(access(hosts), request()).status == 403
    for text in (
        "https://scoring.example",
        "scoring.example:443",
        "a.example/path",
        "*.example",
        "a b",
        "user@a.example",
    ):
        with pytest.raises(ConfigurationError, match="SCORING_API_HOSTS"):
            access({**OPEN, "SCORING_API_HOSTS": text})


def test_every_forwarded_host_must_be_known() -> None:
    named = {"x-forwarded-user": "alice", "host": "10.0.0.9:8080"}
    for forwarded, is_admitted in (
        ("scoring.example", True),
        ("scoring.example, localhost", True),
        ("evil.example", False),
        ("evil.example, scoring.example", False),
        ("", False),
    ):
        connection = request(named | {"x-forwarded-host": forwarded}, peer=PROXY)
        if is_admitted:
            assert access(PROXIED).admit(connection).name == "alice"
        else:
            assert refusal(access(PROXIED), connection).status == 403, forwarded
    assert refusal(access(OPEN), request({"host": "evil.example", "x-forwarded-host": "scoring.example"})).status == 403


# --- rates ---------------------------------------------------------------------------------------------


def test_changes_are_limited_per_caller() -> None:
    clock = Clock()
    rules = access({**PROXIED, "SCORING_API_RATE_PER_MINUTE": "2"}, clock)
    alice, bob = ({"x-forwarded-user": name} for name in ("alice", "bob"))

    def change(headers: Headers) -> Caller:
        return rules.admit(request(headers, method="POST", peer=PROXY))

    change(alice)
    change(alice)
    for _ in range(3):
        refused = refusal(rules, request(alice, method="POST", peer=PROXY))
        assert (refused.status, refused.headers["Retry-After"]) == (429, "30")
    assert change(bob).name == "bob"
    assert rules.admit(request(alice, peer=PROXY)).name == "alice"
    clock.now_s += 29
    assert refusal(rules, request(alice, method="POST", peer=PROXY)).headers["Retry-After"] == "1"
    clock.now_s += 1
    assert change(alice).name == "alice"


def test_unnamed_callers_are_limited_per_address() -> None:
    rules = access({**OPEN, "SCORING_API_RATE_PER_MINUTE": "1"})
    rules.admit(request(method="POST", peer="192.0.2.1"))
    assert refusal(rules, request(method="POST", peer="192.0.2.1")).status == 429
    rules.admit(request(method="POST", peer="192.0.2.2"))


def test_rate_limiter_forgets_the_least_recent_caller() -> None:
    rates = Rates(1, Clock(), max_callers=3)
    rates.count("busy")
    for number in range(10):
        with pytest.raises(Problem):
            rates.count("busy")
        rates.count(f"caller-{number}")
    rates.count("caller-0")
