"""`dead-letters`: messages that could not be understood."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from pydantic_core import to_json
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tarsy_scoring.commands.shared import FAILED, print_json, run, settings_of_environment
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import InvalidMessage, StartRefused
from tarsy_scoring.kafka.clients import BrokerAway, Publisher
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import has_topic, read_topic
from tarsy_scoring.queue.dead_letters import Body, DeadLetter, load_body, preview, read_dead_letter, replay
from tarsy_scoring.wiring import open_parts

_PLACE = re.compile(r"\d+:\d+")
_NOBODY_ANSWERS = ("KafkaConnectionError", "NodeNotReadyError")


@click.group("dead-letters")
def dead_letters() -> None:
    """Messages that could not be understood: list them, look at one, send one again."""


@dead_letters.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")
def list_dead_letters(as_json: bool) -> None:
    """List the dead letters that Kafka still keeps. PLACE is what `show` and `replay` take."""
    letters = run(_dead_letters(settings_of_environment()))
    if as_json:
        for letter in letters:
            click.echo(to_json(_letter_json(letter)).decode())
        return
    table = Table("place", "failed at", "error", "message", "from")
    for letter in letters:
        origin = letter.origin
        source = f"{origin.topic} {origin.partition}:{origin.offset}" if origin else "unknown"
        table.add_row(letter.place, letter.failed_at, letter.error, escape(letter.error_message), source)
    Console().print(table if letters else "no dead letters")


@dead_letters.command("show")
@click.argument("place")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def show_dead_letter(place: str, as_json: bool) -> None:
    """Show one dead letter and the beginning of its message."""
    _require_places([place])
    settings = settings_of_environment()
    (letter,) = _find(run(_dead_letters(settings)), [place])
    body = run(_body_of(settings, letter))
    value = body.value if body else letter.value
    document = _letter_json(letter) | {"value": preview(value)}
    if as_json:
        print_json(document)
        return
    for name, shown in document.items():
        click.echo(f"{name}: {shown}")


@dead_letters.command("replay")
@click.argument("places", nargs=-1, metavar="[PLACE]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that Kafka still keeps.")
def replay_dead_letters(places: tuple[str, ...], everything: bool) -> None:
    """
    Send dead letters to their original topic again, as the requests they were.

    A message that was understood meanwhile changes nothing; one that still cannot be is dead-lettered again.
    """
    if bool(places) == everything:
        raise click.UsageError("name places, or say --all")
    _require_places(places)
    settings = settings_of_environment()

    async def work() -> tuple[int, list[str]]:
        found = await _dead_letters(settings)
        chosen = found if everything else _find(found, places)
        publisher, refused = Publisher(settings), []
        try:
            for letter in chosen:
                body = await _body_of(settings, letter)
                try:
                    with _told_where(settings, "cannot replay a letter of"):
                        await replay(publisher, letter, body)
                except InvalidMessage as error:
                    refused.append(str(error))
        finally:
            await publisher.stop()
        return len(chosen) - len(refused), refused

    sent, refused = run(work())
    for why in refused:
        click.echo(f"not replayed: {why}", err=True)
    click.echo(f"replayed: {sent}")
    sys.exit(FAILED if refused else 0)


async def _dead_letters(settings: Settings) -> list[DeadLetter]:
    """
    All that Kafka still keeps.

    Raises:
        BrokerAway: They cannot be read now.
        StartRefused: Nobody has made their topic.
    """
    topic = settings.topic_dead_letters
    with _told_where(settings, "cannot read"):
        # Asked first: the client looks for a topic that is not there for 10 s, and then tells no more than an error.
        if not await has_topic(connection_options(settings), topic):
            raise StartRefused(
                f"there is no topic {topic} at the brokers {settings.require_kafka()}, or none that we may see: create "
                "it, or let a worker do it with SCORING_CREATE_TOPICS=true; or correct SCORING_TOPIC_DEAD_LETTERS"
            )
        return [read_dead_letter(r) async for r in read_topic(settings, topic)]


@contextmanager
def _told_where(settings: Settings, what: str) -> Iterator[None]:
    """
    Says which brokers are away and what would help, in place of the client's own words.

    Raises:
        BrokerAway: In place of the one that was raised.
    """
    try:
        yield
    except BrokerAway as error:
        why, advice = (
            type(error.__cause__).__name__,
            "look at their log, SCORING_KAFKA_SECURITY_PROTOCOL and our rights",
        )
        if error.__cause__ is None:  # ran out of time
            why = "not acknowledged in time"
        elif why in _NOBODY_ANSWERS:
            why, advice = "nobody answers there", "start them, or correct SCORING_KAFKA_BOOTSTRAP_SERVERS"
        topic, brokers = settings.topic_dead_letters, settings.require_kafka()
        raise BrokerAway(f"{what} topic {topic} at the brokers {brokers}: {why}; {advice}") from error


async def _body_of(settings: Settings, letter: DeadLetter) -> Body | None:
    """The message that the topic would not take; None where the letter holds it itself, or it is gone."""
    if letter.body_id is None:
        return None
    async with open_parts(settings) as parts:
        return await load_body(parts.database, letter.body_id)


def _require_places(places: Sequence[str]) -> None:
    """Raises: click.BadParameter: One of them cannot be a place, whatever there is."""
    for place in places:
        if not _PLACE.fullmatch(place):
            raise click.BadParameter(f"{place!r} is no place; write PARTITION:OFFSET, such as 0:12", param_hint="PLACE")


def _find(letters: Sequence[DeadLetter], places: Sequence[str]) -> list[DeadLetter]:
    by_place = {letter.place: letter for letter in letters}
    for place in places:
        if place not in by_place:
            raise click.BadParameter(
                f"there is no dead letter at {place!r}; `tarsy-scoring dead-letters list` shows the places",
                param_hint="PLACE",
            )
    return [by_place[place] for place in places]


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
        "body_id": str(letter.body_id) if letter.body_id else None,
    }
