"""Two providers in a worker process: the second continues where the first stopped."""

import json

import pytest

from processes import Service, assert_whole
from tarsy_scoring_lab.scripted_judge import Fault


@pytest.mark.slow
async def test_the_second_provider_continues_the_first_ones_turns(service: Service) -> None:
    """The first provider's analysis is paid for once; the second is asked only for what the first refused."""
    provider = {"base_url": service.judge.base_url, "api_key_env": None}
    providers = {"main": provider | {"model": "main-model"}, "spare": provider | {"model": "spare-model"}}
    config = {"providers": providers, "defaults": {"providers": ["main", "spare"]}}
    (service.folder / "limits.yaml").write_text(json.dumps(config), "utf-8")  # JSON is YAML
    service.judge.script(Fault(kind="status", status=401, turn="missing_tools", match="main-model"))
    service.worker(SCORING_CONFIG=str(service.folder / "limits.yaml"))
    events = await service.announce(*service.add_sessions(1))
    await service.all_end(1)
    await assert_whole(service, events)
    turns = await service.rows("SELECT kind, model_requested FROM judge_turns ORDER BY ordinal")
    assert [tuple(t) for t in turns] == [("analysis", "main-model"), ("missing_tools", "spare-model")]
    assert await service.count("flags @> '[\"missing_tools_unavailable\"]'") == 0
