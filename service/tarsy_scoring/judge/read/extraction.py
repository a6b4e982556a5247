"""
Extract total, analysis, outcome, breakdown and missing tools from a reply.

The functions are linear in the reply's length, and strict: without a plain statement they return None
or nothing, never a guess.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.timeline.text import without_invisible

# --- the total -----------------------------------------------------------------------------------------

_FENCE = re.compile(r"(?:`{3,}|~{3,})(?:[ \t]*[A-Za-z]+)?")
_LONGEST_SCORE_LINE = 200  # with all decoration; longer lines are prose

_BLOCK_MARK = re.compile(
    r"(?:#{1,6}|[>*+•-])\s+"
)  # a heading, a quote or a list item; the space distinguishes `- 3` from `-3`
_DECORATION = re.compile(r"</?(?:b|strong|i|em|u|code|mark)>|[*_`|\"'“”()\[\]]", re.IGNORECASE)
_UNDERSCORED_DECORATION = re.compile(
    _DECORATION.pattern.replace("_", ""), re.IGNORECASE
)  # ids hold underscores
_MATH = re.compile(r"\$\$?([^$]+)\$\$?(?![0-9])|\\[()\[\]]")  # `$85 of $100` is money
_BOXED = re.compile(r"\\(?:boxed|text|textbf|mathbf)\{([^{}]*)\}")
# Without the two emoji for numbers, `100` and `10`.
_EMOJI = (
    "[\U0001f300-\U0001f4ae\U0001f4b0-\U0001f51e\U0001f520-\U0001faff\u2600-\u26ff\u2705\u2714\u2728\u2b50]"
)
_EMOJI_AT_ENDS = re.compile(rf"^(?:\s|{_EMOJI})+|(?:\s|{_EMOJI})+$")
_LABEL_WORDS = (
    r"(?:the|my|this|final|overall|total|grand|combined|quality|investigation|methodology"
    r"|score|points|sum|rating|result|grade|verdict|answer|for\s+(?:the|this)\s+investigation|is)"
)
_OTHER = {kind: "|".join(words) for kind, words in packaged_yaml(__package__, "other_words.yaml").items()}
_POINTS = rf"(?:{_OTHER['points']})"
_OF_HUNDRED = r"(?:[/⁄∕／]|out\s+of|of|von|sur|de|su|van|av|из|z)\s*100"
_SCORE_LINE = re.compile(
    rf"(?P<label>{_LABEL_WORDS}(?:\s+{_LABEL_WORDS}){{0,6}}\b(?:\s*{_OF_HUNDRED}\s*[:=：]|\s*[:=：—]?)\s*"
    rf"|(?P<other>(?:{_OTHER['totals']})(?:\s+(?:{_OTHER['totals']})){{0,3}})\s*[:=：]\s*)?"
    r"\+?(?P<total>0|[1-9][0-9]{0,2})"
    rf"(?:\s*(?:[%％٪]|per\s?cent)|(?:\s*{_POINTS})?(?:\s*{_OF_HUNDRED})?(?:\s*{_POINTS})?)"
    r"\s*[.!。]?",
    re.IGNORECASE,
)
_NAMES_A_TOTAL = re.compile(r"final|overall|total|score|sum|rating|result|grade", re.IGNORECASE)
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")


def extract_total(reply: str) -> int | None:
    """
    The total on the last non-empty line, 0-100, or None.

    The line is a bare integer, possibly with Markdown, `<b>`, `\\boxed{}`, emoji, a label such as
    "final total score", a plus, `/100`, `out of 100`, `%`, `points` and a full stop; digits, label and unit
    may be those of another language. Lines with only a code fence are skipped, and characters without width
    are ignored. Anything else on the line makes it no score, above all a second number (`80 or 90`, `20/25`,
    `Score 1: 67`) and spellings that may not mean a whole number: `067`, `100.0`, `1e2`, `~67`, `>67`.

    A number that the judge quotes is no score: neither one that ends a code block, a block quote or a
    sentence in quotation marks with other content, nor one that contradicts another total in the reply.
    """
    lines = reply.splitlines()
    _drop_from_end(lines, fences=len(lines))
    if not lines or (total := _total_of_line(_visible(lines[-1]))) is None:
        return None
    quotations = _quotations(lines)
    if quotations[-1] is not None and not _is_frame(lines, quotations, len(lines) - 1):
        return None
    return total if _own_totals(lines, quotations) <= {total} else None


def analysis_of(reply: str) -> str:
    """The answer without score line and the code fence around it; the whole answer where there is no
    total.
    """
    if extract_total(reply) is None:
        return reply.strip()
    lines = reply.splitlines()
    fences_below = _drop_from_end(lines, fences=len(lines))
    lines.pop()
    _drop_from_end(lines, fences=min(fences_below, 1))
    return "\n".join(lines).strip()


def _drop_from_end(lines: list[str], *, fences: int) -> int:
    """Drop trailing empty lines and up to `fences` lines with only a code fence; returns how many such
    fences.
    """
    dropped = 0
    while lines and (not (last := _visible(lines[-1])) or (dropped < fences and _FENCE.fullmatch(last))):
        dropped += bool(last)
        lines.pop()
    return dropped


def _visible(line: str) -> str:
    return _plain(line).strip()


def _plain(text: str) -> str:
    """The text without invisible characters, and with ASCII digits."""
    text = without_invisible(text)
    return text if text.isascii() else _OTHER_DIGIT.sub(lambda digit: str(int(digit[0])), text)


def _total_of_line(line: str) -> int | None:
    found = _score_of_line(line)
    if found is None or (found["label"] and not (found["other"] or _NAMES_A_TOTAL.search(found["label"]))):
        return None
    total = int(found["total"])
    return total if total <= 100 else None


def _score_of_line(line: str) -> re.Match[str] | None:
    if len(line) > _LONGEST_SCORE_LINE:
        return None
    line = _BOXED.sub(r" \1 ", _MATH.sub(r" \1 ", _without_block_marks(line)))
    # A space, not nothing, replaces each mark: `6*7` must not become 67.
    return _SCORE_LINE.fullmatch(_EMOJI_AT_ENDS.sub("", _DECORATION.sub(" ", line)))


def _own_totals(lines: Sequence[str], quotations: Sequence[int | None]) -> set[int]:
    """Totals outside quotations, and those at the end of quotations that are frames."""
    own = [number for number, start in enumerate(quotations) if start is None]
    ends = {s: n for n, s in enumerate(quotations) if s is not None and _QUOTED.match(_visible(lines[n]))}
    frames = (n for n in islice(ends.values(), _MOST_QUOTATIONS) if _is_frame(lines, quotations, n))
    may_hold = (lines[number] for number in (*own, *frames) if _MAY_BE_TOTAL.match(lines[number]))
    totals = (_total_of_line(_visible(line).lstrip("> ")) for line in may_hold)
    return {total for total in totals if total is not None}


_QUOTED = re.compile(r"(?![>\s]*(?:`{3}|~{3}))[>\s]*[^>\s]")  # a line of a quotation with more than its marks
_MOST_QUOTATIONS = 50  # each reads the reply once more
_MAY_BE_TOTAL = re.compile(r"\D{0,100}\d{1,3}(?!\d)")  # spares most lines the search


def _without_block_marks(line: str) -> str:
    while mark := _BLOCK_MARK.match(line):
        line = line[mark.end() :]
    return line


_DOUBLE_MARKS = ('"', "“", "”", "„", "«", "»")
_OPENING_FENCE = re.compile(r"(`{3,}|~{3,})[^`]*")
_FRACTION = re.compile(r"[0-9]\s*(?:[/⁄∕／|]|out\s+of)\s*[0-9]")
_LABEL_ALONE = re.compile(
    rf"(?:{_LABEL_WORDS}|score\s+breakdown|breakdown)(?:\s+{_LABEL_WORDS}){{0,6}}\s*[:=：]?", re.IGNORECASE
)


def _quotations(lines: Sequence[str]) -> list[int | None]:
    """By line: where the code block, block quote or quotation marks around the line begin, or None."""
    found: list[int | None] = []
    start, mark = None, ""
    for number, line in enumerate(map(_visible, lines)):
        if start is not None and mark != ">":
            found.append(start)
            if line.startswith(mark) and not line.strip(mark[0]):
                start = None
        elif line.startswith(">"):
            start, mark = (number, ">") if start is None else (start, mark)
            found.append(start)
        elif fence := _OPENING_FENCE.fullmatch(line):
            start, mark = number, fence[1]
            found.append(start)
        else:
            start = None
            found.append(number if _is_in_quotation_marks(line) else None)
    return found


def _is_in_quotation_marks(line: str) -> bool:
    """Whether the line begins with a quotation mark, or a quotation of several lines begins or ends in it."""
    return (
        line.lstrip("*_`# ").startswith((*_DOUBLE_MARKS, "'")) or sum(map(line.count, _DOUBLE_MARKS)) % 2 == 1
    )


def _is_frame(lines: Sequence[str], quotations: Sequence[int | None], end: int) -> bool:
    """
    Whether the judge put the quotation around the line `end` as a frame for the total there.

    It is one around the whole answer, around the total with outcome or breakdown that stand nowhere else, and
    around the total alone directly below them.
    """
    start = quotations[end] or 0
    before = [number for number in range(start) if _visible(lines[number])]
    if not before and end == len(lines) - 1:
        return True
    beside = [_visible(line).strip("> ") for line in lines[start:end] if _QUOTED.match(_visible(line))]
    if beside:
        own = (line for line, quotation in zip(lines, quotations, strict=True) if quotation is None)
        return any(map(_is_form, beside)) and not any(map(_is_form, own))
    return not before or (quotations[before[-1]] is None and _is_form(lines[before[-1]]))


def _is_form(line: str) -> bool:
    """
    Whether the judge writes such a line above a total: an outcome, points for a category, a label.
    """
    visible = _visible(line)
    if len(visible) > _LONGEST_SCORE_LINE:
        return False
    plain = _UNDERSCORED_DECORATION.sub(" ", _without_block_marks(visible)).strip()
    return bool(_OUTCOME_LINE.fullmatch(plain) or _FRACTION.search(plain) or _LABEL_ALONE.fullmatch(plain))


# --- the outcome ---------------------------------------------------------------------------------------

_OUTCOME_LINE = re.compile(
    r"(?:[0-9]{1,2}\.?\s+)?outcome\s*[:=：]\s*(?P<outcome>[a-z][a-z0-9_]*)(?:\s+[0-9]{1,3}\s*[-–]\s*[0-9]{1,3})?\s*[.!]?",
    re.IGNORECASE,
)


def extract_outcome(reply: str, outcomes: Iterable[str]) -> str | None:
    """
    The outcome on the last line that states one (`Outcome: partial`, decorated or not), or None.

    The totals' range may follow, copied from the prompt (`Outcome: correct (60-100)`). A line with another
    word or with several outcomes (`Outcome: correct or partial`) states none. Quoted lines count only where
    no other line states one.

    Args:
        outcomes: Ids that may be stated, in lower case.
    """
    known = set(outcomes)
    lines = reply.splitlines() if known else []
    own_last = sorted(zip(_quotations(lines), lines, strict=True), key=lambda one: one[0] is None)  # stable
    for _, line in reversed(own_last):
        visible = _visible(line)
        if len(visible) > _LONGEST_SCORE_LINE:
            continue
        plain = _UNDERSCORED_DECORATION.sub(" ", _without_block_marks(visible)).strip()
        found = _OUTCOME_LINE.fullmatch(plain)
        if found and found["outcome"].lower() in known:
            return found["outcome"].lower()
    return None


# --- the breakdown -------------------------------------------------------------------------------------


def category_title(category_id: str) -> str:
    """`logical_flow` as the judge writes it: `Logical Flow`."""
    return category_id.replace("_", " ").title()


def extract_breakdown(reply: str, categories: Mapping[str, int]) -> dict[str, float] | None:
    """
    Points per category, as the answer states them (`Logical Flow: 15/25`, decorated or not).

    A category's last statement counts, because remarks come before the breakdown. The denominator must
    be the category's (in a table it may have a column), and the points must not exceed it. Points
    that are struck out, estimated or changed (`20/25 -> 15/25`) are not stated.

    Args:
        categories: Highest points by category id.

    Returns:
        All categories, or None where one is not stated, because a part cannot be summed.
    """
    breakdown: dict[str, float] = {}
    with_fractions = "\n".join(
        _LINE_WITH_A_FRACTION.findall(_plain(reply))
    )  # a statement fits one line, and most lines contain no fraction
    for category_id, max_points in categories.items():
        stated = [
            float(m["points"]) for m in _statements_of(category_id, max_points).finditer(with_fractions)
        ]
        if not stated or stated[-1] > max_points:
            return None
        breakdown[category_id] = int(stated[-1]) if stated[-1].is_integer() else stated[-1]
    return breakdown or None


_BLANK = r"[^\S\n]"
_MARKS_BETWEEN = rf"(?:{_BLANK}|[*_`$]){{0,6}}"
_OUT_OF = rf"{_MARKS_BETWEEN}(?:(?:points|pts){_BLANK}{{0,2}})?(?:[/⁄∕／|]|(?:out{_BLANK})?of\b)"
_LINE_WITH_A_FRACTION = re.compile(rf"^.*?[0-9]{_OUT_OF}.*$", re.MULTILINE | re.IGNORECASE)


@functools.cache
def _statements_of(category_id: str, max_points: int) -> re.Pattern[str]:
    name = rf"(?:{_BLANK}|[_-]){{1,3}}".join(re.escape(word) for word in category_id.split("_"))
    gap = r"[^\w\n~≈≤≥<]"
    first = category_id[0]  # a cheap lookahead that rejects most positions
    return re.compile(
        rf"(?=[{first.lower()}{first.upper()}])(?<!\w){name}(?!\w)(?:{_BLANK}*score)?{gap}{{0,12}}(?:\([^()\n]{{0,30}}\){gap}{{0,8}})?"
        rf"(?<![-−–.,\w])(?P<points>[0-9]{{1,3}}(?:\.[0-9]{{1,2}})?)"
        rf"{_OUT_OF}{_MARKS_BETWEEN}{max_points}(?![0-9/]|\.[0-9]|{_MARKS_BETWEEN}(?:→|[-=]>))",
        re.IGNORECASE,
    )


# --- the missing tools ---------------------------------------------------------------------------------

_NONE_MISSING = re.compile(r"\W*(?:1[.)]\W*)?no\s+(?:critical\s+)?missing\s+tools", re.IGNORECASE)
_ITEM = re.compile(  # for a line without trailing space
    r"(?P<indent>[ \t]*)(?:#{1,6}[ \t]+)?(?P<open>[*_]{0,3})"
    r"(?P<number>[0-9]{1,3})[.)．、）][ \t]*(?P<close>[*_]{0,3})[ \t]*(?P<rest>\S.*)"
)
_ENDS_THE_LIST = re.compile(r"[ \t]*(?:#{1,6}[ \t]|(?:-{3,}|\*{3,}|_{3,})[ \t]*$)")
# The name ends at a colon, at a dash between spaces (tool names contain hyphens), or after decoration.
_NAME_END = re.compile(r":(?=\s|[*_`]|$)|：|\s[-–—]+\s|\s*[–—]\s*|(?<=[*_`])\s+(?=\S)")
_LONGEST_NAME, _MOST_WORDS = 80, 6
_LABEL_OF_NAME = re.compile(r"[ \t*_]*tool(?:[ \t]name)?[*_]*[ \t]*:[ \t*_]*(?=\S)", re.IGNORECASE)
_NO_NAME = re.compile(_OTHER["no_tools"], re.IGNORECASE)
_MARKS = " \t*_`\"'“”:："


def extract_missing_tools(text: str) -> list[MissingTool]:
    """
    Read the numbered list that names missing tools: name and reason per item.

    Reads `1. **read-file**: why`, `1) read-file - why`, and a name alone on a line with the reason
    below. Lines and bullets below an item belong to the reason. An item without a recognisable name gives no
    row. A text without a list, or one that states that no tools are missing, gives no rows.
    """
    if _says_none_missing(text):
        return []
    tools = []
    for head, body in _numbered_items(_plain(text)):
        named = _name_and_reason(head)
        if named is not None and not _says_none_missing(head):
            name, reason = named
            lines = [reason, *(line.strip() for line in body)]
            tools.append(MissingTool(name, "\n".join(line for line in lines if line)))
    return tools


def _says_none_missing(text: str) -> bool:
    return _NONE_MISSING.match(text.lstrip()[:100]) is not None


def _numbered_items(text: str) -> Iterator[tuple[str, list[str]]]:
    """Head and following lines of each item. A number indented deeper or not next in sequence begins no
    item.
    """
    head, body, last, indent = "", list[str](), 0, 0
    for line in map(str.rstrip, text.splitlines()):
        item = _ITEM.match(line)
        if item and _is_next(int(item["number"]), last) and (last == 0 or len(item["indent"]) <= indent + 1):
            if last:
                yield head, body
            head, body, last = item["open"] + item["close"] + item["rest"], [], int(item["number"])
            indent = len(item["indent"])
        elif last and _ENDS_THE_LIST.match(line):
            break
        elif last:
            body.append(line)
    if last:
        yield head, body


def _is_next(number: int, last: int) -> bool:
    return number == last + 1 or (number == last == 1)  # Markdown lets every item be `1.`


def _name_and_reason(head: str) -> tuple[str, str] | None:
    if label := _LABEL_OF_NAME.match(head):
        head = head[label.end() :]
    # Marks at the start belong to the name, which ends after them.
    start = len(head) - len(head.lstrip(_MARKS))
    end = _NAME_END.search(head, start, start + _LONGEST_NAME + 20)
    name = (head[start : end.start()] if end else head[start:]).strip(_MARKS)
    reason = head[end.end() :].lstrip(_MARKS + "-–—").strip() if end else ""
    if (
        not name
        or len(name) > _LONGEST_NAME
        or len(name.split()) > _MOST_WORDS
        or _NO_NAME.fullmatch(name.rstrip(".。!"))
    ):
        return None
    return name, reason


# --- steps in an approach --------------------------------------------------------------------------

_STEP_TOOL = re.compile(r"[`*\s]*(?P<tool>[A-Za-z][A-Za-z0-9]*(?:[._/-][A-Za-z0-9]+)+)[`*]*(?=[\s:(,–—-]|$)")


def tool_of_step(step: str) -> str | None:
    """The tool that a step begins with (`kubectl.get_pods: ...`); None where its first word is an ordinary
    word.
    """
    found = _STEP_TOOL.match(step)
    return found["tool"] if found else None
