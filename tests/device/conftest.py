"""Triton's kernels run in its interpreter here: it must know before it is imported for the first time."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
