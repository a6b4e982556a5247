"""The OpenAPI document is complete: operations are described, answers have schemas."""

import json
from typing import Any

import pytest
from contracts import SCHEMAS, load_schema
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator

from tarsy_scoring.web.app import application
from tarsy_scoring.web.edge.middleware import PROBES

DOCUMENT: dict[str, Any] = json.loads((SCHEMAS / "openapi.json").read_text("utf-8"))
MODELS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
# Statuses that any request may get before its handler runs.
FOR_ALL = {"400", "401", "403", "413", "422", "431", "500", "503"}


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [r for k, v in value.items() for r in ([v] if k == "$ref" else references(v))]
    return [r for v in value for r in references(v)] if isinstance(value, list) else []


def test_metrics_name_a_route_as_the_document_does() -> None:
    """The label `route` of a metric is the whole path."""
    routes = [route for route in application().routes if isinstance(route, APIRoute) and route.include_in_schema]

    assert {route.path_format for route in routes} == set(DOCUMENT["paths"])


def test_every_operation_is_described() -> None:
    for name, operation in OPERATIONS.items():
        assert operation["summary"], name
        assert operation["description"], name
        assert operation["operationId"].isidentifier(), name
        assert all("schema" in parameter for parameter in operation.get("parameters", [])), name
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n.split()[1] not in PROBES])
def test_every_answer_has_a_schema(name: str) -> None:
    answers = OPERATIONS[name]["responses"]
    assert set(answers) >= (FOR_ALL if name.startswith("GET") else FOR_ALL | {"408", "429"})
    for status, answer in answers.items():
        assert answer["description"]
        assert answer["content"], f"{name} {status} has no content"
        for media in answer["content"].values():
            assert media.get("schema"), f"{name} {status} has no schema"
        if status in FOR_ALL:
            is_tarsys = name.endswith(" /api/v1/sessions/{session_id}/score")
            media, model = ("json", "TarsyError") if is_tarsys else ("problem+json", "ProblemDocument")
            assert list(answer["content"]) == [f"application/{media}"]
            assert answer["content"][f"application/{media}"]["schema"] == {"$ref": f"#/components/schemas/{model}"}
        if status in ("429", "503"):
            assert "Retry-After" in answer["headers"]


def test_references_use_exactly_the_models_of_the_document() -> None:
    found = {reference.removeprefix("#/components/schemas/") for reference in references(DOCUMENT)}
    assert found == set(MODELS)


def test_models_are_schemas() -> None:
    for model in MODELS.values():
        Draft202012Validator.check_schema(model)


def test_score_document_matches_its_published_schema() -> None:
    published = load_schema("score-document")
    shown = MODELS["ScoreDocument"]
    assert shown["required"] == published["required"]
    assert set(shown["properties"]) == set(published["properties"])
