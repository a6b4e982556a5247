"""The CPU that a call takes, for tests of how cost grows with size."""

import gc
import time
from collections.abc import Callable


def cpu_s(work: Callable[[], object]) -> float:
    """Seconds of CPU of this thread; without the garbage collector, which may visit the objects of all tests before."""
    gc.disable()
    try:
        started = time.thread_time()
        work()
        return time.thread_time() - started
    finally:
        gc.enable()
