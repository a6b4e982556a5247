"""Attacks through what is judged: hostile sessions and hostile judges, from Kafka to pages."""

import base64
import csv
import io
import json
import random
import re
import string
from typing import Any

import pytest
from holding import MOST_MEMORY_KIB, Attack, peak_memory_kib
from hostile_judge import FORGED, REPLIES, redirected
from target import AS_BROWSER, SCORE, TEXTS, Page, Target

from infrastructure import wait_until
from processes import PATIENCE_S, Process, small_session
from tarsy_scoring_lab.scripted_judge import Fault

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALPHABETS = {"U": string.ascii_uppercase + "234567", "M": string.ascii_letters + string.digits}
WINDOW = 12  # as many characters of a secret are a leak
HOSTILE, PAYLOADS = "hostile-1", TEXTS["payloads"]
HTML = "\n\n".join(PAYLOADS)


class Secrets:
    """Fills the templates of secrets with new random parts, and finds these parts in other texts."""

    def __init__(self) -> None:
        self._random = random.Random(17)
        self._windows: dict[str, str] = {}

    def write(self, place: str) -> list[str]:
        """A text with a new secret of each kind; a leak names kind and place."""
        return [self._fill(template, f"{kind} in {place}") for kind, template in TEXTS["secrets"].items()]

    def leaks(self, text: str) -> set[str]:
        """The secrets of which the text has some characters, in clear or as base64."""
        return {self._windows[piece] for at in range(len(text)) if (piece := text[at : at + WINDOW]) in self._windows}

    def _fill(self, template: str, name: str) -> str:
        def part(found: re.Match[str]) -> str:
            value = "".join(self._random.choices(ALPHABETS[found[1]], k=int(found[2])))
            for shape in (value, base64.b64encode(value.encode()).decode().rstrip("=")):
                self._windows |= {shape[at : at + WINDOW]: name for at in range(0, len(shape) - WINDOW + 1, 4)}
            return value

        text = re.sub(r"\{([UM]):(\d+)\}", part, template).replace("{KEY}", "PRIVATE" + " KEY")
        return re.sub(r"\{B64:(\w+)\}", lambda found: base64.b64encode(found[1].encode()).decode(), text)


def hostile_session(secrets: Secrets) -> dict[str, Any]:
    """A session whose every text is hostile. Each tool call has some of the secrets in arguments and result."""
    result = "\n\n".join([*TEXTS["forgeries"], HTML, *secrets.write("a tool's result")])
    session = small_session(HOSTILE, result) | {
        "alert_type": PAYLOADS[0],
        "chain_id": "payments",
        "alert_data": "\n".join([HOSTILE, *secrets.write("the alert"), HTML]),
        "final_analysis": "\n\n".join(["It fails.", HTML, *secrets.write("the analysis")]),
        "labels": {payload[:60]: payload for payload in PAYLOADS},
        "available_tools": [{"server_name": p, "tool_name": p, "description": p} for p in PAYLOADS],
    }
    stage = session["stages"][0]
    execution = stage["executions"][0]
    stage["stage_name"], execution["agent_name"] = PAYLOADS[1], PAYLOADS[2]
    call = execution["events"][1]
    arguments, results = secrets.write("a tool's arguments"), secrets.write("JSON in JSON")
    for number, payload in enumerate(PAYLOADS):
        given = json.dumps({"command": "\n".join(arguments[number :: len(PAYLOADS)])})
        nested = [json.dumps({"content": json.dumps({"value": text})}) for text in results[number :: len(PAYLOADS)]]
        metadata = call["metadata"] | {"server_name": payload, "tool_name": payload, "arguments": given}
        event = {"event_id": f"{HOSTILE}-{payload}", "sequence_number": 10 + number, "content": "\n".join(nested)}
        execution["events"].append(call | event | {"metadata": metadata})
    return session


async def stored_rows(target: Target) -> str:
    """All rows of all tables."""
    tables = await target.service.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows = [await target.service.rows(f'SELECT t::text FROM "{table["tablename"]}" t') for table in tables]
    return "\n".join(row["t"] for found in rows for row in found)


