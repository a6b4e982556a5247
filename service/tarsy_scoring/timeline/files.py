"""
The timeline source `files`: one session per JSON file, for demos, tests and scoring without a database.

Absent optional keys are accepted. A stage, execution or event with the wrong shape is left out and listed as
missing evidence; content is never guessed.
"""

import asyncio
import contextlib
import errno
import itertools
import json
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json

from tarsy_scoring import errors
from tarsy_scoring.config.settings import DEFAULT_MAX_SESSION_BYTES, Settings
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.timeline import model, parsing
from tarsy_scoring.timeline.evidence import take_stock
from tarsy_scoring.timeline.text import storable

_T = TypeVar("_T")
_RECENT_FILES = 50
_LARGE_FILE_BYTES = 512_000


class SessionFiles:
    """Reads a folder of `<session_id>.json` files, and never a file outside the folder."""

    may_change = False
    reads_at_once = 16

    def __init__(self, directory: Path, *, max_session_bytes: int = DEFAULT_MAX_SESSION_BYTES) -> None:
        self._directory = directory
        self._max_session_bytes = max_session_bytes

    async def fetch_timeline(self, session_id: str) -> model.Timeline:
        """See `TimelineSource`."""
        path = self._directory / f"{session_id}.json"
        if SESSION_ID_PATTERN.fullmatch(session_id) is None:
            raise errors.SessionNotFound(
                f"{session_id!r} is not a session id, so there is no file of that name"
            )
        try:
            found = await asyncio.to_thread(self._read_inside, path)
        except OSError as error:
            self._paths()  # a folder that is not mounted says nothing about files
            if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):  # a name that is too long cannot exist
                raise errors.SessionNotFound(f"there is no file {path}") from error
            raise BrokenSessionFile(f"cannot read {path}: {error.strerror}") from error
        except NotASessionFile as error:
            raise BrokenSessionFile(f"{path} is not a session file: {error}") from error
        if found.session_id != session_id:
            raise BrokenSessionFile(f"{path} holds the session {found.session_id}")
        return found

    def _read_inside(self, path: Path) -> model.Timeline:
        real = Path(os.path.realpath(path, strict=True))  # for links in a circle `resolve` has no OSError
        if not real.is_relative_to(self._directory.resolve()):
            raise errors.SessionNotFound(f"{path} leads out of {self._directory}")
        return _read(real, self._max_session_bytes)

    async def find_session(self, session_id: str) -> model.FoundSession:
        """See `TimelineSource`."""
        return _found(await self.fetch_timeline(session_id))

    async def finished_sessions(self, since: datetime) -> AsyncIterator[model.FoundSession]:
        """
        See `TimelineSource`.

        Files that cannot be read, are too large, hold another session or have no time are left out with a
        warning each, which counts them.
        """
        import structlog  # not at the top: the command that scores one file starts without it

        log, left_out = structlog.get_logger(), itertools.count(1)
        for path in await asyncio.to_thread(self._paths):
            try:
                timeline = await self.fetch_timeline(path.stem)
            except (errors.SessionNotFound, errors.SessionNotTerminal):
                continue
            except (errors.SessionTooLarge, errors.TimelineUnavailable) as error:
                log.warning("timeline.file_left_out", reason=str(error), files=next(left_out))
                continue
            ended = timeline.completed_at or timeline.created_at
            if ended is None:
                reason = f"{path} has no time: give it completed_at, or request its score by name"
                log.warning("timeline.file_left_out", reason=reason, files=next(left_out))
            elif ended >= since:
                yield _found(timeline)

    async def check(self) -> None:
        """See `TimelineSource`."""
        await asyncio.to_thread(self._paths)

    async def recent_agent_models(self) -> frozenset[str]:
        """See `TimelineSource`. Reads the last `_RECENT_FILES` by name, without large ones."""
        return await asyncio.to_thread(self._agent_models)

    def _agent_models(self) -> frozenset[str]:
        models: frozenset[str] = frozenset()
        for path in self._paths()[-_RECENT_FILES:]:
            with contextlib.suppress(OSError, NotASessionFile, errors.Unscorable):
                models |= _read(path, _LARGE_FILE_BYTES).agent_models
        return models

    def _paths(self) -> list[Path]:
        """All files of sessions. Raises: TimelineUnavailable: The folder cannot be listed."""
        try:
            return sorted(path for path in self._directory.iterdir() if path.suffix == ".json")
        except OSError as error:
            raise errors.TimelineUnavailable(f"cannot list {self._directory}: {error.strerror}") from error

    async def close(self) -> None:
        """Do nothing: this source holds no connection."""


