"""
The OpenAPI document: what the routes declare, and the texts, shared answers and examples of `openapi.yaml`.

A route declares its own answers. For an error it gives a description only; the shape is added here.
"""

import re
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import GenerateJsonSchema

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.web.access import UNCHANGING_METHODS
from tarsy_scoring.web.documents import ProblemDocument
from tarsy_scoring.web.middleware import PROBES
from tarsy_scoring.web.problems import MEDIA_TYPE, is_tarsys_path

_REFERENCE = "#/components/schemas/{model}"


class _Plain(GenerateJsonSchema):
    """JSON Schema without titles generated from field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


_openapi_yaml = partial(packaged_yaml, __package__, "openapi.yaml")


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the application's routes; the same routes give the same document."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=_openapi_yaml()["description"],
        routes=app.routes,
        separate_input_output_schemas=app.separate_input_output_schemas,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    document["components"]["securitySchemes"] = _openapi_yaml()["security_schemes"]
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = ProblemDocument.model_json_schema(ref_template=_REFERENCE, schema_generator=_Plain)
    schemas |= problem.pop("$defs") | {"ProblemDocument": problem}
    for name, examples in _openapi_yaml()["model_examples"].items():
        schemas[name]["examples"] = examples
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = _answers(path, method.upper(), operation["responses"])
            if path not in PROBES:
                operation["security"] = [{"bearer": []}, {}]
    for name, example in _openapi_yaml()["answer_examples"].items():
        method, path, status = name.split()
        answer = document["paths"][path][method.lower()]["responses"][status]
        answer["content"]["application/json"]["example"] = example
    return document


def _answers(path: str, method: str, declared: dict[str, Any]) -> dict[str, Any]:
    """The answers that a route declares, and those that every route may give, by status."""
    shared: dict[str, str] = {}
    if path not in PROBES:
        texts = _openapi_yaml()["shared_answers"]
        shared = texts["all"] if method in UNCHANGING_METHODS else texts["all"] | texts["changes"]
    answers = {status: dict(answer) for status, answer in declared.items()}
    for status, description in shared.items():
        answer = answers.setdefault(status, {"description": description})
        if "HTTPValidationError" in str(answer.get("content")):
            answers[status] = {"description": description}  # the framework's own shape, which is never sent
    media_type, model = (MEDIA_TYPE, "ProblemDocument")
    if is_tarsys_path(path):
        media_type, model = ("application/json", "TarsyError")
    problem = {media_type: {"schema": {"$ref": _REFERENCE.format(model=model)}}}
    for status, answer in answers.items():
        if re.fullmatch(r"[45]\d\d", status):
            # The middleware answers a shared status with a problem, whatever the route declares.
            if status in shared or not answer.get("content"):
                answer["content"] = answer.get("content", {}) | problem
            if status in ("429", "503"):
                answer.setdefault("headers", _openapi_yaml()["retry_after"])
    return dict(sorted(answers.items()))
