"""Who is let in, as whom, for what, and how often: the rules of `Access` as tables."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.requests import HTTPConnection
from structlog.testing import capture_logs

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.access import ANYBODY, Access, Rates, is_loopback, trusted_proxies
from tarsy_scoring.web.context import Caller, Problem

PUBLIC = {"SCORING_API_HOST": "0.0.0.0"}
PROXY, STRANGER = "10.1.2.3", "192.0.2.7"
PROXIED = {**PUBLIC, "SCORING_TRUSTED_PROXIES": "10.0.0.0/8, fd00::/8"}
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
    """A request to localhost, unless the headers say another host."""
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
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
    {"name": "pipeline", "sha256": digest("scores").upper(), "scope": "score"},
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


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "scoring.example", "localhost.example"])
def test_listening_beyond_loopback_without_a_rule_is_refused_with_advice(host: str) -> None:
    """Nobody opens an API by accident; the message names the three ways, and the safe default."""
    with pytest.raises(ConfigurationError) as refused:
        access({"SCORING_API_HOST": host})

    words = ("SCORING_API_TOKENS_FILE", "SCORING_TRUSTED_PROXIES", "SCORING_API_OPEN=true", "SCORING_API_HOST", host)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST.", "::1", "[::1]", "api.localhost"])
def test_loopback_needs_no_rule(host: str) -> None:
    """What only this machine reaches is open to it."""
    assert is_loopback(host)
    assert access({"SCORING_API_HOST": host}).admit(request()).name == ANYBODY


@pytest.mark.parametrize(
    "text", ["10.0.0.0/33", "10.0.0.1/8", "proxy.example", "10.0.0.0/8;fd00::/8", "fd00::/129", "/8"]
)
def test_what_is_no_cidr_refuses_the_start(text: str) -> None:
    """A typing error must not leave a range out, or open a larger one."""
    with pytest.raises(ConfigurationError, match="SCORING_TRUSTED_PROXIES"):
        access({**PUBLIC, "SCORING_TRUSTED_PROXIES": text})


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        pytest.param("0.0.0.0/0", True, id="everybody"),
        pytest.param("fd00::/8,::/0", True, id="everybody-on-ipv6"),
        pytest.param("0.0.0.0/1,fd00::/8,128.0.0.0/1", True, id="everybody-in-two-halves"),
        pytest.param("10.0.0.0/8,fd00::/8", False, id="some"),
    ],
)
def test_trusting_everybody_is_told(text: str, is_told: bool) -> None:
    """It can be meant, behind a network policy; it is never silent, and says what would be better."""
    with capture_logs() as lines:
        access({**PUBLIC, "SCORING_TRUSTED_PROXIES": text})
    told = [("api.trusts_everybody", "warning")] if is_told else []
    assert [(line["event"], line["log_level"]) for line in lines] == told
    assert all("SCORING_TRUSTED_PROXIES" in line["advice"] for line in lines)


# --- proxies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        pytest.param({"x-forwarded-user": "alice"}, "alice", id="user"),
        pytest.param({"x-forwarded-email": "a@example.com"}, "a@example.com", id="email"),
        pytest.param({"x-forwarded-email": "a@example.com", "x-forwarded-user": "alice"}, "alice", id="user-first"),
        pytest.param({"x-forwarded-user": " ", "x-forwarded-email": "a@b"}, "a@b", id="empty-is-absent"),
        pytest.param({"x-forwarded-user": "CN=alice,OU=sre"}, "CN=alice,OU=sre", id="name-of-a-directory"),
        pytest.param({"x-forwarded-user": "José Ñandú"}, "José Ñandú", id="utf-8"),
        pytest.param({"x-forwarded-user": "a" * 255}, "a" * 255, id="longest"),
        pytest.param([("x-forwarded-user", "alice"), ("x-forwarded-user", "alice")], "alice", id="the-same-twice"),
    ],
)
def test_a_trusted_proxy_names_who_acts(headers: Headers, name: str) -> None:
    """The user, else the e-mail address; who the proxy let in may do everything."""
    assert access(PROXIED).admit(request(headers, method="POST", peer=PROXY)) == Caller(name, BOTH)


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param("10.1.2.3", id="ipv4"),
        pytest.param("::ffff:10.1.2.3", id="ipv4-written-as-ipv6"),
        pytest.param("fd00::1", id="ipv6"),
        pytest.param("fd00::1%eth0", id="ipv6-with-a-zone"),
    ],
)
def test_a_peer_in_a_trusted_range_is_a_proxy(peer: str) -> None:
    """However the system writes its address."""
    assert access(PROXIED).admit(request({"x-forwarded-user": "alice"}, peer=peer)).name == "alice"


def test_a_range_of_mapped_addresses_means_ipv4() -> None:
    """A dual-stack habit of writing must not leave the proxy untrusted."""
    assert [str(network) for network in trusted_proxies("::ffff:10.0.0.0/104,192.0.2.1")] == [
        "10.0.0.0/8",
        "192.0.2.1/32",
    ]


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        pytest.param({"x-forwarded-user": "alice"}, STRANGER, id="a-stranger-who-claims"),
        pytest.param({"x-forwarded-user": "alice", "x-forwarded-for": PROXY}, STRANGER, id="a-stranger-via-nobody"),
        pytest.param({"x-forwarded-user": "alice"}, "11.0.0.1", id="beside-the-range"),
        pytest.param({"x-forwarded-user": "alice"}, "::ffff:11.0.0.1", id="beside-it-as-ipv6"),
        pytest.param({"x-forwarded-user": "alice"}, "proxy", id="no-address"),
        pytest.param({"x-forwarded-user": "alice"}, None, id="nowhere"),
        pytest.param({}, PROXY, id="a-proxy-without-a-user"),
        pytest.param({"x-forwarded-user": ""}, PROXY, id="a-proxy-with-an-empty-user"),
    ],
)
def test_who_no_proxy_names_is_not_let_in(headers: Headers, peer: str | None) -> None:
    """401 that leads to the proxy, and no challenge: no token helps, and others' headers are their own words."""
    refused = refusal(access(PROXIED), request(headers, peer=peer))
    assert (refused.status, refused.headers) == (401, {})
    assert "through the proxy" in refused.detail
    assert "token" not in refused.detail


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"x-forwarded-user": "a" * 256}, id="too-long"),
        pytest.param({"x-forwarded-user": "a\tb"}, id="control-character"),
        pytest.param({"x-forwarded-user": "a\u202eb"}, id="direction-override"),
        pytest.param({"x-forwarded-user": "a\u200bb"}, id="invisible-blank"),
        pytest.param({"x-forwarded-user": "a\u3164"}, id="invisible-letter"),
        pytest.param([("x-forwarded-user", "mallory"), ("x-forwarded-user", "alice")], id="two-users"),
        pytest.param({"x-forwarded-user": "mallory, alice"}, id="two-users-joined-on-the-way"),
        pytest.param({"x-forwarded-email": "m@b, a@b"}, id="two-emails-joined-on-the-way"),
        pytest.param({"x-forwarded-email": "a\x7f@b"}, id="bad-email"),
    ],
)
def test_a_name_that_is_none_is_refused(headers: Headers) -> None:
    """A name is stored and shown: it is 1-255 visible characters, and one; a second may be the client's own."""
    assert refusal(access(PROXIED), request(headers, peer=PROXY)).status == 400


