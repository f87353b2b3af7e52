"""The default model's file, for tests marked real_model."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.model.hub.paths import resolve


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """Fetched once into the cache; a machine that cannot fetch it fails the test with the reason."""
    return resolve().path
