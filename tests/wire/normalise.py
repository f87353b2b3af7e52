"""What of an exchange differs each time, and what stands for it in a golden. Nothing else is changed.

    ids         <chatcmpl-1>, <resp-2>: a number for each id of a kind, in order of appearance in the scenario
    times       <time>: numbers and dates under names that tell one
                and the values of metrics that are seconds, moments, or of the process
    the date    of the header `date`
    <version>   of Octavo and Python, where a name says that it is that
    the length  of the header `content-length`, where it is that of the body
    the order   of methods in the header `allow`, which is that of a set

A rule demands the whole form of what it replaces, so an id or a date of another form is seen.
"""

from __future__ import annotations

import re
from typing import Final

from octavo import __version__

_URL_SAFE: Final = "[A-Za-z0-9_-]"
_HEX: Final = "[0-9a-f]"
# The group is the id; a kind without a prefix of its own is known by what stands before it.
_IDS: Final[tuple[tuple[str, str], ...]] = (
    ("chatcmpl", rf"\b(chatcmpl-{_HEX}{{32}})\b"),
    ("cmpl", rf"\b(cmpl-{_HEX}{{32}})\b"),
    ("msg", rf"\b(msg_{_HEX}{{32}})\b"),
    ("toolu", rf"\b(toolu_{_HEX}{{24}})\b"),
    ("call", rf"\b(call_{_HEX}{{24}})\b"),
    ("req", rf"\b(req-{_HEX}{{32}})\b"),
    ("resp", rf"\bresp_({_URL_SAFE}{{24}})(?!{_URL_SAFE})"),
    ("resp", rf"\b(?:msg|rs|fc|fco)_({_URL_SAFE}{{24}})_\d+\b"),  # an item of it
    ("session", rf"^(?i:x-octavo-session): ({_URL_SAFE}{{24}})$"),
    ("session", rf'"session":{{"id":"({_URL_SAFE}{{24}})"'),
    ("session", rf'{{"id":"({_URL_SAFE}{{24}})","object":"session"'),
)
_DATE: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z"
_DAY: Final = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"
_OF_SESSION: Final = r'("bytes_below":\d+,)'
# Of histograms, how many there were is no time.
_SECONDS: Final = r'octavo_\w*seconds\w*(?<!_count)(?:{(?!.*le="\+Inf").*})?'
_METRIC: Final = rf"(?:process_\w+|\w+_created)(?:{{.*}})?|{_SECONDS}"
_TIMES: Final[tuple[tuple[str, str], ...]] = (
    (r'("(?:created|created_at|completed_at|begun)":)1\d{9}(?=[,}])', r"\1<time>"),
    (rf'("(?:created_at|modified_at)":)"{_DATE}"', r'\1"<time>"'),
    (r'("(?:total|prompt_eval|eval)_duration":)[1-9]\d{0,10}(?=[,}])', r"\1<time>"),
    (rf"(?m)^({_METRIC}) [-+.\de]+$", r"\1 <time>"),
    (rf"(<h1>Octavo ){re.escape(__version__)}(?=</h1>)", r"\1<version>"),
    (rf'("(?:version|octavo)": ?)"{re.escape(__version__)}"', r'\1"<version>"'),
    (rf'(\bpython=)"3\.\d+\.\d+\w*",(version=)"{re.escape(__version__)}"', r'\1"<version>",\2"<version>"'),
    (
        _OF_SESSION + r'"age":\d+\.\d{1,3},"seconds_left":\d+\.\d{1,3},',
        r'\1"age":<time>,"seconds_left":<time>,',
    ),
)


class Normaliser:
    """Of one scenario: it remembers the ids that it has seen."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # id -> what stands for it
        self._counts: dict[str, int] = {}

    def of(self, text: str) -> str:
        """The text with every id and time replaced."""
        found = [
            (match.start(1), kind, match.group(1))
            for kind, pattern in _IDS
            for match in re.finditer(pattern, text)
        ]
        for _, kind, one in sorted(found):
            if one not in self._names:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                self._names[one] = f"<{kind}-{self._counts[kind]}>"
        for one, name in self._names.items():
            text = text.replace(one, name)
        for pattern, replacement in _TIMES:
            text = re.sub(pattern, replacement, text)
        return text

    def real(self, text: str) -> str:
        """The other way round: a request's text with the ids of earlier answers."""
        for one, name in self._names.items():
            text = text.replace(name, one)
        assert not re.search(r"<[a-z]+-\d+>", text), f"no answer has told this id: {text[:200]}"
        return text

    def header(self, name: str, value: str, body_length: int | None) -> str:
        """A response header's value."""
        if name.lower() == "date":
            return re.sub(f"^{_DAY}$", "<date>", value)
        if name.lower() == "content-length" and value == str(body_length):
            return "<of the body>"
        if name.lower() == "allow":
            return ", ".join(sorted(value.split(", ")))
        return self.of(f"{name}: {value}").removeprefix(f"{name}: ")
