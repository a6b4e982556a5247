"""The pages in the navigation. A page is a module with a `router`, a template, and one entry in `PAGES`."""

from dataclasses import dataclass
from importlib import import_module

from fastapi import APIRouter

from tarsy_scoring.config.studies_extra import has_studies


@dataclass(frozen=True, slots=True)
class Page:
    """
    A page in the navigation.

    Args:
        module: Dotted name, whose `router` serves the page. Named and not imported, because the
            modules import `rendering`, which prints the navigation.
        is_under_more: Whether the page stands behind "More".
    """

    path: str
    title: str
    module: str
    is_under_more: bool = False


_HERE = "tarsy_scoring.web.pages"
PAGES = [
    Page("/week", "This week", f"{_HERE}.week"),
    Page("/", "Sessions", f"{_HERE}.sessions"),
    Page("/trends", "Trends", f"{_HERE}.trends"),
    Page("/missing-tools", "Missing tools", f"{_HERE}.missing_tools"),
    Page("/failure-tags", "Failure tags", f"{_HERE}.failure_tags"),
    Page("/review", "Review", f"{_HERE}.labelling"),
    Page("/disagreements", "Disagreements", f"{_HERE}.disagreements", is_under_more=True),
    Page("/distribution", "Distribution", f"{_HERE}.distribution", is_under_more=True),
    Page("/drift", "Drift", "tarsy_scoring.studies.drift_page", is_under_more=True),
    Page("/approaches", "Better approaches", f"{_HERE}.approaches", is_under_more=True),
]
"""In navigation order. "More" holds what few installations have data for, or look at rarely."""
if not has_studies():
    PAGES = [page for page in PAGES if page.path != "/drift"]


def routers() -> list[APIRouter]:
    """The routers that serve pages, each once, also those outside the navigation."""
    # `scores` comes last: `/scores/{score_id}` matches other addresses.
    outside = ("assets", "timeline", "comparison", "sign_in", "scores")
    modules = dict.fromkeys([*(page.module for page in PAGES), *(f"{_HERE}.{name}" for name in outside)])
    return [import_module(module).router for module in modules]
