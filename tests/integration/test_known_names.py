"""Workers with different criteria and chains: each score is left to a worker that knows its names."""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import yaml

from attempting import HASHES, REGISTRY, Service, a_timeline, open_service, watched
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge, FakeSessions
from infrastructure import wait_until
from tarsy_scoring.events import SOURCE_RESCORE
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.queue.known_names import announce, fail_unknown
from tarsy_scoring.scoring import worker as worker_module
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.telemetry.metrics import Metrics

COMMON, NEW = "cli-tool-use", "investigation"
GRACE_S = 900.0


@dataclass
class Site:
    """A worker with its own configuration, on the database of all; its source gives the session this chain."""

    service: Service
    source_chain: str | None
    judges: dict[str, FakeJudge] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.service.settings.config.providers:
            self.judges[name] = FakeJudge(ANALYSIS, MISSING_TOOLS)
            self.judges[name].provider = name
        known = self.service.inbox.policy.hashes
        timeline = a_timeline(chain_id=self.source_chain)
        registry = CriteriaRegistry(c for c in REGISTRY if c.name in known)
        self.worker = Worker(
            settings=self.service.settings,
            leases=self.service.leases,
            scorer=self.service.scorer(self.judges, timeline, registry=registry),
            source=watched(FakeSessions(one=timeline)),
            metrics=Metrics(),
            limits=Limits(self.service.database, self.service.settings),
        )

    @property
    def asked(self) -> list[str]:
        """Providers that received data."""
        return [name for name, judge in self.judges.items() if judge.asked]

    async def claims(self) -> int:
        return await self.worker.claim(5)

    async def ends(self) -> dict[str, Any]:
        """The newest score, once no attempt runs."""
        await wait_until(lambda: not self.worker._running, 30, "the attempt ends")
        return await self.newest()

    async def newest(self) -> dict[str, Any]:
        statement = "SELECT * FROM session_scores ORDER BY created_at DESC LIMIT 1"
        return dict((await self.service.database.fetch(statement))[0])

    async def wait_on(self, seconds: float) -> None:
        """Age every due time and every announcement."""
        await self.service.database.fetch(
            "UPDATE session_scores SET next_attempt_at = next_attempt_at - make_interval(secs => $1)", seconds
        )
        await self.service.database.fetch(
            "UPDATE known_names SET seen_at = seen_at - make_interval(secs => $1)", seconds
        )


@asynccontextmanager
async def site(
    database_url: str,
    folder: Path,
    *,
    criteria: tuple[str, ...] = tuple(HASHES),
    grace_s: float = GRACE_S,
    source_chain: str | None = "k",
    env: Mapping[str, str] = MappingProxyType({}),
    **chains: dict[str, Any],
) -> AsyncIterator[Site]:
    """A worker that knows these criteria and chains. Sessions of other chains go to the provider `main`."""
    providers = {name: {"api_key_env": None, "model": "judge-1"} for name in ("main", "private")}
    config = {"providers": providers, "defaults": {"providers": ["main"]}, "chains": chains}
    path = folder / f"{uuid.uuid4()}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    variables = {"SCORING_CONFIG": str(path), "SCORING_UNKNOWN_CRITERIA_GRACE_S": str(grace_s)}
    async with open_service(database_url, **variables | env) as service:
        service.inbox.policy = Policy(service.settings, {name: HASHES[name] for name in criteria})
        yield Site(service, source_chain)


PRIVATE = {"providers": ["private"]}


# --- criteria ------------------------------------------------------------------------------------------


async def test_the_worker_that_knows_the_criteria_judges(database_url: str, tmp_path: Path) -> None:
    async with (
        site(database_url, tmp_path, criteria=(COMMON,)) as old,
        site(database_url, tmp_path, criteria=(COMMON, NEW)) as new,
    ):
        await new.service.request(source=SOURCE_RESCORE, criteria=NEW, force=True)

        assert (await old.claims(), await new.claims()) == (0, 1)
        assert (await new.ends())["status"] == "completed"
        assert (old.asked, new.asked) == ([], ["main"])


