"""The page that takes a token of the API into a cookie, for browsers without a proxy that signs users in."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.web.edge.access import SIGN_IN
from tarsy_scoring.web.edge.problems import CHALLENGE, Problem
from tarsy_scoring.web.edge.tokens import cookie_name
from tarsy_scoring.web.pages.forms import form_fields
from tarsy_scoring.web.pages.rendering import problem_page

router = APIRouter(include_in_schema=False)


@router.get(SIGN_IN)
async def sign_in_page(request: Request) -> HTMLResponse:
    """The form, which every page shows to a browser without a valid token."""
    detail = "a token of this API opens its pages in this browser; beyond this machine, only over https"
    asked = Problem(200, "Sign in", detail, headers={"WWW-Authenticate": CHALLENGE})
    return problem_page(request, asked, request.state.request_id)


@router.post(SIGN_IN)
async def sign_in(request: Request) -> RedirectResponse:
    """
    Keep the token in a cookie until the browser ends; a form without a token removes it.

    The cookie holds the token itself, so it is valid as long as the token is.

    Raises:
        Problem: 401, the token is not valid; 404, this API takes no tokens; 422.
    """
    token = form_fields(await request.body()).get("token", "").strip()
    if token:
        request.app.state.access.require_token(token.encode())
    answer = RedirectResponse("/" if token else SIGN_IN, 303)
    name = cookie_name(request)
    is_secure, age_s = name.startswith("__Host-"), None if token else 0
    answer.set_cookie(name, token, age_s, secure=is_secure, httponly=True, samesite="strict")
    return answer
