"""
The OpenAPI document: what the routes declare, and the answers that all of them share.

A route declares its own answers. For an error it gives a description only; the shape is added here.
"""

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from tarsy_scoring.web.access import UNCHANGING_METHODS
from tarsy_scoring.web.documents import EXAMPLE_PROBLEM, EXAMPLE_SCORE, Fault, ProblemDocument
from tarsy_scoring.web.middleware import PROBES
from tarsy_scoring.web.problems import MEDIA_TYPE, is_tarsys_path

DESCRIPTION = """\
Scores of automated incident investigations: request them, read them, analyse them.

Every refusal and failure is a problem document (RFC 9457, `application/problem+json`), and at TARSy's own addresses
JSON with a `message`. docs/api.md describes access; where tokens are configured, send `Authorization: Bearer TOKEN`.
"""
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Needed where SCORING_API_TOKENS_FILE is set."}
}

# Answers that every route may give beside its own.
FOR_ALL = {
    "400": "The request cannot be read, or the user name of a proxy is not usable.",
    "401": "The caller is unknown: no valid token, or no user name from a trusted proxy.",
    "403": "Not allowed: a token with the scope `read`, a page of another site, or an unknown host name.",
    "413": "The body is larger than 64 KiB.",
    "431": "The address and the headers together are larger than 32 KiB.",
    "422": "The request is malformed; `errors` says where and why.",
    "500": "An unexpected error; the log has it under the id in `instance`.",
    "503": "The database is unavailable, or the server is busy or stopping; `Retry-After` says when to try again.",
}
FOR_CHANGES = {
    "408": "The body did not arrive in time.",
    "429": "The caller's rate of changes is exceeded; see `Retry-After`.",
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
EXAMPLES = {"ScoreDocument": EXAMPLE_SCORE, "ProblemDocument": EXAMPLE_PROBLEM}
_REFERENCE = "#/components/schemas/{model}"


class _Plain(GenerateJsonSchema):
    """Without titles generated from field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document of the application's routes; deterministic."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=DESCRIPTION,
        routes=app.routes,
        separate_input_output_schemas=app.separate_input_output_schemas,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= _schemas(ProblemDocument, Fault)
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [example]
    document["components"]["securitySchemes"] = SECURITY
    for path, method, operation in operations(document):
        operation["responses"] = _answers(path, method, operation["responses"])
        if path not in PROBES:
            operation["security"] = [{"bearer": []}, {}]
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and definition of every operation in a document."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _answers(path: str, method: str, declared: dict[str, Any]) -> dict[str, Any]:
    """The answers of a route and those that every route may give, by status."""
    general: dict[str, str] = {}
    if path not in PROBES:
        general = FOR_ALL | ({} if method in UNCHANGING_METHODS else FOR_CHANGES)
    answers = {status: dict(answer) for status, answer in declared.items()}
    for status, description in general.items():
        answer = answers.setdefault(status, {"description": description})
        if "HTTPValidationError" in str(answer.get("content")):
            answers[status] = {"description": description}  # the framework's own shape, which is never sent
    media_type, model = ("application/json", "TarsyError") if is_tarsys_path(path) else (MEDIA_TYPE, "ProblemDocument")
    for status, answer in answers.items():
        if re.fullmatch(r"[45]\d\d", status):
            problem = {media_type: {"schema": {"$ref": _REFERENCE.format(model=model)}}}
            if status in general or not answer.get(
                "content"
            ):  # the middleware answers with a problem, whatever the route declares
                answer["content"] = answer.get("content", {}) | problem
            if status in ("429", "503"):
                answer.setdefault("headers", RETRY_AFTER)
    return dict(sorted(answers.items()))


def _schemas(*models: type[BaseModel]) -> dict[str, Any]:
    wanted = [(model, "validation") for model in models]
    _, found = models_json_schema(wanted, ref_template=_REFERENCE, schema_generator=_Plain)  # type: ignore[arg-type]
    schemas: dict[str, Any] = found["$defs"]
    return schemas
