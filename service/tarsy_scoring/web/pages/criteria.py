"""The page that shows criteria key by key, and what changed since earlier ones."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.web.api.common import CRITERIA_HASH, CriteriaHash, find_criteria
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages.rendering import page

router = APIRouter(include_in_schema=False)

MAX_LINES = 2_000  # per key; comparing takes quadratic time in the worst case

EarlierHash = Annotated[str | None, Query(pattern=CRITERIA_HASH)]
Line = tuple[str, str, str]
_CSS_CLASSES = {"+": "added", "-": "gone", "@": "place", " ": ""}


@router.get("/criteria/{criteria_hash}")
async def criteria_page(
    request: Request, criteria_hash: CriteriaHash, before: EarlierHash = None
) -> HTMLResponse:
    """The prompts and settings stored under a hash, and their changes since the criteria `before`."""
    context = context_of(request)
    found = await find_criteria(context, criteria_hash)
    older = await find_criteria(context, before) if before is not None else None
    if found is None or (before is not None and older is None):
        raise Problem(404, "Unknown criteria", "no criteria with this hash are stored or configured here")
    return page(
        "criteria.html",
        here="/",
        name=found["name"],
        criteria_hash=criteria_hash,
        first_used_at=found["first_used_at"],
        is_current=context.policy.is_current(found["name"], criteria_hash),
        before=older,
        changes=changes(older["content"], found["content"]) if older else None,
        content=in_sections(found["content"]),
    )


def in_sections(content: Mapping[str, Any]) -> dict[str, str]:
    """Stored criteria as texts by key, without the name and the prompt hashes."""
    hidden = ("prompt_hashes", "added_by_code", "name")
    sections = {key: value for key, value in content.items() if key not in hidden}
    sections |= {f"added by code: {key}": text for key, text in content.get("added_by_code", {}).items()}
    return {key: value if isinstance(value, str) else _as_yaml(value) for key, value in sections.items()}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, list[Line]]]:
    """Keys whose text differs, each with the changed lines: CSS class, mark, text."""
    old, new = in_sections(before), in_sections(after)
    keys = [key for key in old | new if old.get(key) != new.get(key)]
    return [(key, list(_compare(old.get(key, ""), new.get(key, "")))) for key in keys]


def _compare(before: str, after: str) -> Iterator[Line]:
    old, new = before.splitlines()[:MAX_LINES], after.splitlines()[:MAX_LINES]
    for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]:
        yield _CSS_CLASSES.get(line[:1], ""), line[:1], line[1:]


def _as_yaml(value: Any) -> str:
    text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))
    return text.removesuffix("...\n").strip()