def test_bytes_that_are_no_text_name_nobody() -> None:
    """Only UTF-8 is a name."""
    connection = request(peer=PROXY)
    connection.scope["headers"].append((b"x-forwarded-user", b"\xff\xfe"))
    assert refusal(access(PROXIED), connection).status == 400


def test_untrusted_headers_are_ignored_where_everybody_may() -> None:
    """On loopback and in an open API a claimed name counts for nothing unless a trusted proxy made it."""
    claim = {"x-forwarded-user": "alice"}
    assert access({}).admit(request(claim)) == Caller(ANYBODY, BOTH, "127.0.0.1")
    assert access(OPEN).admit(request(claim, peer=STRANGER)) == Caller(ANYBODY, BOTH, STRANGER)
    both = access(OPEN | {"SCORING_TRUSTED_PROXIES": "10.0.0.0/8"})
    assert both.admit(request(claim, peer=PROXY)).name == "alice"
    assert both.admit(request(claim, peer=STRANGER)).name == ANYBODY


def test_loopback_with_proxies_stays_open_to_this_machine() -> None:
    """A proxy beside us names users; who calls from here directly is let in as before."""
    rules = access({"SCORING_TRUSTED_PROXIES": "127.0.0.1/32"})
    assert rules.admit(request({"x-forwarded-user": "alice", "host": "scoring.example"})).name == "alice"
    assert rules.admit(request()).name == ANYBODY


