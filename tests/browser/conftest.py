"""A real installation and a real browser: worker and API as processes, Chromium on the pages."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect
from visiting import Installation, Visits, close_or_give_up

from infrastructure import Kafka, Postgres, fresh_database, fresh_topics
from processes import Service
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Playwright's default of 5 s is too short where a busy machine has to judge and publish a score first.
expect.set_options(timeout=30_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        skip = pytest.mark.skip(reason="no Chromium on this machine: apt-get install chromium")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(skip)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installation(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, kafka: Kafka, _migrated_template: str
) -> AsyncIterator[Installation]:
    """Worker and API as processes, on a database and topics of their own."""
    with fresh_database(postgres, _migrated_template) as url:
        async with ScriptedJudge() as judge:
            service = Service(tmp_path_factory.mktemp("installation"), url, fresh_topics(kafka), judge)
            try:
                worker = service.worker()
                api = service.command("api", SCORING_API_PORT="0", SCORING_API_RATE_PER_MINUTE="1000")
                address = (await api.says("api.listening"))["address"]
                await worker.ready()
                yield Installation(service, api, address)
            finally:
                await service.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Chromium that can reach no host but this one."""
    assert CHROMIUM is not None
    async with async_playwright() as playwright:
        # Tests may run as root, where Chromium's own sandbox does not work.
        alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        # Letters without coloured edges make pictures a third smaller.
        arguments = ["--no-sandbox", "--disable-lcd-text", alone]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        await close_or_give_up(browser)


@pytest_asyncio.fixture(loop_scope="module")
async def visit(installation: Installation, browser: Browser) -> AsyncIterator[Visits]:
    """Makes visitors; after the test asserts that none of them met a complaint or a 5xx answer."""
    visits = Visits(installation.address, browser)
    yield visits
    await visits.end()
