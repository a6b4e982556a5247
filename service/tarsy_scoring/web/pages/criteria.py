"""The page that shows criteria key by key."""

from collections.abc import Mapping
from typing import Any

import yaml
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.web.api.common import CriteriaHash, find_criteria
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages.rendering import page

router = APIRouter(include_in_schema=False)


@router.get("/criteria/{criteria_hash}")
async def criteria_page(request: Request, criteria_hash: CriteriaHash) -> HTMLResponse:
    """The prompts and settings stored under a hash."""
    context = context_of(request)
    found = await find_criteria(context, criteria_hash)
    if found is None:
        raise Problem(404, "Unknown criteria", "no criteria with this hash are stored or configured here")
    return page(
        "criteria.html",
        here="/",
        name=found["name"],
        criteria_hash=criteria_hash,
        first_used_at=found["first_used_at"],
        is_current=context.policy.is_current(found["name"], criteria_hash),
        content=in_sections(found["content"]),
    )


def in_sections(content: Mapping[str, Any]) -> dict[str, str]:
    """Stored criteria as texts by key, without the name and the prompt hashes."""
    hidden = ("prompt_hashes", "added_by_code", "name")
    sections = {key: value for key, value in content.items() if key not in hidden}
    sections |= {f"added by code: {key}": text for key, text in content.get("added_by_code", {}).items()}
    return {key: value if isinstance(value, str) else _as_yaml(value) for key, value in sections.items()}


def _as_yaml(value: Any) -> str:
    text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100))
    return text.removesuffix("...\n").strip()
