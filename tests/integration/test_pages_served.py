"""The pages of sessions and scores on a real database: their content and their forms."""

import re
import uuid
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import Any

import pytest

from api_site import SETTINGS, Api, open_api
from attempting import a_timeline
from builders import METHODOLOGY, OTHER_CRITERIA, completion, failure, rescore, session_completed, step
from fakes import FakeSessions
from stored import store_score
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import SessionNotTerminal
from tarsy_scoring.judge.verdict import MissingTool

AS_BROWSER = {"Accept": "text/html,*/*;q=0.8", "X-Forwarded-User": "alice"}
VOID = {"meta", "link", "input", "br", "hr"}


class Page(HTMLParser):
    """A page as a browser parses it: its elements, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.is_well_formed = True
        self.feed(html)
        self.is_well_formed &= self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.is_well_formed &= bool(self._open) and self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [a for t, a in self.elements if t == tag and all(a.get(k) == v for k, v in wanted.items())]

    @property
    def badges(self) -> dict[str, str]:
        """The text of each session's badge."""
        found = re.findall(r'<span class="badge[^>]*data-session="([^"]*)"[^>]*>(.*?)</span></span>', self.html, re.S)
        return {session_id: re.sub(r"<[^>]*>", "", inner).strip() for session_id, inner in found}

    def hidden(self, name: str) -> str:
        """The value of the first hidden field of this name."""
        return str(self.all("input", type="hidden", name=name)[0]["value"])


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    async with open_api(database_url, FakeSessions(**{"session-1": a_timeline(session_id="session-1")})) as api:
        yield api


async def look(api: Api, path: str, status: int = 200) -> Page:
    """Get the page at a path; every page must be sound."""
    answer = await api.client.get(path, headers=AS_BROWSER)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["cache-control"] == "no-store"  # a shared cache must not store what one user read
    page = Page(answer.text)
    assert_sound(page)
    return page


def assert_sound(page: Page) -> None:
    """Well-formed, no inline script or style, no foreign address, no repeated id, labels on all fields."""
    assert page.is_well_formed
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for address in (attributes.get("src"), attributes.get("action")):
            assert address is None or re.match(r"/(?!/)", address)
    scripts = [str(script.get("src")).rpartition("/")[2] for script in page.all("script")]
    assert set(scripts) <= {"live.js"}
    assert len(scripts) == len(set(scripts))
    assert len(page.all("main")) == len(page.all("h1")) == 1
    labelled = {a["for"] for a in page.all("label")}
    for tag in ("input", "select"):
        for field in page.all(tag):
            assert field.get("type") == "hidden" or field.get("id") in labelled or field.get("aria-label")


async def scored(api: Api, session_id: str = "session-1", total: int = 67, **columns: Any) -> uuid.UUID:
    """A completed score with a turn."""
    claimed = await api.scoring.claimed(session_id)
    await api.scoring.store.record(step(claimed, "analyzing_methodology", 1))
    await api.scoring.store.end(completion(claimed, total_score=total, **columns))
    return claimed.score_id


# --- the list ------------------------------------------------------------------------------------------


async def test_the_list_shows_every_state_in_words(api: Api) -> None:
    """A total is shown with the outcome that the judge stated, or else with its range, and with what failed."""
    await scored(api, "good-one", 82)
    gates = [{"name": str(n), "gate_type": "tool_called", "passed": n > 0, "message": ""} for n in range(3)]
    await scored(api, "gated-one", 92, outcome="fail", gates=gates)
    await scored(api, "weak-one", 30, judge_outcome="partial")
    await api.scoring.store.end(failure(await api.scoring.claimed("failed-one")))
    await api.scoring.claimed("running-one")
    await api.scoring.accept(rescore("queued-one"), session_completed("ignored", session_status="failed"))

    page = await look(api, "/")

    assert page.badges == {
        "good-one": "82 correct",
        "gated-one": "92 correct, 1 gate failed",
        "weak-one": "30 partial",
        "failed-one": "Failed",
        "running-one": "Reading the session",
        "queued-one": "Queued",
        "ignored": "Not scored",
    }
    buttons = {a["aria-label"] for a in page.all("button") if "aria-label" in a}
    assert buttons == {
        *("Re-score good-one", "Re-score gated-one", "Re-score weak-one", "Re-score failed-one", "Score ignored")
    }
    assert page.all("main")[0]["data-channel"] == "sessions"
    declined = "Sessions with its status are not scored automatically (auto_score_statuses of its chain)."
    assert declined in page.text
    assert declined in (await look(api, "/sessions/ignored")).text
    assert declined in (await api.client.get("/api/v1/scoring/sessions/ignored/score")).json()["detail"]


