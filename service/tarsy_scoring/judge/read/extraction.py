"""
Extract total, analysis, outcome, breakdown and missing tools from a reply.

The functions are linear in the reply's length, and strict: without a plain statement they return None
or nothing, never a guess.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.judge.read.quotation import EMPTY, Line, plain, read_lines, unframed, without_block_marks
from tarsy_scoring.judge.verdict import MissingTool

# --- the total -----------------------------------------------------------------------------------------

_LONGEST_SCORE_LINE = 200  # with all decoration; longer lines are prose

_DECORATION = re.compile(r"</?(?:b|strong|i|em|u|code|mark)>|[*_`|\"'“”()\[\]]", re.IGNORECASE)
# Ids hold underscores.
_UNDERSCORED_DECORATION = re.compile(_DECORATION.pattern.replace("_", ""), re.IGNORECASE)
_MATH = re.compile(r"\$\$?([^$]+)\$\$?(?![0-9])|\\[()\[\]]")  # `$85 of $100` is money
_BOXED = re.compile(r"\\(?:boxed|text|textbf|mathbf)\{([^{}]*)\}")
# Without the two emoji for numbers, `100` and `10`.
_AT_ENDS = (
    r"\s\U0001f300-\U0001f4ae\U0001f4b0-\U0001f51e\U0001f520-\U0001faff\u2600-\u26ff\u2705\u2714\u2728\u2b50"
)
_BETWEEN_ENDS = re.compile(rf"[{_AT_ENDS}]*+(.*[^{_AT_ENDS}])", re.DOTALL)
_LABEL_WORDS = (
    r"(?:the|my|this|final|overall|total|grand|combined|quality|investigation|methodology"
    r"|score|points|sum|rating|result|grade|verdict|answer|for\s+(?:the|this)\s+investigation|is)"
)
_OTHER = {kind: "|".join(words) for kind, words in packaged_yaml(__package__, "other_words.yaml").items()}
_LABEL = rf"{_LABEL_WORDS}(?:\s+{_LABEL_WORDS}){{0,6}}\b"
_OTHER_LABEL = rf"(?:{_OTHER['totals']})(?:\s+(?:{_OTHER['totals']})){{0,3}}"
_POINTS = rf"(?:{_OTHER['points']})"
_OF_HUNDRED = r"(?:[/⁄∕／]|out\s+of|of|von|sur|de|su|van|av|из|z)\s*100"
_SCORE_LINE = re.compile(
    rf"(?P<label>{_LABEL}(?:\s*{_OF_HUNDRED}\s*[:=：]|\s*[:=：—]?)\s*"
    rf"|(?P<other>{_OTHER_LABEL})\s*[:=：]\s*)?"
    r"\+?(?P<total>0|[1-9][0-9]{0,2})"
    rf"(?:\s*(?:[%％٪]|per\s?cent)|(?:\s*{_POINTS})?(?:\s*{_OF_HUNDRED})?(?:\s*{_POINTS})?)"
    r"\s*[.!。]?",
    re.IGNORECASE,
)
_NAMES_A_TOTAL = re.compile(r"final|overall|total|score|sum|rating|result|grade", re.IGNORECASE)
# What a line says behind the label of a total: `Score: 12 (weak)`, `The total is 12, no more`.
_NAMED = re.compile(
    rf"(?:(?P<label>{_LABEL})(?:\s*{_OF_HUNDRED}|\s+[0-9]+\s*[-–]\s*[0-9]+)?|{_OTHER_LABEL})"
    rf"\s*(?:(?P<mark>[:=：—–]|[-=]?>|→)|(?<=\bis)\s)\s*(?P<said>\S.*)",
    re.IGNORECASE,
)
_NAMES_A_SCORE = re.compile(r"total|score|rating|grade", re.IGNORECASE)
_ADDED_UP = re.compile(r"^[0-9][0-9\s+./−–-]*=\s*")  # `15 + 17 + 35 = 67`
_BEGINS_NUMBER = re.compile(r"\W?[0-9]")
_OF_CATEGORY = re.compile(r"[0-9.]+\s*[/⁄∕／](?!\s*100\b)\s*[0-9]")
_OUT_OF_HUNDRED = re.compile(
    r"(?<![0-9.,])([0-9]+(?:[.,][0-9]+)?)\s*(?:[/⁄∕／]|out\s+of)\s*100\b", re.IGNORECASE
)


@functools.lru_cache(maxsize=1)  # `analysis_of` asks again for the same reply
def extract_total(reply: str) -> int | None:
    """
    The total on the last non-empty line, 0-100, or None.

    The line is a bare integer, possibly with Markdown, `<b>`, `\\boxed{}`, emoji, a label such as
    "final total score", a plus, `/100`, `out of 100`, `%`, `points` and a full stop; digits, label and unit
    may be those of another language. Lines with only a code fence are skipped, and characters without width
    are ignored. Anything else on the line makes it no score, above all a second number (`80 or 90`, `20/25`,
    `Score 1: 67`) and spellings that may not mean a whole number: `067`, `100.0`, `1e2`, `~67`, `>67`.

    A number that the judge quotes is no score, and neither is one in a list or a table below other lines, nor
    one that any line contradicts, quoted or not: the judge may have written its own total in any form.
    """
    lines = _lines_of(reply) or [EMPTY]
    may_quote = any(line.text for line in lines[:-1])
    total = _total_of_line(lines[-1].text)
    if total is None or (may_quote and (lines[-1].is_quoted or lines[-1].is_item)):
        return None
    written = {stripped for line in reply.splitlines() if (stripped := line.strip())}
    return None if any(_contradicts(plain(line), total) for line in written) else total


def analysis_of(reply: str) -> str:
    """The answer without the line of the total; the whole answer where there is no total."""
    if extract_total(reply) is None:
        return reply.strip()
    return "\n".join(unframed(reply).split("\n")[: len(_lines_of(reply)) - 1]).strip()


@functools.lru_cache(maxsize=1)  # total, breakdown and outcome are read from one reply after the other
def _lines_of(reply: str) -> list[Line]:
    return read_lines(unframed(reply))


def _total_of_line(line: str) -> int | None:
    return _total_in(_undecorated(line)) if len(line) <= _LONGEST_SCORE_LINE else None


def _total_in(undecorated: str) -> int | None:
    found = _SCORE_LINE.fullmatch(undecorated)
    if found is None or (found["label"] and not (found["other"] or _NAMES_A_TOTAL.search(found["label"]))):
        return None
    total = int(found["total"])
    return total if total <= 100 else None


def _undecorated(line: str) -> str:
    line = without_block_marks(line)
    if "$" in line or "\\" in line:
        line = _BOXED.sub(r" \1 ", _MATH.sub(r" \1 ", line))
    # A space, not nothing, replaces each mark: `6*7` must not become 67.
    between = _BETWEEN_ENDS.match(_DECORATION.sub(" ", line))
    return between[1] if between else ""


def _contradicts(line: str, total: int) -> bool:
    """
    Whether a line gives another total, or other points out of 100.

    What a line says behind a label of the score must begin with this total, because `Score: twelve` and
    `Score: 12.5` may be what the judge means. Prose after other labels (`The result is that ...`) names none.
    """
    is_short, line = len(line) <= _LONGEST_SCORE_LINE, _undecorated(line)
    if is_short and (stated := _total_in(line)) is not None:
        return stated != total
    points = set(_OUT_OF_HUNDRED.findall(line)) if "100" in line else set()
    if points - {str(total)}:
        return True
    if (named := _NAMED.match(line)) is None:
        return False
    said = _ADDED_UP.sub("", named["said"])
    is_score = not points and named["mark"] and _NAMES_A_SCORE.search(named["label"] or "")
    if _OF_CATEGORY.match(said) or not (is_score or _BEGINS_NUMBER.match(said)):
        return False
    return re.match(rf"{total}(?![.,]?[0-9])(?!\s*[-–]\s*[0-9])", said) is None


# --- the outcome ---------------------------------------------------------------------------------------

_OUTCOME_LINE = re.compile(
    r"(?:[0-9]{1,2}\.?\s+)?outcome\s*[:=：]\s*(?P<outcome>[a-z][a-z0-9_]*)(?:\s+[0-9]{1,3}\s*[-–]\s*[0-9]{1,3})?\s*[.!]?",
    re.IGNORECASE,
)


def extract_outcome(reply: str, outcomes: Iterable[str]) -> str | None:
    """
    The outcome that the judge states on a line (`Outcome: partial`, decorated or not), or None.

    The totals' range may follow, copied from the prompt (`Outcome: correct (60-100)`). A line with another
    word or with several outcomes (`Outcome: correct or partial`) states none. Lines that the judge quotes do
    not count, and lines that differ state none.

    Args:
        outcomes: Ids that may be stated, in lower case.
    """
    known = set(outcomes)
    lines = _lines_of(reply) if known else []
    stated = {
        outcome for line in lines if not line.is_quoted and (outcome := _outcome_of(line.text)) in known
    }
    return stated.pop() if len(stated) == 1 else None


def _outcome_of(line: str) -> str | None:
    if len(line) > _LONGEST_SCORE_LINE:
        return None
    found = _OUTCOME_LINE.fullmatch(_UNDERSCORED_DECORATION.sub(" ", without_block_marks(line)).strip())
    return found["outcome"].lower() if found else None


# --- the breakdown -------------------------------------------------------------------------------------


def category_title(category_id: str) -> str:
    """`logical_flow` as the judge writes it: `Logical Flow`."""
    return category_id.replace("_", " ").title()


def extract_breakdown(reply: str, categories: Mapping[str, int]) -> dict[str, float] | None:
    """
    Points per category, as the answer states them (`Logical Flow: 15/25`, decorated or not).

    A category's last statement counts, because remarks come before the breakdown; what the judge quotes does
    not count. The denominator must be the category's (in a table it may have a column), and the points must
    not exceed it. Points that are struck out, estimated or changed (`20/25 -> 15/25`) are not stated.

    Args:
        categories: Highest points by category id.

    Returns:
        All categories, or None where one is not stated, because a part cannot be summed.
    """
    breakdown: dict[str, float] = {}
    own = (line.text for line in _lines_of(reply) if not line.is_quoted)
    # A statement fits one line, and most lines contain no fraction.
    with_fractions = "\n".join(filter(_FRACTION.search, own))
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
_FRACTION = re.compile(rf"[0-9]{_OUT_OF}", re.IGNORECASE)


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
    for head, body in _numbered_items(plain(text)):
        named = _name_and_reason(head)
        if named is not None and not _says_none_missing(head):
            name, reason = named
            lines = [reason, *(line.strip() for line in body)]
            tools.append(MissingTool(name, "\n".join(line for line in lines if line)))
    return tools


def _says_none_missing(text: str) -> bool:
    return _NONE_MISSING.match(text.lstrip()[:100]) is not None


def _numbered_items(text: str) -> Iterator[tuple[str, list[str]]]:
    """Head and following lines of each item. A number that is indented deeper or not the next begins none."""
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
