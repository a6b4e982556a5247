"""
The metrics and the health of all processes of one command, at the address of its first process.

Each series gets the label `process`, as if Prometheus scraped every process by itself. Sums would be wrong:
they fall
when one process is restarted, and Prometheus takes a counter that falls for one that began again at 0.
"""

import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tarsy_scoring.processes.supervisor import Member

ANSWER_S = 2.0  # less than the time limit of probes
ENDING_EVERY_S = 0.1

Answer = tuple[Literal["ok", "not_ok", "not_listening", "silent"], str]


def listening_address(member: Member, number: int) -> str:
    """The abstract Unix socket of a process: no file is left of it, and its name is random."""
    return f"\0tarsy-scoring-{member.secret}-{number}"


class Siblings:
    """The other processes of a command, as its first process sees them."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._numbers = [n for n in range(1, member.count + 1) if n != member.number]

    async def expose(self, own: bytes) -> bytes:
        """The metrics of this process, `own`, and of all others that answer."""
        answers = await self._ask_all("/metrics")
        texts = {number: text for number, (state, text) in answers.items() if state == "ok"}
        return with_label({self._member.number: own.decode(), **texts})

    async def missing(self) -> str | None:
        """What the others lack to be ready; None: nothing."""
        for number, (state, text) in (await self._ask_all("/readyz")).items():
            if state != "ok":
                reason = json.loads(text)["reason"] if state == "not_ok" else state.replace("_", " ")
                return f"process {number}: {reason}"
        return None

    async def hanging(self) -> int | None:
        """A process that takes a connection and gives no answer; None: all answer, or are being restarted."""
        answers = await self._ask_all("/healthz")
        return next((number for number, (state, _) in answers.items() if state == "silent"), None)

    async def ended(self) -> None:
        """
        Return when none of the others listens. A process of a worker listens until its judging has ended.
        """
        while True:
            answers = await self._ask_all("/healthz")
            if all(state == "not_listening" for state, _ in answers.values()):
                return
            await asyncio.sleep(ENDING_EVERY_S)

    async def _ask_all(self, path: str) -> dict[int, Answer]:
        answers = await asyncio.gather(*(self._ask(number, path) for number in self._numbers))
        return dict(zip(self._numbers, answers, strict=True))

    async def _ask(self, number: int, path: str) -> Answer:
        # HTTP by hand: the clients at hand connect through libuv, which takes no abstract address.
        with socket.socket(socket.AF_UNIX) as unix:
            unix.setblocking(False)
            try:
                async with asyncio.timeout(ANSWER_S):
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(unix, listening_address(self._member, number))
                    await loop.sock_sendall(unix, f"GET {path} HTTP/1.0\r\n\r\n".encode())
                    answer = b""
                    while part := await loop.sock_recv(unix, 1 << 16):
                        answer += part
            except TimeoutError:
                return "silent", ""
            except OSError:
                return "not_listening", ""
        head, _, body = answer.partition(b"\r\n\r\n")
        return "ok" if b" 200 " in head.partition(b"\r\n")[0] else "not_ok", body.decode()


class _Families(Collector):
    def __init__(self) -> None:
        self.by_name: dict[str, Metric] = {}

    def collect(self) -> list[Metric]:
        return list(self.by_name.values())


def with_label(texts: Mapping[int, str]) -> bytes:
    """The metrics of several processes as one text, each series with the label `process`."""
    families = _Families()
    for number, text in texts.items():
        for family in text_string_to_metric_families(text):
            merged = families.by_name.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                merged.add_sample(sample.name, sample.labels | {"process": str(number)}, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(families)
    return generate_latest(registry)
