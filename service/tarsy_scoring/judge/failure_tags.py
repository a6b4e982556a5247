"""
Which failures of a vocabulary the judge asserts, and does not merely name, deny or ask about.

A term is read in its sentence: what stands in front may reach it (`no sign of X`), what stands behind may
take it back (`X: none`). Only the form of the English is known, not the world: an explanation that refutes a
term without denying it is not seen through. Where the form leaves it open, nothing is asserted.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


def find_failure_tags(analysis: str, vocabulary: Iterable[str]) -> list[str]:
    """
    The terms that the analysis asserts, in the order of the vocabulary, each once.

    Only whole terms count, in whatever case and decoration. One sentence that asserts a term is enough,
    whatever others say of it. A bare list of all terms of a vocabulary of four or more is taken for a
    quotation of the vocabulary. Linear in the length of the analysis.

    Args:
        vocabulary: Identifiers such as `wrong_conclusion`.
    """
    terms = list(dict.fromkeys(vocabulary))
    if not terms:
        return []
    marks = {term: chr(_FIRST_MARK + number) for number, term in enumerate(terms)}
    text = _mark_terms(analysis, {term.lower(): mark for term, mark in marks.items()})
    if not any(mark in text for mark in marks.values()):
        return []
    asserted = set(_asserted_marks(_sentences(_blocks(text)), frozenset(marks.values())))
    return [term for term in terms if marks[term] in asserted]


# --- from text to sentences ----------------------------------------------------------------------------

# From here on each term is one character that no text holds, so that patterns need not know the vocabulary.
_FIRST_MARK, _LAST_MARK = 0xF0000, 0xFFFFD
_T = f"[{chr(_FIRST_MARK)}-{chr(_LAST_MARK)}]"

# Without width (soft hyphen, joiners, direction marks, variation selectors, byte order mark); escapes; HTML.
_IGNORED = re.compile(
    r"[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe0e\ufe0f\ufeff]"
    r"|\\(?=[_*`\[\]-])|</?[A-Za-z]{1,10}>|\r(?=\n)"
)
_STRUCK_OUT = re.compile(rf"{_T}|~~[^~\n]{{1,400}}~~")
_PLAIN = str.maketrans("’‘“”[]\r\u2028", "''\"\"()\n\n") | {ord("—"): " - ", ord("–"): " - ", ord("→"): "->"}
_ABBREVIATION = re.compile(r"\b(?:i\.e\.|e\.g\.|cf\.|vs\.|etc\.)")


def _mark_terms(analysis: str, marks: dict[str, str]) -> str:
    text = _STRUCK_OUT.sub(" ", _IGNORED.sub("", analysis).translate(_PLAIN).lower())
    text = _ABBREVIATION.sub(lambda m: {"i.e.": "namely", "e.g.": "such as"}.get(m[0], m[0][:-1]), text)
    # A hyphen joins (`non-X`, `X-free`), and so does a dot (`tags.X`, `X.py`); underscores may be emphasis.
    names = "|".join(re.escape(term) for term in marks)
    whole = rf"(?<![\w!¬])(?<!\w[-.])(?P<emphasis>_{{0,3}})(?P<term>{names})(?P=emphasis)(?!\w)(?![-.]\w)"
    return re.sub(whole, lambda m: marks[m["term"]], text)


@dataclass(slots=True)
class _Block:
    """A heading, a list item, a paragraph, or a term in a table with what the table answers to it."""

    lines: list[str]
    indent: int = 0
    is_item: bool = False
    is_cell: bool = False
    is_heading: bool = False
    is_void: bool = False
    """Its box is not checked, or it heads a table."""

    @property
    def leads_in(self) -> bool:
        return (self.is_heading or self.lines[-1].endswith(":")) and _OTHER_WORD.search(self.lines[-1]) is not None


_BLOCK_MARKS = re.compile(
    r"(?P<indent>[ \t>]*)(?P<heading>#{1,6}[ \t]+)?(?P<item>(?:(?:[+•*-]|[0-9]{1,3}[.)])[ \t]+)*)"
    r"(?P<box>\([ x-]?\)(?=\s)|[☐☑☒✓✔✅✗✘✖❌](?=\s))?"
)
_UNCHECKED = ("( )", "()", "(-)", "☐", "✗", "✘", "✖", "❌")
_BOLD_LINE = re.compile(r"(\*\*|__)[^*]+\1:?")
_TABLE_RULE = re.compile(r"[|:\s-]+")
_LABELLED = re.compile(rf"\W{{0,6}}(?:{_T}|[\w/-]+(?: [\w/-]+){{0,3}})\W{{0,4}}[:=]")
_LABEL_AND_ANSWER = re.compile(r"[^:=|]{1,60}[:=]\s*\S+(?: \S+)?")
_EMPHASIS = re.compile(r"[*`\"{}]|(?<!\w)'|'(?!\w)|(?<!\w)_++|(?<!_)_++(?!\w)")
_QUOTED = re.compile(r'"([^"\n]{1,400})"')
_TERM = re.compile(_T)
_OTHER_WORD = re.compile(r"\b(?!(?:and|or|nor|tags?|labels?|failures?|modes?)\b)[a-z]{2,}")


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    row: list[_Block] = []
    is_open = False
    for line in text.split("\n"):
        marks = _BLOCK_MARKS.match(line)
        assert marks is not None  # it matches nothing at all
        rest = _without_speech(line[marks.end() :].strip())
        plain = " ".join(_EMPHASIS.sub("", rest).split())
        if not plain:
            is_open = False
        elif rest.startswith("|") or " | " in rest:
            if _TABLE_RULE.fullmatch(rest):
                for cell in row:
                    cell.is_void = True
            row = _cells(plain)
            blocks += row
            is_open = False
        elif is_open and not (marks["heading"] or marks["item"] or marks["box"] or _LABELLED.match(plain)):
            blocks[-1].lines.append(plain)
        else:
            is_heading = bool(marks["heading"] or _BOLD_LINE.fullmatch(rest))
            is_item = bool(marks["item"] or marks["box"])
            is_void = marks["box"] in _UNCHECKED
            blocks.append(_Block([plain], len(marks["indent"]), is_item, is_heading=is_heading, is_void=is_void))
            is_open = not (is_heading or plain.endswith(":") or _LABEL_AND_ANSWER.fullmatch(plain))
    return blocks


def _without_speech(line: str) -> str:
    """Take the terms out of longer quotations: those are somebody else's words. A quoted term alone is decorated."""
    return _QUOTED.sub(lambda m: _TERM.sub(" ", m[0]) if _OTHER_WORD.search(m[1]) else m[0], line)


