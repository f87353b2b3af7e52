"""A terminal that keeps what was ever shown: enough of one to read what a command drew."""

from __future__ import annotations

import re

_CODE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")


class Screen:
    """Lines of cells. What has scrolled off the top is fixed: to draw there again is an error."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.lines: list[str] = [""]
        self.row = self.column = 0

    @property
    def top(self) -> int:
        """The first line that is still on the screen."""
        return max(0, len(self.lines) - self.height)

    def write(self, text: str) -> None:
        """What a program writes."""
        while text:
            code = _CODE.match(text)
            if code:
                self._obey(code[1] == "?", code[2], code[3])
                text = text[code.end() :]
                continue
            assert text[0] != "\x1b", f"an unknown code: {text[:20]!r}"
            self._put(text[0])
            text = text[1:]

    def text(self) -> str:
        """All that was shown, without spaces at the ends of lines and empty lines at the end."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self._down()
        else:
            if self.column == self.width:
                self._down()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def _obey(self, is_private: bool, numbers: str, letter: str) -> None:
        count = int(numbers or 1) if numbers.isdigit() or not numbers else 1
        if letter == "A":
            self.row -= count
            assert self.row >= self.top, "what has scrolled away was drawn again"
        elif letter == "K":
            assert numbers == "2"
            self.lines[self.row] = ""
        else:
            assert letter == "m" or (is_private and numbers == "25"), f"an unknown code: {numbers}{letter}"
