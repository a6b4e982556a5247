"""`doctor` on real parts: a healthy environment fails no check, and each fault fails its own check with advice."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from builders import connected, role_on
from infrastructure import Topics, wait_until
from pooler import TransactionPooler
from processes import Service
from tarsy_scoring.commands.doctor import examine, examine_database
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.doctor import database as database_module
from tarsy_scoring.doctor.checks import CheckResult, run_checks
from tarsy_scoring.doctor.systems import broker_checks, judge_checks, source_checks
from tarsy_scoring.kafka.examine import read_topics
from tarsy_scoring_lab.scripted_judge import Fault, ScriptedJudge

DEAD = "127.0.0.1:9"


def by_name(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.name: result for result in results}


def the_fault(results: list[CheckResult], name: str) -> str:
    """Require that this check failed, and no other; returns what it found and advises."""
    failed = [result for result in results if result.state == "failed"]
    assert [result.name for result in failed] == [name], failed
    found = by_name(results)[name]
    assert found.advice
    return f"{found.found}; {found.advice}"


def skipped(results: list[CheckResult]) -> set[str]:
    return {result.name for result in results if result.state == "skipped"}


@pytest.fixture
async def topics(topics: Topics) -> Topics:
    """Topics that the broker shows to everyone, some time after it has created them."""
    options = {"bootstrap_servers": topics.bootstrap_servers}
    names = [topics.session_completed, topics.rescore_requested, topics.scoring_events, topics.dead_letters]

    async def are_known() -> bool:
        found = await read_topics(options, names)
        return len(found) == len(names) and all(topic.config for topic in found)

    await wait_until(are_known, 60, "the broker shows its new topics")
    return topics


# --- a healthy environment -----------------------------------------------------------------------------


async def test_a_healthy_environment_fails_no_check(
    tmp_path: Path, database_url: str, topics: Topics, judge: ScriptedJudge
) -> None:
    service = Service(tmp_path, database_url, topics, judge)

    whole = await service.run("doctor", "--json")
    without_judge = await service.run("doctor", "--no-judge")
    wrong_use = await service.run("doctor", "--all")

    states = {check["name"]: check["state"] for check in whole.document["checks"]}
    assert (whole.status, set(states.values())) == (0, {"ok"}), whole.stdout
    assert all(check.keys() == {"name", "state", "found", "advice"} for check in whole.document["checks"])
    assert judge.calls == 1
    assert (without_judge.status, judge.calls) == (0, 1)
    assert re.search(r"^skipped +judge +--no-judge", without_judge.stdout, re.MULTILINE)
    assert without_judge.stdout.endswith(f"{len(states) - 1} ok, 0 failed, 1 skipped\n")
    assert wrong_use.status == 2


async def test_without_settings_every_check_says_what_is_missing(tmp_path: Path) -> None:
    """What is missing is one failed check, a line for each setting; the systems without settings are skipped."""
    results = by_name(await examine(load_settings({"SCORING_TIMELINE_SOURCE": "files"}), with_judge=False))

    missing = {"database": "DATABASE_URL", "brokers": "KAFKA_BOOTSTRAP_SERVERS", "source": "TIMELINE_DIR"}
    assert results["settings"].state == "failed"
    for line, (name, variable) in zip(results["settings"].found.splitlines(), missing.items(), strict=False):
        assert line.startswith(f"SCORING_{variable} is not set")
        assert results[name].found.startswith(f"SCORING_{variable} is not set")
        assert results[name].state == "skipped"
    assert results["judge"].state == "skipped"


# --- the database --------------------------------------------------------------------------------------


async def look_at_database(url: str, **env: str) -> list[CheckResult]:
    return await examine_database(load_settings({"SCORING_DATABASE_URL": url, **env}))


async def change_database(url: str, change: str) -> None:
    """ALTER DATABASE; holds for new connections."""
    async with connected(url) as connection:
        await connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} {change}")


async def test_a_database_without_our_tables(empty_database_url: str) -> None:
    results = await look_at_database(empty_database_url)

    assert "run: tarsy-scoring migrate" in the_fault(results, "database-tables")
    assert skipped(results) == set()


async def test_a_role_without_the_privileges(database_url: str) -> None:
    """All missing privileges are named at once."""
    grants = (
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
        "REVOKE INSERT, DELETE ON sessions FROM {role}",
        "REVOKE SELECT ON pauses FROM {role}",
    )
    async with role_on(database_url, *grants) as (_, url):
        fault = the_fault(await look_at_database(url), "database-tables")

    assert "pauses, sessions" in fault
    assert "GRANT SELECT, INSERT, UPDATE, DELETE" in fault


async def test_a_read_only_database(database_url: str) -> None:
    await change_database(database_url, "SET default_transaction_read_only = on")

    results = await look_at_database(database_url)

    assert "default_transaction_read_only" in the_fault(results, "database")
    assert skipped(results) == {result.name for result in results} - {"database"}


async def test_a_role_whose_limits_cut_off_our_work(database_url: str) -> None:
    await change_database(database_url, "SET idle_session_timeout = '20s'")

    fault = the_fault(await look_at_database(database_url), "database-timeouts")

    assert "idle_session_timeout is 20 s" in fault
    assert "idle_session_timeout = 0" in fault


async def test_clocks_that_differ(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    really = database_module.time.time
    monkeypatch.setattr(database_module.time, "time", lambda: really() - 120)

    fault = the_fault(await look_at_database(database_url), "clock")

    assert re.search(r"\+1[12]\d\.\d s from ours; synchronise", fault), fault


async def test_a_transaction_pooler_that_loses_prepared_statements(database_url: str) -> None:
    async with TransactionPooler(database_url, servers=5) as pooler:
        results = await look_at_database(pooler.url)
        without = await look_at_database(pooler.url, SCORING_DATABASE_STATEMENT_CACHE="0")

    assert "SCORING_DATABASE_STATEMENT_CACHE=0" in the_fault(results, "database-pooler")
    assert "`migrate` needs a direct URL" in by_name(without)["database-pooler"].found
    assert {result.state for result in without} == {"ok"}, without


# --- the brokers ---------------------------------------------------------------------------------------


async def look_at_brokers(env: Mapping[str, str], config: Any = None) -> list[CheckResult]:
    settings = load_settings(env)
    return await run_checks(broker_checks(settings if config is None else config(settings)))


async def configure(topics: Topics, name: str, **config: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=topics.bootstrap_servers)
    await admin.start()
    changes = {key.replace("_", "."): value for key, value in config.items()}

    async def is_known() -> bool:
        [found] = await read_topics({"bootstrap_servers": topics.bootstrap_servers}, [name])
        return changes.items() <= (found.config or {}).items()

    try:
        [answer] = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, changes)])
        assert answer.resources[0][0] == 0, answer
        await wait_until(is_known, 30, "the broker knows the new configuration")
    finally:
        await admin.close()


async def test_brokers_that_cannot_be_reached(topics: Topics) -> None:
    results = await look_at_brokers(topics.env | {"SCORING_KAFKA_BOOTSTRAP_SERVERS": DEAD})

    assert "Connect call failed" in the_fault(results, "brokers")
    assert skipped(results) == {result.name for result in results} - {"brokers", "codecs"}


async def test_a_topic_that_is_missing(topics: Topics) -> None:
    env = topics.env | {"SCORING_TOPIC_DEAD_LETTERS": "no-such-topic"}

    fault = the_fault(await look_at_brokers(env), "topics")
    to_be_created = by_name(await look_at_brokers(env | {"SCORING_CREATE_TOPICS": "true"}))["topics"]

    assert "no topic no-such-topic" in fault
    assert "SCORING_CREATE_TOPICS=true" in fault
    assert (to_be_created.state, "no-such-topic" in to_be_created.found) == ("skipped", True)


async def test_topics_that_are_compacted_or_take_too_small_messages(topics: Topics) -> None:
    await configure(topics, topics.session_completed, cleanup_policy="compact")
    await configure(topics, topics.scoring_events, max_message_bytes="200000")
    await configure(topics, topics.dead_letters, max_message_bytes="50000")

    fault = the_fault(await look_at_brokers(topics.env), "topic-settings")

    assert f"{topics.scoring_events}: max.message.bytes must be" in fault
    assert f"{topics.dead_letters}: max.message.bytes must be" in fault
    assert f"{topics.session_completed}: cleanup.policy=delete" in fault


async def test_codecs_that_are_not_installed(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarsy_scoring.doctor.systems.has_codecs", lambda: False)

    assert "compressed with snappy, lz4 or zstd" in the_fault(await look_at_brokers(topics.env), "codecs")


# --- source and judge ----------------------------------------------------------------------------------


async def test_a_source_that_cannot_be_read() -> None:
    """`system/test_starting.py` has missing grants."""
    url = f"postgresql://tarsy@{DEAD}/tarsy"
    settings = load_settings({"SCORING_TIMELINE_SOURCE": "tarsy-db", "SCORING_TIMELINE_DATABASE_URL": url})

    assert "connection refused" in the_fault(await run_checks(source_checks(settings)), "source")
    settings = load_settings({"SCORING_WRITE_BACK_DATABASE_URL": url})
    assert "connection refused" in the_fault(await run_checks(source_checks(settings)), "write_back")


async def test_a_judge_that_refuses_the_key(judge: ScriptedJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-judge-key")
    judge.script(Fault(kind="status", status=401))

    results = await run_checks(judge_checks(load_settings({"OPENAI_BASE_URL": judge.base_url}), with_judge=True))

    assert "sk-planted" not in the_fault(results, "judge")
