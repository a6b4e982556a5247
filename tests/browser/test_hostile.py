"""Text of sessions and judges is text on every page, whatever it would be to a browser."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect
from visiting import House, Visits

from infrastructure import wait_until
from tarsy_scoring_lab.scripted_judge import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")

SESSION = "hostile-1"
PAGES = ("/?q=hostile", f"/sessions/{SESSION}", "/trends", "/distribution", "/missing-tools", "/failure-tags")
ELSEWHERE = "http://elsewhere.example"

# As somebody would write it who wants one of them to work: each says who it was.
ATTACKS = (
    "<script>alert('element')</script>",
    '"><img src=x onerror="alert(\'attribute\')">',
    "'><svg/onload=alert('svg')>",
    "</textarea></title></style></script><script>alert('closed')</script>",
    "<iframe srcdoc=\"<script>parent.alert('frame')</script>\"></iframe>",
    f'<link rel=stylesheet href="{ELSEWHERE}/a.css"><img src="{ELSEWHERE}/a.png">',
    "{{ 7 * 191 }}{% raw %}${7 * 191}",
    "\u202egnisrever\u202c \ufeff",
)
TEXT = " ".join(ATTACKS)
ENDLESS = "x" * 3_000

# What the policy of every page says of scripts, styles, pictures, requests and forms.
DIRECTIVES = {"script-src", "style-src", "img-src", "connect-src", "form-action"}

# Elements that our templates have nowhere in their content.
MADE_OF_TEXT = "main script, iframe, object, embed, main img, main link, main style, [style]"

ANALYSIS = f"""# Heading {TEXT}

{TEXT}

