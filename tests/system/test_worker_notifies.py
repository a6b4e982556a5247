"""A real worker notifies a webhook of a score that it has given, and its stop loses no message."""

from pathlib import Path

import yaml

from infrastructure import wait_until
from processes import Service
from receiver import open_receiver


async def test_a_worker_notifies_of_a_low_score(service: Service, tmp_path: Path) -> None:
    service.add_session("session-1")
    oncall = {"type": "webhook", "url_env": "HOOK", "secret_env": "HOOK_SECRET", "score_below": 100}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"destinations": {"oncall": oncall}}))
    async with open_receiver() as receiver:
        env = {"SCORING_CONFIG": str(config), "HOOK": receiver.url, "HOOK_SECRET": "a-key-of-signatures"}
        worker = service.worker(**env)
        await wait_until(lambda: worker.lines("delivery.first_start"), 60, "the destination has its bookmark")
        event = b'{"session_id": "session-1", "event_id": "event-1"}'
        await service.send(service.topics.session_completed, [(b"session-1", event)])
        await wait_until(lambda: receiver.received, 60, "the message")
        assert await worker.stop() == 0
    [document] = receiver.documents
    assert (document["type"], document["session_id"]) == ("score_below", "session-1")
    assert "a-key-of-signatures" not in worker.log
    assert receiver.url not in worker.log