# --- tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "name", "scopes"),
    [
        pytest.param(bearer("reads"), "dashboard", READ, id="read"),
        pytest.param(bearer("scores"), "pipeline", BOTH, id="score"),
        pytest.param({"authorization": "bEARER  scores "}, "pipeline", BOTH, id="as-the-scheme-may-be-written"),
    ],
)
def test_a_token_names_who_acts(
    with_tokens: dict[str, str], headers: Headers, name: str, scopes: frozenset[Any]
) -> None:
    """The entry's name and scope."""
    assert access(with_tokens).admit(request(headers, peer=STRANGER)) == Caller(name, scopes)


@pytest.mark.parametrize(
    ("headers", "is_told_invalid"),
    [
        pytest.param({}, False, id="none"),
        pytest.param({"authorization": "Bearer"}, False, id="empty"),
        pytest.param({"authorization": "Bearer  "}, False, id="blank"),
        pytest.param({"authorization": "Basic c2NvcmVzOg=="}, False, id="another-scheme"),
        pytest.param([("authorization", "Bearer scores"), ("authorization", "Bearer reads")], False, id="two"),
        pytest.param(bearer("guess"), True, id="unknown"),
        pytest.param(bearer(digest("scores")), True, id="the-digest-itself"),
        pytest.param({"authorization": "Bearer scörès"}, True, id="not-ascii"),
        pytest.param({"x-forwarded-user": "alice"}, False, id="a-claimed-user"),
    ],
)
def test_without_a_good_token_nobody_is_let_in(
    with_tokens: dict[str, str], headers: Headers, is_told_invalid: bool
) -> None:
    """401 with a challenge, on loopback as elsewhere; a token that was given and is wrong is called that."""
    for env in (with_tokens, with_tokens | {"SCORING_API_HOST": "127.0.0.1"}, with_tokens | {"SCORING_API_OPEN": "1"}):
        refused = refusal(access(env), request(headers))
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"].startswith("Bearer ")
        assert ("invalid_token" in refused.headers["WWW-Authenticate"]) == is_told_invalid


def test_a_reading_token_changes_nothing(with_tokens: dict[str, str]) -> None:
    """403 for whatever is not a reading method, and it says which scope is lacking."""
    rules = access(with_tokens)
    for method in ("POST", "PUT", "PATCH", "DELETE", "BREW"):
        refused = refusal(rules, request(bearer("reads"), method=method))
        assert refused.status == 403
        assert 'scope="score"' in refused.headers["WWW-Authenticate"]
    assert rules.admit(request(bearer("scores"), method="POST")).name == "pipeline"


