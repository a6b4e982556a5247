"""A page is a module, a template and one entry in `PAGES`: the example of docs/extending.md is run here."""

import re
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace

import httpx
import pytest
from jinja2 import ChoiceLoader, DictLoader
from starlette.types import Receive, Scope, Send

from tarsy_scoring.web.app import application
from tarsy_scoring.web.edge.caller import Caller
from tarsy_scoring.web.pages import rendering
from tarsy_scoring.web.pages.registry import PAGES, Page

ROOT = Path(__file__).parents[3]


async def test_a_new_page_is_served_and_in_the_navigation(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    section = text.partition("## A page")[2].partition("\n## ")[0]
    source, template, entry = re.findall(r"```(?:python|html)\n(.*?)```", section, re.DOTALL)
    module = ModuleType("own_pages")
    exec(dedent(source), module.__dict__)
    monkeypatch.setitem(sys.modules, "own_pages", module)
    loader = rendering.templates().loader
    assert loader is not None
    monkeypatch.setattr(rendering.templates(), "loader", ChoiceLoader([DictLoader({"names.html": template}), loader]))
    registered = list(PAGES)
    exec(dedent(entry), {"PAGES": registered, "Page": Page})
    monkeypatch.setattr("tarsy_scoring.web.pages.registry.PAGES", registered)

    app = application()
    app.state.context = SimpleNamespace(policy=SimpleNamespace(hashes={"one": "hash-1"}))

    async def as_reader(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope | {"state": {"caller": Caller("reader", frozenset({"read"}))}}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(as_reader), base_url="http://test") as client:
        answer = await client.get("/criteria-names")

    assert answer.status_code == 200
    assert "<li>one</li>" in answer.text
    assert '<a href="/criteria-names" aria-current="page">Criteria</a>' in answer.text
