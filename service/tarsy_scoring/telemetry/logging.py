"""
Structured logs: one line per event on stderr, JSON or for a console.

Lines have stable dotted names (`attempt.finished`). They hold no prompt, transcript, answer, header or key.
"""

import logging
import re
import sys
from typing import Any, Literal

import structlog
from structlog.typing import EventDict, WrappedLogger

_CREDENTIALS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s@]+@")


def set_up_logging(
    level: Literal["debug", "info", "warning", "error"], style: Literal["json", "console"] | None
) -> None:
    """
    Send our log lines, and warnings from libraries, to stderr.

    Args:
        level: Least level for our lines; `debug` also shows all aiokafka warnings.
        style: None: `console` on a terminal, else `json`.
    """
    as_console = style == "console" or (style is None and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_credentials,
    ]
    renderer: Any = structlog.processors.JSONRenderer()
    if as_console:  # other formatters print the values of local variables
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*shared, *([] if as_console else [structlog.processors.format_exc_info]), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    if level != "debug":
        handler.addFilter(_is_worth_a_line)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """
    Whether a library's line is kept: all but aiokafka lines without a traceback.

    Our own lines report outages (`kafka.away`).
    """
    # In an outage aiokafka logs an error about connections several times a second. A traceback is a fault
    # that the library did not expect.
    return not record.name.startswith("aiokafka") or record.exc_info is not None


def hide_credentials(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Remove user and password from URLs in a line: errors of database drivers quote connection strings."""
    for key, value in line.items():
        if isinstance(value, str) and "@" in value:
            line[key] = _CREDENTIALS.sub(r"\g<scheme>***@", value)
    return line
