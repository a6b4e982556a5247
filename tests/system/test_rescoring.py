"""Sessions that are scored again by event, by `rescore` and by `backfill`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from processes import Service, assert_whole
from tarsy_scoring.judge import criteria as shipped
from tarsy_scoring_lab.scripted_judge import MODEL, Fault


@pytest.fixture
def own_criteria(service: Service) -> dict[str, str]:
    """The environment of an operator with two own criteria files."""
    folder = service.folder / "criteria"
    folder.mkdir()
    file = Path(shipped.__file__).parent / "shipped_criteria" / "investigation-methodology.yaml"
    content: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    for name in ("strict", "lenient"):
        changed = content | {"name": name, "system_prompt": f"{content['system_prompt']}\nBe {name}."}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(changed), encoding="utf-8")
    config = service.folder / "config.yaml"
    config.write_text(yaml.safe_dump({"criteria_dirs": [str(folder)]}), encoding="utf-8")
    return {"SCORING_CONFIG": str(config)}


async def test_a_rescore_event_keeps_history(service: Service) -> None:
    """The new score leaves the first as it was and, requested by a person, has the highest priority."""
    service.worker()
    events = await service.announce(*service.add_sessions(1))
    first = await service.score_becomes("session-0000", "completed")
    events.append(await service.ask_again("session-0000", "again", requested_by="ada", reason="better tools"))
    assert await service.disposition("again") == "accepted"
    second = await service.score_becomes("session-0000", "completed", score_triggered_by="ada")
    await assert_whole(service, events)
    assert second["priority"] == 0
    assert dict((await service.rows("SELECT * FROM session_scores ORDER BY created_at"))[0]) == dict(first)


async def test_the_command_requests_named_sessions_and_selections(service: Service) -> None:
    service.worker()
    service.judge.script(Fault(kind="refusal", match="alert of session-0001 "))
    ok, refused = await service.announce(*service.add_sessions(2))
    await service.all_end(2)
    named = await service.run("rescore", "session-0000", "--json", USER="ada")
    assert (named.status, named.document["dispositions"], named.document["done"]) == (0, {"accepted": 1}, True)
    await service.all_end(3)
    counted = await service.run("rescore", "--failed", "--error-kind", "refused", "--json")
    shown = counted.document
    estimate = shown.pop("estimate")
    assert (counted.status, shown) == (0, {"sessions": 1, "dispositions": {}, "done": False})
    assert estimate["chains"] == [{"chain_id": "kubernetes", "sessions": 1}]
    assert (estimate["tokens"]["unknown"], estimate["cost_usd"]["unknown"]) == (0, 1)
    service.judge.clear()
    done = await service.run("rescore", "--failed", "--yes", "--json")
    sent = {"sessions": 1, "dispositions": {"accepted": 1}, "done": True, "estimate": estimate}
    assert (done.status, done.document) == (0, sent)
    await service.all_end(4)
    await assert_whole(service, [ok], failed=[refused])
    newest = {s: await service.score_becomes(s, "completed") for s in ("session-0000", "session-0001")}
    assert (newest["session-0000"]["priority"], newest["session-0000"]["score_triggered_by"]) == (0, "ada")
    assert newest["session-0001"]["priority"] == 2


async def test_obsolete_scores_are_requested_again(service: Service, own_criteria: dict[str, str]) -> None:
    config = service.folder / "config.yaml"
    judge = {"base_url": service.judge.base_url, "model": MODEL, "api_key_env": "OPENAI_API_KEY"}
    prices = {"prices_usd_per_million_tokens": {"input": 1000, "output": 1000}}
    content = yaml.safe_load(config.read_text()) | {"providers": {"main": judge | prices}}
    defaults = {"criteria": "lenient", "providers": ["main"]}
    config.write_text(yaml.safe_dump(content | {"defaults": defaults}))
    worker = service.worker(**own_criteria)
    events = await service.announce(*service.add_sessions(2))
    await service.all_end(2)
    taken = "SELECT sum((usage->>'input_tokens')::int + (usage->>'output_tokens')::int)::int FROM session_scores"
    tokens = await service.value(taken)
    await worker.stop()
    none = await service.run("rescore", "--obsolete", "--json", **own_criteria)
    assert (none.document["sessions"], none.document["done"]) == (0, True)

    config.write_text(yaml.safe_dump(content | {"defaults": defaults | {"criteria": "strict"}}))
    shown = await service.run("rescore", "--obsolete", **own_criteria)
    assert shown.status == 0
    assert shown.stdout.splitlines() == [
        "2 sessions would be scored: 2 of kubernetes",
        f"  tokens: about {tokens:,}, as chains use on average",
        f"  cost: about {tokens / 1000:,.2f} USD, as chains use on average",
        "  not looked up: sessions that the source no longer has fail, without cost",
        "nothing was sent; add --yes to send it",
    ]
    assert await service.count("true") == 2
    done = await service.run("rescore", "--obsolete", "--yes", **own_criteria)
    assert done.stdout.splitlines()[-1] == "2 sessions: 2 accepted"

    service.worker(**own_criteria)
    await service.all_end(4)
    await assert_whole(service, events)
    assert await service.count("criteria = 'strict' AND status = 'completed' AND priority = 2") == 2
    after = await service.run("rescore", "--obsolete", "--json", **own_criteria)
    assert after.document["sessions"] == 0


# --- backfill ------------------------------------------------------------------------------------------


async def test_backfill_requests_sessions_without_a_score(service: Service) -> None:
    """Terminal sessions since a time, oldest first and with the lowest priority; a second run finds none."""
    service.worker()
    scored = await service.announce(*service.add_sessions(1, "scored"))
    await service.all_end(1)
    for session, changes in {
        "new": {"completed_at": "2026-01-07T00:00:00Z"},
        "older": {"completed_at": "2026-01-06T00:00:00Z"},
        "too-old": {"completed_at": "2025-12-31T23:59:59Z"},
        "failed": {"completed_at": "2026-01-07T00:00:00Z", "status": "failed"},
        "running": {"completed_at": None, "status": "in_progress"},
        "elsewhere": {"completed_at": "2026-01-08T00:00:00Z", "chain_id": "billing"},
    }.items():
        service.add_session(session, **changes)
    (service.sessions / "long-integer.json").write_text("9" * 5_000)
    (service.sessions / "circle.json").symlink_to("circle.json")

    shown = await service.run("backfill", "--since", "2026-01-01")
    assert (shown.status, shown.stderr.count("timeline.file_left_out")) == (0, 2)
    first, tokens, cost, hint = shown.stdout.splitlines()
    assert first == "3 sessions would be scored: 1 of billing, 2 of kubernetes"
    assert tokens.endswith("as chains use on average (1 session unknown and not counted)")
    assert (cost, hint) == ("  cost: unknown", "nothing was sent; add --yes to send it")
    assert await service.count("true") == 1
    of_a_chain = await service.run("backfill", "--since", "2026-01-01", "--chain", "billing", "--json")
    assert (of_a_chain.status, of_a_chain.document["sessions"], of_a_chain.document["done"]) == (0, 1, False)

    done = await service.run("backfill", "--since", "2026-01-01", "--yes", "--json")
    assert (done.status, done.document["dispositions"], done.document["done"]) == (0, {"accepted": 3}, True)
    await service.all_end(4)
    await assert_whole(service, scored)
    queued = await service.rows(
        "SELECT session_id FROM scoring_events JOIN session_scores USING (score_id, session_id) "
        "WHERE payload->>'phase' = 'queued' AND priority = 2 ORDER BY entry"
    )
    assert [r["session_id"] for r in queued] == ["older", "new", "elsewhere"]
    assert await service.count("priority = 2 AND status = 'completed' AND purpose = 'production'") == 3
    again = await service.run("backfill", "--since", "2026-01-01", "--json")
    assert (again.document["sessions"], again.document["done"]) == (0, True)


async def test_backfill_selects_what_is_scored_automatically(service: Service) -> None:
    """
    By status, `enabled` and sample of the chain. It counts the rest by reason; `--all` takes it, but for the status.
    """
    config = service.folder / "config.yaml"
    off, sampled = {"enabled": False, "auto_score_statuses": ["failed"]}, {"sample_rate": 0}
    config.write_text(yaml.safe_dump({"chains": {"off": off, "sampled": sampled}}))
    env = {"SCORING_CONFIG": str(config)}
    service.add_session("on")
    for name in ("sampled-1", "sampled-2"):
        service.add_session(name, chain_id="sampled")
    service.add_session("off", chain_id="off", status="failed")
    service.add_session("never", chain_id="off")
    service.worker(**env)

    shown = await service.run("backfill", "--since", "2026-01-01", **env)
    assert "1 session would be scored: 1 of kubernetes" in shown.stdout
    why = "1 where automatic scoring is off, 2 outside the sample of their chain; --all takes them too"
    assert f"left out: {why}" in shown.stdout
    nothing_on = await service.run("backfill", "--since", "2026-01-01", "--json", SCORING_ENABLED="false", **env)
    assert (nothing_on.document["sessions"], nothing_on.document["left_out"]) == (0, {"disabled": 4})

    done = await service.run("backfill", "--since", "2026-01-01", "--all", "--yes", "--json", **env)
    assert (done.document["dispositions"], done.document["left_out"]) == ({"accepted": 4}, {})
    await service.score_becomes("off", "completed")
    assert await service.score_of("never") is None
