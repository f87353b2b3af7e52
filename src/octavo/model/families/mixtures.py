"""Rows of families whose tokens pass through a few of many experts."""

from __future__ import annotations

from octavo.model.families.row import Family

MIXTURES: tuple[Family, ...] = ()
