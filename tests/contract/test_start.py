"""A start does not load what few commands need: it would cost every command time."""

import os
import subprocess
import sys

UNNEEDED = {
    "aiokafka",
    "asyncpg",
    "fastapi",
    "numpy",
    "openai",
    "opentelemetry",
    "pydantic_settings",
    "scipy",
    "sqlalchemy",
}


def test_the_help_loads_no_database_broker_or_client_of_a_judge() -> None:
    program = """
import sys
from tarsy_scoring.cli import cli
cli.main(["--help"], standalone_mode=False)
print(*sys.modules, sep="\\n")
"""
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)

    assert "check-config" in ended.stdout
    assert UNNEEDED & set(ended.stdout.split()) == set()
