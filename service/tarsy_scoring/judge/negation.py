"""
Is a term asserted or denied in its sentence? Read from left to right, as far as the form of the English tells.

What stands in front may reach a term (`no sign of X`), what stands behind may take it back (`X: none`; see
`retraction`). Only the form is known, not the world: an explanation that refutes a term without denying it is
not seen through. Where the form leaves it open, nothing is asserted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tarsy_scoring.judge.retraction import HOLDS, MARK, MARKS, NOT, TAG_WORDS, TERM, either, told_behind


@dataclass(frozen=True, slots=True)
class Reading:
    """What a sentence says of its terms."""

    runs: list[tuple[str, bool]]
    """Marks of terms that stand together (`X, Y and Z`), and whether they are asserted."""
    leading_on: "Scope | None"
    """The denial that goes on in a list below, where the sentence leads in to one."""


def read_sentence(text: str, following: str, *, is_first: bool, denial: "Scope | None" = None) -> Reading:
    """
    Tell what a sentence asserts from what it denies, asks or only names. Linear in its length.

    Args:
        text: In lower case and without Markdown; each term is a character of `retraction.MARKS`.
        following: The sentence behind it, where that may be the answer, else empty.
        is_first: Whether the sentence opens its paragraph.
        denial: What a line above leads in with (`None of these apply:`).
    """
    reader = _Reader(text, following, is_first, replace(denial) if denial else None)
    runs = list(reader.runs())
    return Reading(runs, reader.scope if reader.scope and reader.scope.leads_on else None)


@dataclass(slots=True)
class Scope:
    """
    How far a denial, or a mere mention, goes on.

    One that `reaches` far goes on to the end of its clause, `near` only over the words of denials and over
    lists, `aside` (`without`, `instead of`) to a comma or a verb, `all` (`if`) over commas too.
    """

    reaches: str
    denies: bool
    is_of_nouns: bool
    is_label: bool
    """Nothing of substance stands in front of it."""
    has_substance: bool = False
    has_terms: bool = False
    has_opinion: bool = False
    is_in_list: bool = False
    is_suspended: bool = False
    """By words of substance behind a comma, until an `or` says that a list goes on."""
    last_word: str = ""

    @property
    def is_bare(self) -> bool:
        return not self.has_substance and not self.has_terms

    @property
    def leads_on(self) -> bool:
        """Over a colon, a dash or a bracket: `No signs of: X`, not `No logs were read: X`."""
        return self.is_bare and (self.is_label or self.last_word in _LEADING_ON)


class _Reader:
    """Reads one sentence from left to right; `scope` is what denies at this point."""

    def __init__(self, text: str, following: str, is_first: bool, scope: Scope | None) -> None:
        self.scope = scope
        self._text = text
        self._following = following
        self._is_first = is_first
        self._position = 0
        self._has_subject = False
        self._outside: list[Scope | None] = []
        self._is_question = text.rstrip(" )'").endswith("?")

    def runs(self) -> Iterator[tuple[str, bool]]:
        """Terms that stand together (`X, Y and Z`), and whether they are asserted."""
        while token := _TOKEN.match(self._text, self._position):
            self._position = token.end()
            if token.lastgroup == "run":
                yield "".join(TERM.findall(token[0])), self._is_asserted(token)
            elif token.lastgroup is not None:
                self._pass(token.lastgroup, token)

    def _is_asserted(self, run: re.Match[str]) -> bool:
        told, self._position = told_behind(self._text, run, self._following, is_first=self._is_first)
        scope = self.scope
        if scope and not scope.is_bare and HOLDS.match(self._text, run.end()):
            scope = self.scope = None
        if scope:
            scope.has_terms = True
        if told == "denied":
            return False
        if told == "confirmed" and not (scope and scope.denies):
            return True
        if self._is_question:
            return not (scope and scope.denies) and _YES_NEXT.match(self._following) is not None
        return scope is None or scope.is_suspended

    def _pass(self, kind: str, token: re.Match[str]) -> None:
        scope = self.scope
        if kind in _REACHES:
            self._open(kind, token)
        elif kind == "word":
            self._pass_word(token[0])
        elif kind == "bracket":
            self._outside.append(scope)
            if scope and not scope.leads_on and not _OR.match(self._text, token.end()):
                self.scope = None
        elif kind == "end_bracket":
            self.scope = self._outside.pop() if self._outside else scope
        elif kind == "turn" or (kind in ("reason", "colon") and not (scope and scope.leads_on)):
            self.scope, self._has_subject = None, kind != "colon"
        elif kind == "or":
            if scope:
                scope.is_suspended = False
        elif kind in ("comma", "semicolon", "and"):
            self._pass_separator(kind, token.end())

    def _end(self) -> None:
        self.scope, self._has_subject = None, True

    def _open(self, kind: str, token: re.Match[str]) -> None:
        scope = self.scope
        if scope and scope.denies and scope.is_bare and kind in ("near", "aside"):
            self.scope = None  # a denial of a denial: `did not avoid X`, `not without X`
        elif kind == "none" and (answer := _NO_AS_ANSWER.match(self._text, token.start())):
            self._position = answer.end()
        elif not (scope and scope.reaches == "all"):
            self.scope = Scope(_REACHES[kind], kind in _DENYING, kind == "none", is_label=not self._has_subject)
            if parenthesis := _PARENTHESIS.match(self._text, token.end()):
                self._position = parenthesis.end()

    def _pass_word(self, word: str) -> None:
        scope = self.scope
        if scope is None:
            self._has_subject |= word not in _CARRYING
            return
        scope.has_opinion |= word in _OPINIONS
        if (
            (word in _VERBS and _is_over_with_verb(scope))
            or (scope.reaches == "near" and word not in _CARRYING)
            or (scope.reaches == "aside" and scope.has_terms and word in _PRONOUNS)
        ):
            self._end()
        elif word not in _CARRYING:
            scope.has_substance = True
            scope.is_suspended = scope.is_in_list
        scope.last_word = word

    def _pass_separator(self, kind: str, end: int) -> None:
        """Does a list go on, or does a new clause begin?"""
        scope = self.scope
        if kind == "semicolon":
            if scope is None or scope.has_substance or not scope.has_terms or not _TERM_NEXT.match(self._text, end):
                self.scope, self._has_subject = None, False
        elif scope is None or scope.reaches == "all":
            return
        elif kind == "and":
            if _CLAUSE_AFTER_AND.match(self._text, end):
                self._end()
        elif (
            _CLAUSE.match(self._text, end)
            or (not scope.has_terms and _ARTICLE.match(self._text, end))  # `, a clear X`
            or (scope.reaches == "aside" and scope.has_substance)
        ):
            self._end()
        else:
            scope.is_in_list, scope.is_suspended = True, False


def _is_over_with_verb(scope: Scope) -> bool:
    """In `never asking is X` the denial is in the subject; not in `no claim is X` or `I do not think it is X`."""
    if scope.reaches == "aside":
        return scope.last_word not in ("", "that", "which")
    if not scope.has_substance or scope.is_of_nouns or scope.has_opinion or scope.reaches in ("near", "all"):
        return False
    return scope.last_word not in ("that", "which", "who", "what", "have", "been")


# --- the words -----------------------------------------------------------------------------------------


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_RUN = (  # terms that share what is said of them
    rf"{MARK}(?:[\s,/&+]*(?:(?:and/or|and|or|nor|as well as|plus|along with|together with|let alone|much less)[\s,]+)?"
    rf"(?:(?:an?|any|even|the|some) )?{MARK})*"
)

_QUIET = either(  # holds a word of denial, and denies nothing
    rf"{NOT} (?:only|just|merely|simply|solely|least|to mention|surprising(?:ly)?|unexpected(?:ly)?)",
    r"no (?:doubt|question|wonder|denying|mistaking|surprise|matter|(?:excuse|justification) for|less(?: than)?)",
    r"no better than|(?:nothing|none|no) (?:but|less than|short of|other than)",
    r"without (?:an?y? )?(?:doubt|question|exception|hesitation)",
    r"even if|if anything|cannot but|can't help(?: but)?",
    r"(?:cannot|can't) (?:be )?(?:den(?:y|ied)|ignored?|overlook(?:ed)?|excused?)",
    r"(?:should|could|would|might|must|ought to) have (?:been )?(?:avoided|prevented)",
    r"fail(?:s|ed|ing|ure)? to (?:avoid|prevent|escape|rule out|exclude|steer clear of|guard against)",
    # What was never corrected is there.
    rf"{NOT} (?:even |ever |later |fully )?(?:correct|revis|retract|excus|mitigat|undo|repair|remed|acknowledg|admit"
    r"|withdr[ae]w|outweigh|offset|compensat|hid|mak(?:e|ing) up for)\w*(?! any)",
    r"(?:i|we)(?: would|'d) (?:also )?(?:call|tag|label|flag|mark|classify|describe|say|argue|add|note)",
    r"would have to be (?:called|tagged|labell?ed|flagged|marked|classified)",
)
_NONE = either(  # of nouns
    r"no one|no-one|nobody|none|nothing|neither|nor|no",
    r"(?:too )?(?:little|scant|insufficient|weak) (?:evidence|signs?|indications?|support|reasons?|grounds?)",
)
_NEVER = either(  # of verbs
    rf"not yet|(?:has|have) yet to|{NOT}|hardly|scarcely|barely|nowhere|unable to|impossible to",
    r"(?:hard|difficult|unfair|unlikely|reluctant|hesita\w+) to|(?:unlikely|doubtful|questionable)(?: that| whether)?",
    r"(?:wrong|premature) to (?:call|tag|label|flag|speak|assign)",
    r"too (?:small|minor|weak|little|harsh|strong|severe|early|thin|slight|trivial|strict) (?:to|for)",
    r"fail(?:s|ed|ing)? to (?:qualify|amount|constitute|meet|rise|exhibit|show|demonstrate|trigger|satisfy|reach|be)",
    r"(?:(?:stop|stopped|stops|fall|falls|fell) )?short of|refus\w+ to|declin\w+ to|decid\w+ against",
    r"rul(?:e|es|ed|ing) out|exclud(?:e|es|ed|ing)|(?:dismiss|reject|retract)(?:es|s|ed|ing)?",
)
_NEAR = either(
    r"anything but|(?:absence|lack|devoid|clear|innocent) of|lack(?:s|ed|ing)?|(?:free|far|safe) from|free of",
    r"avoid(?:s|ed|ing|ance of)?|prevent(?:s|ed|ing)?|escap(?:e|es|ed|ing)|resist(?:s|ed|ing)?|omit(?:s|ted|ting)?",
    r"withh[eo]ld(?:s|ing)?|(?:leav|left|omit)\w* out|less (?:of )?an?|against|than|minus",
    r"refrain(?:s|ed|ing)? from|immune (?:to|from)|guard(?:s|ed|ing)? against|zero|0(?= (?:\w{1,20} of )?[^\w\s])",
    r"exonerat\w+|clear(?:s|ed) (?:\w{1,20} ){1,3}of|(?:disprov|refut|contradict)\w*|sidestep\w*|dodg\w+|shun\w*",
    r"^\W*(?:absent|n/a|inapplicable|unobserved|unconfirmed|unassigned|ruled out|excluded|rejected|dismissed)",
)
_ASIDE = either(
    r"without|w/o|with (?:no|nothing|none)|instead of|rather than|in (?:place|lieu) of|as opposed to|unlike",
    r"(?:not|never) \w{1,30}ing",
)
_MAYBE_NEAR = either(
    r"possibly|possible|perhaps|maybe|potential(?:ly)?|almost|nearly|borderline|such as|so-called|close to|case for",
    r"as (?:for|to)|regarding|concerning|with (?:regard|respect) to|in terms of|^\W*on",
    r"(?:risk(?:s|ed)?|suspicion|danger|threat) of|border(?:s|ed|ing)? on|verg(?:es|ed|ing) on",
)
_MAYBE = either(
    r"may|might|could|would|thought (?:about|of)|toyed with",
    r"(?:i|we)(?: have| also| first| then){0,3} (?:considered|weighed|entertained)",
    r"(?:check|look|search|screen|test|watch|scan|hunt|ask)(?:s|ed|ing)? (?:for|whether|about)",
    r"(?:ask|tell|told|want|instruct|order|urge|demand)(?:s|ed)? (?:me|us|you|the judge|that|to|for)",
)
_IF = either(
    r"if|whether|unless|suppose|supposing|assuming|in case|as though|provided that|either",
    r"^\W*to (?:be|count as|qualify as)",
)
_VOCABULARY = either(
    rf"(?:possible|available|allowed|permitted|candidate|valid|known|defined) {TAG_WORDS}",
    rf"{TAG_WORDS} (?:considered|checked|reviewed|evaluated|assessed|to (?:consider|check|choose from|use))",
    rf"list of {TAG_WORDS}",
    r"vocabulary|defin(?:es|itions?|ition of)|cho(?:ose|osing|sen) (?:from|one|between|among)|one of|any of",
    r"^\W*(?:use|choose|pick|select)",
)
_TURN = either(
    r"but|however|nevertheless|nonetheless|instead|whereas|although|though|albeit|yet|while|on the other hand",
    r"except(?:ing)?(?: for)?|apart from|aside from|besides|other than|conversely",
)
_REASON = either(
    r"because|due to|owing to|since|given|thus|hence|therefore|consequently|so(?! (?:far|much|many))|thereby",
    r"which is why|that is(?=,)|namely|(?:results?|resulted|resulting) in|(?:leads?|led|leading) to",
)

_TOKEN = re.compile(
    rf"(?P<run>{_RUN})|(?P<quiet>{_QUIET})|(?P<near>{_NEAR})|(?P<aside>{_ASIDE})|(?P<none>{_NONE})|(?P<never>{_NEVER})"
    rf"|(?P<vocabulary>{_VOCABULARY})|(?P<maybe_near>{_MAYBE_NEAR})|(?P<maybe>{_MAYBE})|(?P<if>{_IF})"
    rf"|(?P<turn>{_TURN}|->|=>|\|)|(?P<reason>{_REASON})|(?P<colon>[:=]|-+(?=\s))|(?P<and>{either('and')}|&)"
    rf"|(?P<or>{either('or')})|(?P<comma>,)|(?P<semicolon>;)|(?P<bracket>\()|(?P<end_bracket>\))"
    r"|(?P<word>\w+(?:['-]\w+)*)|\s+|-+|.",
    re.DOTALL,
)
_REACHES = {
    **dict.fromkeys(("none", "never", "maybe"), "far"),
    **dict.fromkeys(("near", "maybe_near"), "near"),
    "aside": "aside",
    **dict.fromkeys(("if", "vocabulary"), "all"),
}
_DENYING = ("none", "never", "near", "aside")

# Words between a denial and what it denies; any other word is denied in its own right.
_CARRYING = _words("""
    a an the any some this that these those its their his such single one other further kind sort type form level of
    for in to from as at on with by into toward towards about either both what i we it he they sign signs evidence
    indication indications trace traces hint hints instance instances case cases example examples occurrence
    occurrences symptom symptoms suggestion proof signal signals reason reasons basis ground grounds support tag
    tags label labels flag flags failure failures mode modes finding findings term terms category categories list
    problem problems issue issues error errors mistake mistakes trap traps pitfall pitfalls temptation fault
    violation charge following listed below above named be been being is was are were am do does did has have had
    having can will should must need needs show shows showed shown showing exhibit exhibits exhibited exhibiting
    display displays displayed demonstrate demonstrates demonstrated constitute constitutes constituted constituting
    amount amounts amounted amounting qualify qualifies qualified qualifying count counts counted contain contains
    contained including include includes included involve involves involved suggest suggests suggested suggesting
    indicate indicates indicated indicating imply implies implied reveal reveals revealed find finds found see sees
    saw seen observe observed detect detected identify identified notice noticed note noted discover discovered
    present apply applies applied applicable call called calling tag tagged tagging label labelled labeled labelling
    flag flagged flagging classify classified consider considered regard regarded describe described assign assigned
    assigning give gave given commit commits committed committing make makes made making draw drew drawn drawing
    jump jumped jumping reach reached reaching suffer suffers suffered guilty resort resorted think believe say said
    warrant warrants warranted warranting justify justifies justified justifying deserve deserves meet meets fall
    fell falling rise rises point points pointing exist exists existed occur occurs occurred happen happened appear
    appears appeared evident used use using met set really actually clearly truly quite exactly even ever here there
    also all anywhere strictly fully just merely simply clear real obvious direct explicit apparent visible serious
    outright full true genuine particular specific notable actual textbook plain