def _cells(row: str) -> list[_Block]:
    """A term with the next cell that is an answer (`| X | E12 | no |`), else with the one in front of it."""
    cells = [cell.strip() for cell in row.split("|")]
    blocks, answer = [], ""
    for before, cell in zip(["", *cells][-2::-1], reversed(cells), strict=True):
        if _TERM.search(cell):
            told = answer or (before if _ANSWER.fullmatch(before) else "")
            blocks.append(_Block([f"{cell}: {told}" if told else cell], is_cell=True))
        elif _ANSWER.fullmatch(cell):
            answer = cell
    return blocks[::-1]


@dataclass(slots=True)
class _Sentence:
    text: str
    block: _Block
    is_first: bool
    next: str = ""
    """What follows, where it may be the answer to this sentence."""


_SENTENCE_END = re.compile(r"(?<=[.!?])[)']*\s+")


def _sentences(blocks: Sequence[_Block]) -> list[_Sentence]:
    sentences = [
        _Sentence(text, block, number == 0)
        for block in blocks
        for number, text in enumerate(_SENTENCE_END.split(" ".join(block.lines)))
        if text
    ]
    for this, following in pairwise(sentences):
        is_beside = following.block.is_cell or (following.block.is_item and following.block.indent <= this.block.indent)
        if this.block is following.block or not is_beside:
            this.next = following.text
    return sentences