def test_people_through_the_proxy_and_programs_with_tokens(with_tokens: dict[str, str]) -> None:
    """Either lets in; where there are both, the token decides what may be done, the proxy says for whom."""
    rules = access(with_tokens | {"SCORING_TRUSTED_PROXIES": "10.0.0.0/8"})
    claim = {"x-forwarded-user": "alice"}
    assert rules.admit(request(claim, peer=PROXY, method="POST")) == Caller("alice", BOTH)
    assert refusal(rules, request(claim, peer=STRANGER)).status == 401
    nobody = refusal(rules, request({}, peer=PROXY))
    assert (nobody.status, nobody.headers["WWW-Authenticate"]) == (401, 'Bearer realm="tarsy-scoring"')
    assert [way for way in ("Authorization: Bearer TOKEN", "through the proxy") if way not in nobody.detail] == []
    assert refusal(rules, request(claim | {"authorization": "Bearer wrong"}, peer=PROXY)).status == 401
    assert rules.admit(request(claim | bearer("reads"), peer=PROXY)) == Caller("alice", READ)
    assert rules.admit(request(claim | bearer("reads"), peer=STRANGER)) == Caller("dashboard", READ)


def test_tokens_may_be_json(tmp_path: Path) -> None:
    """As a secret store writes them."""
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(TOKENS), encoding="utf-8")
    rules = access({"SCORING_API_TOKENS_FILE": str(path)})
    assert rules.admit(request(bearer("reads"))).name == "dashboard"


