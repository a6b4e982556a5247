"""What the processes of one worker may use adds up to the settings of the worker, and none gets too little."""

from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Config, ProviderSettings, Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.processes import cores, division
from tarsy_scoring.processes.division import count_processes, divide


def settings_of(max_concurrency: int | None = None, **fields: Any) -> Settings:
    config = Config(providers={"default": ProviderSettings(max_concurrency=max_concurrency)})
    return Settings(config=config, **fields)


def test_parts_add_up_and_the_first_get_the_remainders() -> None:
    settings = settings_of(max_concurrency=7, slots=11, database_connections=17, timeline_database_connections=8)

    parts = [divide(settings, 3, number) for number in (1, 2, 3)]

    assert [p.slots for p in parts] == [4, 4, 3]
    assert [p.database_connections for p in parts] == [6, 6, 5]
    assert [p.timeline_database_connections for p in parts] == [3, 3, 2]
    assert [p.config.providers["default"].max_concurrency for p in parts] == [3, 2, 2]


def test_calls_without_a_limit_stay_without_one() -> None:
    assert divide(settings_of(), 2, 1).config.providers["default"].max_concurrency is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"slots": 2}, "SCORING_SLOTS is 2: each process needs 1 of them", id="slots"),
        pytest.param({"database_connections": 11}, "SCORING_DATABASE_CONNECTIONS is 11: .* raise .* to 12", id="own"),
        pytest.param(
            {"timeline_source": "tarsy-db", "timeline_database_connections": 2},
            "SCORING_TIMELINE_DATABASE_CONNECTIONS is 2",
            id="TARSy's",
        ),
        pytest.param({"max_concurrency": 1}, "providers.default.max_concurrency is 1: .* at most 1", id="calls"),
    ],
)
def test_a_process_that_would_get_too_little_is_a_wrong_setting(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        count_processes(settings_of(processes=3, **fields))


def test_connections_to_tarsy_that_are_not_used_need_not_suffice() -> None:
    assert count_processes(settings_of(processes=3, timeline_source="files", timeline_database_connections=1)) == 3


@pytest.mark.parametrize(("usable", "expected"), [(1, 1), (3, 3), (64, 4)])
def test_auto_takes_the_usable_cores_as_far_as_there_is_enough(
    monkeypatch: pytest.MonkeyPatch, usable: int, expected: int
) -> None:
    monkeypatch.setattr(division, "count_usable_cores", lambda: usable)

    settings = load_settings({"SCORING_PROCESSES": "auto", "OPENAI_API_KEY": "k"})

    assert count_processes(settings) == expected  # 16 connections suffice for 4


def test_the_variable_is_a_number_or_auto() -> None:
    assert load_settings({"SCORING_PROCESSES": "2"}).processes == 2
    with pytest.raises(ConfigurationError, match="SCORING_PROCESSES"):
        load_settings({"SCORING_PROCESSES": "0"})


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [
        pytest.param("max 100000", "max 100000", 8, id="no limit"),
        pytest.param("150000 100000", "max 100000", 2, id="rounded up"),
        pytest.param("max 100000", "50000 100000", 1, id="limit of a group above"),
        pytest.param("6400000 100000", "max 100000", 8, id="limit beyond the cores"),
        pytest.param(None, None, 8, id="no cgroup v2"),
    ],
)
def test_usable_cores_heed_the_limit_of_the_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, above: str | None, expected: int
) -> None:
    (tmp_path / "pod/worker").mkdir(parents=True)
    (tmp_path / "self").write_text("4:memory:/elsewhere\n0::/pod/worker\n")
    for folder, limit in (("pod/worker", own), ("pod", above)):
        if limit is not None:
            (tmp_path / folder / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "OWN_CGROUP", tmp_path / "self")
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)))

    assert cores.count_usable_cores() == expected