# --- from sentences to assertions ----------------------------------------------------------------------


@dataclass(slots=True)
class _Scope:
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


def _asserted_marks(sentences: Sequence[_Sentence], vocabulary: frozenset[str]) -> Iterator[str]:
    lead: _Block | None = None
    inherited: _Scope | None = None
    for sentence in sentences:
        block = sentence.block
        if lead and sentence.is_first and not _hangs_on(block, lead):
            lead = inherited = None
        reader = _Reader(sentence, replace(inherited) if inherited and sentence.is_first else None)
        for run, is_asserted in reader.runs():
            if is_asserted and not block.is_void and not (len(vocabulary) >= 4 and vocabulary <= set(run)):
                yield from run
        if block.leads_in and block is not lead:
            scope = reader.scope
            lead, inherited = block, scope if scope and scope.leads_on else None


def _hangs_on(block: _Block, lead: _Block) -> bool:
    """Items below a line that leads in to them, and terms that stand there alone."""
    if block.is_item:
        return not lead.is_item or block.indent > lead.indent
    return not any(_OTHER_WORD.search(line) for line in block.lines)


class _Reader:
    """Reads one sentence from left to right; `scope` is what denies at this point."""

    def __init__(self, sentence: _Sentence, scope: _Scope | None) -> None:
        self.scope = scope
        self._sentence = sentence
        self._text = sentence.text
        self._position = 0
        self._has_subject = False
        self._outside: list[_Scope | None] = []
        self._is_question = self._text.rstrip(" )'").endswith("?")

    def runs(self) -> Iterator[tuple[str, bool]]:
        """Terms that stand together (`X, Y and Z`), and whether they are asserted."""
        if not _TERM.search(self._text) and not self._sentence.block.leads_in:
            return
        while token := _TOKEN.match(self._text, self._position):
            self._position = token.end()
            if token.lastgroup == "run":
                yield "".join(_TERM.findall(token[0])), self._is_asserted(token)
            elif token.lastgroup is not None:
                self._pass(token.lastgroup, token)

    def _is_asserted(self, run: re.Match[str]) -> bool:
        told, self._position = _told_behind(self._sentence, run)
        scope = self.scope
        if scope and not scope.is_bare and _HOLDS.match(self._text, run.end()):
            scope = self.scope = None
        if scope:
            scope.has_terms = True
        if told == "denied":
            return False
        if told == "confirmed" and not (scope and scope.denies):
            return True
        if self._is_question:
            return not (scope and scope.denies) and _YES_NEXT.match(self._sentence.next) is not None
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
            self.scope = _Scope(_REACHES[kind], kind in _DENYING, kind == "none", is_label=not self._has_subject)
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


def _is_over_with_verb(scope: _Scope) -> bool:
    """In `never asking is X` the denial is in the subject; not in `no claim is X` or `I do not think it is X`."""
    if scope.reaches == "aside":
        return scope.last_word not in ("", "that", "which")
    if not scope.has_substance or scope.is_of_nouns or scope.has_opinion or scope.reaches in ("near", "all"):
        return False
    return scope.last_word not in ("that", "which", "who", "what", "have", "been")


def _told_behind(sentence: _Sentence, run: re.Match[str]) -> tuple[str, int]:
    """What is told of terms behind them ("denied", "confirmed", or nothing), and where to read on."""
    text, end = sentence.text, run.end()
    for skipped in (None, _TAG_NOUN, _REMARK):
        if skipped and (found := skipped.match(text, end)):
            end = found.end()
        if found := _BEHIND.match(text, end):
            return found.lastgroup or "", found.end()
    if _NOTHING_ELSE.match(text, end):  # `X.` and then `Not observed.`
        return "denied" if _NO_NEXT.match(sentence.next) else "", run.end()
    if sentence.is_first and run.start() < 3 and _SEPARATOR.match(text, end):
        upto = _TERM.search(text, end)
        if _TAKEN_BACK.search(text, end, upto.start() if upto else len(text)) or _NO_NEXT.match(sentence.next):
            return "denied", run.end()
    return "", run.end()