def open_session_files(settings: Settings) -> model.TimelineSource:
    """
    Open the folder that `SCORING_TIMELINE_DIR` names.

    Raises:
        ConfigurationError: The folder does not exist.
    """
    assert settings.timeline_dir is not None
    if not settings.timeline_dir.is_dir():
        raise errors.ConfigurationError(f"SCORING_TIMELINE_DIR: {settings.timeline_dir} is not a folder")
    return SessionFiles(settings.timeline_dir, max_session_bytes=settings.max_session_bytes)


def load_session_file(path: Path, max_bytes: int = DEFAULT_MAX_SESSION_BYTES) -> dict[str, Any]:
    """
    Load one session's JSON from a file with any name; `parse_session` makes it a timeline.

    Raises:
        ConfigurationError: The file cannot be read or is not a session file.
        SessionNotFound: The session was deleted.
        SessionNotTerminal: The session still runs.
        SessionTooLarge: The file has more than `max_bytes`.
    """
    try:
        return _load(path, max_bytes)
    except OSError as error:
        raise errors.ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except NotASessionFile as error:
        raise errors.ConfigurationError(f"{path} is not a session file: {error}") from error


class BrokenSessionFile(errors.TimelineUnavailable):
    """The file of a session does not hold that session; a retry does not help until the file is replaced."""


class NotASessionFile(Exception):
    """The content is not a session; the message says why."""


def _read(path: Path, max_bytes: int) -> model.Timeline:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe in the folder would be read without end
        raise NotASessionFile("it is not a regular file")
    return _timeline(_load(path, max_bytes))


def _found(timeline: model.Timeline) -> model.FoundSession:
    return model.FoundSession(timeline.session_id, timeline.chain_id, timeline.status, timeline.completed_at)


def _load(path: Path, max_bytes: int) -> dict[str, Any]:
    if (size_bytes := path.stat().st_size) > max_bytes:
        raise errors.SessionTooLarge(storable(path.stem), size_bytes, max_bytes)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise errors.SessionTooLarge(storable(path.stem), len(content), max_bytes)
    try:
        return _checked(from_json(content))
    except ValueError:  # the fast parser accepts no lone surrogates
        pass
    try:
        return _checked(json.loads(content))
    except (ValueError, RecursionError) as error:  # also of integers with thousands of digits
        raise NotASessionFile(f"not JSON in UTF-8 that can be read ({error})") from error


def parse_session(session: object) -> model.Timeline:
    """
    Build a timeline from a session file's JSON.

    Raises:
        NotASessionFile: A required key is absent or of the wrong type.
        SessionNotFound: The session was deleted.
        SessionNotTerminal: The session still runs.
    """
    return _timeline(_checked(session))


def _checked(session: object) -> dict[str, Any]:
    """A session with every required key, which has ended. Raises: see `parse_session`."""
    if not isinstance(session, dict):
        raise NotASessionFile(f"expected an object, found {type(session).__name__}")
    raw: dict[str, Any] = session
    session_id = _required(raw, "session_id", str)
    if SESSION_ID_PATTERN.fullmatch(session_id) is None:
        raise NotASessionFile("session_id is not a session id")
    if raw.get("deleted_at") is not None:
        raise errors.SessionNotFound(f"the session {session_id} was deleted")
    status = _required(raw, "status", str)
    model.require_terminal(session_id, status)
    _required(raw, "alert_data", str)
    _required(raw, "stages", list)
    return raw


