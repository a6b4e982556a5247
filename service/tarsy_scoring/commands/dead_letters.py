"""`dead-letters`: lists, shows and replays messages that could not be processed."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from tarsy_scoring.commands.shared import (
    FAILED,
    audited,
    plain,
    plain_lines,
    print_json,
    print_text,
    run,
    settings_of_environment,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import InvalidMessage, StartRefused
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import has_topic, read_topic
from tarsy_scoring.queue.dead_letters import Body, DeadLetter, load_body, preview, read_dead_letter, replay
from tarsy_scoring.records.erasure import erased_hashes, is_about
from tarsy_scoring.wiring import open_migrated_parts, open_parts

_PLACE = re.compile(r"\d+:\d+")  # PARTITION:OFFSET in the dead-letter topic
SILENT_MOST = 3  # each waits for 15 s
_UNREACHABLE = ("KafkaConnectionError", "NodeNotReadyError")  # errors of aiokafka when no broker answers


@click.group("dead-letters")
def dead_letters() -> None:
    """List, show and replay messages that could not be processed."""


@dead_letters.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")
def list_dead_letters(as_json: bool) -> None:
    """List the dead letters that Kafka still keeps. `show` and `replay` take the PLACE in front of each."""
    letters = [_letter_json(letter) for letter in run(_dead_letters(settings_of_environment()))]
    if not as_json:
        print_text("dead_letters.txt", {"letters": letters})
        return
    for letter in letters:
        print_json(letter, on_one_line=True)


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
        # Only the message itself, which comes last, may have several lines.
        click.echo(f"{name}: {plain_lines(shown) if name == 'value' else plain(str(shown))}")


@dead_letters.command("replay")
@click.argument("places", nargs=-1, metavar="[PLACE]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that Kafka still keeps.")
def replay_dead_letters(places: tuple[str, ...], everything: bool) -> None:
    """
    Send dead letters to their original topic again.

    They keep their original identity. Replaying a message that was processed since changes nothing. One that
    still fails becomes a dead letter again. A letter that cannot be sent does not stop the others, and a
    letter about an erased session is not sent.
    """
    if bool(places) == everything:
        raise click.UsageError("name places, or use --all")
    _require_places(places)
    settings = settings_of_environment()

    async def work() -> tuple[int, list[str]]:
        found = await _dead_letters(settings)
        chosen = found if everything else _find(found, places)
        return len(chosen), await _replay(settings, chosen)

    chosen, refused = run(work())
    for why in refused:
        click.echo(f"not replayed: {plain(why)}", err=True)
    sent = chosen - len(refused)
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
            for letter in letters:
                topic = letter.origin.topic if letter.origin else ""
                if silent[topic] >= SILENT_MOST:
                    refused.append(f"dead letter {letter.place}: topic {topic} takes nothing; try again later")
                    continue
                try:
                    with _naming_brokers(settings, "cannot replay a letter of"):
                        await replay(
                            publisher, parts.database, letter, topics=topics, is_erased=lambda b: is_about(b, erased)
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
            raise click.BadParameter(f"{place!r} is not a place; write PARTITION:OFFSET, as 0:12", param_hint="PLACE")


def _find(letters: Sequence[DeadLetter], places: Sequence[str]) -> list[DeadLetter]:
    """The letters at these places. Raises: click.BadParameter: there is none at one of them."""
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
        "body_id": letter.body_id,
    }
