"""The order of a judgement: samples, the masked reading, then follow-up and checks of the chosen reading."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scripted import CONTEXT, CUT, ScriptedJudge, ScriptStep, answer
from tables import table
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import ContextTooLong, JudgeUnavailable, LeaseLost, Refused, ScoringError, WaitFor
from tarsy_scoring.judge.assess import assess
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import Message, Question, Turn, TurnKind, Verdict

LONGEST_WAIT_S = 10  # for what happens at once, or never


def criteria_of(**changes: Any) -> Criteria:
    definition = {
        "name": "short",
        "system_prompt": "Judge.",
        "prompt": "{{ALERT_DATA}} {{SESSION_CONVERSATION}} {{OUTPUT_SCHEMA}}",
        "follow_up_prompt": "What is missing?",
        "reminder_prompt": "The total?",
    }
    return Criteria.model_validate(definition | changes)


CRITERIA = criteria_of()
OPENING = CRITERIA.open_conversation(CONTEXT)
MASKED = SimpleNamespace(alert="the alert", conversation="the timeline, masked", entry=CONTEXT.entry)
TOOLS = answer("No critical missing tools identified.")


RIGHT = "Outcome: right"


def reading(total: int, analysis: str = "") -> Turn:
    """An answer with this total; its default analysis names the total, so that readings can be matched."""
    return answer(f"{analysis or f'The analysis of {total}.'}\n\n{total}")


async def masked_context() -> Any:
    return MASKED


async def judge(
    judge: Any,
    samples: int = 1,
    *,
    criteria: Criteria = CRITERIA,
    context: Any = CONTEXT,
    masked: Callable[[], Awaitable[Any]] | None = None,
    max_reminders: int = 0,
    is_final: bool = True,
) -> Verdict:
    plan = ChainSettings(samples=samples, max_reminders=max_reminders)
    async with asyncio.timeout(LONGEST_WAIT_S):
        return await assess(context, criteria, judge, plan, is_final=lambda _: is_final, masked=masked)


# --- samples -------------------------------------------------------------------------------------------


class WatchingJudge:
    """
    Answers each reading with the next total, and records which questions are open at the same time.

    Samples are answered only once all of them have been asked, and the last one first.
    """

    def __init__(self, *totals: int) -> None:
        self._totals = list(totals)
        self._asked = 0
        self._answered = [asyncio.Event() for _ in range(len(totals) - 1)]
        self.in_flight: list[TurnKind] = []
        self.beside_samples: list[TurnKind] = []

    async def __call__(self, question: Question) -> Turn:
        kind = question.kind
        self.in_flight.append(kind)
        if kind == "sample":
            self.beside_samples += [k for k in self.in_flight if k != "sample"]
            number, self._asked = self._asked, self._asked + 1
            is_last = number == len(self._answered) - 1
            if not is_last:
                await self._answered[number + 1].wait()
            self._answered[number].set()
            turn = reading(self._totals[number + 1])
        else:
            await asyncio.sleep(0)  # lets any other question be asked meanwhile
            turn = TOOLS if kind == "missing_tools" else reading(self._totals[0])
        self.in_flight.remove(kind)
        return turn


@table
async def test_the_median_counts_with_its_own_analysis(totals: list[int], median: int) -> None:
    watching = WatchingJudge(*totals)

    verdict = await judge(watching, len(totals))

    assert verdict.total_score == median
    assert verdict.score_analysis == f"The analysis of {median}."
    assert verdict.samples == totals
    assert watching.beside_samples == []


@table
async def test_samples_begin_when_the_first_reading_is_complete(samples: int) -> None:
    """Its reminder and repair are answered before a sample is asked for: then the cache is warm."""
    criteria = criteria_of(bands={"right": (50, 100), "wrong": (0, 49)})
    contradiction = answer("Outcome: right\n\n40")
    scripted = ScriptedJudge(answer("hmm"), contradiction, reading(70), *[reading(70, RIGHT)] * (samples - 1), TOOLS)

    verdict = await judge(scripted, samples, criteria=criteria, max_reminders=1)

    assert scripted.kinds == ["analysis", "reminder", "repair", *["sample"] * (samples - 1), "missing_tools"]
    assert verdict.samples == [70] * samples


@table
async def test_the_chosen_reading_is_asked_what_is_missing(totals: list[int], chosen: int) -> None:
    """The follow-up continues the conversation that gave the total; of equal totals the first one."""
    turns = [reading(total, f"Reading {number}.") for number, total in enumerate(totals)]
    scripted = ScriptedJudge(*turns, TOOLS)

    verdict = await judge(scripted, 3)

    assert verdict.score_analysis == f"Reading {chosen}."
    assert verdict.total_turn.reply == turns[chosen].reply
    assert scripted.conversations[-1] == [
        *OPENING,
        Message("assistant", turns[chosen].reply),
        Message("user", "What is missing?"),
    ]


async def test_every_request_begins_with_the_same_bytes() -> None:
    """Samples, reminders, repairs and the follow-up share the opening, so the evidence is paid for once."""
    criteria = criteria_of(bands={"right": (50, 100), "wrong": (0, 49)})
    contradiction = answer("Outcome: right\n\n48")
    readings = [answer("hmm"), contradiction, reading(48), reading(52, RIGHT), reading(51, RIGHT)]
    scripted = ScriptedJudge(*readings, TOOLS)

    await judge(scripted, 3, criteria=criteria, max_reminders=1)

    opening = [m.content.encode() for m in criteria.open_conversation(CONTEXT)]
    assert all([m.content.encode() for m in asked[:2]] == opening for asked in scripted.conversations)
    assert {"analysis", "reminder", "repair", "sample", "missing_tools"} == set(scripted.kinds)


FAILING_SAMPLES: dict[str, list[ScriptStep]] = {
    "refused": [answer(refusal="no")],
    "filtered": [answer(finish_reason="content_filter")],
    "empty": [answer()],
    "no_total": [answer("Adequate.")],
    "cut_twice": [CUT, CUT],
    "too_long": [ContextTooLong("long")],
    "unavailable_for_good": [JudgeUnavailable("away")],
    "rate_limited_for_good": [WaitFor("wait", 60, "rate_limit")],
}


async def test_a_sample_that_fails_for_good_is_left_out() -> None:
    """The first reading is a score by itself."""
    for name, failed in FAILING_SAMPLES.items():
        scripted = ScriptedJudge(reading(49), *failed, TOOLS)

        verdict = await judge(scripted, 2)

        assert (verdict.total_score, verdict.samples, verdict.flags) == (49, [49], set()), name
        assert scripted.script == [], name


async def test_a_failed_sample_leaves_the_other_samples_in_force() -> None:
    scripted = ScriptedJudge(reading(40), answer(refusal="no"), reading(60), answer("hmm"), TOOLS)
    verdict = await judge(scripted, 4)
    assert (verdict.total_score, verdict.samples) == (40, [40, 60])


class OneSampleFails(ScriptedJudge):
    """The first sample raises at once, the others answer later; `answered` counts their answers."""

    def __init__(self, error: ScoringError) -> None:
        super().__init__()
        self._error = error
        self.answered = 0

    async def __call__(self, question: Question) -> Turn:
        kind = question.kind
        self.kinds.append(kind)
        if self.kinds.count("sample") == 1 and kind == "sample":
            raise self._error
        for _turn_of_the_loop in range(10):
            await asyncio.sleep(0)
        self.answered += 1
        return reading(60)


async def test_a_sample_that_may_succeed_later_is_raised_when_the_others_are_done() -> None:
    """The score waits, and what the other samples cost is stored first: the next attempt replays it."""
    failing = OneSampleFails(JudgeUnavailable("away"))

    with pytest.raises(JudgeUnavailable):
        await judge(failing, 4, is_final=False)

    assert failing.kinds == ["analysis", "sample", "sample", "sample"]
    assert failing.answered == 3


async def test_a_lease_that_is_lost_in_a_sample_ends_the_judgement() -> None:
    with pytest.raises(LeaseLost):
        await judge(ScriptedJudge(reading(49), LeaseLost("gone"), reading(49)), 3)


async def test_without_a_first_reading_there_are_no_samples() -> None:
    scripted = ScriptedJudge(answer(refusal="no"))
    with pytest.raises(Refused):
        await judge(scripted, 3)
    assert scripted.kinds == ["analysis"]


# --- the masked reading --------------------------------------------------------------------------------


@table
async def test_a_masked_reading_counts_from_two_standard_deviations_on(
    plain: int, unsteered: int, is_tampered: bool
) -> None:
    """
    Such a difference is suspected tampering: the masked reading counts, with its analysis and conversation.

    Samples are readings of the unmasked session and stay as they were.
    """
    scripted = ScriptedJudge(reading(plain), reading(unsteered, "Masked."), TOOLS)

    verdict = await judge(scripted, masked=masked_context)

    assert scripted.kinds == ["analysis", "masked", "missing_tools"]
    assert scripted.conversations[1] == CRITERIA.open_conversation(MASKED)
    chosen = 1 if is_tampered else 0
    assert scripted.conversations[2][:2] == scripted.conversations[chosen]
    assert verdict.total_score == (unsteered if is_tampered else plain)
    assert verdict.score_analysis == ("Masked." if is_tampered else f"The analysis of {plain}.")
    assert verdict.total_turn.kind == ("masked" if is_tampered else "analysis")
    assert verdict.flags == ({"tampering_suspected"} if is_tampered else set())
    assert verdict.samples == [plain]


async def test_the_masked_reading_is_compared_with_the_median() -> None:
    scripted = ScriptedJudge(reading(90), reading(60), reading(62), reading(55), TOOLS)

    verdict = await judge(scripted, 3, masked=masked_context)

    assert scripted.kinds == ["analysis", "sample", "sample", "masked", "missing_tools"]
    assert (verdict.total_score, verdict.samples, verdict.flags) == (62, [90, 60, 62], set())


async def test_the_masked_reading_is_reminded_and_repaired_in_its_own_conversation() -> None:
    criteria = criteria_of(bands={"right": (50, 100), "wrong": (0, 49)})
    contradiction = answer("Outcome: wrong\n\n70")
    scripted = ScriptedJudge(reading(90, RIGHT), answer("hmm"), contradiction, contradiction, TOOLS)

    verdict = await judge(scripted, criteria=criteria, masked=masked_context, max_reminders=1)

    assert scripted.kinds == ["analysis", "masked", "reminder", "repair", "missing_tools"]
    opening = criteria.open_conversation(MASKED)
    assert all(asked[:2] == opening for asked in scripted.conversations[1:])
    assert (verdict.total_score, verdict.judge_outcome) == (70, "wrong")
    assert verdict.flags == {"tampering_suspected", "outcome_score_mismatch"}


async def test_flags_are_those_of_the_reading_that_counts() -> None:
    criteria = criteria_of(bands={"right": (50, 100), "wrong": (0, 49)})
    contradiction = answer("Outcome: wrong\n\n70")
    scripted = ScriptedJudge(contradiction, contradiction, reading(30, "Outcome: wrong"), TOOLS)

    verdict = await judge(scripted, criteria=criteria, masked=masked_context)

    assert verdict.flags == {"tampering_suspected"}


async def test_a_masked_reading_that_fails_fails_the_score() -> None:
    failures = FAILING_SAMPLES | {"lease lost": [LeaseLost("gone")]}
    for name, failed in failures.items():
        for is_final in (True, False):
            scripted = ScriptedJudge(reading(100), *failed)
            with pytest.raises(ScoringError):
                await judge(scripted, masked=masked_context, is_final=is_final)
            assert scripted.script == [], name


# --- what the analysis asserts and cites ---------------------------------------------------------------

VOCABULARY = {"premature_conclusion": "too early", "wrong_conclusion": "not so"}


def showing(**entries: str) -> Any:
    """A context in which these entries can be looked up."""
    conversation = "\n".join(f"[{entry}]\n{text}" for entry, text in entries.items())
    return SimpleNamespace(alert="the alert", conversation=conversation, entries=entries, entry=entries.get)


async def test_failures_that_the_analysis_asserts_are_tags() -> None:
    criteria = criteria_of(failure_vocabulary=VOCABULARY)
    scripted = ScriptedJudge(
        reading(40, "This is a wrong_conclusion."),
        reading(60, "It reached a premature_conclusion (E3)."),
        reading(90, "No premature_conclusion."),
        TOOLS,
    )

    verdict = await judge(scripted, 3, criteria=criteria)

    assert verdict.total_score == 60
    assert verdict.failure_tags == ["premature_conclusion"]


async def test_citations_are_checked_against_what_the_judge_saw() -> None:
    context = showing(E3="kubectl get pods", E4="the pod was out of memory")
    cites = reading(60, "It ran the right command (E3). It saw the reason (E4). It never read the log (E99).")

    cited = await judge(ScriptedJudge(cites, TOOLS), context=context)
    silent = await judge(ScriptedJudge(reading(60), TOOLS), context=context)

    assert cited.grounding is not None
    assert silent.grounding is not None
    assert (cited.grounding.checked, cited.grounding.held, cited.flags) == (3, 2, set())
    assert (silent.grounding.share, silent.flags) == (None, set())


async def test_an_analysis_whose_citations_do_not_hold_is_flagged() -> None:
    cites = reading(60, "It ran the wrong command (E97). It misread it (E98). It never read the log (E99).")

    verdict = await judge(ScriptedJudge(cites, TOOLS), context=showing(E3="kubectl get pods"))

    assert (verdict.total_score, verdict.flags) == (60, {"ungrounded"})


async def test_a_masked_analysis_is_checked_against_the_masked_context() -> None:
    cites = reading(60, "It ran the right command (E3). It saw the reason (E4). It read the log (E5).")
    shown = showing(E3="a", E4="b", E5="c")

    async def masked() -> Any:
        return shown

    verdict = await judge(ScriptedJudge(reading(90), cites, TOOLS), context=showing(E9="x"), masked=masked)

    assert verdict.grounding is not None
    assert (verdict.grounding.checked, verdict.grounding.held) == (3, 3)
    assert verdict.flags == {"tampering_suspected"}
