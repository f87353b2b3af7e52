"""The server's log on standard error, as text or JSON, with a limit on repeated lines.

    octavo.server   start, drain, reload, refusals, preemption storms
    octavo.access   one line for each answer: request id, tenant, tokens, times, how it finished

No line contains prompts, answers or keys. A line that repeats (refused connections, say) is written a limited
number of times in a period, and the next one after it has the count of those left out.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_LINES_PER_PERIOD = 20  # of one kind; further lines are only counted
_PERIOD_S = 10.0
ACCESS = "octavo.access"
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure_logging(level: str, form: str, replica: str | None = None, *, is_guest: bool = False) -> None:
    """Log to standard error; each line names the replica, if any. `is_guest`: the process belongs to another
    program, whose handlers stay.

    Raises ConfigError for an unknown level or format."""
    if level not in LEVELS:
        raise ConfigError(f"--log-level is {level[:40]!r}; allowed: {', '.join(LEVELS)}")
    if form not in FORMATS:
        raise ConfigError(f"--log-format is {form[:40]!r}; allowed: {', '.join(FORMATS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(replica) if form == "json" else TextLines(replica))
    handler.addFilter(FloodFilter())
    if is_guest:
        octavo = logging.getLogger("octavo")
        octavo.handlers[:], octavo.propagate = [handler], False
    else:
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("octavo").setLevel(level.upper())
    logging.raiseExceptions = False  # a full disk or a closed pipe must not cause more output


class TextLines(logging.Formatter):
    """ "2026-01-31 12:00:00 INFO octavo.server: ..."."""

    def __init__(self, replica: str | None = None) -> None:
        own = "" if replica is None else f"{replica} "
        super().__init__(f"%(asctime)s {own}%(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One line, except for tracebacks: a client's text cannot begin one, or move a terminal's cursor."""
        record.message = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", record.getMessage())
        record.msg, record.args = record.message, None
        return super().format(record)


class JsonLines(logging.Formatter):
    """One object per line: time, level, logger and message, with the fields of `extra={"fields": {...}}`."""

    def __init__(self, replica: str | None = None) -> None:
        super().__init__()
        self._own: dict[str, object] = {} if replica is None else {"replica": replica}

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | self._own
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= fields
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


@dataclass(slots=True)
class _KindCount:
    started: float
    count: int = 0


class FloodFilter(logging.Filter):
    """Passes the first lines of a kind (logger, level, message template) in each period; the next line after
    it has the count of those left out. Access lines are never left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int, str], _KindCount] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        if record.name == ACCESS:
            return True
        now = self._clock()
        key = (record.name, record.levelno, str(record.msg)[:200])
        kind = self._kinds.get(key)
        if kind is None or now - kind.started >= _PERIOD_S:
            left_out = 0 if kind is None else max(0, kind.count - _LINES_PER_PERIOD)
            if len(self._kinds) > 1000:  # messages that were formatted before they were logged
                self._kinds.clear()
            self._kinds[key] = _KindCount(now, 1)
            if left_out:
                record.msg = f"{record.getMessage()} ({left_out:,} more like it were left out)"
                record.args = None
            return True
        kind.count += 1
        return kind.count <= _LINES_PER_PERIOD
