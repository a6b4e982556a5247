"""`notify` sends what stands on the topic, each target on its own, and goes on where it stopped."""

from pathlib import Path

import yaml

from infrastructure import wait_until
from processes import Service
from receiver import Receiver, open_receiver

SECRET = "a-key-of-signatures"


async def test_each_target_gets_its_messages_once_and_a_dead_one_holds_up_itself(
    service: Service, tmp_path: Path
) -> None:
    hook = {"type": "webhook", "secret_env": "HOOK_SECRET", "score_below": 100}
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump({"notifications": {name: hook | {"url_env": name.upper()} for name in ("alive", "dead")}})
    )
    async with open_receiver() as alive, open_receiver() as dead:
        dead.answers.extend([503] * 3)
        env = {"SCORING_CONFIG": str(config), "ALIVE": alive.url, "DEAD": dead.url, "HOOK_SECRET": SECRET}
        worker = service.worker()
        await worker.ready()
        first = service.command("notify", **env)
        await first.ready()
        await service.announce(*service.add_sessions(2))
        await wait_until(lambda: ids(alive) and len(ids(alive)) == 2, 60, "both messages")
        await wait_until(lambda: len(set(ids(dead))) == 2, 60, "the messages of the target that came back")
        assert await first.stop() == 0
        second = service.command("notify", **env)
        await second.ready()
        await service.announce(*service.add_sessions(1, "more"))
        await wait_until(lambda: len(ids(alive)) == 3, 60, "the third message")
        assert await second.stop() == 0
        assert await worker.stop() == 0
    assert len(set(ids(alive))) == 3
    assert first.lines("notification.waiting", target="dead")
    assert not first.lines("notification.waiting", target="alive")
    for process in (first, second):
        assert SECRET not in process.log
        assert alive.url not in process.log
        assert dead.url not in process.log


def ids(receiver: Receiver) -> list[str]:
    return [document["event_id"] for document in receiver.documents]