def _timeline(raw: dict[str, Any]) -> model.Timeline:
    parser = _Parser()
    stages = parser.stages(raw["stages"])
    for key, kind in (("final_analysis", "final_analysis"), ("executive_summary", "events")):
        if raw.get(key) is not None and not isinstance(raw[key], str):
            parser.losses.append((kind, f"{key}: {type(raw[key]).__name__}, not text"))
    evidence = take_stock(
        stages,
        parsing.text_or_none(raw.get("final_analysis")),
        losses=parser.losses,
        unread_results=parser.unread_results,
    )
    labels = parsing.label_map(raw.get("labels"), raw["session_id"])
    return parsing.timeline_of(raw, stages, _tools(raw.get("available_tools")), labels, evidence)


def _required(raw: dict[str, Any], key: str, kind: type[_T]) -> _T:
    if key not in raw:
        raise NotASessionFile(f"{key} is missing")
    value = raw[key]
    if not isinstance(value, kind):
        raise NotASessionFile(f"{key} is {type(value).__name__}, expected {kind.__name__}")
    return value


class _Parser:
    """Parses the stages of a session, and collects the evidence that could not be read."""

    def __init__(self) -> None:
        self.losses: list[tuple[str, str]] = []
        self.unread_results: set[str] = set()

    def stages(self, raw: list[Any]) -> tuple[model.Stage, ...]:
        found = []
        stages = self._items(raw, "stages", "", lambda stage: isinstance(stage.get("stage_type"), str))
        for where, position, item in stages:
            losses_before = len(self.losses)
            stage = parsing.stage_of(item, self._executions(item.get("executions"), where), where, position)
            if stage.stage_type not in model.SHOWN_STAGE_TYPES:
                del self.losses[losses_before:]  # only what the judge would see can be missing
            found.append(stage)
        return tuple(sorted(found, key=lambda s: (s.stage_index, s.stage_id)))

    def _executions(self, raw: object, stage: str) -> list[model.Execution]:
        found = []
        for where, position, item in self._items(raw, "executions", stage):
            events = self._events(item.get("events"), where)
            tokens = item.get("input_tokens"), item.get("output_tokens")
            found.append(parsing.execution_of(item, events, tokens, where, position))
        return sorted(found, key=lambda e: (e.agent_index, e.execution_id))

    def _events(self, raw: object, execution: str) -> list[model.Event]:
        items = self._items(raw, "events", execution, _is_event)
        found = [self._event(item, position, where) for where, position, item in items]
        return sorted(found, key=lambda e: e.sequence_number)

    def _event(self, raw: dict[str, Any], position: int, where: str) -> model.Event:
        metadata = raw.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        tool = parsing.tool_call(metadata) if raw["event_type"] == "llm_tool_call" else None
        event = parsing.event_of(raw, tool, metadata.get("skill_name"), where, position)
        if not isinstance(raw.get("content"), str) and event.status == "completed":
            self.unread_results.add(event.event_id)  # a call with another status never had a result
        return event

    def _items(
        self,
        raw: object,
        kind: str,
        parent: str,
        is_readable: Callable[[dict[str, Any]], bool] = lambda item: True,
    ) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Yields the readable items of a list with place and position; others are losses."""
        if not isinstance(raw, list):
            self.losses.append((kind, f"{parent}: {kind} is no list"))
            return
        for position, item in enumerate(raw):
            where = f"{parent}.{kind}[{position}]".lstrip(".")
            if isinstance(item, dict) and is_readable(item):
                yield where, position, item
            else:
                self.losses.append((kind, f"{where} could not be read"))


def _is_event(raw: dict[str, Any]) -> bool:
    """Whether an event has a type and content; a call of a tool may lack the result."""
    kind = raw.get("event_type")
    return isinstance(kind, str) and (kind == "llm_tool_call" or isinstance(raw.get("content"), str))


def _tools(raw: object) -> tuple[model.AvailableTool, ...]:
    found = [t for t in raw if isinstance(t, dict)] if isinstance(raw, list) else []
    return tuple(
        parsing.available_tool(
            t,
            name,
            parsing.text_or_none(t.get("server_name")) or "",
            parsing.text_or_none(t.get("agent_name")) or "",
        )
        for t in found
        if (name := parsing.text_or_none(t.get("tool_name")))
    )
