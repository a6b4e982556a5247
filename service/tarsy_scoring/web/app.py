"""The HTTP application: routes, with middleware in front."""

from functools import cache

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from tarsy_scoring import __version__
from tarsy_scoring.config.studies_extra import load_studies
from tarsy_scoring.postgres.recent import database_look
from tarsy_scoring.web.api import browse, labels, ledger, live, probes, scores, tarsy
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge.access import Access
from tarsy_scoring.web.edge.middleware import RequestMiddleware
from tarsy_scoring.web.edge.problems import REFUSALS, Problem, add_problem_handlers
from tarsy_scoring.web.openapi import openapi_document
from tarsy_scoring.web.pages.registry import routers
from tarsy_scoring.web.pages.rendering import problem_page

_studies = load_studies("drift_api")

ROUTERS = (
    scores.router,
    browse.router,
    browse.figures,
    *((_studies.router,) if _studies else ()),
    ledger.router,
    labels.router,
    probes.router,
    tarsy.router,
    live.router,
)


def create_app(context: AppContext, *, access: Access | None = None) -> FastAPI:
    """
    The application; connects to nothing.

    Args:
        access: Default: as the settings say.

    Raises:
        ConfigurationError: See `Access`.
    """
    app = application()
    app.state.context = context
    app.state.database_look = database_look(context.reader.database, context.metrics)
    app.state.has_started = True
    app.state.access = access or Access(context.settings)
    app.add_middleware(RequestMiddleware, access=app.state.access, metrics=context.metrics)
    return app


def application() -> FastAPI:
    """The routes and their error handlers, without a context: enough to generate the OpenAPI document."""
    app = FastAPI(
        title="tarsy-scoring",
        version=__version__,
        openapi_url=None,  # `probes` serves the document; the framework's pages load scripts from other hosts
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        # `include_router` would build each route a second time, which takes 0.06 s.
        routes=[route for router in (*ROUTERS, *routers()) for route in router.routes],
    )
    app.state.problem_page = problem_page
    add_problem_handlers(app)
    not_found = app.router.default

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the framework would refuse with an empty 403
            raise Problem(404, *REFUSALS[404])
        await not_found(scope, receive, send)

    app.router.default = no_route
    app.openapi = cache(lambda: openapi_document(app))  # type: ignore[method-assign]
    return app
