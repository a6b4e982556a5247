"""
The OpenAPI document: what the routes declare, and the answers that every route may give.

A route declares answers that only it gives, errors by description alone; their shape is added here.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tarsy_scoring.web.documents import ProblemDocument
from tarsy_scoring.web.edge.access import UNCHANGING_METHODS
from tarsy_scoring.web.edge.middleware import PROBES
from tarsy_scoring.web.edge.problems import MEDIA_TYPE, is_tarsys_path

_REFERENCE = "#/components/schemas/{model}"
_DESCRIPTION = """\
Scores of automated incident investigations: request them, read them, analyse them.

Every refusal and failure is a problem document (RFC 9457, `application/problem+json`), and at TARSy's own
addresses JSON with a `message`. docs/api.md describes access; where tokens are configured, send
`Authorization: Bearer TOKEN`.
"""
_BEARER = {"type": "http", "scheme": "bearer", "description": "Needed where SCORING_API_TOKENS_FILE is set."}
_RETRY_AFTER = {
    "headers": {
        "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
    }
}
_ANY_ANSWER = {
    "400": "The request cannot be read, or the user name of a proxy is not usable.",
    "401": "The caller is unknown: no valid token, or no user name from a trusted proxy.",
    "403": "Not allowed: a token with the scope `read`, a page of another site, or an unknown host name.",
    "413": "The body is larger than 64 KiB.",
    "422": "The request is malformed; `errors` says where and why.",
    "431": "The address and the headers together are larger than 32 KiB.",
    "500": "An unexpected error; the log has it under the id in `instance`.",
    "503": "The database is unavailable, or the server is busy or stopping.",
}
_ANSWER_TO_A_CHANGE = {
    "408": "The body did not arrive in time.",
    "429": "The caller's rate of changes is exceeded.",
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Describe the application's routes; the same routes give the same document."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=_DESCRIPTION,
        routes=app.routes,
        separate_input_output_schemas=app.separate_input_output_schemas,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    document["components"]["securitySchemes"] = {"bearer": _BEARER}
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = ProblemDocument.model_json_schema(ref_template=_REFERENCE)
    schemas |= problem.pop("$defs") | {"ProblemDocument": problem}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = _answers(path, method.upper(), operation["responses"])
            if path not in PROBES:
                operation["security"] = [{"bearer": []}, {}]
    return document


def _answers(path: str, method: str, declared: dict[str, Any]) -> dict[str, Any]:
    """The answers that a route declares, and those that every route may give, by status."""
    shared = {} if path in PROBES else _ANY_ANSWER
    if shared and method not in UNCHANGING_METHODS:
        shared = shared | _ANSWER_TO_A_CHANGE
    media_type, model = MEDIA_TYPE, "ProblemDocument"
    if is_tarsys_path(path):
        media_type, model = "application/json", "TarsyError"
    refusal = {"content": {media_type: {"schema": {"$ref": _REFERENCE.format(model=model)}}}}
    # The middleware answers a shared status with a problem, whatever the route or FastAPI declares.
    answers = declared | {status: {"description": text} | refusal for status, text in shared.items()}
    for status, answer in answers.items():
        if status >= "400" and "content" not in answer:
            answers[status] = answer | refusal
        if status in ("429", "503"):
            answers[status] = _RETRY_AFTER | answers[status]
    return dict(sorted(answers.items()))
