"""`dead-letters`: lists, shows and replays messages that could not be processed."""

import re
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from typing import Any

import click

from tarsy_scoring.commands.shared import (
    FAILED,
    audited,
    json_option,
    plain,
    plain_lines,
    print_either,
    print_json,
    print_text,
    progress_bar,
    run_on_parts,
)
from tarsy_scoring.dead_letters.dead_letters import (
    DeadLetter,
    group_by_origin,
    original_of,
    position_in,
    preview,
    read_dead_letter,
    replay,
    replays_of,
)
from tarsy_scoring.errors import InvalidMessage, StartRefused
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.kafka.topics import has_topic, read_topic
from tarsy_scoring.retention.erasure import erased_hashes, is_about
from tarsy_scoring.wiring import Parts

_PLACE = re.compile(r"\d+:\d+")  # PARTITION:OFFSET in the dead-letter topic

_Group = tuple[Sequence[DeadLetter], Any]
"""
The dead letters of one message, with the one that failed last at the end; and the row about replays, which is
None for a letter without an origin or beyond its retention.
"""


def _place(text: str) -> str:
    """Require a place; for `type` of an argument. Raises: click.BadParameter."""
    if not _PLACE.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a place; write PARTITION:OFFSET, as 0:12")
    return text


@click.group("dead-letters")
def dead_letters() -> None:
    """List, show and replay messages that could not be processed."""


@dead_letters.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")
def list_dead_letters(as_json: bool) -> None:
    """
    List the messages whose dead letters Kafka still keeps.

    `show` and `replay` take the PLACE in front of each. A message is listed once, however often it failed. It
    is `open` until it is replayed, and again if the replay fails.
    """

    async def work(parts: Parts) -> list[dict[str, Any]]:
        return [_document(group, group[0][-1]) for group in await _found(parts)]

    letters = run_on_parts(work)
    if not as_json:
        print_text("dead_letters.txt", {"letters": letters})
        return
    for letter in letters:
        print_json(letter, on_one_line=True)


@dead_letters.command("show")
@click.argument("place", type=_place)
@json_option
def show_dead_letter(place: str, as_json: bool) -> None:
    """Show one dead letter and the beginning of the message."""

    async def work(parts: Parts) -> dict[str, Any]:
        groups = await _found(parts)
        (letter,) = _find(groups, [place])
        group = next(one for one in groups if letter in one[0])
        [whole] = [found async for found in _whole(parts, [place])] or [letter]
        body = await original_of(parts.database, whole)
        return _document(group, letter) | {"value": preview(body.value if body else whole.value)}

    document = run_on_parts(work)
    # Only the message itself, which comes last, may have several lines.
    lines = (f"{k}: {plain_lines(v) if k == 'value' else plain(str(v))}" for k, v in document.items())
    print_either(document, lines, as_json=as_json)


