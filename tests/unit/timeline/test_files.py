"""Session files: absent fields are tolerated, present ones are checked."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarsy_scoring.errors import (
    ConfigurationError,
    SessionNotFound,
    SessionNotTerminal,
    SessionTooLarge,
    TimelineUnavailable,
)
from tarsy_scoring.timeline.files import BrokenSessionFile, SessionFiles, load_session_file, parse_session
from tarsy_scoring.timeline.model import FoundSession

# One agent with a thought and a call, stored in the wrong order.
SESSION = (Path(__file__).parent / "session.json").read_text("utf-8")


def session(**changes: Any) -> dict[str, Any]:
    return json.loads(SESSION) | changes


def written(directory: Path, content: Any, name: str = "one") -> Path:
    path = directory / f"{name}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def test_session_is_found_by_its_id(tmp_path: Path) -> None:
    """Events are sorted by sequence, and arguments stay strings."""
    written(tmp_path, session(labels={"guidance": "v2"}))

    timeline = await SessionFiles(tmp_path).fetch_timeline("one")

    events = timeline.stages[0].executions[0].events
    assert [e.event_id for e in events] == ["e1", "e2"]
    assert events[1].tool is not None
    assert (events[1].tool.name, events[1].tool.arguments) == ("kubectl.get", "not json")
    assert timeline.labels == {"guidance": "v2"}
    assert timeline.evidence.missing == ()


async def test_unknown_or_impossible_id_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "linked.json").symlink_to(written(tmp_path, session()))
    for session_id in ("two", "../one", "a/../one", "", "one\n", "x" * 300, "x" * 255, "one\0", "linked"):
        with pytest.raises(SessionNotFound):
            await SessionFiles(tmp_path / "in").fetch_timeline(session_id)


async def test_session_that_cannot_be_scored_raises_its_error(tmp_path: Path) -> None:
    """The same error for `fetch_timeline` and `find_session`."""
    without_status = {"session_id": "one"}
    for content, error in (
        (session(deleted_at="2026-01-01T00:00:00Z"), SessionNotFound),
        (session(status="in_progress"), SessionNotTerminal),
        (session(status="something_new"), SessionNotTerminal),
        (session(session_id="other"), BrokenSessionFile),
        (session(stages="none"), BrokenSessionFile),
        (without_status, BrokenSessionFile),
        ("no JSON", BrokenSessionFile),
        ("9" * 5_000, BrokenSessionFile),
    ):
        written(tmp_path, content)
        for read in (SessionFiles(tmp_path).fetch_timeline, SessionFiles(tmp_path).find_session):
            with pytest.raises(error):
                await read("one")


def test_a_file_without_a_size_is_read_up_to_the_limit(tmp_path: Path) -> None:
    """The size of a device or of a file that grows says nothing about the bytes that it gives."""
    endless = tmp_path / "endless.json"
    endless.symlink_to("/dev/zero")
    with pytest.raises(SessionTooLarge, match="SCORING_MAX_SESSION_BYTES"):
        load_session_file(endless, 1000)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """As of `score <(command)`; a pipe has no size."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as writers:
        writers.submit(pipe.write_text, json.dumps(session(alert_data="x" * 300_000)))
        assert len(load_session_file(pipe)["alert_data"]) == 300_000


