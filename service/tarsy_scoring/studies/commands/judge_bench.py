"""`judge-bench LABELS.csv`: measures how well judges tell right conclusions from wrong ones."""

import itertools
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tarsy_scoring.commands.shared import (
    FAILED,
    counted,
    json_option,
    may_spend,
    print_json,
    progress_bar,
    require_criteria,
    require_known,
    run,
    settings_of_environment,
    spend_option,
    usd,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, NothingToJudge, SessionNotFound, Unscorable
from tarsy_scoring.judge.criteria import Criteria, load_criteria
from tarsy_scoring.studies.bench import Job, Planned, Recordings, judge_all, live_judges, plan
from tarsy_scoring.studies.commands.texts import print_study
from tarsy_scoring.studies.judge_bench import (
    BenchSample,
    JudgedSession,
    KnownOutcome,
    describe,
    misranked,
    read_known_outcomes,
)
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.timeline.evidence import require_events
from tarsy_scoring.timeline.files import BrokenSessionFile, SessionFiles
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.sources import open_timeline_source

_LISTS = ("--criteria", "--providers")
_EMPTY = NothingToJudge.error_kind
_MOST_NAMED = 3  # sessions that an error message names


class _ListsOfNames(click.Command):
    """A command whose options in `_LISTS` take all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each word, as click expects."""
        repeated: list[str] = []
        option = None
        for word in args:
            if word.startswith("-"):
                option = word if word in _LISTS else None
                repeated.append(word)
            elif option is not None and repeated[-1] != option:
                repeated += [option, word]
            else:
                repeated.append(word)
        return super().parse_args(ctx, repeated)


@dataclass(frozen=True, slots=True)
class Bench:
    """
    Sessions and the judges that judge them.

    Args:
        left_out: How many labels are not judged, by outcome, or because there is nothing to judge.
        unreadable: Why a session cannot be judged, by session id.
    """

    known: Sequence[KnownOutcome]
    left_out: Mapping[str, int]
    timelines: Mapping[str, Timeline]
    unreadable: Mapping[str, str]
    judges: Sequence[tuple[Criteria, str]]
    samples: int


@click.command(cls=_ListsOfNames)
@click.argument("labels_file", metavar="LABELS.csv", type=click.Path(path_type=Path))
@click.option(
    "--criteria", "criteria_names", multiple=True, required=True, metavar="NAME...", help="To judge by."
)
@click.option("--providers", multiple=True, metavar="NAME...", help="Default: the first one of `defaults`.")
@click.option("--samples", type=click.IntRange(1, 100), default=1, help="Judgements per session and judge.")
@click.option(
    "--sessions",
    "sessions_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Folder of session files; default: the timeline source.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of recorded judgements; default: tarsy-scoring/judge-bench in the user's cache folder.",
)
@spend_option
@json_option
def judge_bench(
    labels_file: Path,
    criteria_names: tuple[str, ...],
    providers: tuple[str, ...],
    samples: int,
    sessions_dir: Path | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """
    Measure how well judges tell right conclusions from wrong.

    Sessions with a known outcome are judged. LABELS.csv comes first and has a header and a line per session:
    `session_id` and `outcome` (correct, wrong; partial and unknown are left out), and optionally `source` and
    `incident`. Every session is judged under each criteria at each provider: --criteria A B --providers X Y
    makes four judges. The calls and their cost are shown first. Needs neither Kafka nor a database, and
    budgets do not apply.

    The AUC is the share of pairs of a right and a wrong session in which the right one has the higher total:
    1 is perfect, 0.5 is chance. Sessions from one source form pairs. A session without a score loses each
    pair. Intervals take sessions about one incident as one observation.

    Each judgement is recorded as it is made, so a run that was stopped continues, and the same judgement is
    never asked for twice. Exit status 1: a session has no score.
    """
    settings = settings_of_environment()
    providers = providers or settings.config.defaults.providers[:1]
    for name in providers:
        require_known("provider", name, settings.config.providers, "--providers")
    registry = load_criteria(settings.config.criteria_dirs)
    for name in criteria_names:
        require_criteria(registry, name)
    criteria = [registry.of_chain(settings.config.defaults, name) for name in dict.fromkeys(criteria_names)]
    known = read_known_outcomes(labels_file)
    source = (
        SessionFiles(sessions_dir, max_session_bytes=settings.max_session_bytes) if sessions_dir else None
    )
    recordings = Recordings(cache or _default_cache())

    async def work() -> tuple[Bench, list[Planned], list[BenchSample]]:
        opened = source or open_timeline_source(settings)
        async with closing(opened):
            bench = await read_bench(
                opened.fetch_timeline,
                known,
                list(itertools.product(criteria, dict.fromkeys(providers))),
                samples,
            )
        planned = plan_all(settings, bench, recordings)
        _ask_first(planned)
        return bench, planned, await _judge_planned(settings, planned, recordings)

    bench, planned, judged = run(work())
    document = document_of(settings, bench, planned, judged)
    print_json(document) if as_json else print_study("judge_bench.txt", document)
    if document["judgements"]["outstanding"]:
        n = counted(document["judgements"]["outstanding"], "judgement")
        click.echo(f"{n} could not be made now; the same command asks only for these again", err=True)
    sys.exit(FAILED if any(arm["n_unscored"] for arm in document["arms"]) else 0)


async def _judge_planned(
    settings: Settings, planned: Sequence[Planned], recordings: Recordings
) -> list[BenchSample]:
    done = itertools.count(1)
    async with live_judges(settings, planned) as ask_of:
        with progress_bar("judging", len(planned)) as show:
            return await judge_all(settings, planned, recordings, ask_of, lambda: show(next(done)))


def _default_cache() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path("~/.cache").expanduser()) / "tarsy-scoring" / "judge-bench"


# --- sessions and calls --------------------------------------------------------------------------------


async def read_bench(
    fetch: Any, known: Sequence[KnownOutcome], judges: Sequence[tuple[Criteria, str]], samples: int
) -> Bench:
    """
    Read the sessions whose outcome is right or wrong.

    Args:
        fetch: `TimelineSource.fetch_timeline`.

    Raises:
        ConfigurationError: No outcome is right or wrong, or the source does not have a session.
        RetryLater, WaitFor: The source cannot be read now.
    """
    chosen = [k for k in known if k.outcome in ("right", "wrong")]
    if not chosen:
        raise ConfigurationError(f"of {counted(len(known), 'label')} none is `correct` or `wrong`")
    timelines, unreadable, missing = dict[str, Timeline](), dict[str, str](), list[str]()
    for one in chosen:
        try:
            require_events(timeline := await fetch(one.session_id))
            timelines[one.session_id] = timeline
        except SessionNotFound:
            missing.append(one.session_id)
        except (Unscorable, BrokenSessionFile) as error:
            unreadable[one.session_id] = f"{error.error_kind}: {error}"
    if missing:
        raise ConfigurationError(
            f"the source does not have {len(missing)} of {counted(len(chosen), 'labelled session')} "
            f"({', '.join(missing[:_MOST_NAMED])}): name the folder that has them with --sessions, or remove their lines"
        )
    judged, outcomes = _without_empty(chosen, unreadable), Counter(k.outcome for k in known)
    left_out = {name: outcomes[name] for name in ("partial", "unknown")}
    left_out[_EMPTY] = len(chosen) - len(judged)
    return Bench(judged, left_out, timelines, unreadable, judges, samples)


def _without_empty(chosen: Sequence[KnownOutcome], unreadable: Mapping[str, str]) -> list[KnownOutcome]:
    """The sessions without those that have nothing to judge."""
    return [k for k in chosen if not unreadable.get(k.session_id, "").startswith(_EMPTY)]


def plan_all(settings: Settings, bench: Bench, recordings: Recordings) -> list[Planned]:
    """
    Plan all judgements: judge by judge, then session by session, then sample by sample.

    Raises:
        ConfigurationError: See `Recordings.read`.
    """
    samples = range(1, bench.samples + 1)
    by_session = [
        [Job(bench.timelines[known.session_id], criteria, provider, sample) for sample in samples]
        for criteria, provider in bench.judges
        for known in bench.known
        if known.session_id in bench.timelines
    ]
    planned = list[Planned]()
    with progress_bar("reading", len(by_session)) as show:
        for done, jobs in enumerate(by_session, 1):
            planned += plan(settings, jobs, recordings)
            show(done)
    return planned


def _ask_first(planned: Sequence[Planned]) -> None:
    """Show the calls and their cost on stderr, and ask whether to make them. Raises: See `may_spend`."""
    to_ask = [p for p in planned if p.calls]
    recorded = sum(p.is_recorded for p in planned)
    calls = sum(p.calls for p in to_ask)
    click.echo(f"{counted(len(to_ask) + recorded, 'judgement')}, {recorded} of them recorded", err=True)
    if not to_ask:
        return
    cost = _cost_of(to_ask)
    click.echo(f"{counted(calls, 'call')} with full answers {cost}, without reminders and repairs", err=True)
    may_spend()


def _cost_of(planned: Sequence[Planned]) -> str:
    costs = [p.cost_usd for p in planned if p.cost_usd is not None]
    is_known = len(costs) == len(planned)
    return f"up to {usd(sum(costs))}" if is_known else "at an unknown cost (no prices are configured)"


# --- the document --------------------------------------------------------------------------------------


def document_of(
    settings: Settings, bench: Bench, planned: Sequence[Planned], judged: Sequence[BenchSample]
) -> dict[str, Any]:
    """
    JSON document: an arm for each criteria and provider, and the sessions ranked wrongly.

    Args:
        judged: The sample of each planned judgement.
    """
    samples = defaultdict[tuple[str, str, str], list[BenchSample]](list)
    for one, sample in zip(planned, judged, strict=True):
        samples[one.job.criteria.name, one.job.provider, one.job.timeline.session_id].append(sample)
    arms, wrongly = list[dict[str, Any]](), list[dict[str, Any]]()
    for criteria, provider in bench.judges:
        arm = {"criteria": criteria.name, "provider": provider}
        sessions = [
            JudgedSession(
                known,
                samples[criteria.name, provider, known.session_id]
                or [BenchSample(None, bench.unreadable[known.session_id])],
            )
            for known in bench.known
        ]
        arms.append(arm | describe(sessions) | {"model": settings.config.providers[provider].model})
        wrongly += [arm | one for one in misranked(sessions)]
    return {
        "labels": {
            "judged": len(bench.known),
            "incidents": len({(k.source, k.incident) for k in bench.known}),
            "left_out": dict(bench.left_out),
        },
        "samples": bench.samples,
        "judgements": {
            "recorded": sum(p.is_recorded for p in planned),
            "asked": sum(p.calls > 0 for p in planned),
            "outstanding": sum(sample.is_outstanding for sample in judged),
        },
        "arms": arms,
        "misranked": wrongly,
    }
