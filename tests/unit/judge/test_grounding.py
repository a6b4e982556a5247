"""Which citations of an analysis are true: ids that exist, quotations that stand where they are said to stand."""

import random
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tables import table
from tarsy_scoring.judge.grounding import check_citations, is_ungrounded
from tarsy_scoring.judge.verdict import Grounding
from tarsy_scoring.timeline.context import FittedContext, build_context
from tarsy_scoring.timeline.files import read_session_file
from unit.timeline.sessions import NONCE, PLENTY, call, event, of_events

TRUE, FALSE, NONE = Grounding(1, 1), Grounding(1, 0), Grounding(0, 0)

# E1 alert, E2 reasoning, E3 call, E4 call, E5 answer, E6 final analysis.
CONTEXT = build_context(
    of_events(
        event("llm_thinking", "The pod web-1 was not deleted, it was evicted by the kubelet.", number=1),
        call('{"reason": "OOMKilled", "exitCode": 137, "restarts": 5, "log": "one\\ntwo"}', number=2, name="get_pods"),
        call(
            "dial tcp 10.0.0.7:5432: connection refused\n  retry 3 of 5\nE11000 duplicate key",
            number=3,
            name="get_logs",
        ),
        event(
            "llm_response", "**Root cause:** the node ran out of memory… see `kube_node_status` and [E99].", number=4
        ),
        final_analysis="The node pool is too small; don't restart web-1 (load 1.5, delta -12).\n- cordon\n- drain",
    ),
    NONCE,
    PLENTY,
)


def check(analysis: str) -> Grounding:
    return check_citations(analysis, CONTEXT)


# --- ids -----------------------------------------------------------------------------------------------


@table
def test_the_id_of_an_entry_is_a_true_citation(analysis: str) -> None:
    assert check(analysis) == TRUE


@table
def test_each_id_counts(analysis: str, checked: int, held: int) -> None:
    assert check(analysis) == Grounding(checked, held)


@table
def test_what_only_looks_like_an_id_is_none(text: str) -> None:
    assert check(f"It says {text} there.") == NONE


def test_a_code_that_the_evidence_holds_as_a_word_is_no_citation() -> None:
    """The judge names an error, it does not cite; a number that no tool returned is a false citation."""
    assert check("The insert failed with E11000.") == NONE
    assert check("The insert failed with E11001.") == FALSE


# --- quotations ----------------------------------------------------------------------------------------

REFUSED = 'E4 shows "connection refused" and no retry.'


@table
def test_a_quotation_holds_where_it_stands(analysis: str) -> None:
    assert check(analysis) == TRUE


@table
def test_quotations_come_in_many_marks(form: str) -> None:
    assert check(f"E4: {form.format('retry 3 of 5')}") == TRUE
    assert check(f"E4: {form.format('retry 4 of 5')}") == FALSE


def test_sixteen_characters_are_a_quotation() -> None:
    assert check('E4: "E11000 duplicate"') == TRUE
    assert check('E4: "E11000 duplicity"') == FALSE
    assert check('E4: "drained cordons"') == TRUE
    assert check('E4: "a b c"') == FALSE
    assert check('E4: "_ _ _"') == TRUE


@table
def test_a_quotation_that_stands_elsewhere_or_nowhere_does_not_hold(analysis: str) -> None:
    """Words and numbers are whole and unchanged, in their order, in an entry that the sentence names."""
    assert check(analysis) == FALSE


@table
def test_what_is_no_quotation_is_not_checked(analysis: str) -> None:
    assert check(analysis) == NONE


@table
def test_a_command_that_is_only_suggested_is_no_citation(analysis: str) -> None:
    assert check(analysis) == NONE


@table
def test_what_is_claimed_as_evidence_is_still_checked(analysis: str, checked: int, held: int) -> None:
    """The last word that suggests or claims decides, quotation marks always claim, and ids always count."""
    assert check(analysis) == Grounding(checked, held)


@table
def test_a_sentence_says_where_its_quotations_stand(analysis: str, checked: int, held: int) -> None:
    assert check(analysis) == Grounding(checked, held)


def test_what_was_cut_from_the_context_cannot_be_quoted() -> None:
    session = of_events(call("first line\n" + "x y z 1 2 3\n" * 20_000 + "the very last line"))
    cut = build_context(session, NONCE, 5_000)

    assert check_citations('E2: "the very last line"', cut) == TRUE
    assert check_citations('E2: "first line … the very last line"', cut) == TRUE
    assert cut.cut_entries == ("E2",)
    whole = build_context(session, NONCE, PLENTY)
    middle = 'E2: "' + "x y z 1 2 3 " * 15_000 + 'x"'
    assert check_citations(middle, whole) == TRUE
    assert check_citations(middle, cut) == FALSE


