"""A worker that dies between the two judgements of a score."""

import json
import signal

from processes import Service
from tarsy_scoring_lab.scripted_judge import Fault

CHAIN = {"criteria": "investigation", "second_opinion": "edges", "providers": ["main", "spare"]}


async def test_the_first_judgement_is_not_paid_for_again(service: Service) -> None:
    """The next worker asks only the second judge. Both providers are one scripted judge."""
    provider = {"base_url": service.judge.base_url, "api_key_env": None}
    config = {"providers": {"main": provider, "spare": provider}, "defaults": CHAIN}
    file = service.folder / "scoring.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    service.env |= {"SCORING_CONFIG": str(file)}
    reply = "It looks at E1 only.\n\nOutcome: partial\n\n58"
    service.judge.script(Fault(kind="reply", turn="analysis", content=reply))
    await service.announce(*service.add_sessions(1))

    assert await service.worker(dies_at="before-judge:3").ended() == -signal.SIGKILL
    before = dict(service.judge.calls_by_turn)
    service.worker()
    await service.all_end(1, without_backoff=True)

    (score,) = await service.rows("SELECT * FROM session_scores")
    assert before == {"analysis": 1, "missing_tools": 1}
    assert service.judge.calls_by_turn == {"analysis": 2, "missing_tools": 1}
    assert json.loads(score["second_opinion"])["agrees"] is True
    kinds = await service.rows("SELECT kind, provider FROM judge_turns ORDER BY ordinal")
    assert [tuple(row) for row in kinds] == [
        ("analysis", "main"), ("missing_tools", "main"), ("second_opinion", "spare"),
    ]  # fmt: skip