async def test_a_hostile_session_leaks_and_runs_nothing(target: Target, worker: Process, attack: Attack) -> None:
    """Its secrets reach no provider, table, topic, page, export or log; its HTML is text; it gets its flags."""
    service, secrets = target.service, Secrets()
    (service.sessions / f"{HOSTILE}.json").write_text(json.dumps(hostile_session(secrets)), encoding="utf-8")
    missing = "\n".join(f"{number}. **{payload}**: {payload}" for number, payload in enumerate(PAYLOADS, 1))
    analysis = f"It is weak (E1, E3).\n\n{HTML}\n\nOutcome: wrong\n\n31"
    service.judge.script(Fault(kind="reply", match=HOSTILE, turn="analysis", content=analysis))
    service.judge.script(Fault(kind="reply", match=HOSTILE, turn="missing_tools", content=missing))
    await service.announce(HOSTILE, chain_id="public", alert_type=PAYLOADS[0], labels={"a": HTML[:200]})
    score = await service.score_becomes(HOSTILE, "completed")
    topic = await target.published()
    ids = {"$SESSION": HOSTILE, "$ID": str(score["score_id"]), "$CRITERIA": score["criteria_hash"]}

    async def shown(kind: str, *headers: str) -> dict[str, Any]:
        paths = [re.sub(r"\$[A-Z]+", lambda found: ids[found[0]], path) for path in TEXTS[kind]]
        return {path: await target.read(path, *headers) for path in paths}

    with attack("a hostile session") as holds:
        access = (f"Authorization: Bearer {SCORE}", "Content-Type: application/json")
        label = json.dumps({"number": 5, "reason": HTML})
        seen = await target.request("POST", f"/api/v1/scoring/scores/{ids['$ID']}/labels", *access, body=label)
        holds("a label with HTML is stored", seen.status in (200, 201), seen)
        for flag in ("injection_suspected", "chain_mismatch"):
            holds(flag, flag in score["flags"], score["flags"])
        holds("the total is the judge's", score["total_score"] == 31, score["total_score"])
        holds("the provider of the claimed chain sees nothing", target.elsewhere.calls == 0)
        prompts = [text for body in service.judge.requests if HOSTILE in (text := json.dumps(body, ensure_ascii=False))]
        for prompt in prompts:
            fences = set(re.findall(r"<<<SESSION-DATA ([0-9a-f]+) (?:BEGIN|END)>>>", prompt))
            holds("one nonce, which the session does not know", len(fences) == 1 and "0123456789abcdef" not in prompt)
        asked = [message["content"] for body in service.judge.requests for message in body["messages"]]
        lines = set("\n".join(asked).splitlines())
        for line in TEXTS["forged_lines"]:
            holds(f"no line of a prompt: {line}", line not in lines)

        pages, documents = await shown("pages", AS_BROWSER), await shown("documents")
        for path, answer in pages.items():
            unsafe, policy = Page(answer.text).unsafe, answer.headers["content-security-policy"]
            holds(
                f"{path}: nothing runs or loads",
                answer.status in (200, 404, 422) and not unsafe,
                (answer.status, unsafe),
            )
            holds(f"{path}: content policy", "default-src 'none'" in policy and "unsafe" not in policy, policy)
        for path in (f"/sessions/{HOSTILE}", f"/sessions/{HOSTILE}/timeline"):
            holds(f"{path}: payloads are shown as text", "&lt;script&gt;" in pages[path].text)
        for path, answer in documents.items():
            holds(f"{path}: no page", answer.status == 200 and "html" not in answer.headers["content-type"], answer)
        rows = csv.reader(io.StringIO(documents["/api/v1/scoring/export?format=csv"].text))
        formulas = [cell for row in rows for cell in row if cell.startswith(("=", "+", "@", "\t", "\r"))]
        holds("no formula in the CSV", not formulas, formulas)

        texts = {
            "prompts": "".join(prompts),
            "pages": "".join(answer.text for answer in pages.values()),
            "documents": "".join(answer.text for answer in documents.values()),
            "exports": (await service.run("export")).stdout,
            "tables": await stored_rows(target),
            "events": topic,
            "logs": target.logs,
        }
        for place, text in texts.items():
            leaks = secrets.leaks(text)
            for kind in TEXTS["secrets"]:
                found = {name for name in leaks if name.startswith(f"{kind} in ")}
                holds(f"no {kind} in {place}", HOSTILE in text and not found, found)
        for words in (SCORE, service.env["OPENAI_API_KEY"], *TEXTS["forgeries"]):
            holds("neither keys nor session text in the logs", words not in target.logs, words)


async def test_a_hostile_judge_costs_one_score_and_little_memory(
    target: Target, worker: Process, attack: Attack
) -> None:
    """Endless replies and bombs make the judge unavailable; a quotation gives no score."""
    service, quotations = target.service, TEXTS["quotations"]
    for kind in REPLIES:
        service.add_session(kind, chain_id=kind)
    for session_id, case in quotations.items():
        service.add_session(session_id, chain_id=case.get("chain", "kubernetes"))
        service.judge.script(Fault(kind="reply", match=f"alert of {session_id} says", content=case["reply"]))
    service.add_session("beside-hostile-judges")
    await service.announce(*REPLIES, *quotations, "beside-hostile-judges")

    async def ended(session_id: str) -> Any:
        """The score, once it has ended, waits after a failed attempt, or for a judge that rejects every request."""
        row = await service.score_of(session_id)
        if row and (row["attempts_burned"] or row["waiting_reason"] == "rejected"):  # a further attempt has no reason
            return row if row["completed_at"] or row["waiting_for_text"] else None
        return row if row and row["completed_at"] else None

    with attack("hostile judges") as holds:
        row = await service.score_becomes("beside-hostile-judges", "completed")
        holds("another score is judged meanwhile", row["total_score"] is not None)
        for session_id in (*REPLIES, *quotations):
            row = await wait_until(lambda s=session_id: ended(s), PATIENCE_S, f"{session_id} ends")
            allowed = quotations.get(session_id, {"totals": [None]})["totals"]
            holds(session_id, row["total_score"] in allowed and row["total_score"] != FORGED, dict(row))
            reason = row["error_kind"] or row["waiting_for_text"]
            holds(f"{session_id}: an error of the judge", row["total_score"] or reason, dict(row))
        holds("no redirect is followed", not redirected, redirected)
        peak_kib = peak_memory_kib(worker)
        holds("the worker's memory", peak_kib < MOST_MEMORY_KIB and worker.status is None, f"{peak_kib} KiB")
