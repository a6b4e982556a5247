"""What is left of a session, and of a person, after an erasure: every column of every table is searched."""

import asyncio
import base64
import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner, Result

from builders import Scoring, completion, rescore, session_completed
from tarsy_scoring.cli import cli
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.references.model import Reference
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.retention.persons import PLACES

SESSION, NOW = "gone-1", datetime(2026, 1, 1, tzinfo=UTC)
SPELLINGS = {
    "compact": f'{{"session_id":"{SESSION}"}}'.encode(),
    "pretty": f'{{\n  "session_id"\t:\n  "{SESSION}"\n}}'.encode(),
    "escaped": b'{"session_id": "\\u0067one\\u002D1"}',
    "escaped-and-nested": json.dumps({"payload": '{"session_id": "gone\\u002d1"}'}).encode(),
    "utf-16": f'{{"session_id": "{SESSION}"}}'.encode("utf-16"),
    "after-an-odd-byte": b"\xff" + f'"{SESSION}"'.encode("utf-16-le"),
    "nested": json.dumps({"payload": json.dumps({"payload": json.dumps({"session_id": SESSION})})}).encode(),
    "another-field": json.dumps({"ids": [{"x": [SESSION]}]}).encode(),
    "no-json": f"session={SESSION}; broken".encode(),
    "cut-off": f'{{"session_id":"{SESSION}'.encode(),
    "after-an-escape": f'"line\\n{SESSION}\\n"'.encode(),
}
NEIGHBOURS = (b'{"session_id": "gone-10"}', b'{"session_id": "not-gone-1"}')
ADD_BODY = "INSERT INTO dead_letter_bodies VALUES (gen_random_uuid(), $1, $2, $3)"


async def everything(scoring: Scoring) -> str:
    """Every column of every table, with JSON, UTF-16 and base64 undone by other means than the service's."""
    texts: list[str] = []
    for table in await scoring.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        for row in await scoring.rows(f"SELECT * FROM {table['tablename']}"):
            for value in row.values():
                data = value if isinstance(value, bytes) else json.dumps(value, default=str).encode()
                texts += [found.decode("latin-1") for found in readings(data)]
    return "\n".join(texts)


def readings(data: bytes) -> list[bytes]:
    plain = data.replace(b"\0", b"").replace(b"\\", b"")
    plain = re.sub(rb"u00([0-9a-fA-F]{2})", lambda m: bytes.fromhex(m[1].decode()), plain)
    return [data.replace(b"\0", b""), plain] + [
        base64.b64decode(text) for text in re.findall(rb'"([A-Za-z0-9+/]{8,}={0,2})"', data) if len(text) % 4 == 0
    ]


async def command(scoring: Scoring, *arguments: str) -> Result:
    variables = {"SCORING_DATABASE_URL": scoring.url, "USER": "root"}
    return await asyncio.to_thread(CliRunner().invoke, cli, ["erase", *arguments], env=variables)


# --- sessions ------------------------------------------------------------------------------------------


async def test_no_column_of_any_table_holds_the_erased_session(scoring: Scoring) -> None:
    """Of other sessions, also of those with a longer id, everything stays."""
    reference = Reference(uuid.uuid4(), f"{SESSION} had a bad image", f"https://{SESSION}.example", "ada", NOW)
    asked = rescore(SESSION, reason=SESSION, reference=reference)
    await scoring.accept(session_completed(SESSION, event_id=f"end-of-{SESSION}"))
    await scoring.accept(asked)
    [claimed] = await scoring.claim()
    await scoring.store.end(completion(claimed, score_analysis=f"{SESSION} is well done"))
    for value in SPELLINGS.values():
        await scoring.rows(ADD_BODY, None, value, [])
    subject = base64.b64encode(SESSION.encode()).decode()
    await scoring.rows(ADD_BODY, None, b"x", [["ce_subject", subject]])
    await scoring.rows(ADD_BODY, SESSION.encode(), b"x", [])
    for value in NEIGHBOURS:
        await scoring.rows(ADD_BODY, None, value, [])
    await scoring.rows("INSERT INTO bridge_announced VALUES ($1, gen_random_uuid(), now())", SESSION)
    word = re.compile(rf"(?<![\w-]){SESSION}(?![\w-])")
    assert len(word.findall(await everything(scoring))) > len(SPELLINGS)

    await scoring.accept(rescore(SESSION))
    [again] = await scoring.claim()
    await scoring.leases.cancel(again.score_id, "ada")
    await erase(scoring.database, scoring.leases, SESSION, by="ada", relay_wait_s=0)

    kept = await scoring.rows("SELECT changed_by, change, session_id, score_id FROM changes ORDER BY change_id")
    assert [tuple(row.values()) for row in kept] == [
        ("alice", "reference", None, None),
        ("ada", "cancel", None, None),
        ("ada", "erase", None, None),
    ]
    assert word.findall(await everything(scoring)) == []
    left = await scoring.rows("SELECT value FROM dead_letter_bodies ORDER BY value")
    assert [row["value"] for row in left] == sorted(NEIGHBOURS)


# --- persons -------------------------------------------------------------------------------------------