async def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Neither for its session nor for a list of sessions, from which it is left out."""
    written(tmp_path, session(completed_at=THEN))
    large = written(tmp_path, session(session_id="large", completed_at=THEN), "large")
    os.truncate(large, 10**12)  # takes no space on the disk
    source = SessionFiles(tmp_path)

    for read in (source.fetch_timeline, source.find_session):
        with pytest.raises(SessionTooLarge, match=r"the session large .* 1,000,000,000,000 bytes"):
            await read("large")
    with pytest.raises(SessionTooLarge):
        load_session_file(large)
    with capture_logs() as logs:
        assert await found(tmp_path) == ["one"]
    assert [line["event"] for line in logs] == ["timeline.file_left_out"]


NO_SESSIONS = {
    "not json": ("{", "not JSON"),
    "not utf-8": ("\udcff", "UTF-8"),
    "a list": ([], "expected an object"),
    "no id": ({k: v for k, v in session().items() if k != "session_id"}, "session_id is missing"),
    "bad id": (session(session_id="a b"), "session_id"),
    "id of a wrong type": (session(session_id=7), "session_id is int"),
    "no alert": (session(alert_data=None), "alert_data is NoneType, expected str"),
    "stages no list": (session(stages={}), "stages is dict"),
    "too deep": ("[" * 100_000, "not JSON|nested"),
    "long integer": ('{"n": ' + "9" * 5_000 + "}", "digits"),
    "long negative integer": ('{"n": [-' + "9" * 5_000 + "]}", "digits"),
}


def test_invalid_file_is_refused_with_path_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    for content, reason in NO_SESSIONS.values():
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ConfigurationError, match=reason) as caught:
            load_session_file(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_session_file(tmp_path / "none.json")


def damaged(**event: Any) -> dict[str, Any]:
    whole = session()
    whole["stages"][0]["executions"][0]["events"][0] |= event
    return whole


UNREADABLE = {
    "stage": (session(stages=[*session()["stages"], 7]), "stages[1] could not be read"),
    "stage without type": (session(stages=[*session()["stages"], {}]), "stages[1] could not be read"),
    "events": (
        session(stages=[*session()["stages"], session()["stages"][0] | {"executions": [{"events": None}]}]),
        "stages[1].executions[0]: events is no list",
    ),
    "event without type": (damaged(event_type=None), "stages[0].executions[0].events[0] could not be read"),
    "content of a wrong type": (
        damaged(event_type="llm_thinking", content=["x"]),
        "stages[0].executions[0].events[0] could not be read",
    ),
    "result": (damaged(content=None), "stage 1 (diagnosis), a: result of kubectl.get (e2) could not be read"),
    "final analysis": (session(final_analysis=7), "final_analysis: int, not text"),
}


def test_entry_that_cannot_be_read_is_missing() -> None:
    for name, (content, words) in UNREADABLE.items():
        timeline = parse_session(content)
        assert timeline.evidence.missing == (words,), name
        assert timeline.evidence.missing_share > 0, name
        assert timeline.shown_events, name


def test_absent_results_and_hidden_stages_are_not_missing() -> None:
    """A call that timed out has no result, and the judge would not see a chat."""
    chat = {"stage_id": "c", "stage_type": "chat", "executions": [7]}

    assert parse_session(damaged(content=None, status="timed_out")).evidence.missing == ()
    assert parse_session(session(stages=[*session()["stages"], chat])).evidence.missing == ()


def test_times_and_tokens_are_read_where_present() -> None:
    """Start, synthetic timestamps, and input and output tokens of an agent."""
    whole = damaged() | {"started_at": "2026-01-02T03:04:05Z", "timestamps_synthetic": True}
    whole["stages"][0]["executions"][0] |= {"input_tokens": 1200, "output_tokens": 0}

    timeline = parse_session(whole)

    [execution] = timeline.stages[0].executions
    assert (execution.input_tokens, execution.output_tokens) == (1200, 0)
    assert timeline.started_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert timeline.has_real_times is False


def test_invalid_tokens_are_unknown() -> None:
    """No evidence is missing for that: older files have neither tokens nor times."""
    for value in (None, -1, 1.5, "40", True):
        whole = damaged() | {"timestamps_synthetic": value}
        whole["stages"][0]["executions"][0] |= {"input_tokens": value, "output_tokens": value}

        timeline = parse_session(whole)

        [execution] = timeline.stages[0].executions
        assert (execution.input_tokens, execution.output_tokens) == (None, None)
        assert timeline.has_real_times is (value is not True)
        assert timeline.evidence.missing == ()


SINCE = datetime(2026, 1, 2, tzinfo=UTC)
THEN, BEFORE = "2026-01-02T00:00:00Z", "2026-01-01T23:59:59Z"


async def found(directory: Path) -> list[str]:
    return [s.session_id async for s in SessionFiles(directory).finished_sessions(SINCE)]


async def test_finished_sessions_are_those_that_ended_since(tmp_path: Path) -> None:
    """Every terminal session counts by its end, else by its creation; a missing time is never invented."""
    for changes, is_found in (
        ({"completed_at": THEN, "created_at": BEFORE}, True),
        ({"completed_at": THEN, "status": "timed_out"}, True),
        ({"completed_at": BEFORE, "created_at": THEN}, False),
        ({"completed_at": None, "created_at": THEN}, True),
        ({"completed_at": None, "created_at": BEFORE}, False),
        ({"completed_at": None, "created_at": None}, False),
        ({"completed_at": THEN, "status": "in_progress"}, False),
        ({"completed_at": THEN, "deleted_at": THEN}, False),
    ):
        written(tmp_path, session(**changes))
        with capture_logs() as logs:
            assert await found(tmp_path) == (["one"] if is_found else []), changes
        has_no_time = changes.get("completed_at") is changes.get("created_at") is None
        assert [line["event"] for line in logs] == ["timeline.file_left_out"] * has_no_time


async def test_finished_session_has_chain_status_and_end_of_the_file(tmp_path: Path) -> None:
    written(tmp_path, session(chain_id="kubernetes", status="failed", completed_at=THEN))
    written(tmp_path, session(session_id="two", created_at=THEN), "two")

    listed = [s async for s in SessionFiles(tmp_path).finished_sessions(SINCE)]

    assert listed == [FoundSession("one", "kubernetes", "failed", SINCE), FoundSession("two", None, "completed", None)]


async def test_files_without_the_session_of_their_name_are_left_out_and_counted(tmp_path: Path) -> None:
    written(tmp_path, session(completed_at=THEN))
    os.mkfifo(tmp_path / "a-pipe.json")
    (tmp_path / "a-folder.json").mkdir()
    (tmp_path / "to-itself.json").symlink_to("to-itself.json")
    written(tmp_path, "9" * 5_000, "long-integer")
    written(tmp_path, session(session_id="other", completed_at=THEN), "misnamed")
    written(tmp_path, "no JSON", "broken")
    (tmp_path / "README.md").write_text("not a session")

    with capture_logs() as logs:
        assert await found(tmp_path) == ["one"]

    assert [(line["event"], line["files"]) for line in logs] == [("timeline.file_left_out", n + 1) for n in range(6)]
    assert await SessionFiles(tmp_path).recent_agent_models() == frozenset()


async def test_folder_that_cannot_be_listed_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(TimelineUnavailable, match="away"):
        await found(tmp_path / "away")
    with pytest.raises(TimelineUnavailable, match="away"):
        await SessionFiles(tmp_path / "away").recent_agent_models()


def with_model(name: str, model: str, **changes: Any) -> dict[str, Any]:
    whole = session(session_id=name, **changes)
    whole["stages"][0]["executions"][0] |= {"model_name": model, "llm_provider": "Fast"}
    return whole


async def test_models_of_recent_files_are_in_lower_case(tmp_path: Path) -> None:
    """Broken, large and unfinished files are left out without a log line."""
    for name, model in (("a", "Model-1"), ("b", "model-2")):
        written(tmp_path, with_model(name, model), name)
    written(tmp_path, with_model("c", "running-model", status="in_progress"), "c")
    written(tmp_path, with_model("d", "large-model", alert_data="x" * 600_000), "d")
    written(tmp_path, "no session", "e")

    with capture_logs() as lines:
        models = await SessionFiles(tmp_path).recent_agent_models()

    assert models == {"model-1", "model-2", "fast"}
    assert lines == []