async def test_criteria_that_no_worker_knows_fail_after_the_grace(database_url: str, tmp_path: Path) -> None:
    """The reason names them, and the deferred request of the session is promoted."""
    async with site(database_url, tmp_path) as only:
        await only.service.request(source=SOURCE_RESCORE, criteria="house-rules", force=True)
        await only.service.request(source=SOURCE_RESCORE, force=True)
        await announce(only.service.inbox)
        assert await only.claims() == 0
        await only.wait_on(GRACE_S - 60)
        assert await fail_unknown(only.service.inbox, GRACE_S) == []

        await only.wait_on(61)
        await announce(only.service.inbox)
        [failed] = await fail_unknown(only.service.inbox, GRACE_S)

        score = await only.service.score(failed["score_id"])
        assert (score["status"], score["error_kind"]) == ("failed", "unknown_criteria")
        assert '"house-rules"' in score["error_message"]
        (*_, last) = await only.service.events(failed["score_id"])
        assert (last["type"], last["error_kind"]) == ("scoring.failed", "unknown_criteria")
        assert await only.claims() == 1
        assert (await only.ends())["status"] == "completed"


@pytest.mark.parametrize(
    ("chain", "disposition", "claims"),
    [({}, "accepted", 1), ({"enabled": False}, "disabled", 0)],
    ids=["scored", "disabled-meanwhile"],
)
async def test_an_automatic_request_outlives_misspelt_criteria_that_it_joined(
    database_url: str, tmp_path: Path, chain: dict[str, Any], disposition: str, claims: int
) -> None:
    """It is decided about again when the score fails."""
    async with site(database_url, tmp_path) as before, site(database_url, tmp_path, k=chain) as after:
        await before.service.request(source=SOURCE_RESCORE, criteria="house-rules", force=True)
        await before.service.request()
        await before.service.request()
        await after.wait_on(GRACE_S + 1)
        await announce(after.service.inbox)

        [failed] = await fail_unknown(after.service.inbox, GRACE_S)

        statement = "SELECT disposition FROM scoring_requests WHERE source = 'session-completed' ORDER BY received_at"
        rows = await after.service.database.fetch(statement)
        assert failed["error_kind"] == "unknown_criteria"
        assert [r["disposition"] for r in rows] == [disposition, "in_progress"]
        assert await after.claims() == claims


async def test_a_backlog_longer_than_the_grace_fails_nothing_that_a_worker_knows(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        site(database_url, tmp_path, criteria=(COMMON,)) as one,
        site(database_url, tmp_path, criteria=(NEW,), billing=PRIVATE) as other,
    ):
        await other.service.request("one", criteria=NEW, chain_id="k")
        await other.service.request("two", criteria=NEW, chain_id="billing")
        await other.service.request("three", chain_id=None)
        await one.wait_on(10 * GRACE_S)
        await announce(other.service.inbox)
        await one.wait_on(GRACE_S - 1)

        assert await fail_unknown(one.service.inbox, GRACE_S) == []

        await one.wait_on(2)
        failed = {s["session_id"]: s["error_kind"] for s in await fail_unknown(one.service.inbox, GRACE_S)}
        assert failed == {"one": "unknown_criteria", "two": "unknown_criteria"}  # any worker may judge the third


