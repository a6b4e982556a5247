"""The CPU that a call takes, for tests of how cost grows with size."""

import gc
import time
from collections.abc import Callable


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds that `work` takes in this thread, with the garbage collector off."""
    gc.disable()  # it may visit the objects of all earlier tests
    try:
        started = time.thread_time()
        work()
        return time.thread_time() - started
    finally:
        gc.enable()