""")
_LEADING_ON = _words("of for following below these tag tags label labels failure failures mode modes term terms")
_PRONOUNS = _words("i we it he they this")
_OPINIONS = _words("""
    think believe say see find found mean prove suggest indicate imply claim argue agree hold consider feel accept
    convinced clear certain evident obvious case true sure know conclude regard call assume establish confirm
    demonstrate justify warrant
""")
_VERBS = _words("""
    is was are were makes made means meant amounts amounted counts counted constitutes constituted shows showed turns
    turned leads led results resulted causes caused leaves left ends ended gives gave produces produced draws drew
    reaches reached jumps jumped commits committed
""")
_FINITE = (
    r"\w{1,30}ed|is|was|are|were|has|had|makes|made|draws|drew|gives|gave|goes|went|comes|came|leads|led|runs|ran|takes"
    r"|took|says|said|shows|jumps|leaps|commits|reaches|suffers|exhibits|ends|results|states|claims|concludes|presents"
    r"|falls|fell|asserts|declares|announces|settles|rests|relies|remains|leaves|left|builds|built|stops|guesses|misses"
    r"|overstates|ignores|skips|invents|counts?|amounts?|constitutes?|qualif(?:y|ies)|becomes?|became"
)
_SUBJECT = (
    r"this|that|these|those|it|its|it's|he|they|there|there's|i|we|who|which|what|so|thus|hence|therefore|thereby|then"
    r"|consequently|yet|still|instead|only|rather|(?!including)\w{1,30}ing"
)
_PARTICLE = r"merely|just|simply|clearly|obviously|is|was|are|were|makes|amounts|counts|shows"
_CLAUSE_AFTER_AND = re.compile(rf" *(?:(?:{_FINITE}|{_SUBJECT})(?![\w'-])|(?:the|an?|his|their) (?!{MARK})\w)")
_CLAUSE = re.compile(rf" *(?:and |then |e[0-9]{{1,6}} )?{either(_SUBJECT, _PARTICLE)}")
_ARTICLE = re.compile(r" *(?:an?|the|its|another) ")
_TERM_NEXT = re.compile(rf"[\s(]*(?:(?:or|nor|and|an?|any|the) )?{MARK}")
_OR = re.compile(r"\s*n?or ")
_NO_AS_ANSWER = re.compile(r"(?:no|none)(?=[,.;:!)]| -|$)")
_PARENTHESIS = re.compile(  # `, in my view,`
    rf"(?:,|,? (?:however|therefore|though|thus|then),?(?! {MARK}))(?! (?:so|it|this|that|but|which|nor|and) )"
    rf"[^,;:.()\n{MARKS}]{{0,40}},"
)
_YES_NEXT = re.compile(
    r"\W{0,4}(?:yes|indeed|definitely|certainly|clearly|absolutely|correct|it does|it did|it was|there was)\b"
)