async def test_a_worker_fails_nothing_before_all_could_announce_their_names(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start or an outage, announcements are old although their workers live."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now.s))
    async with site(database_url, tmp_path) as only:
        await only.service.request(source=SOURCE_RESCORE, criteria="house-rules", force=True)
        await only.wait_on(10 * GRACE_S)
        statuses = []
        # It announces at the start, once after an outage of an hour, and then four times in each grace.
        for at_s in (0, 3600, *(3600 + n * GRACE_S / 4 for n in range(1, 5))):
            now.s = at_s
            await only.worker.announce_names()
            statuses.append((await only.newest())["status"])

        assert statuses == ["pending"] * 5 + ["failed"]
        sample = only.worker.metrics.registry.get_sample_value
        labels = {"status": "failed", "error_kind": "unknown_criteria", "chain": "other"}
        assert sample("tarsy_scoring_scores_total", labels) == 1


# --- chains --------------------------------------------------------------------------------------------


async def test_sessions_of_a_removed_chain_reach_no_other_provider(database_url: str, tmp_path: Path) -> None:
    """Its score fails after the grace. A person who asks again has the session scored under the defaults."""
    async with (
        site(database_url, tmp_path, billing=PRIVATE) as before,
        site(database_url, tmp_path, source_chain="billing") as after,
    ):
        await before.service.request(chain_id="billing")
        await announce(after.service.inbox)

        assert (await after.claims(), await fail_unknown(after.service.inbox, GRACE_S)) == (0, [])
        await after.wait_on(GRACE_S + 1)
        await announce(after.service.inbox)
        [failed] = await fail_unknown(after.service.inbox, GRACE_S)

        score = await after.service.score(failed["score_id"])
        assert (score["error_kind"], '"billing"' in score["error_message"], after.asked) == ("unknown_chain", True, [])
        await after.service.request(source=SOURCE_RESCORE, chain_id="billing", force=True)
        assert await after.claims() == 1
        await after.ends()
        assert after.asked == ["main"]


async def test_a_worker_without_a_new_chain_leaves_it_to_those_that_have_it(database_url: str, tmp_path: Path) -> None:
    """Also if an intake that does not name the chain accepted the request."""
    async with (
        site(database_url, tmp_path) as old,
        site(database_url, tmp_path, source_chain="billing", billing=PRIVATE) as new,
    ):
        await old.service.request(chain_id="billing")
        await announce(new.service.inbox)

        assert (await old.claims(), await new.claims()) == (0, 1)
        await new.ends()
        assert (old.asked, new.asked) == ([], ["private"])


@pytest.mark.parametrize(
    ("chain", "status", "asked"),
    [
        pytest.param(PRIVATE, "completed", ["private"], id="scored"),
        pytest.param(PRIVATE | {"enabled": False}, "cancelled", [], id="declined"),
    ],
)
async def test_a_chain_that_only_the_source_names_is_left_to_workers_that_have_it(
    database_url: str, tmp_path: Path, chain: dict[str, Any], status: str, asked: list[str]
) -> None:
    """The settings of these workers decide whether and how the session is scored."""
    async with site(database_url, tmp_path) as old, site(database_url, tmp_path, k=chain) as new:
        await old.service.request(chain_id=None)
        await announce(new.service.inbox)

        assert await old.claims() == 1
        assert (await old.ends())["status"] == "pending"
        assert (await old.claims(), await new.claims()) == (0, 1)
        assert (await new.ends())["status"] == status
        assert (old.asked, new.asked) == ([], asked)


# --- an event and the source that name different chains ------------------------------------------------

PUBLIC = {"providers": ["main"], "criteria": COMMON}


async def flags_of(site: Site) -> list[str]:
    flags: list[str] = (await site.newest())["flags"]
    return [flag for flag in flags if flag == "chain_mismatch"]


@pytest.mark.parametrize("chains", [{"public": PUBLIC}, {}], ids=["named", "not-named"])
async def test_an_event_cannot_choose_the_providers_of_another_chain(
    database_url: str, tmp_path: Path, chains: dict[str, Any]
) -> None:
    """Nor its criteria; the score shows that the event tried."""
    async with site(database_url, tmp_path, k=PRIVATE, **chains) as only:
        await only.service.request(chain_id="public")

        assert await only.claims() == 1
        score = await only.ends()
        assert (only.asked, score["chain_id"], score["criteria"]) == (["private"], "k", NEW)
        assert await flags_of(only) == ["chain_mismatch"]
        [session] = await only.service.database.fetch("SELECT chain_id FROM sessions")
        assert session["chain_id"] == "k"


@pytest.mark.parametrize(
    ("named", "source_chain", "env"),
    [
        pytest.param("public", None, {}, id="the-source-knows-none"),
        pytest.param("public", "public", {}, id="both-agree"),
        pytest.param("public", "k", {"SCORING_EVENTS_CHOOSE_CHAINS": "true"}, id="allowed"),
    ],
)
async def test_the_chain_of_an_event_counts(
    database_url: str, tmp_path: Path, named: str, source_chain: str | None, env: dict[str, str]
) -> None:
    chains = {"public": PUBLIC | {"criteria": NEW}, "k": PRIVATE}
    async with site(database_url, tmp_path, source_chain=source_chain, env=env, **chains) as only:
        await only.service.request(chain_id=named)

        assert await only.claims() == 1
        assert ((await only.ends())["chain_id"], only.asked) == ("public", ["main"])
        assert await flags_of(only) == []
