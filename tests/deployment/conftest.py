"""Fixtures of the deployment tests: the chart, rendered once for each set of values."""

import subprocess

import pytest
import yaml
from deploying import CHART, VALUE_SETS, Objects, Render, RenderObjects, find_helm


@pytest.fixture(scope="session")
def helm() -> Render:
    """Runs helm; skips the test where helm is not installed."""
    program = find_helm()
    if program is None:
        pytest.skip("there is no helm: go install helm.sh/helm/v3/cmd/helm@latest")

    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def charts(helm: Render) -> dict[str, Objects]:
    """The objects of every set of values, by the set's name, as helm renders them for a release `scoring`."""
    return {name: _rendered(helm, "scoring", f"--values={path}") for name, path in VALUE_SETS.items()}


@pytest.fixture(scope="session")
def render(helm: Render) -> RenderObjects:
    """Renders the chart with other arguments, or for a release of another name."""

    def run(*arguments: str, release: str = "scoring") -> Objects:
        return _rendered(helm, release, *arguments)

    return run


def _rendered(helm: Render, release: str, *arguments: str) -> Objects:
    text = helm("template", release, str(CHART), "--namespace", "sre", *arguments).stdout
    return Objects([document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document])


@pytest.fixture(params=sorted(VALUE_SETS))
def chart(request: pytest.FixtureRequest, charts: dict[str, Objects]) -> Objects:
    """Each set of values in turn."""
    return charts[request.param]