# --- what the words do, in front ------------------------------------------------------------------------

# Longer phrases stand before shorter ones that they begin with. Every repetition is bounded or possessive.


def _either(*alternatives: str) -> str:
    return rf"(?:{'|'.join(alternatives)})(?![\w'-])"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT = r"(?:not|never|cannot|[a-z]{0,8}n't|(?:is|was|are|were|does|do|did|has|have|had|could|would|ca|wo)nt)"
_TAG_WORDS = r"(?:(?:failure )?(?:tags?|labels?|flags?|modes?|terms?|categor(?:y|ies))|failures?)"
_RUN = (  # terms that share what is said of them
    rf"{_T}(?:[\s,/&+]*(?:(?:and/or|and|or|nor|as well as|plus|along with|together with|let alone|much less)[\s,]+)?"
    rf"(?:(?:an?|any|even|the|some) )?{_T})*"
)

_QUIET = _either(  # holds a word of denial, and denies nothing
    rf"{_NOT} (?:only|just|merely|simply|solely|least|to mention|surprising(?:ly)?|unexpected(?:ly)?)",
    r"no (?:doubt|question|wonder|denying|mistaking|surprise|matter|(?:excuse|justification) for|less(?: than)?)",
    r"no better than|(?:nothing|none|no) (?:but|less than|short of|other than)",
    r"without (?:an?y? )?(?:doubt|question|exception|hesitation)",
    r"even if|if anything|cannot but|can't help(?: but)?",
    r"(?:cannot|can't) (?:be )?(?:den(?:y|ied)|ignored?|overlook(?:ed)?|excused?)",
    r"(?:should|could|would|might|must|ought to) have (?:been )?(?:avoided|prevented)",
    r"fail(?:s|ed|ing|ure)? to (?:avoid|prevent|escape|rule out|exclude|steer clear of|guard against)",
    # What was never corrected is there.
    rf"{_NOT} (?:even |ever |later |fully )?(?:correct|revis|retract|excus|mitigat|undo|repair|remed|acknowledg|admit"
    r"|withdr[ae]w|outweigh|offset|compensat|hid|mak(?:e|ing) up for)\w*(?! any)",
    r"(?:i|we)(?: would|'d) (?:also )?(?:call|tag|label|flag|mark|classify|describe|say|argue|add|note)",
    r"would have to be (?:called|tagged|labell?ed|flagged|marked|classified)",
)
_NONE = _either(  # of nouns
    r"no one|no-one|nobody|none|nothing|neither|nor|no",
    r"(?:too )?(?:little|scant|insufficient|weak) (?:evidence|signs?|indications?|support|reasons?|grounds?)",
)
_NEVER = _either(  # of verbs
    rf"not yet|(?:has|have) yet to|{_NOT}|hardly|scarcely|barely|nowhere|unable to|impossible to",
    r"(?:hard|difficult|unfair|unlikely|reluctant|hesita\w+) to|(?:unlikely|doubtful|questionable)(?: that| whether)?",
    r"(?:wrong|premature) to (?:call|tag|label|flag|speak|assign)",
    r"too (?:small|minor|weak|little|harsh|strong|severe|early|thin|slight|trivial|strict) (?:to|for)",
    r"fail(?:s|ed|ing)? to (?:qualify|amount|constitute|meet|rise|exhibit|show|demonstrate|trigger|satisfy|reach|be)",
    r"(?:(?:stop|stopped|stops|fall|falls|fell) )?short of|refus\w+ to|declin\w+ to|decid\w+ against",
    r"rul(?:e|es|ed|ing) out|exclud(?:e|es|ed|ing)|(?:dismiss|reject|retract)(?:es|s|ed|ing)?",
)
_NEAR = _either(
    r"anything but|(?:absence|lack|devoid|clear|innocent) of|lack(?:s|ed|ing)?|(?:free|far|safe) from|free of",
    r"avoid(?:s|ed|ing|ance of)?|prevent(?:s|ed|ing)?|escap(?:e|es|ed|ing)|resist(?:s|ed|ing)?|omit(?:s|ted|ting)?",
    r"withh[eo]ld(?:s|ing)?|(?:leav|left|omit)\w* out|less (?:of )?an?|against|than|minus",
    r"refrain(?:s|ed|ing)? from|immune (?:to|from)|guard(?:s|ed|ing)? against|zero|0(?= (?:\w{1,20} of )?[^\w\s])",
    r"exonerat\w+|clear(?:s|ed) (?:\w{1,20} ){1,3}of|(?:disprov|refut|contradict)\w*|sidestep\w*|dodg\w+|shun\w*",
    r"^\W*(?:absent|n/a|inapplicable|unobserved|unconfirmed|unassigned|ruled out|excluded|rejected|dismissed)",
)
_ASIDE = _either(
    r"without|w/o|with (?:no|nothing|none)|instead of|rather than|in (?:place|lieu) of|as opposed to|unlike",
    r"(?:not|never) \w{1,30}ing",
)
_MAYBE_NEAR = _either(
    r"possibly|possible|perhaps|maybe|potential(?:ly)?|almost|nearly|borderline|such as|so-called|close to|case for",
    r"as (?:for|to)|regarding|concerning|with (?:regard|respect) to|in terms of|^\W*on",
    r"(?:risk(?:s|ed)?|suspicion|danger|threat) of|border(?:s|ed|ing)? on|verg(?:es|ed|ing) on",
)
_MAYBE = _either(
    r"may|might|could|would|thought (?:about|of)|toyed with",
    r"(?:i|we)(?: have| also| first| then){0,3} (?:considered|weighed|entertained)",
    r"(?:check|look|search|screen|test|watch|scan|hunt|ask)(?:s|ed|ing)? (?:for|whether|about)",
    r"(?:ask|tell|told|want|instruct|order|urge|demand)(?:s|ed)? (?:me|us|you|the judge|that|to|for)",
)
_IF = _either(
    r"if|whether|unless|suppose|supposing|assuming|in case|as though|provided that|either",
    r"^\W*to (?:be|count as|qualify as)",
)
_VOCABULARY = _either(
    rf"(?:possible|available|allowed|permitted|candidate|valid|known|defined) {_TAG_WORDS}",
    rf"{_TAG_WORDS} (?:considered|checked|reviewed|evaluated|assessed|to (?:consider|check|choose from|use))",
    rf"list of {_TAG_WORDS}",
    r"vocabulary|defin(?:es|itions?|ition of)|cho(?:ose|osing|sen) (?:from|one|between|among)|one of|any of",
    r"^\W*(?:use|choose|pick|select)",
)
_TURN = _either(
    r"but|however|nevertheless|nonetheless|instead|whereas|although|though|albeit|yet|while|on the other hand",
    r"except(?:ing)?(?: for)?|apart from|aside from|besides|other than|conversely",
)
_REASON = _either(
    r"because|due to|owing to|since|given|thus|hence|therefore|consequently|so(?! (?:far|much|many))|thereby",
    r"which is why|that is(?=,)|namely|(?:results?|resulted|resulting) in|(?:leads?|led|leading) to",
)