BROKEN = {
    "no-yaml": "[{",
    "empty": "",
    "no-list": "name: x",
    "unknown-key": yaml.safe_dump([TOKENS[0] | {"scopes": "read"}]),
    "unknown-scope": yaml.safe_dump([TOKENS[0] | {"scope": "admin"}]),
    "the-token-itself": yaml.safe_dump([TOKENS[0] | {"sha256": "planted-secret"}]),
    "digest-of-nothing": yaml.safe_dump([TOKENS[0] | {"sha256": digest("")}]),
    "no-name": yaml.safe_dump([TOKENS[0] | {"name": ""}]),
    "the-same-token-twice": yaml.safe_dump([TOKENS[0], TOKENS[0] | {"name": "other", "scope": "score"}]),
    "too-large": yaml.safe_dump(TOKENS) + "# " + "x" * 1_000_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_tokens_file_refuses_the_start(tmp_path: Path, content: str) -> None:
    """It names the file and what is wrong, and never shows what stands there."""
    path = tmp_path / "tokens.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        access({"SCORING_API_TOKENS_FILE": str(path)})
    assert str(path) in str(refused.value)
    assert "planted-secret" not in str(refused.value)


def test_a_missing_tokens_file_refuses_the_start(tmp_path: Path) -> None:
    """An API that nobody can use is not what was meant."""
    with pytest.raises(ConfigurationError, match="SCORING_API_TOKENS_FILE"):
        access({"SCORING_API_TOKENS_FILE": str(tmp_path / "nowhere")})


def replace(path: Path, content: str) -> None:
    """Change a file as a careful program does, and as a secret volume looks when it changes."""
    new = path.with_suffix(".new")
    new.write_text(content, encoding="utf-8")
    os.replace(new, path)


def test_tokens_are_exchanged_while_we_run(tokens_file: Path, with_tokens: dict[str, str]) -> None:
    """The next request after a change is judged by the new file: what was taken out is out."""
    rules = access(with_tokens)
    rules.admit(request(bearer("scores")))
    replace(tokens_file, yaml.safe_dump([{"name": "new", "sha256": digest("fresh"), "scope": "score"}]))
    with capture_logs() as lines:
        assert rules.admit(request(bearer("fresh"))).name == "new"
    assert refusal(rules, request(bearer("scores"))).status == 401
    assert [(line["event"], line["tokens"]) for line in lines] == [("api.tokens_reloaded", 1)]
    replace(tokens_file, "[]")
    assert refusal(rules, request(bearer("fresh"))).status == 401


@pytest.mark.parametrize("content", [*BROKEN.values(), None], ids=[*BROKEN, "gone"])
def test_a_file_that_breaks_keeps_the_last_good_one_loudly(
    tokens_file: Path, with_tokens: dict[str, str], content: str | None
) -> None:
    """One error in the log, nobody locked out, nobody else let in; mended, it is in force again."""
    rules = access(with_tokens)
    if content is None:
        tokens_file.unlink()
    else:
        replace(tokens_file, content)
    with capture_logs() as lines:
        for _ in range(3):
            assert rules.admit(request(bearer("scores"))).name == "pipeline"
            assert refusal(rules, request(bearer("guess"))).status == 401
    assert [(line["event"], line["log_level"]) for line in lines] == [("api.tokens_file_broken", "error")]
    assert "planted-secret" not in str(lines)
    replace(tokens_file, yaml.safe_dump(TOKENS[:1]))
    assert refusal(rules, request(bearer("scores"))).status == 401


# --- other sites ---------------------------------------------------------------------------------------

HOST = {"host": "scoring.example"}
SAME_SITE = {
    "no-browser": {},
    "same-origin": {"sec-fetch-site": "same-origin", "origin": "https://scoring.example"},
    "typed-in": {"sec-fetch-site": "none"},
    "old-browser": {"origin": "https://scoring.example"},
    "plain-http": {"origin": "http://scoring.example"},
    "default-port-told": {"origin": "https://scoring.example", "host": "scoring.example:443"},
    "other-case": {"origin": "https://Scoring.Example"},
    "same-origin-behind-another-name": {"sec-fetch-site": "same-origin", "origin": "https://elsewhere.example"},
}
OTHER_SITE = {
    "cross-site": {"sec-fetch-site": "cross-site", "origin": "https://scoring.example"},
    "sibling": {"sec-fetch-site": "same-site"},
    "nonsense": {"sec-fetch-site": "yes"},
    "other-origin": {"origin": "https://evil.example"},
    "other-port": {"origin": "https://scoring.example:8443"},
    "no-origin": {"origin": "null"},
    "prefix": {"origin": "https://scoring.example.evil.example"},
    "user-part": {"origin": "https://scoring.example@evil.example"},
    "other-scheme": {"origin": "file://scoring.example"},
    "no-url": {"origin": "https://scoring.example:port"},
    "empty": {"origin": ""},
}


@pytest.mark.parametrize("headers", SAME_SITE.values(), ids=SAME_SITE)
def test_our_pages_and_other_programs_may_change(headers: dict[str, str]) -> None:
    """Programs send neither header; browsers say that our own page asks."""
    access(OPEN).admit(request(HOST | headers, method="POST"))


@pytest.mark.parametrize("headers", OTHER_SITE.values(), ids=OTHER_SITE)
def test_pages_of_other_sites_change_nothing(headers: dict[str, str]) -> None:
    """A browser carries its user's rights wherever a page sends it; reading by it shows that page nothing."""
    rules = access(OPEN)
    assert refusal(rules, request(HOST | headers, method="POST")).status == 403
    assert rules.admit(request(HOST | headers)).name == ANYBODY


@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        pytest.param({}, True, id="no-browser"),
        pytest.param({"origin": "https://scoring.example"}, True, id="our-page"),
        pytest.param({"origin": "https://scoring.example", "sec-fetch-site": "cross-site"}, True, id="odd-browser"),
        pytest.param({"origin": "https://evil.example"}, False, id="another-site"),
        pytest.param({"origin": "https://evil.example", "sec-fetch-site": "same-origin"}, False, id="origin-decides"),
        pytest.param({"origin": "null"}, False, id="sandboxed"),
        pytest.param({"sec-fetch-site": "cross-site"}, False, id="another-site-without-origin"),
        pytest.param({"sec-fetch-site": "same-site"}, False, id="sibling-without-origin"),
        pytest.param({"sec-fetch-site": "same-origin"}, True, id="our-page-without-origin"),
    ],
)
def test_a_websocket_is_for_our_pages(headers: dict[str, str], is_let_in: bool) -> None:
    """No same-origin policy protects what a WebSocket shows, so its handshake is held to Origin."""
    connection = request(HOST | headers, kind="websocket")
    if is_let_in:
        assert access(OPEN).admit(connection).name == ANYBODY
    else:
        assert refusal(access(OPEN), connection).status == 403