async def test_a_session_with_nothing_to_judge_is_no_failure(api: Api) -> None:
    """It has words of its own, a filter of its own, and no part in selections of failures."""
    columns = {"status": "cancelled", "error_kind": "nothing_to_judge", "error_message": "nothing to judge: only chats"}
    await api.scoring.store.end(failure(await api.scoring.claimed("chats-only"), **columns))
    await api.scoring.store.end(failure(await api.scoring.claimed("failed-one")))

    listed = await look(api, "/?status=nothing_to_judge")
    score = await look(api, "/sessions/chats-only")
    answer = await api.client.get("/api/v1/scoring/sessions", params={"status": "nothing_to_judge"})

    assert listed.badges == {"chats-only": "Nothing to judge"}
    assert "The session has only chats" in score.text
    assert "nothing to judge: only chats" in score.text
    for page in (listed, score):
        assert not re.search(r'class="(badge ended|note weak)', page.html.partition("<main")[2].partition("</main>")[0])
    assert [session["session_id"] for session in answer.json()["sessions"]] == ["chats-only"]
    assert (await look(api, "/?status=failed")).badges == {"failed-one": "Failed"}
    assert await api.scoring.reader.failed_sessions(None, None, None) == ["failed-one"]


async def test_a_wrong_filter_is_an_error_above_the_form(api: Api) -> None:
    """The form keeps its input, and no list is shown that seems filtered."""
    await api.scoring.accept(session_completed("session-1"))
    page = await look(api, "/?min_score=abc&label=x&q=%00", 422)
    assert "Min_score: Input should be a valid integer" in page.text
    assert page.all("input", name="min_score")[0]["value"] == "abc"
    for address in ("/?min=90", "/trends?alert_type=x", "/missing-tools?day_of=ended", "/drift?sort=x"):
        refused = await look(api, address, 422)
        assert "a field that this page does not have" in refused.text, address
        assert "session-1" not in refused.text
    for address in ("/trends?day_of=ended", "/missing-tools?since=", "/?min_score=&other="):
        await look(api, address)


