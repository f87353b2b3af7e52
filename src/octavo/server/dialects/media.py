"""Images and files in results of tools: this server reads text only, and the model is told so."""

from __future__ import annotations


def unread_media(kind: str) -> str:
    """The sentence that stands in place of it."""
    article = "An" if kind[:1] in "aeiou" else "A"
    return f"[{article} {kind} was here. It cannot be shown: only text is read.]"
