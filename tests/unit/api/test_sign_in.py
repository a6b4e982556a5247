"""The sign-in page: a token in a cookie opens what it opens as a bearer token, for as long, and no other door."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI
from structlog.testing import capture_logs

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.web.edge.access import Access, Admitted
from tarsy_scoring.web.edge.middleware import RequestMiddleware
from tarsy_scoring.web.edge.problems import add_problem_handlers
from tarsy_scoring.web.pages import assets, sign_in
from tarsy_scoring.web.pages.rendering import problem_page

HERE, THERE = "http://localhost:8080", "https://scoring.example"
TODAY, LAST_DAY = date(2026, 12, 1), date(2026, 12, 2)
Open = Callable[..., httpx.AsyncClient]


@pytest.fixture
def site(tmp_path: Path) -> Open:
    """A browser before an API with the tokens `reads` and `scores`, which shows the caller at `/who`."""
    file = tmp_path / "tokens.yaml"
    tokens = [
        {"name": f"who {t}", "sha256": hashlib.sha256(t.encode()).hexdigest(), "scope": scope, "expires": LAST_DAY}
        for t, scope in (("reads", "read"), ("scores", "score"))
    ]
    file.write_text(yaml.safe_dump(tokens), encoding="utf-8")

    def browser(
        base_url: str = HERE, today: Callable[[], date] = lambda: TODAY, env: Mapping[str, str] | None = None
    ) -> httpx.AsyncClient:
        app = FastAPI()
        app.router.routes += [*sign_in.router.routes, *assets.router.routes]

        @app.api_route("/who", methods=["GET", "POST"])
        async def who(caller: Admitted) -> dict[str, Any]:
            return {"name": caller.name, "through": caller.origin.through, "has_credential": bool(caller.credential)}

        hosts = {"SCORING_API_HOSTS": "localhost, scoring.example", "SCORING_API_TOKENS_FILE": str(file)}
        app.state.access = Access(load_settings(hosts if env is None else env), today=today)
        app.state.problem_page = problem_page
        add_problem_handlers(app)
        app.add_middleware(RequestMiddleware, access=app.state.access, metrics=Metrics())
        headers = {"Accept": "text/html", "Origin": base_url}
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url, headers=headers)

    return browser


async def enter(browser: httpx.AsyncClient, token: str, **headers: str) -> httpx.Response:
    return await browser.post("/sign-in", data={"token": token}, headers=headers)


@pytest.mark.parametrize(
    ("address", "cookie"),
    [
        (HERE, "tarsy-scoring=reads; HttpOnly; Path=/; SameSite=strict"),
        (THERE, "__Host-tarsy-scoring=reads; HttpOnly; Path=/; SameSite=strict; Secure"),
    ],
)
async def test_a_token_signs_a_browser_in(site: Open, address: str, cookie: str) -> None:
    """Until the browser ends, under the name of the token. The cookie is `Secure` beyond loopback."""
    browser = site(address)
    refused = await browser.get("/who")
    assert (refused.status_code, 'action="/sign-in"' in refused.text) == (401, True)
    with capture_logs() as lines:
        entered = await enter(browser, "reads")
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert entered.headers["set-cookie"] == cookie
    assert "reads" not in str(lines).replace("who reads", "")
    assert (await browser.get("/who")).json() == {
        "name": "who reads",
        "through": "token who reads",
        "has_credential": True,
    }
    assert (await browser.post("/who")).status_code == 403, "the token may only read"
    left = await enter(browser, "")
    assert (left.headers["location"], (await browser.get("/who")).status_code) == ("/sign-in", 401)


async def test_what_a_stranger_sees_is_the_form_and_its_style(site: Open) -> None:
    browser = site()
    form = await browser.get("/sign-in")
    assert (form.status_code, 'name="token"' in form.text) == (200, True)
    assert (await browser.get(assets.address_of("pages.css"))).status_code == 200
    for path in ("/sign-in/", "/sign-in/x", "/sign-in\n", "/statics", "/static", "/who?path=/sign-in"):
        assert (await browser.get(path.replace("\n", "%0A"))).status_code == 401, path


async def test_a_wrong_token_sets_no_cookie(site: Open) -> None:
    browser = site()
    for token in ("guess", hashlib.sha256(b"reads").hexdigest(), "x" * 10_000, "é"):
        refused = await enter(browser, token)
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False), token
        assert token not in refused.text
    browser.cookies.set("tarsy-scoring", "guess")
    assert (await browser.get("/who")).status_code == 401


async def test_other_sites_neither_sign_in_nor_use_a_sign_in(site: Open) -> None:
    browser = site(THERE)
    for other in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}):
        refused = await enter(browser, "scores", **other)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False), other
    await enter(browser, "scores")
    assert (await browser.post("/who")).status_code == 200
    assert (await browser.post("/who", headers={"Origin": "https://evil.example"})).status_code == 403


async def test_a_neighbouring_host_cannot_set_the_cookie(site: Open) -> None:
    """Beyond loopback only the name counts that browsers take from this host alone. A sent token comes first."""
    browser = site(THERE)
    browser.cookies.set("tarsy-scoring", "scores")
    assert (await browser.get("/who")).status_code == 401
    await enter(browser, "scores")
    assert (await browser.get("/who", headers={"Authorization": "Bearer reads"})).json()["name"] == "who reads"
    assert (await browser.get("/who", headers={"Authorization": "Bearer guess"})).status_code == 401


async def test_a_sign_in_ends_with_its_token(site: Open) -> None:
    today = TODAY
    browser = site(today=lambda: today)
    await enter(browser, "reads")
    today = LAST_DAY
    assert (await browser.get("/who")).status_code == 401
    assert (await enter(browser, "reads")).status_code == 401


async def test_sign_ins_are_limited_by_address(site: Open, tmp_path: Path) -> None:
    env = {"SCORING_API_TOKENS_FILE": str(tmp_path / "tokens.yaml"), "SCORING_API_RATE_PER_MINUTE": "2"}
    browser = site(env=env)
    assert [(await enter(browser, "guess")).status_code for _ in range(3)] == [401, 401, 429]


async def test_without_tokens_there_is_nothing_to_sign_in_to(site: Open) -> None:
    assert (await enter(site(env={}), "reads")).status_code == 404
