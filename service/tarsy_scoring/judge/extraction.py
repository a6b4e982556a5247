"""
What an answer of the judge says: its total, its analysis, its breakdown, the tools it misses.

Pure functions, linear in the length of the answer, and strict: where an answer does not say a thing
plainly there is None or nothing, never a guess.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping

from tarsy_scoring.judge.verdict import MissingTool

# --- the total -----------------------------------------------------------------------------------------

# Characters without width: soft hyphen, joiners, direction marks, variation selectors, byte order mark.
_ZERO_WIDTH = dict.fromkeys(
    (0xAD, 0x34F, 0x61C, 0x180E, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070))
) | dict.fromkeys((0xFE0E, 0xFE0F, 0xFEFF))
_FENCE = re.compile(r"(?:`{3,}|~{3,})(?:[ \t]*[A-Za-z]+)?")
_LONGEST_SCORE_LINE = 200  # with all decoration; longer lines are prose

_BLOCK_MARK = re.compile(r"(?:#{1,6}|[>*+•-])\s+")  # a heading, a quote or a list item; the space tells `- 3` from `-3`
_DECORATION = re.compile(r"</?(?:b|strong|i|em|u|code|mark)>|[*_`|\"'“”()\[\]]", re.IGNORECASE)
_UNDERSCORED_DECORATION = re.compile(_DECORATION.pattern.replace("_", ""), re.IGNORECASE)  # ids hold underscores
_LABEL_WORDS = (
    r"(?:the|my|this|final|overall|total|grand|combined|quality|investigation|methodology"
    r"|score|points|sum|rating|result|is)"
)
_SCORE_LINE = re.compile(
    rf"(?P<label>{_LABEL_WORDS}(?:\s+{_LABEL_WORDS}){{0,6}}\b\s*[:=：—]?\s*)?"
    r"\+?(?P<total>0|[1-9][0-9]{0,2})"
    r"(?:\s*(?:%|percent)|(?:\s*(?:points|pts))?(?:\s*(?:/|out\s+of|of)\s*100)?(?:\s*(?:points|pts))?)"
    r"\s*[.!。]?",
    re.IGNORECASE,
)
_NAMES_A_TOTAL = re.compile(r"final|overall|total|score|sum|rating|result", re.IGNORECASE)


def extract_total(reply: str) -> int | None:
    """
    The total on the last non-empty line, 0-100, or None.

    The line is a bare integer. It may wear Markdown or `<b>`, a label made of words like "final total
    score", a plus, `/100`, `out of 100`, `%`, `points` and a full stop. Lines that are only a code fence
    are skipped and characters without width ignored. Anything else on the line, above all a second
    number (`80 or 90`, `20/25`, `Score 1: 67`), makes it no score. So do spellings of which nobody can
    say whether the judge meant a whole number: `067`, `100.0`, `1e2`, `~67`, `>67`.
    """
    for line in reversed(reply.splitlines()):
        visible = _visible(line)
        if visible and not _FENCE.fullmatch(visible):
            return _total_of_line(visible)
    return None


def analysis_of(reply: str) -> str:
    """The answer without its score line and the code fence around that line; all of it where there is no total."""
    if extract_total(reply) is None:
        return reply.strip()
    lines = reply.splitlines()
    fences_below = _drop_from_end(lines, fences=len(lines))
    lines.pop()
    _drop_from_end(lines, fences=min(fences_below, 1))
    return "\n".join(lines).strip()


def _drop_from_end(lines: list[str], *, fences: int) -> int:
    """Drop trailing empty lines and up to `fences` lines that are only a code fence; how many of those it were."""
    dropped = 0
    while lines and (not (last := _visible(lines[-1])) or (dropped < fences and _FENCE.fullmatch(last))):
        dropped += bool(last)
        lines.pop()
    return dropped


def _visible(line: str) -> str:
    return line.translate(_ZERO_WIDTH).strip()


def _total_of_line(line: str) -> int | None:
    if len(line) > _LONGEST_SCORE_LINE:
        return None
    while mark := _BLOCK_MARK.match(line):
        line = line[mark.end() :]
    # A space, not nothing, in place of each mark: `6*7` must not become 67.
    found = _SCORE_LINE.fullmatch(_DECORATION.sub(" ", line).strip())
    if found is None or (found["label"] and not _NAMES_A_TOTAL.search(found["label"])):
        return None
    total = int(found["total"])
    return total if total <= 100 else None


# --- the outcome ---------------------------------------------------------------------------------------

_OUTCOME_LINE = re.compile(
    r"outcome\s*[:=：]\s*(?P<outcome>[a-z][a-z0-9_]*)(?:\s+[0-9]{1,3}\s*[-–]\s*[0-9]{1,3})?\s*[.!]?", re.IGNORECASE
)


def extract_outcome(reply: str, outcomes: Iterable[str]) -> str | None:
    """
    The outcome on the last line that states one (`Outcome: partial`, decorated or not), or None.

    Args:
        outcomes: Ids that may be stated, in lower case.

    The range of its totals may stand behind it, copied from the prompt (`Outcome: correct (60-100)`). A line that
    names something else, or more than one (`Outcome: correct or partial`), states none.
    """
    known = set(outcomes)
    for line in reversed(reply.splitlines()) if known else ():
        visible = _visible(line)
        if len(visible) > _LONGEST_SCORE_LINE:
            continue
        while mark := _BLOCK_MARK.match(visible):
            visible = visible[mark.end() :]
        found = _OUTCOME_LINE.fullmatch(_UNDERSCORED_DECORATION.sub(" ", visible).strip())
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

    The last statement of a category counts: the breakdown stands at the end, remarks come before it. The
    denominator must be the category's own, and the points must not exceed it.

    Args:
        categories: Highest points by category id.

    Returns:
        All categories, or None where one of them is not stated: a part cannot be added up.
    """
    breakdown: dict[str, float] = {}
    with_fractions = "\n".join(_LINE_WITH_A_FRACTION.findall(reply))  # a statement is one line, and most are not
    for category_id, max_points in categories.items():
        stated = [float(m["points"]) for m in _statements_of(category_id, max_points).finditer(with_fractions)]
        if not stated or stated[-1] > max_points:
            return None
        breakdown[category_id] = int(stated[-1]) if stated[-1].is_integer() else stated[-1]
    return breakdown or None


