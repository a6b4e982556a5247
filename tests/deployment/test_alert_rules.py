"""Prometheus's own tool accepts the alert rules, and each alert fires only in the cases that say so."""

import shutil
import subprocess
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[2] / "helm" / "tarsy-scoring" / "files"
PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus has it)")
@pytest.mark.parametrize("arguments", [("check", "alerts.yaml"), ("test", "alerts_test.yaml")], ids=["check", "test"])
def test_promtool_accepts_the_rules(arguments: tuple[str, str]) -> None:
    assert PROMTOOL is not None
    what, file = arguments

    command = [PROMTOOL, what, "rules", file]
    done = subprocess.run(command, cwd=FILES, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
