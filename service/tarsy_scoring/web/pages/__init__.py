"""Server-rendered HTML pages. `registry.PAGES` lists them."""

from tarsy_scoring.web.pages.registry import routers
from tarsy_scoring.web.pages.rendering import problem_page

__all__ = ["problem_page", "routers"]
