"""Clean sessions of other programs cost two calls each, on a real database and over HTTP."""

from pathlib import Path

from attempting import open_service, watched
from clean_traces import TRACES
from fakes import FakeSessions
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

CONFIG = """
providers:
  main: {{base_url: "{base_url}", api_key_env: null, model: judge-1}}
"""


async def test_a_clean_session_takes_two_calls_and_no_flag(
    database_url: str, judge: ScriptedJudge, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(base_url=judge.base_url), "utf-8")
    async with open_service(database_url, SCORING_CONFIG=str(config)) as service:
        clients = create_clients(service.settings, {})
        scorer = service.scorer(clients, source=watched(FakeSessions(**{n: t.session for n, t in TRACES.items()})))
        for name in TRACES:
            await service.request(name, chain_id="kubernetes")
        ended = [(await scorer.attempt(await service.claim())).outcome for _ in TRACES]
        rows = await service.database.fetch("SELECT session_id, flags FROM session_scores WHERE flags <> '[]'")
        turns = await service.database.fetch("SELECT kind, count(*)::int AS n FROM judge_turns GROUP BY kind")
        for client in clients.values():
            await client.close()

    assert ended == ["completed"] * 30
    assert [dict(row) for row in rows] == []
    assert {row["kind"]: row["n"] for row in turns} == {"analysis": 30, "missing_tools": 30}
    assert judge.calls == 60