async def test_the_pages_of_the_list_keep_their_filters(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each following page has the filters of the first."""
    monkeypatch.setattr("tarsy_scoring.web.pages.sessions.PAGE_SIZE", 2)
    for number in range(5):
        await scored(api, f"session-{number}", 60 + number)

    path, seen = "/?sort=score_desc&chain=kubernetes", []
    while path:
        page = await look(api, path)
        seen += re.findall(r"session-\d(?=</a>)", page.html)
        path = next((str(a["href"]) for a in page.all("a", rel="next")), "")
    assert seen == [f"session-{number}" for number in (4, 3, 2, 1, 0)]


async def test_chains_are_suggested(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configured and stored chains, each once and in order; the number of stored ones is limited."""
    monkeypatch.setattr("tarsy_scoring.web.pages.forms.MAX_SUGGESTED", 3)
    for chain in ("kubernetes", "planned"):
        monkeypatch.setitem(SETTINGS.config.chains, chain, ChainSettings())
    for number, chain in enumerate(("network", None, "kubernetes", "network", "<b>", "storage")):
        await api.scoring.accept(session_completed(f"session-{number}", chain_id=chain, session_status="failed"))
    named = {"missing_tools": ("node_cpu",), "failure_tags": ["late"]}
    await store_score(api.scoring, "unnamed", 40, session={"chain_id": None}, **named)
    for path in ("/", "/trends?since=", "/drift", "/distribution", "/missing-tools?since=", "/failure-tags?since="):
        page = await look(api, path)
        suggested = [option["value"] for option in page.all("option") if "value" in option]
        assert suggested[:4] == ["<b>", "kubernetes", "network", "planned"], path
        assert "storage" not in suggested
        assert "None" not in page.text, path


# --- a score -------------------------------------------------------------------------------------------


async def test_a_score_with_all_its_parts(api: Api) -> None:
    """Total, breakdown, analysis with a link to what it cites, tools, gates, turns, history."""
    claimed = await api.scoring.claimed("session-1", chain_id="k")
    await api.scoring.store.record(step(claimed, "analyzing_methodology", 1, reply="In full, E2."))
    ending = completion(
        claimed,
        score_analysis="It thought first [E2], and **then** [E77].",
        score_breakdown={"logical_flow": 20, "consistency": 10},
        missing_tools=[MissingTool("node_pressure", "shows *memory*")],
        missing_tools_analysis="1. node_pressure",
        outcome="fail",
        outcome_reason="67 of 100 points, 70 are needed",
        judge_passed=False,
        flags=["ungrounded", "a_new_flag"],
        failure_tags=["wrong_conclusion"],
        gates=[{"name": "looked", "gate_type": "tool_called", "passed": False, "message": "0 calls"}],
        coverage={"shown_share": 0.5, "cut_entries": ["E2"]},
        evidence={"expected": {}, "read": {}, "missing": ["stage 2: no events"]},
        usage={"input_tokens": 1000, "cached_input_tokens": 600, "output_tokens": 200, "cost_usd": 0.003},
    )
    await api.scoring.store.end(ending)

    page = await look(api, "/sessions/session-1")

    for text in (
        *(
            "67 correct, 1 gate failed of 100",
            "Logical flow",
            "20",
            "It thought first [",
            "node_pressure",
            "70 are needed",
        ),
        *("Most citations of the analysis are not found", "A new flag", "wrong conclusion"),
        *("looked", "0 calls", "50 % of the session", "stage 2: no events", "$0.0030", "In full, E2."),
        *("a pod restarts", "out of memory", "Shortened for the judge", "Requested by event: alice"),
    ):
        assert text in page.text, text
    assert page.all("a", href=f"/sessions/session-1/timeline?score={claimed.score_id}&at=E2#timeline-E2")
    assert page.all("a", href=f"/scores/{claimed.score_id}")


async def test_the_score_of_a_session_is_its_latest_completed_one(api: Api) -> None:
    """A failed score after it is shown beside it."""
    await scored(api, total=71)
    failed = await api.scoring.claimed("session-1")
    await api.scoring.store.end(failure(failed))

    page = await look(api, "/sessions/session-1")

    assert "71 correct of 100" in page.text
    assert "A newer attempt: Failed" in page.text
    assert page.all("a", href=f"/scores/{failed.score_id}")


async def test_a_session_that_the_source_lost_cannot_be_scored_again(api: Api) -> None:
    """Its page offers no form and says why, once; a form of an older page is refused."""
    claimed = await api.scoring.claimed("lost")
    await api.scoring.store.end(failure(claimed))

    page = await look(api, "/sessions/lost")
    assert page.text.count("The source no longer has this session") == 1
    assert page.text.count("scored again") == 1
    assert "The judge refused to answer." in page.text
    assert "No reply of the judge is stored." in page.text
    assert "Re-score" not in page.text
    assert not page.all("form", action="/sessions/lost/score")

    answer = await api.client.post("/sessions/lost/score", data={"force": "1"}, headers=AS_BROWSER)
    assert answer.status_code == 404
    refused = Page(answer.text)
    assert "there is no session lost, or it was deleted" in refused.text.lower()
    assert refused.all("a", href="/sessions/lost")


async def test_a_score_in_progress_shows_its_phase_and_can_be_cancelled(api: Api) -> None:
    claimed = await api.scoring.claimed("session-1")
    await api.scoring.store.record(step(claimed, "identifying_missing_tools"))

    page = await look(api, "/sessions/session-1")
    assert "Looking for missing tools" in page.text
    assert page.all("main")[0]["data-channel"] == "session:session-1"

    answer = await api.client.post(f"/scores/{claimed.score_id}/cancel", headers=AS_BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sessions/session-1")
    assert "Cancelled" in (await look(api, "/sessions/session-1")).text


async def test_a_session_that_has_not_ended_says_so(database_url: str) -> None:
    """The page shows the source's reason, and no form, since that would be refused."""
    running = SessionNotTerminal("the session session-1 has not ended: its status is in_progress <b>")
    async with open_api(database_url, FakeSessions(**{"session-1": running})) as api:
        page = await look(api, "/sessions/session-1")
        assert page.badges == {"session-1": "Not scored"}
        assert "This session has not ended yet" in page.text
        assert "its status is in_progress <b>." in page.text
        assert "It is scored when an event announces its end" in page.text
        assert not page.all("form", method="post")
        assert page.all("main")[0]["data-channel"] == "session:session-1"

        await api.scoring.accept(session_completed("session-1"))
        assert page.badges != (await look(api, "/sessions/session-1")).badges


async def test_an_unknown_address_is_an_error_page(api: Api) -> None:
    for path, status in (
        *(("/sessions/unknown", 404), ("/sessions/..%2Fx", 404), ("/sessions/%20", 422)),
        *(("/sessions/" + "a" * 256, 422), (f"/scores/{uuid.UUID(int=0)}", 404), ("/scores/nonsense", 422)),
        *(("/nowhere", 404), ("/static/0/live.js", 404), ("/static/0/..%2fx.py", 404)),
    ):
        assert f"Status {status}" in (await look(api, path, status)).text


# --- forms ---------------------------------------------------------------------------------------------


async def test_a_caller_that_may_only_read_sees_no_form(database_url: str) -> None:
    settings = SETTINGS.model_copy(update={"trusted_proxy_write_groups": "sre"})
    async with open_api(database_url, settings=settings) as api:
        score = await store_score(api.scoring, "session-1", 40, missing_tools=("node_cpu",))
        for path in ("/missing-tools?since=", f"/scores/{score}"):
            assert not (await look(api, path)).all("form", method="post")
            offered = await api.client.get(path, headers=AS_BROWSER | {"X-Forwarded-Groups": "sre"})
            assert 'method="post"' in offered.text


async def test_another_criteria_is_a_trial_or_the_new_score(api: Api) -> None:
    """The page asks; a trial has a page of its own, and the session keeps its score."""
    await scored(api)
    page = await look(api, "/sessions/session-1")
    assert {b["value"] for b in page.all("button", name="purpose")} == {"shadow", "production"}
    form = {"key": page.hidden("key"), "force": "1", "criteria": OTHER_CRITERIA}

    tried = await api.client.post("/sessions/session-1/score", data=form | {"purpose": "shadow"}, headers=AS_BROWSER)

    [trial] = await api.scoring.claim()
    assert (tried.status_code, tried.headers["location"]) == (303, f"/scores/{trial.score_id}")
    await api.scoring.store.end(completion(trial, total_score=3))
    assert "This is a trial" in (await look(api, tried.headers["location"])).text
    shown = await api.scoring.reader.score_of_session("session-1")
    assert (shown or {})["total_score"] != 3
    replaced = await api.client.post(
        "/sessions/session-1/score", data=form | {"key": "other", "purpose": "production"}, headers=AS_BROWSER
    )
    assert replaced.headers["location"] == "/sessions/session-1"


async def test_a_refused_form_is_an_error_page(api: Api) -> None:
    """With a link back to the session."""
    await api.scoring.claimed("session-1")
    for form, status, words in (
        ({"criteria": "unknown-criteria"}, 422, "Unknown criteria"),
        ({"reason": "x" * 4001}, 422, "`reason`: String should have at most 4000 characters"),
        ({"reason": "a\0b"}, 422, "`reason`: String should match pattern"),
        ({"force": "1"}, 409, "Scoring under way"),
    ):
        answer = await api.client.post("/sessions/session-1/score", data=form, headers=AS_BROWSER)
        page = Page(answer.text)
        assert_sound(page)
        assert answer.status_code == status
        assert words in page.text
        assert page.all("a", href="/sessions/session-1")


# --- criteria ------------------------------------------------------------------------------------------


async def test_the_history_of_a_score_leads_to_its_criteria(api: Api) -> None:
    await scored(api)
    await api.scoring.rows(
        """INSERT INTO scoring_criteria (criteria_hash, name, content) VALUES ('old', 'm', '{"prompt": "ask <b>"}')"""
    )
    await api.scoring.rows("UPDATE session_scores SET criteria_hash = 'old'")

    page = await look(api, "/sessions/session-1")

    [link] = page.all("a", href="/api/v1/scoring/criteria/old")
    assert "not current" in page.text
    assert (await api.client.get(str(link["href"]), headers=AS_BROWSER)).json()["content"] == {"prompt": "ask <b>"}


# --- across sessions ------------------------------------------------------------------------------------

PAGES = ("/trends", "/distribution", "/missing-tools", "/failure-tags")


async def test_an_empty_database_says_so(api: Api) -> None:
    for path in PAGES:
        html = (await look(api, path)).html
        assert "in this period" in html
        assert "<polygon" not in html
        assert f'href="{path}" aria-current="page"' in html


async def test_trends_start_with_the_chains(api: Api) -> None:
    """No curve over chains of different criteria: each chain links to its own."""
    await scored(api, "s-1", 60, judge_fingerprint="f" * 64)
    claimed = await api.scoring.claimed("s-2", chain_id="billing & co", criteria=METHODOLOGY)
    judge = {"judge_fingerprint": "e" * 64, "criteria": METHODOLOGY}
    await api.scoring.store.end(completion(claimed, total_score=70, **judge))

    page = await look(api, "/trends?day_of=ended")
    [link] = [a["href"] for a in page.all("a") if "billing" in str(a.get("href"))]
    chain = await look(api, str(link).replace("&amp;", "&"))

    assert "Totals per day" not in page.text
    assert "Totals per day" in chain.text
    assert "ended" in [option["value"] for option in chain.all("option") if "selected" in option]
    assert "billing & co" in chain.text
    assert "kubernetes" not in chain.html.partition("Averages per chain")[2]


async def test_a_score_is_on_every_page_and_left_out_by_filters(api: Api) -> None:
    claimed = await api.scoring.claimed("session-1", criteria=METHODOLOGY)
    judge = {"judge_fingerprint": "f" * 64, "criteria": METHODOLOGY}
    tags = {"failure_tags": ["wrong_conclusion"], "score_breakdown": {"logical_flow": 11}}
    tools = (MissingTool("<b>read_logs</b>", "they were guessed"),)
    await api.scoring.store.end(completion(claimed, missing_tools=tools, total_score=42, **judge, **tags))
    for path, shown in {
        "/trends": '<td class="number" data-name="Mean total">42.0</td>',
        "/distribution": '11 <span class="quiet">of 25</span>',
        "/missing-tools": "&lt;b&gt;read_logs&lt;/b&gt;",
        "/failure-tags": "Wrong conclusion",
    }.items():
        assert shown in (await look(api, path)).html
        assert shown in (await look(api, f"{path}?chain=kubernetes&criteria={METHODOLOGY}")).html
        for query in ("chain=databases", "criteria=investigation-structured", "since=&until=2020-01-01"):
            narrowed = (await look(api, f"{path}?{query}")).html
            assert shown not in narrowed
            assert "in this period" in narrowed


# --- static files --------------------------------------------------------------------------------------


async def test_static_files_are_kept_by_browsers_until_they_change(api: Api) -> None:
    """Their addresses contain a digest of their content."""
    page = await look(api, "/")
    for address in (page.all("link", rel="stylesheet")[0]["href"], page.all("script")[0]["src"]):
        answer = await api.client.get(str(address))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"
