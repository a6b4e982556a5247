"""The example source of docs/extending.md works as written: one module and one entry in `SOURCES`."""

import json
import re
import sys
from pathlib import Path
from pkgutil import resolve_name
from textwrap import dedent
from types import ModuleType

import pytest

from processes import small_session
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.config.timeline_sources import SOURCES, RegisteredSource
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.scoring.offline import score_offline
from tarsy_scoring.timeline.sources import open_timeline_source

ROOT = Path(__file__).parents[3]


@pytest.fixture
def with_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    section = page.partition("## A timeline source")[2].partition("\n## ")[0]
    source, registration = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    module = ModuleType("own_sources.session_lines")
    exec(dedent(source), module.__dict__)
    monkeypatch.setitem(sys.modules, "own_sources", ModuleType("own_sources"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    registered = dict(SOURCES)
    exec(dedent(registration), {"SOURCES": registered, "RegisteredSource": RegisteredSource})
    for name, entry in registered.items():
        monkeypatch.setitem(SOURCES, name, entry)


@pytest.mark.usefixtures("with_the_example")
async def test_a_session_of_a_new_source_is_scored(tmp_path: Path) -> None:
    (tmp_path / "sessions.jsonl").write_text(json.dumps(small_session("one")) + "\n", encoding="utf-8")
    settings = load_settings({"SCORING_TIMELINE_SOURCE": "lines", "SCORING_TIMELINE_DIR": str(tmp_path)})
    source = open_timeline_source(settings)

    timeline = await source.fetch_timeline("one")
    document = await score_offline(settings, load_criteria(), {}, timeline, None, with_judge=False)

    assert (document["status"], document["session_id"]) == ("completed", "one")
    assert document["interaction"]["total_commands"] >= 0
    await source.close()


@pytest.mark.usefixtures("with_the_example")
def test_settings_that_a_new_source_requires_are_asked_for(tmp_path: Path) -> None:
    settings = load_settings({"SCORING_TIMELINE_SOURCE": "lines"})
    with pytest.raises(ConfigurationError, match="SCORING_TIMELINE_DIR is not set: name the folder that holds"):
        open_timeline_source(settings)
    with pytest.raises(ConfigurationError, match="there is no file"):
        open_timeline_source(settings.model_copy(update={"timeline_dir": tmp_path}))
    with pytest.raises(ConfigurationError, match="expected tarsy-db, tarsy-api, files or lines"):
        load_settings({"SCORING_TIMELINE_SOURCE": "line"})


def test_every_registered_source_exists_and_the_chart_knows_it() -> None:
    for registered in SOURCES.values():
        assert callable(resolve_name(registered.factory))
        assert registered.requires.keys() <= Settings.model_fields.keys()
    schema = json.loads((ROOT / "helm/tarsy-scoring/values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"]["timeline"]["properties"]["source"]["enum"] == list(SOURCES)


def test_a_missing_source_is_a_configuration_error() -> None:
    with pytest.raises(
        ConfigurationError, match="SCORING_TIMELINE_SOURCE is not set: say tarsy-db, tarsy-api or files"
    ):
        open_timeline_source(load_settings({}))
