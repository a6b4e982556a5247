"""Checks at the start that gate commands can be kept from secrets."""

import os
from collections.abc import Mapping

from tarsy_scoring.config.secret_files import require_unreadable
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.gates import sandbox


def contain_commands(settings: Settings, environ: Mapping[str, str]) -> None:
    """
    Check that commands of gates can be kept from secrets, and hide this process from them.

    A gate that failed only because it could not be contained would make outcomes `fail`, so the process does
    not start.

    Raises:
        ConfigurationError: The kernel or processor cannot restrict commands, or they could read a file with a
            secret.
    """
    gates = settings.config.gates
    if not gates.allow_commands:
        return
    require_unreadable(settings, environ, sandbox.SYSTEM)
    if os.uname().machine not in sandbox.CALLS:
        raise ConfigurationError(f"gates.allow_commands: commands run on {' and '.join(sandbox.CALLS)} only")
    if gates.sandbox == "landlock" and not sandbox.landlock_version():
        raise ConfigurationError(
            "gates.allow_commands: this kernel has no Landlock, which keeps commands from files with secrets; use "
            "Linux 5.13 or newer with Landlock enabled, or a container without such files and gates.sandbox: container "
            "(docs/gates.md)"
        )
    sandbox.hide_process()
