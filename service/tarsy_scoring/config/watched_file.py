"""A file that is read again when it changes."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from tarsy_scoring.errors import ConfigurationError

log = structlog.get_logger()

T = TypeVar("T")

MAX_FILE_BYTES = 1_000_000


class WatchedFile(ABC, Generic[T]):
    """
    What a file holds, read again when the file changes.

    When the file becomes unreadable or invalid, what was read before stays in force: a typing error must not
    lock out every caller, or the service itself.

    Args:
        setting: Names the file in errors.

    Raises:
        ConfigurationError: At the start the file is missing or invalid.
    """

    def __init__(self, path: Path, setting: str) -> None:
        self.path = path
        self._where = f"{setting}: {path}"
        self._seen = self._signature()
        self._content = self._read()

    def current(self) -> T:
        """What the file holds now."""
        # Taken before reading: if the file changes while it is read, the next call reads it again.
        signature = self._signature()
        if signature != self._seen:
            self._seen = signature
            try:
                self._content = self._read()
            except ConfigurationError as error:
                log.error("file.broken", reason=str(error), effect="what was read before stays in force")
            else:
                log.info("file.reloaded", file=self._where)
        return self._content

    def read_again(self) -> T:
        """What the file holds, read even where it looks unchanged: some file systems have coarse times."""
        self._seen = None
        return self.current()

    @abstractmethod
    def _parse(self, content: bytes) -> T:
        """Raises: ConfigurationError: The content is invalid. The message quotes no value."""

    def _signature(self) -> tuple[int, int, int] | None:
        """Modification time, size and inode, which change with the content. None: stat failed."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> T:
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(f"{self._where} cannot be read: {error.strerror}") from None
        if len(content) > MAX_FILE_BYTES:
            raise ConfigurationError(f"{self._where} is larger than {MAX_FILE_BYTES:,} bytes")
        return self._parse(content)