async def fill(scoring: Scoring, name: str, session_id: str) -> uuid.UUID:
    """A row by this person in every table that holds names; returns a score."""
    reference = Reference(uuid.uuid4(), "a bad image", None, name, NOW, f"event: {name}")
    asked = rescore(session_id, requested_by=name, priority=Priority.PEOPLE, reference=reference)
    await scoring.accept(asked)
    [claimed] = await scoring.claim()
    ending = completion(claimed, reference={"provided_by": name, "sent_by": f"token {name}"})
    event = ending.event.__class__(claimed.score_id, "scoring.completed", {"score_triggered_by": name})
    await scoring.store.end(ending.__class__(claimed, ending.columns, event))
    await scoring.accept(rescore(session_id, requested_by=name))
    [again] = await scoring.claim()
    await scoring.leases.cancel(again.score_id, name)
    for statement in (
        "INSERT INTO score_labels (score_id, session_id, labelled_by, agrees) "
        "SELECT score_id, session_id, $2, true FROM session_scores WHERE score_id = $1",
        "INSERT INTO kept_answers SELECT 'user:' || $2, 'k', 'h', 'new', $1, gen_random_uuid(), '{}'",
    ):
        await scoring.rows(statement, claimed.score_id, name)
    await scoring.rows("UPDATE changes SET address = '192.0.2.7' WHERE changed_by = $1", name)
    for statement in (
        "INSERT INTO tool_states (tool, tool_key, state, since, said_by) VALUES ('logs', 'logs', 'planned', now(), $1)",
        "INSERT INTO tool_merges (name, name_key, tool, decided_by) VALUES ('Logs', 'logs', 'logs', $1)",
        "INSERT INTO pauses (chain_id, paused_by) VALUES ('chain of ' || md5($1), $1)",
        "INSERT INTO erasures (erased_by, why, session_hash, scores) VALUES ($1, 'asked', 'h', 1)",
        "INSERT INTO drift_findings (look, chain_id, criteria, criteria_hash, new_fingerprint, is_clear, judge, whole, "
        "agents, anchors, anchors_missing, compared_before, compared_after, meaning, is_event, confirmed_by) "
        "VALUES ('watch', 'k', 'c', 'h', 'f', true, '{}', '{}', '{}', 0, 0, 1, 1, '[]', true, $1)",
    ):
        await scoring.rows(statement, name)
    statement = "INSERT INTO anchor_sessions VALUES ($2, $1, now(), 'typical', $1, now())"
    await scoring.rows(statement, name, session_id)
    return claimed.score_id


async def test_no_column_of_any_table_holds_the_erased_person(scoring: Scoring) -> None:
    """Everything that the person did stays, under one pseudonym. Persons with longer names keep theirs."""
    await fill(scoring, "ada.l@corp", "one")
    await fill(scoring, "ada.l@corp.example", "two")
    counts = {t: await scoring.value(f"SELECT count(*) FROM {t}") for t in {place.table for place in PLACES}}
    name = re.compile(r"ada\.l@corp(?!\.example)")
    assert name.search(await everything(scoring))

    shown = await command(scoring, "--person", "ada.l@corp", "--json")
    done = await command(scoring, "--person", "ada.l@corp", "--yes", "--json")

    assert (shown.exit_code, done.exit_code) == (0, 0)
    wanted, document = json.loads(shown.stdout), json.loads(done.stdout)
    assert all(document["rows"].values())
    assert set(document["rows"]) == {place.table for place in PLACES} | {"kept_answers"}
    assert wanted == document | {"pseudonym": None, "erased": False}
    after = await everything(scoring)
    assert not name.search(after)
    assert "ada.l@corp.example" in after
    pseudonym = document["pseudonym"]
    for column, table in (("labelled_by", "score_labels"), ("requested_by", "scoring_requests")):
        assert pseudonym in {r[column] for r in await scoring.rows(f"SELECT {column} FROM {table}")}
    after = {t: await scoring.value(f"SELECT count(*) FROM {t}") for t in counts}
    assert after == counts | {"changes": counts["changes"] + 1}  # the erasure itself
    assert await scoring.rows("SELECT 1 FROM changes WHERE changed_by = $1 AND address IS NOT NULL", pseudonym) == []


@pytest.mark.parametrize(
    "arguments", [[], ["one", "--person", "ada"], ["--person", " "]], ids=["none", "both", "blank"]
)
async def test_either_sessions_or_a_person_are_erased(scoring: Scoring, arguments: list[str]) -> None:
    assert (await command(scoring, *arguments, "--yes")).exit_code == 2


async def test_every_column_that_names_a_person_is_erased(scoring: Scoring) -> None:
    """A new column of this kind must join the list."""
    rows: list[dict[str, Any]] = await scoring.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' "
        r"AND (column_name ~ '_by$' OR column_name IN ('caller', 'author', 'person', 'user_name')) "
        "AND table_name NOT IN (SELECT table_name FROM information_schema.views)"
    )
    known = {(p.table, p.column) for p in PLACES} | {("kept_answers", "caller")}
    assert {(r["table_name"], r["column_name"]) for r in rows} - known == set()
