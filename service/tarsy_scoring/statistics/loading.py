"""
Loads numpy and scipy while a page waits for the database: their import takes 0.3 s of CPU, once in a process.
"""

import asyncio
import importlib
import sys

LAST = "scipy.special"  # it imports numpy


def begin_to_load() -> None:
    """
    Begin the import in a thread, unless it has begun. Code that imports them meanwhile waits for the thread.
    """
    if LAST not in sys.modules:
        asyncio.get_running_loop().run_in_executor(None, importlib.import_module, LAST)