[a link](javascript:alert('link')) [data](data:text/html,<script>alert('data')</script>) <javascript:alert('auto')>
[entity](&#106;avascript:alert('entity')) [vb](vbscript:alert('vb'))
[good]({ELSEWHERE}/runbook "onclick=alert('title')")
![image]({ELSEWHERE}/image.png) ![x](x "onerror=alert('image')")

<div onmouseover="alert('over')" style="position:fixed;inset:0">over everything</div>

```html
{TEXT}
```

| a | b |
|---|---|
| {TEXT.replace("|", "")} | {ENDLESS} |

E1 E4 E99999 [E4](#E4) [E1]({ELSEWHERE}/E1)

{ENDLESS}

Logical Flow: 10/25
Consistency: 10/25
Tool Relevance: 10/25
Synthesis Quality: 10/25

40"""

MISSING_TOOLS = f"""{TEXT}

1. **{ATTACKS[1]}**: {TEXT}
2. **{ENDLESS}**: endless
3. **`{ATTACKS[0]}`**: {ATTACKS[4]}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hostile(house: House) -> AsyncIterator[House]:
    """A session whose every field is an attack, with a judge that joins in; and one that failed with such words."""
    house.service.judge.script(
        Fault(kind="reply", match="hostile session", turn="analysis", content=ANALYSIS),
        Fault(kind="reply", match="hostile session", turn="missing_tools", content=MISSING_TOOLS),
        Fault(kind="served_model", match="hostile session", turn="analysis", model=ATTACKS[0]),
    )
    await house.score(SESSION, **hostile_session())
    yield house


def hostile_session() -> dict[str, Any]:
    metadata = {
        "server_name": ATTACKS[1],
        "tool_name": ATTACKS[0],
        "arguments": f'{{"query": "{ENDLESS}", "attack": {TEXT!r}}}',
        "is_error": True,
    }
    texts = ("llm_thinking", TEXT), ("llm_tool_call", TEXT + ENDLESS), ("final_analysis", ANALYSIS)
    events = [
        {
            "event_id": f"hostile-{number}",
            "sequence_number": number,
            "created_at": f"2026-01-05T10:00:{number:02d}Z",
            "event_type": kind,
            "status": "completed",
            "content": content,
            "metadata": metadata if kind == "llm_tool_call" else None,
        }
        for number, (kind, content) in enumerate(texts, 1)
    ]
    execution = {
        "execution_id": "hostile-x",
        "agent_name": ATTACKS[2],
        "agent_index": 1,
        "status": "completed",
        "llm_provider": ATTACKS[0],
        "events": events,
    }
    stage = {
        "stage_id": "hostile-s",
        "stage_name": TEXT,
        "stage_index": 1,
        "stage_type": "investigation",
        "status": "completed",
        "executions": [execution],
    }
    return {
        "alert_type": (ATTACKS[1] + ENDLESS)[:255],
        "alert_data": f"hostile session {TEXT}",
        "chain_id": ATTACKS[0],
        "labels": {ATTACKS[1]: ATTACKS[0], "long": ENDLESS},
        "available_tools": [{"server_name": ATTACKS[1], "tool_name": ATTACKS[0], "description": TEXT}],
        "final_analysis": ANALYSIS,
        "executive_summary": TEXT,
        "stages": [stage],
    }


@pytest.mark.parametrize("path", PAGES)
async def test_hostile_text_stays_text(hostile: House, visit: Visits, path: str) -> None:
    """No dialog, no request to anywhere else, no error in the console; it can be read, and everything can be opened."""
    visitor = await visit(path)
    await visitor.page.locator("details").evaluate_all("all => all.forEach(e => { e.open = true; })")
    await visitor.page.locator("main *").evaluate_all(
        "all => all.forEach(e => e.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})))"
    )
    await expect(visitor.page.locator(MADE_OF_TEXT)).to_have_count(0)
    handlers = await visitor.page.evaluate(
        "[...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => /^on/i.test(a.name))).length"
    )
    assert handlers == 0
    assert "1337" not in await visitor.reads(), "no template ran"
    wide = await visitor.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 1, "an endless word does not push the page apart"
    await visitor.picture(f"hostile{path.split('?', maxsplit=1)[0].replace('/', '-')}")


async def test_links_in_an_analysis_lead_to_http_alone(hostile: House, visit: Visits) -> None:
    """Other kinds of address are no links; those that are tell the other side nothing."""
    visitor = await visit(f"/sessions/{SESSION}")
    links = visitor.page.locator(".prose a")
    found = [(await link.get_attribute("href"), await link.get_attribute("rel")) for link in await links.all()]
    outside = {(href, rel) for href, rel in found if not (href or "").startswith("#")}
    assert {href for href, _ in outside} <= {f"{ELSEWHERE}/runbook", f"{ELSEWHERE}/E1", f"{ELSEWHERE}/image.png"}
    assert f"{ELSEWHERE}/runbook" in {href for href, _ in outside}
    for _, rel in outside:
        assert {"noopener", "nofollow"} <= set((rel or "").split())


async def test_a_citation_leads_to_its_entry_and_no_other(hostile: House, visit: Visits) -> None:
    """`E4` is a link to what stands there; an entry that does not exist is none."""
    visitor = await visit(f"/sessions/{SESSION}")
    await visitor.page.locator('#analysis a[href="#E4"]').first.click()
    assert visitor.page.url.endswith("#E4")
    await expect(visitor.page.locator("article#E4")).to_be_in_viewport()
    await expect(visitor.page.locator('a[href="#E99999"]')).to_have_count(0)


async def test_text_is_shown_as_it_was_written(hostile: House, visit: Visits) -> None:
    """Nothing is swallowed: the reader sees what somebody tried."""
    visitor = await visit(f"/sessions/{SESSION}")
    text = await visitor.reads()
    for attack in ATTACKS[:6]:
        assert attack in text
    assert "\u202e" not in await visitor.page.content(), "nothing turns the direction of what stands behind it"


@pytest.mark.parametrize("path", PAGES)
async def test_what_got_past_the_escaping_would_not_run(hostile: House, visit: Visits, path: str) -> None:
    """The second wall: even a script, a style or a picture that stands in the page is refused by its policy."""
    visitor = await visit(path)
    visitor.complaints.clear()
    ran = await visitor.page.evaluate(
        """async elsewhere => {
          const put = (tag, properties) => document.body.append(Object.assign(document.createElement(tag), properties));
          put("script", {textContent: "window.owned = 'inline'"});
          put("script", {src: elsewhere + "/x.js"});
          put("img", {src: elsewhere + "/x.png"});
          put("div", {id: "styled"});
          document.getElementById("styled").setAttribute("style", "position: fixed");
          const form = `<form action="${elsewhere}"><button id=go></button></form>`;
          document.body.insertAdjacentHTML("beforeend", form);
          const fetched = await fetch(elsewhere).then(() => "fetched", () => "");
          document.getElementById("go").click();
          await new Promise(done => setTimeout(done, 200));
          return [window.owned ?? "", fetched, getComputedStyle(document.getElementById("styled")).position];
        }""",
        ELSEWHERE,
    )
    assert ran == ["", "", "static"]
    assert visitor.page.url == visitor.address + path

    def refused() -> set[str]:
        told = [c for c in visitor.complaints if "Content Security Policy" in c]
        return {directive for directive in DIRECTIVES if any(f"{directive} 'self'" in c for c in told)}

    await wait_until(lambda: refused() == DIRECTIVES, 30, "all is refused, and the console says so")
    assert not [c for c in visitor.complaints if c.startswith("dialog")]
    await visitor.open(path)  # what the console has still to say of that page it says before
    visitor.complaints.clear()
