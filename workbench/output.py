"""Where a command's answer goes: readable text, or one JSON document with `--json`; progress goes to stderr."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from typing import TextIO

from workbench.records.base import to_plain
from workbench.views.base import View


class Output:
    """Collects a command's answer and writes it once, as text or as JSON.

    With `--json` exactly one document is written: `{"command": ..., "schema": 1, "exit_code": ..., **fields}`; see
    `workbench/schemas/<command>.json`.
    """

    def __init__(
        self, command: str, *, as_json: bool, stream: TextIO | None = None, errors: TextIO | None = None
    ) -> None:
        self.command = command
        self.as_json = as_json
        # A process started without a stdout has None there.
        self._stream = stream or sys.stdout or io.StringIO()
        self._errors = sys.stderr if errors is None else errors
        self._fields: dict[str, object] = {}

    def show(self, name: str, view: View) -> None:
        """Give a view: printed at once as text, or put under `name` in the JSON document."""
        if self.as_json:
            self._fields[name] = view.to_dict()
        else:
            self._write(str(view))

    def line(self, text: str = "") -> None:
        """Write one line of text; left out of JSON, so say nothing here that only text has."""
        if not self.as_json:
            self._write(text)

    def put(self, name: str, value: object) -> None:
        """Put a JSON-able value (or dataclass) under `name`; not shown as text."""
        self._fields[name] = to_plain(value) if not isinstance(value, Mapping) else value

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text + "\n")
        except UnicodeEncodeError:
            # A terminal that knows fewer characters, or a path that is no text: shown escaped rather than not at all.
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")

    def progress(self, text: str) -> None:
        """Tell what is going on, on the error stream."""
        self._errors.write(text + "\n")
        self._errors.flush()

    def finish(self, exit_code: int) -> None:
        """Write the JSON document, when JSON was asked for."""
        if self.as_json:
            body = {"command": self.command, "schema": 1, "exit_code": exit_code, **self._fields}
            # Plain ASCII without NaN: a document for every parser, in every locale, also where a path is no text.
            self._stream.write(json.dumps(to_plain(body), allow_nan=False, indent=1) + "\n")
        self._stream.flush()