_TOKEN = re.compile(
    rf"(?P<run>{_RUN})|(?P<quiet>{_QUIET})|(?P<near>{_NEAR})|(?P<aside>{_ASIDE})|(?P<none>{_NONE})|(?P<never>{_NEVER})"
    rf"|(?P<vocabulary>{_VOCABULARY})|(?P<maybe_near>{_MAYBE_NEAR})|(?P<maybe>{_MAYBE})|(?P<if>{_IF})"
    rf"|(?P<turn>{_TURN}|->|=>|\|)|(?P<reason>{_REASON})|(?P<colon>[:=]|-+(?=\s))|(?P<and>{_either('and')}|&)"
    rf"|(?P<or>{_either('or')})|(?P<comma>,)|(?P<semicolon>;)|(?P<bracket>\()|(?P<end_bracket>\))"
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
_CLAUSE_AFTER_AND = re.compile(rf" *(?:(?:{_FINITE}|{_SUBJECT})(?![\w'-])|(?:the|an?|his|their) (?!{_T})\w)")
_CLAUSE = re.compile(rf" *(?:and |then |e[0-9]{{1,6}} )?{_either(_SUBJECT, _PARTICLE)}")
_ARTICLE = re.compile(r" *(?:an?|the|its|another) ")
_TERM_NEXT = re.compile(rf"[\s(]*(?:(?:or|nor|and|an?|any|the) )?{_T}")
_OR = re.compile(r"\s*n?or ")
_NO_AS_ANSWER = re.compile(r"(?:no|none)(?=[,.;:!)]| -|$)")
_PARENTHESIS = re.compile(  # `, in my view,`
    rf"(?:,|,? (?:however|therefore|though|thus|then),?(?! {_T}))(?! (?:so|it|this|that|but|which|nor|and) )"
    rf"[^,;:.()\n{_T[1:-1]}]{{0,40}},"
)
_YES_NEXT = re.compile(
    r"\W{0,4}(?:yes|indeed|definitely|certainly|clearly|absolutely|correct|it does|it did|it was|there was)\b"
)

# --- what the words do, behind --------------------------------------------------------------------------

_YES = r"(?:yes|true|present|applies|applicable|observed|found|confirmed|detected|identified|1|✓|✔|✅|☑)"
_NO = (
    r"(?:none|nope|no|zero|n/a|na|not applicable|false|absent|null|never|neither|nothing|negative|avoided|ruled out"
    r"|excluded|unlikely|unfounded|unchecked|unassigned|rejected|considered|unknown|possibly|maybe|perhaps|clean|clear"
    r"|pass(?:ed)?|ok|inapplicable|doubtful|unclear|unproven|0(?:/[0-9]{1,3})?|✗|✘|✖|❌|⛔|☐|👎|\(\s?\))"
)
_END = r"(?=\s*(?:$|[.,;:!?)|(/]|-+\s|->))"
_END_BUT_NO_COLON = r"(?=\s*(?:$|[.,;!)(]|-+\s))"
_HERE = r" (?:here|anywhere|at all|by me|in (?:this|the) (?:case|session|investigation|timeline|analysis|report|run))"
_KEY = r"(?:(?:is )?(?:present|applies|applicable|observed|found|status|verdict|answer|value)\s?[:=?]\s?)?"
_SEPARATES = rf"(?:\s?\))?\s*(?:->|[:=|,?(]|-+(?=[\s>]))[\s:=(>-]{{0,6}}{_KEY}"
_EXISTS = (
    r"(?:found|observed|present|seen|detected|identified|applicable|apply|applied|appear(?:s|ed)?|occur(?:s|red)?"
    r"|happen(?:s|ed)?|evident|apparent|noted|triggered|assigned|set|warranted|relevant|visible"
    r"|an? (?:issue|problem|concern|factor))"
)
_BE = (
    r"(?:(?:is|was|are|were|be|been|being|has|have|had|can|could|does|do|did|should|must|will|seems?|appears?|to|both"
    r"|all|each|also|itself|clearly|certainly|therefore|thus|really|successfully|completely|entirely|largely)\s){0,5}"
)
_INVENTED = r"(?:fabricat|hallucinat|invent|overclaim|overstat)\w*"
_FAULT = (  # what an explanation of a term in it would name
    rf"(?:{_INVENTED}|(?:error|mistake|contradict|overconfiden|issue|problem|concern|leap|gap|flaw|sign|indication"
    r"|instance|trace|hint|violation|occurrence|case|example|evidence|made.up|unsupported|premature|wrong|false"
    r"|incorrect|missed|missing)\w*)"
)
_ONE = r"(?:[\w'-]{1,30} )"

_CONFIRMS = (
    rf"{_SEPARATES}{_YES}(?!\s?:){_END}",
    r"\s(?:could|should|would|might|must) (?:easily )?have been (?:avoided|prevented)",
    # Of what is not there nobody says that it was not corrected, or that it does not matter.
    rf"\s{_BE}{_NOT} (?:been |be |even |ever |later |at all )?"
    + _either(
        r"only|just|merely|simply|solely|the only|an? (?:small|minor)|trivial|minor|small|negligible|harmless|isolated",
        r"corrected|revis\w+|retract\w+|fix\w*|caught|undo|undone|repair\w*|remed\w+|address\w*|withdrawn|admit\w*",
        r"acknowledg\w+|excus\w+|forgiv\w+|tolerat\w+|mitigat\w+|offset|outweigh\w*|compensat\w+|hid(?:e|den)",
        r"avoid\w*|absent|den(?:y|ied)|ignor\w+|overlook\w*|limited|acceptable|surpris\w+|unexpected|due to|because",
        r"affect|change|alter|help|support|carry|back|allow|permit|suffice|explain|convince|justify",
    ),
)
_DENYING_ANSWERS = (
    rf"{_NO}{_END}|(?:considered|checked|rejected)\b|-\s*$|(?:0|zero) (?:instances?|cases?|occurrences?|points?)\b",
    rf"(?:(?:it|this|this tag|i|we|there|that) )?(?:(?:is|was|does|did|do|could|has|have|been) )?{_NOT} "
    rf"(?:been |be |really )?{_EXISTS}(?:{_HERE}|{_END})",
    rf"{_NOT} (?:here|really|at all|so|quite|in this)\b|(?:cannot|can't) (?:be )?(?:tell|say|determine|judge|assess)",
    rf"(?:(?:i|we|there|this|it|they|was|were|is|are|found|see|saw|find|show|shows) ){{0,3}}no (?:(?!such){_ONE})?"
    rf"{_FAULT}(?:{_END}| (?:in|of|was|were|is|are|found|here|that|for|at|with|between|on|to)\b)",
    rf"no {_ONE}?(?:{_INVENTED}|(?:overconfiden|made.up|unsupported|miss(?:ed|ing)|wrong|premature|incorrect)\w*)",
    rf"no {_ONE}{{1,3}}(?:was|were|is|are) (?:missed|missing|overlooked|{_INVENTED})",
    rf"(?:(?:the|agent|it|this|they|he) ){{0,2}}{_NOT} (?:{_INVENTED}|(?:jump|leap)\w*)",
    r"(?:none|neither|nothing) (?:of (?:these|them|those|which)|(?:was |were )?(?:found|observed|seen|detected)|appl)",
    r"(?:none|nothing) (?:that|which|i|of the (?:kind|sort))\b|(?:i|we) (?:found|saw|see|find|have) (?:none|nothing)\b",
    rf"(?:i|we) (?:(?:did|do|could) )?{_NOT} (?:find|see|detect|observe|notice|identify) (?:any|it|this|one|that)\b",
)
_DENYING_PREDICATES = (
    rf"\s*[:=|?(]\s*{_ONE}{{1,5}}(?:no|not|none|nothing|zero|not (?:so|the case)){_END}",
    rf"\s(?:out|aside|open){_END}|\s{_BE}{_NO}(?=\s*(?:$|[.,;!)]|{_T}))",
    rf"\s?\) {_BE}(?:absent|{_NOT} (?:apply|applicable|assigned|warranted|triggered))\b",
    rf"(?:,? which)?\s{_BE}"
    + _either(rf"{_NOT}|hardly|scarcely|barely|nowhere|none|neither|no (?:longer|issue|problem|concern|factor)")
    + rf"(?! (?:an? |the )?{_T})",
    rf"(?:,? which)?\s{_BE}"
    + _either(
        r"absent|avoided|ruled out|excluded|unfounded|unwarranted|unjustified|unlikely|inapplicable|lacking|missing",
        r"dismissed|rejected|disprove[dn]|refuted|irrelevant|impossible|unproven|unconfirmed|unfair|doubtful",
        r"questionable|debatable|excessive|an? stretch|far-fetched|inappropriate|undeserved|misplaced|unchecked",
        r"out of the question|off the table",
        r"considered|checked|evaluated|weighed|examined|discussed|tested|reviewed|too (?:harsh|strong|severe)",
        r"(?:hard|difficult) to (?:see|find|argue|justify|defend|support|make out|detect|prove|establish)",
    ),
    r",? which (?:is|was) (?:false|untrue)\b|\s(?:and|but) (?:found (?:it |them )?not|rejected|dismissed|discarded)\b",
    r"\s(?:has|have|had|finds?|found|needs?|deserves?|plays?|played|gets?|got) no(?! excuse)\b",
)
_DEFINITIONS = (
    r"\s(?:would|might|may|could)(?! have been (?:avoided|prevented))\b|\s(?:only )?(?:if|unless)(?! anything)\b",
    r"\s(?:means?|refers? to|denotes?|stands? for|describes?|covers?|appl(?:y|ies) (?:only )?(?:when|if))\b",
    rf"\s(?:is|are) (?:used|meant|reserved|intended|defined|when|for|if|one of|among|an? {_TAG_WORDS} (?:for|that|used)"
    r"|possible|in the|part of the)\b",
    r"\s(?:is|are) an? [\w-]{1,20} (?:that|which|where|in which)\b|\s(?:should|must|can|shall|may) only be\b",
)
_BEHIND = re.compile(
    rf"(?P<confirmed>{'|'.join(_CONFIRMS)})|(?P<denied>{_SEPARATES}(?:{'|'.join(_DENYING_ANSWERS)})"
    rf"|{'|'.join(_DENYING_PREDICATES)}|{'|'.join(_DEFINITIONS)})"
)
_HOLDS = re.compile(
    r"\s(?:clearly |also |then |therefore )?(?:applies|apply|is (?:present|evident|the)|follows|followed|resulted)\b"
)
_ANSWER = re.compile(rf"{_NO}|{_YES}|-|not {_EXISTS}")
_TAG_NOUN = re.compile(rf"\s{_TAG_WORDS}(?!\w)")
_REMARK = re.compile(rf"\s?\([^(){_T[1:-1]}]{{0,200}}\)")
_SEPARATOR = re.compile(_SEPARATES)
_NOTHING_ELSE = re.compile(rf"[^\w{_T[1:-1]}]*+\Z")
_NO_NEXT = re.compile(
    rf"\W{{0,6}}{_KEY}(?:{_NO}(?<![0-9]){_END_BUT_NO_COLON}|{_NOT} {_EXISTS}(?:{_HERE}|{_END_BUT_NO_COLON})"
    r"|(?:does|did|do) not apply|none (?:of (?:it|them|this|these)|found|observed|seen|was|were)"
    r"|(?:there (?:is|was|were) )?no (?:clear |such )?(?:evidence|signs?|indications?|instances?|traces?|cases?)\b"
    r"|i (?:found|saw|see|find) (?:none|no\b|nothing))"
)
_TAKEN_BACK = re.compile(
    rf"\b(?:(?:(?:does|do|did) not|doesn't|didn't|don't) apply|not applicable|n/a|not observed{_END}"
    r"|none (?:found|observed|identified|seen)|no (?:such )?(?:instances?|occurrences?) (?:was|were|of this|found))"
)
