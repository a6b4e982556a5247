"""`dead-letters`: lists, shows and replays messages that could not be processed."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from tarsy_scoring.commands.shared import (
    FAILED,
    audited,
    json_option,
    plain,
    plain_lines,
    print_json,
    print_text,
    progress_bar,
    run,
    settings_of_environment,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.dead_letters.dead_letters import (
    Body,
    DeadLetter,
    group_by_origin,
    load_body,
    preview,
    read_dead_letter,
    replay,
)
from tarsy_scoring.dead_letters.letter_states import Letter, position_in, states_of
from tarsy_scoring.errors import InvalidMessage, StartRefused
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import has_topic, read_topic
from tarsy_scoring.retention.erasure import erased_hashes, is_about
from tarsy_scoring.wiring import open_migrated_parts, open_parts

_PLACE = re.compile(r"\d+:\d+")  # PARTITION:OFFSET in the dead-letter topic
SILENT_MOST = 3  # each waits for 15 s
_UNREACHABLE = ("KafkaConnectionError", "NodeNotReadyError")  # errors of aiokafka when no broker answers


@dataclass(frozen=True, slots=True)
class _Group:
    """
    The dead letters of one message.

    Args:
        letters: The one that failed last at the end.
        state: None if the database has none: a letter of an earlier version, or one without an origin.
    """

    letters: Sequence[DeadLetter]
    state: Letter | None

    @property
    def newest(self) -> DeadLetter:
        return self.letters[-1]

    @property
    def is_done(self) -> bool:
        """Whether it was replayed since it failed last."""
        return self.state is not None and self.state.state in ("sent", "understood")


@click.group("dead-letters")
def dead_letters() -> None:
    """List, show and replay messages that could not be processed."""


@dead_letters.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")
def list_dead_letters(as_json: bool) -> None:
    """
    List the messages whose dead letters Kafka still keeps.

    `show` and `replay` take the PLACE in front of each. A message is listed once, however often it failed.
    After a replay the line says what came of it: `understood`, `still: ERROR`, or that intake has not read it
    yet.
    """
    letters = [_group_json(group) for group in run(_found(settings_of_environment()))]
    if not as_json:
        print_text("dead_letters.txt", {"letters": letters})
        return
    for letter in letters:
        print_json(letter, on_one_line=True)


@dead_letters.command("show")
@click.argument("place")
@json_option
def show_dead_letter(place: str, as_json: bool) -> None:
    """Show one dead letter and the beginning of its message."""
    _require_places([place])
    settings = settings_of_environment()
    groups = run(_found(settings))
    (letter,) = _find(groups, [place])
    group = next(one for one in groups if letter in one.letters)
    body = run(_body_of(settings, letter))
    value = body.value if body else letter.value
    document = _group_json(group, letter) | {"value": preview(value)}
    if as_json:
        print_json(document)
        return
    for name, shown in document.items():
        # Only the message itself, which comes last, may have several lines.
        click.echo(f"{name}: {plain_lines(shown) if name == 'value' else plain(str(shown))}")


@dead_letters.command("replay")
@click.argument("places", nargs=-1, metavar="[PLACE]...")
@click.option(
    "--all", "everything", is_flag=True, help="Every message that was not replayed since it failed last."
)
@json_option
def replay_dead_letters(places: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """
    Send dead letters to their original topic again.

    They keep their original identity. Replaying a message that was processed since changes nothing. One that
    still fails becomes a dead letter again. With --all each message is sent once, and those replayed since
    they failed last are left out. A letter that cannot be sent does not stop the others, and a letter about
    an erased session is not sent. Exit status 1: one was not sent. --json has the numbers, and the reasons in
    `not_replayed`.
    """
    if bool(places) == everything:
        raise click.UsageError("name places, or use --all")
    _require_places(places)
    settings = settings_of_environment()

    async def work() -> tuple[int, int, list[str]]:
        found = await _found(settings)
        chosen = (
            [group.newest for group in found if not group.is_done] if everything else _find(found, places)
        )
        return len(found) - len(chosen), len(chosen), await _replay(settings, chosen)

    done, chosen, refused = run(work())
    if everything and done:
        click.echo(f"replayed before: {done}; name their places to send them again", err=True)
    for why in refused:
        click.echo(f"not replayed: {plain(why)}", err=True)
    sent = chosen - len(refused)
    if as_json:
        print_json({"replayed": sent, "replayed_before": done if everything else 0, "not_replayed": refused})
    else:
        click.echo(f"replayed: {sent} of {chosen}" if refused else f"replayed: {sent}")
    sys.exit(FAILED if refused else 0)


async def _replay(settings: Settings, letters: Sequence[DeadLetter]) -> list[str]:
    """Replay these letters, each by itself; gives the reasons of those that were not sent."""
    topics = (settings.topic_session_completed, settings.topic_rescore_requested)
    refused: list[str] = []
    silent: Counter[str] = Counter()  # by topic: letters in a row that it did not take in time
    publisher = Publisher(settings)
    try:
        async with open_migrated_parts(settings) as parts:
            await audited(parts.database, "replay", letters=len(letters))
            erased = await erased_hashes(parts.database)
            with progress_bar("replaying", len(letters)) as show:
                for number, letter in enumerate(letters):
                    show(number)
                    topic = letter.origin.topic if letter.origin else ""
                    if silent[topic] >= SILENT_MOST:
                        refused.append(
                            f"dead letter {letter.place}: topic {topic} takes nothing; try again later"
                        )
                        continue
                    try:
                        with _naming_brokers(settings, "cannot replay a letter of"):
                            await replay(
                                publisher,
                                parts.database,
                                letter,
                                topics=topics,
                                is_erased=lambda b: is_about(b, erased),
                            )
                        silent[topic] = 0
                    except BrokerAway as error:
                        silent[topic] += 1
                        refused.append(f"dead letter {letter.place}: {error}")
                    except TooLarge as error:
                        refused.append(f"dead letter {letter.place}: {error}")
                    except InvalidMessage as error:
                        refused.append(str(error))
    finally:
        await publisher.stop()
    return refused


async def _found(settings: Settings) -> list[_Group]:
    """
    The messages whose dead letters Kafka still keeps, with what the database knows of them.

    Raises:
        BrokerAway, StartRefused: See `_dead_letters`.
        DatabaseAway, ConfigurationError: The database cannot be asked.
    """
    groups = group_by_origin(await _dead_letters(settings))
    origins = [group[-1].origin for group in groups]
    async with open_migrated_parts(settings) as parts:
        states = await states_of(parts.database, [position_in(o) for o in origins if o is not None])
    return [
        _Group(group, states.get(position_in(origin)) if origin is not None else None)
        for group, origin in zip(groups, origins, strict=True)
    ]


async def _dead_letters(settings: Settings) -> list[DeadLetter]:
    """
    Read all dead letters that Kafka still keeps.

    Raises:
        BrokerAway: They cannot be read now.
        StartRefused: Their topic does not exist.
    """
    topic = settings.topic_dead_letters
    with _naming_brokers(settings, "cannot read"):
        # Checked first: the client searches 10 s for a missing topic and then raises an error without a
        # reason.
        if not await has_topic(connection_options(settings), topic):
            raise StartRefused(
                f"there is no topic {topic} at the brokers {settings.require_kafka()}, or this user may not see it: "
                "create it, let a worker do it with SCORING_CREATE_TOPICS=true, or correct SCORING_TOPIC_DEAD_LETTERS"
            )
        return [read_dead_letter(r) async for r in read_topic(settings, topic)]


@contextmanager
def _naming_brokers(settings: Settings, what: str) -> Iterator[None]:
    """
    Replace the client's error by one that names the brokers and a remedy.

    Args:
        what: The attempt that failed; the message continues with "topic NAME at the brokers".

    Raises:
        BrokerAway: In place of the original one.
    """
    try:
        yield
    except BrokerAway as error:
        why, advice = (
            type(error.__cause__).__name__,
            "check their log, SCORING_KAFKA_SECURITY_PROTOCOL and the rights of this user",
        )
        if error.__cause__ is None:  # ran out of time
            why = "not acknowledged in time"
        elif why in _UNREACHABLE:
            why, advice = "no answer", "start them, or correct SCORING_KAFKA_BOOTSTRAP_SERVERS"
        topic, brokers = settings.topic_dead_letters, settings.require_kafka()
        raise BrokerAway(f"{what} topic {topic} at the brokers {brokers}: {why}; {advice}") from error


async def _body_of(settings: Settings, letter: DeadLetter) -> Body | None:
    """The message that PostgreSQL keeps; None if the letter carries it itself, or if it has been deleted."""
    if letter.body_id is None:
        return None
    async with open_parts(settings) as parts:
        return await load_body(parts.database, letter.body_id)


def _require_places(places: Sequence[str]) -> None:
    """Refuse malformed places. Raises: click.BadParameter: one of them is not PARTITION:OFFSET."""
    for place in places:
        if not _PLACE.fullmatch(place):
            raise click.BadParameter(
                f"{place!r} is not a place; write PARTITION:OFFSET, as 0:12", param_hint="PLACE"
            )


def _find(groups: Sequence[_Group], places: Sequence[str]) -> list[DeadLetter]:
    """The letters at these places. Raises: click.BadParameter: there is none at one of them."""
    by_place = {letter.place: letter for group in groups for letter in group.letters}
    for place in places:
        if place not in by_place:
            raise click.BadParameter(
                f"there is no dead letter at {place!r}; `tarsy-scoring dead-letters list` shows the places",
                param_hint="PLACE",
            )
    return [by_place[place] for place in places]


def _group_json(group: _Group, shown: DeadLetter | None = None) -> dict[str, Any]:
    """
    The document of a message.

    Args:
        shown: The letter to be shown; None: the newest one.
    """
    state = group.state
    return _letter_json(shown or group.newest) | {
        "places": [letter.place for letter in group.letters],
        "replayed_at": state.replayed_at if state else None,
        "state": state.state if state else "not_replayed",
        "now": state.now if state else "",
    }


def _letter_json(letter: DeadLetter) -> dict[str, Any]:
    origin = letter.origin
    return {
        "place": letter.place,
        "error": letter.error,
        "error_message": letter.error_message,
        "failed_at": letter.failed_at,
        "original_topic": origin.topic if origin else None,
        "original_partition": origin.partition if origin else None,
        "original_offset": origin.offset if origin else None,
        "original_timestamp_ms": origin.timestamp_ms if origin else None,
        "key": letter.key.decode("utf-8", "replace") if letter.key else None,
        "bytes": len(letter.value or b""),
        "body_id": letter.body_id,
    }