_LINE_WITH_A_FRACTION = re.compile(r"^.*?[0-9][ \t*_`]{0,6}(?:/|out[ \t]of).*$", re.MULTILINE | re.IGNORECASE)


@functools.cache
def _statements_of(category_id: str, max_points: int) -> re.Pattern[str]:
    name = r"[ \t_-]{1,3}".join(re.escape(word) for word in category_id.split("_"))
    return re.compile(
        rf"(?<!\w){name}(?!\w)(?:[ \t]*score)?[^\w\n]{{0,12}}(?:\([^()\n]{{0,30}}\)[^\w\n]{{0,8}})?"
        rf"(?<![-−–.,\w])(?P<points>[0-9]{{1,3}}(?:\.[0-9]{{1,2}})?)"
        rf"[ \t*_`]{{0,6}}(?:/|out[ \t]of)[ \t*_`]{{0,6}}{max_points}(?![0-9/]|\.[0-9])",
        re.IGNORECASE,
    )


# --- the missing tools ---------------------------------------------------------------------------------

_NONE_MISSING = re.compile(r"\W*(?:1[.)]\W*)?no\s+(?:critical\s+)?missing\s+tools", re.IGNORECASE)
_ITEM = re.compile(  # of a line without trailing space
    r"(?P<indent>[ \t]*)(?:#{1,6}[ \t]+)?(?P<open>[*_]{0,3})"
    r"(?P<number>[0-9]{1,3})[.)][ \t]*(?P<close>[*_]{0,3})[ \t]*(?P<rest>\S.*)"
)
_ENDS_THE_LIST = re.compile(r"[ \t]*(?:#{1,6}[ \t]|(?:-{3,}|\*{3,}|_{3,})[ \t]*$)")
# The name ends at a colon, at a dash between spaces (tool names hold hyphens), or with its marks.
_NAME_END = re.compile(r":(?=\s|[*_`]|$)|\s[-–—]+\s|\s*[–—]\s*|(?<=[*_`])\s+(?=\S)")
_LONGEST_NAME, _MOST_WORDS = 80, 6
_MARKS = " \t*_`\"'“”:"


def extract_missing_tools(text: str) -> list[MissingTool]:
    """
    The numbered list of missing tools: a name and why, per item.

    Reads `1. **read-file**: why`, `1) read-file - why`, and a name on a line of its own with the reason
    below; lines and bullets below an item belong to its reason. An item without a recognisable name gives
    no row, and a text without a list, or one that says that no tools are missing, gives none at all.
    """
    if _says_none_missing(text):
        return []
    tools = []
    for head, body in _numbered_items(text):
        named = _name_and_reason(head)
        if named is not None and not _says_none_missing(head):
            name, reason = named
            lines = [reason, *(line.strip() for line in body)]
            tools.append(MissingTool(name, "\n".join(line for line in lines if line)))
    return tools


def _says_none_missing(text: str) -> bool:
    return _NONE_MISSING.match(text.lstrip()[:100]) is not None


def _numbered_items(text: str) -> Iterator[tuple[str, list[str]]]:
    """Head and following lines of each item; a number that is indented deeper or out of turn is no item."""
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
    # Marks at the very start belong to the name; the name ends after them.
    start = len(head) - len(head.lstrip(_MARKS))
    end = _NAME_END.search(head, start, start + _LONGEST_NAME + 20)
    name = (head[start : end.start()] if end else head[start:]).strip(_MARKS)
    reason = head[end.end() :].lstrip(_MARKS + "-–—").strip() if end else ""
    if not name or len(name) > _LONGEST_NAME or len(name.split()) > _MOST_WORDS:
        return None
    return name, reason


# --- the steps of an approach --------------------------------------------------------------------------

_STEP_TOOL = re.compile(r"[`*\s]*(?P<tool>[A-Za-z][A-Za-z0-9]*(?:[._/-][A-Za-z0-9]+)+)[`*]*(?=[\s:(,–—-]|$)")


def tool_of_step(step: str) -> str | None:
    """The tool that a step begins with (`kubectl.get_pods: ...`); None where its first word is an ordinary one."""
    found = _STEP_TOOL.match(step)
    return found["tool"] if found else None