@dead_letters.command("replay")
@click.argument("places", nargs=-1, metavar="[PLACE]...", type=_place)
@click.option("--all", "everything", is_flag=True, help="Every open message.")
@json_option
def replay_dead_letters(places: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """
    Send dead letters to their original topic again.

    They keep their original identity. Replaying a message that was processed since changes nothing. One that
    still fails becomes a dead letter again. With --all each open message is sent once. A letter that cannot
    be sent does not stop the others, and a letter about an erased session is not sent. Exit status 1: one was
    not sent. --json has the numbers, and the reasons in `not_replayed`.
    """
    if bool(places) == everything:
        raise click.UsageError("name places, or use --all")

    async def work(parts: Parts) -> tuple[int, int, list[str]]:
        found = await _found(parts)
        opened = [group[-1] for group, row in found if row is None or not row["is_replayed"]]
        chosen = opened if everything else _find(found, places)
        return len(found) - len(chosen), len(chosen), await _replay(parts, chosen)

    done, chosen, refused = run_on_parts(work)
    if everything and done:
        click.echo(f"replayed before: {done}; name their places to send them again", err=True)
    for why in refused:
        click.echo(f"not replayed: {plain(why)}", err=True)
    sent = chosen - len(refused)
    document = {"replayed": sent, "replayed_before": done if everything else 0, "not_replayed": refused}
    line = f"replayed: {sent} of {chosen}" if refused else f"replayed: {sent}"
    print_either(document, [line], as_json=as_json)
    sys.exit(FAILED if refused else 0)


async def _replay(parts: Parts, letters: Sequence[DeadLetter]) -> list[str]:
    """Replay these letters, each by itself; gives the reasons for those that were not sent."""
    settings = parts.settings
    topics = (settings.topic_session_completed, settings.topic_rescore_requested)
    refused: list[str] = []
    left = {letter.place for letter in letters}
    away: set[str] = set()  # topics that did not take a letter in time: each try waits for 15 s
    publisher = Publisher(settings)
    try:
        await audited(parts.database, "replay", letters=len(letters))
        erased = await erased_hashes(parts.database)
        with progress_bar("replaying", len(letters)) as show:
            async for letter in _whole(parts, left.copy()):
                show(len(letters) - len(left))
                left.discard(letter.place)
                topic = letter.origin.topic if letter.origin else ""
                try:
                    if topic in away:
                        raise BrokerAway(f"topic {topic} takes nothing; try again later")
                    await replay(
                        publisher,
                        parts.database,
                        letter,
                        topics=topics,
                        is_erased=lambda b: is_about(b, erased),
                    )
                except (BrokerAway, TooLarge) as error:
                    if isinstance(error, BrokerAway):
                        away.add(topic)
                    refused.append(f"dead letter {letter.place}: {error}")
                except InvalidMessage as error:
                    refused.append(str(error))
    finally:
        await publisher.stop()
    return refused + [f"dead letter {place}: the topic no longer has it" for place in sorted(left)]


async def _found(parts: Parts) -> list[_Group]:
    """
    The messages whose dead letters Kafka still keeps, with what the database knows of them.

    The letters have no content: together their messages may not fit into memory.

    Raises:
        BrokerAway: They cannot be read now.
        StartRefused: Their topic does not exist.
    """
    settings, topic = parts.settings, parts.settings.topic_dead_letters
    # Checked first: the client searches 10 s for a missing topic and then raises an error without a reason.
    if not await has_topic(connection_options(settings), topic):
        raise StartRefused(
            f"there is no topic {topic} at the brokers {settings.require_kafka()}, "
            "or this user may not see it: "
            "create it, let a worker do it with SCORING_CREATE_TOPICS=true, "
            "or correct SCORING_TOPIC_DEAD_LETTERS"
        )
    read = (read_dead_letter(record) async for record in read_topic(settings, topic))
    letters = [replace(letter, value=None, headers=()) async for letter in read]
    groups = group_by_origin(letters)
    places = [position_in(group[-1].origin) if group[-1].origin else None for group in groups]
    rows = await replays_of(parts.database, [place for place in places if place is not None])
    return [(group, rows.get(place) if place else None) for group, place in zip(groups, places, strict=True)]


async def _whole(parts: Parts, places: Collection[str]) -> AsyncIterator[DeadLetter]:
    """Read the topic once more, for the letters at these places with their content, one by one."""
    async for record in read_topic(parts.settings, parts.settings.topic_dead_letters):
        letter = read_dead_letter(record)
        if letter.place in places:
            yield letter


def _find(groups: Sequence[_Group], places: Sequence[str]) -> list[DeadLetter]:
    """The letters at these places. Raises: click.BadParameter: a place has none."""
    by_place = {letter.place: letter for letters, _ in groups for letter in letters}
    for place in places:
        if place not in by_place:
            raise click.BadParameter(
                f"there is no dead letter at {place!r}; `tarsy-scoring dead-letters list` shows the places",
                param_hint="PLACE",
            )
    return [by_place[place] for place in places]


def _document(group: _Group, letter: DeadLetter) -> dict[str, Any]:
    """The document for one letter of a message."""
    letters, row = group
    came_from = ("topic", "partition", "offset", "timestamp_ms")
    return {
        "place": letter.place,
        "error": letter.error,
        "error_message": letter.error_message,
        "failed_at": letter.failed_at,
        **{f"original_{name}": getattr(letter.origin, name, None) for name in came_from},
        "key": letter.key.decode("utf-8", "replace") if letter.key else None,
        "bytes": letter.size_bytes,
        "body_id": letter.body_id,
        "places": [one.place for one in letters],
        "replayed_at": row["replayed_at"] if row else None,
        "state": "replayed" if row and row["is_replayed"] else "open",
    }