def test_a_trusted_proxy_may_tell_the_name_that_browsers_see() -> None:
    """Behind a proxy that changes Host, X-Forwarded-Host counts; from others it does not."""
    headers = {"host": "10.0.0.9:8080", "x-forwarded-host": "scoring.example", "origin": "https://scoring.example"}
    named = headers | {"x-forwarded-user": "alice"}
    assert access(PROXIED).admit(request(named, method="POST", peer=PROXY)).name == "alice"
    assert refusal(access(OPEN), request(headers, method="POST", peer=STRANGER)).status == 403


@pytest.mark.parametrize(
    ("host", "is_let_in"),
    [
        pytest.param("localhost:8080", True, id="localhost"),
        pytest.param("127.0.0.1:8080", True, id="address"),
        pytest.param("[::1]:8080", True, id="ipv6"),
        pytest.param("evil.example:8080", False, id="a-name-that-leads-here"),
        pytest.param("localhost.evil.example", False, id="a-name-that-looks-like-it"),
        pytest.param("127.0.0.1.evil.example", False, id="an-address-that-is-a-name"),
        pytest.param("[::1", False, id="no-name"),
        pytest.param("", False, id="empty"),
    ],
)
def test_loopback_answers_to_its_own_names_alone(host: str, is_let_in: bool) -> None:
    """A site whose name is made to lead here would be same-origin with us, and would read everything."""
    rules = access({})
    if is_let_in:
        assert rules.admit(request({"host": host})).name == ANYBODY
    else:
        assert refusal(rules, request({"host": host})).status == 403
    assert access(OPEN).admit(request({"host": host})).name == ANYBODY


# --- rates ---------------------------------------------------------------------------------------------


def test_changes_are_limited_per_caller() -> None:
    """429 and when to come back; reading and other callers do not notice; time heals."""
    clock = Clock()
    rules = access({"SCORING_TRUSTED_PROXIES": "10.0.0.0/8", "SCORING_API_RATE_PER_MINUTE": "2", **PUBLIC}, clock)
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


def test_whom_nobody_names_is_told_apart_by_address() -> None:
    """In an open API one busy client does not stop the others."""
    rules = access({**OPEN, "SCORING_API_RATE_PER_MINUTE": "1"})
    rules.admit(request(method="POST", peer="192.0.2.1"))
    assert refusal(rules, request(method="POST", peer="192.0.2.1")).status == 429
    rules.admit(request(method="POST", peer="192.0.2.2"))


def test_a_refused_change_costs_nothing() -> None:
    """Only what was let in counts: another site's page cannot use up a user's rate."""
    rules = access({**OPEN, "SCORING_API_RATE_PER_MINUTE": "1"})
    foreign = {"host": "scoring.example", "origin": "https://evil.example"}
    assert refusal(rules, request(foreign, method="POST")).status == 403
    rules.admit(request(method="POST"))


def test_rates_take_bounded_memory() -> None:
    """Beyond the bound the caller not heard of for longest is forgotten; one that goes on asking is not."""
    rates = Rates(1, Clock(), max_callers=3)
    assert rates.take(("busy", None)) == 0
    for number in range(100):
        assert rates.take(("busy", None)) > 0
        assert rates.take((f"caller-{number}", None)) == 0
    assert len(rates._buckets) == 3
    assert rates.take(("caller-0", None)) == 0


def test_a_bucket_holds_a_minute_and_no_more() -> None:
    """Long silence saves nothing up."""
    clock = Clock()
    rates = Rates(3, clock)
    rates.take(("a", None))
    clock.now_s += 3600
    assert [rates.take(("a", None)) for _ in range(3)] == [0, 0, 0]
    assert rates.take(("a", None)) == pytest.approx(20)