# --- a thousand of them --------------------------------------------------------------------------------

EXAMPLES = Path(str(files("tarsy_scoring_lab") / "examples"))


@cache
def contexts() -> tuple[FittedContext, ...]:
    sessions = [read_session_file(path) for path in sorted(EXAMPLES.glob("*.json"))]
    return tuple(build_context(session, NONCE, PLENTY) for session in sessions)


def bare(text: str) -> str:
    """Its words and numbers alone: a second opinion on what a text holds, apart from the code under test."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(words)} "


class Draw:
    """Draws citations of a context, true and false ones."""

    def __init__(self, seed: int, context: FittedContext) -> None:
        self.random = random.Random(seed)
        self.context = context
        self.entries = {entry: context.entry_text(entry) or "" for entry in context.entries}
        self.vocabulary = sorted({w for text in self.entries.values() for w in re.findall(r"\b[a-z]{4,}\b", text)})

    def passage(self, fits: Callable[[list[str]], bool] = lambda words: True) -> tuple[str, list[str]]:
        """Some successive words of an entry that can be quoted."""
        for _ in range(1_000):
            entry = self.random.choice(list(self.entries))
            words = self.entries[entry].split()
            start, length = self.random.randrange(max(len(words), 1)), self.random.randint(6, 12)
            passage = words[start : start + length]
            can_be_quoted = not re.search(r"[\"“”„`«»\\…]|\.\.|\b[eE]\d", " ".join(passage))
            if len(passage) == length and can_be_quoted and len(bare(" ".join(passage)).split()) > 5 and fits(passage):
                return entry, passage
        raise AssertionError("this session holds nothing that can be quoted")

    def sentence(self, entry: str | None, quotation: str) -> str:
        quoted = self.random.choice(['"{}"', "“{}”", "`{}`"]).format(quotation)
        if entry is None:
            return f"The timeline says {quoted} somewhere."
        form = self.random.choice(
            ["However, [{1}] says {0}.", "It saw {0} ({1}) and went on.", "{1}: {0}", "- {0} in {1}."]
        )
        return form.format(quoted, entry)

    def true_id(self) -> str:
        return f"The claim rests on [{self.random.choice(list(self.entries))}]."

    def false_id(self) -> str:
        return f"The claim rests on E{len(self.entries) + self.random.randint(1, 900)}."

    def true_quotation(self) -> str:
        entry, words = self.passage()
        return self.sentence(entry, " ".join(words))

    def true_quotation_without_id(self) -> str:
        return self.sentence(None, " ".join(self.passage()[1]))

    def other_white_space(self) -> str:
        entry, words = self.passage()
        blanks = ["  ", " ", "\t", " \n", "\u00a0"] if self.random.random() < 0.5 else ["  ", "\u2009"]
        quoted = "".join(word + self.random.choice(blanks) for word in words[:-1]) + words[-1]
        return f"[{entry}] says “{quoted}” twice."

    def other_case(self) -> str:
        entry, words = self.passage()
        return self.sentence(entry, self.random.choice([str.upper, str.title, str.swapcase])(" ".join(words)))

    def shortened(self) -> str:
        entry, words = self.passage()
        cut = self.random.randint(2, len(words) - 3)
        gap = self.random.choice(["...", "…", "[...]", "[…]"])
        return self.sentence(entry, " ".join([*words[:cut], gap, *words[cut + 1 :]]))

    def altered(self, change: Callable[[list[str]], list[str]], entry: str, words: list[str]) -> str | None:
        """The sentence with the changed words; None where the entry says those too."""
        changed = " ".join(change(words))
        return None if bare(changed) in bare(self.entries[entry]) else self.sentence(entry, changed)

    def word_changed(self) -> str | None:
        def change(words: list[str]) -> list[str]:
            place = self.random.randrange(len(words))
            return [*words[:place], self.random.choice(self.vocabulary), *words[place + 1 :]]

        return self.altered(change, *self.passage())

    def negation_inserted(self) -> str | None:
        def change(words: list[str]) -> list[str]:
            place = self.random.randint(1, len(words) - 1)
            return [*words[:place], self.random.choice(["not", "never", "no"]), *words[place:]]

        return self.altered(change, *self.passage())

    def number_changed(self) -> str | None:
        def change(words: list[str]) -> list[str]:
            digits = list(re.finditer(r"\d", " ".join(words)))
            digit = self.random.choice(digits)
            text = " ".join(words)
            other = str((int(digit[0]) + self.random.randint(1, 9)) % 10)
            return [text[: digit.start()] + other + text[digit.end() :]]

        return self.altered(change, *self.passage(lambda words: any(re.search(r"\d", w) for w in words)))

    def word_left_out(self) -> str | None:
        def change(words: list[str]) -> list[str]:
            place = self.random.randint(1, len(words) - 2)
            return [*words[:place], *words[place + 1 :]]

        return self.altered(change, *self.passage(lambda words: all(re.search(r"[a-z]", w) for w in words)))

    def wrong_entry(self) -> str | None:
        _, words = self.passage()
        other = self.random.choice(list(self.entries))
        return None if bare(" ".join(words)) in bare(self.entries[other]) else self.sentence(other, " ".join(words))

    def no_such_entry(self) -> str:
        return self.sentence(f"E{len(self.entries) + self.random.randint(1, 900)}", " ".join(self.passage()[1]))

    def nowhere(self) -> str | None:
        _, words = self.passage()
        words[self.random.randrange(len(words))] = self.random.choice(self.vocabulary)
        everything = bare(self.context.alert + self.context.conversation)
        return None if bare(" ".join(words)) in everything else self.sentence(None, " ".join(words))


TRUE_KINDS = [
    Draw.true_id,
    Draw.true_quotation,
    Draw.true_quotation_without_id,
    Draw.other_white_space,
    Draw.other_case,
    Draw.shortened,
]
FALSE_KINDS = [
    Draw.false_id,
    Draw.word_changed,
    Draw.negation_inserted,
    Draw.number_changed,
    Draw.word_left_out,
    Draw.wrong_entry,
    Draw.no_such_entry,
    Draw.nowhere,
]


def drawn(seed: int, context: FittedContext, count: int) -> Iterator[tuple[str, str, bool]]:
    """Kind, sentence and whether it is true; as many true as false ones."""
    draw = Draw(seed, context)
    while count:
        is_true = count % 2 == 0
        kind = draw.random.choice(TRUE_KINDS if is_true else FALSE_KINDS)
        if sentence := kind(draw):
            yield kind.__name__, sentence, is_true
            count -= 1


def test_a_thousand_citations_are_told_true_from_false() -> None:
    wrong, kinds = [], set()
    for number, context in enumerate(contexts()):
        citations = list(drawn(number, context, 100))
        for kind, sentence, is_true in citations:
            kinds.add(kind)
            if check_citations(sentence, context) != Grounding(1, int(is_true)):
                wrong.append((kind, sentence))
        together = check_citations("\n\n".join(sentence for _, sentence, _ in citations), context)
        assert together == Grounding(100, 50)

    assert wrong == []
    assert len(contexts()) == 10
    assert kinds == {kind.__name__ for kind in TRUE_KINDS + FALSE_KINDS}


# --- laws ----------------------------------------------------------------------------------------------


@table
def test_fewer_than_half_of_at_least_three_is_ungrounded(checked: int, held: int, expected: bool) -> None:
    assert is_ungrounded(Grounding(checked, held)) is expected


@given(
    st.lists(
        st.sampled_from([REFUSED, "E4 ", "E77 ", '"', "“", "”", "`", "\n", ". ", "retry 3 of 5", "-", "…", "\\"])
        | st.text(max_size=5)
    )
)
@settings(max_examples=300)
def test_never_more_hold_than_are_checked(pieces: list[str]) -> None:
    grounding = check("".join(pieces))

    assert 0 <= grounding.held <= grounding.checked


def test_no_more_than_a_thousand_quotations_are_searched() -> None:
    """A flood of quotations cannot hold the service up; those beyond the limit are not counted as checked."""
    assert check('"retry 3 of 5" ' * 1_500) == Grounding(1_000, 1_000)


HOSTILE = [
    "E4 ",
    "E4-",
    "E4–",
    "E4 & ",
    '"',
    ' "a',
    "“a ",
    "`a ",
    "``",
    "\\",
    "!",
    ". ",
    "\n",
    "\n ",
    " ",
    "_",
    "a*",
    "...",
]
HOSTILE += ["a … ", '"a a a" ', "not `a a a` ", "not:\n- "]


def test_a_hostile_analysis_is_read_in_linear_time() -> None:
    for unit in HOSTILE:
        for before, after in [("", ""), ('"a a a ', ' a" E4')]:
            analysis = before + unit * (50_000 // len(unit)) + after
            started = time.process_time()

            check(analysis)

            assert time.process_time() - started < 2, unit


def test_hostile_evidence_is_searched_in_linear_time() -> None:
    context = build_context(
        of_events(event("llm_thinking", "ab" * 150_000), event("llm_thinking", "a " * 150_000)), NONCE, PLENTY
    )
    started = time.process_time()

    assert check_citations('"' + "ab" * 10_000 + ' c d"', context) == FALSE
    assert check_citations('"' + "ab" * 10_000 + '"', context) == FALSE
    assert check_citations('"' + "a " * 10_000 + 'b"', context) == FALSE
    assert time.process_time() - started < 5
