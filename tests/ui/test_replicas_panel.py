"""The page of a cluster: its replicas, and the map of each. Of a server alone there is no such panel."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attack.house import THROUGH_RELAY, House, serving
from tests.ui.browsing import Window

pytestmark = pytest.mark.ui


def test_the_page_lists_replicas_and_opens_the_map_of_each(
    window: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THROUGH_RELAY, "1")
    with serving(tmp_path) as house:
        page = window.open(f"{house.url}/ui")
        page.wait_for_selector("#replicas tbody tr:nth-child(2)")
        assert "this map is of replica-0" in page.locator("#replicas-title").inner_text()
        assert page.locator("#replicas tbody tr td:nth-child(2)").all_inner_texts() == ["running"] * 2
        page.locator("#replicas a").click()
        page.wait_for_selector("#replicas-title:has-text('replica-1')")
        assert page.url.endswith("/ui?replica=replica-1")
        page.wait_for_selector("#map:has-text('blocks of')")
        window.close()


def test_a_server_alone_lists_no_replicas(house: House, window: Window) -> None:
    page = window.open(f"{house.url}/ui")
    assert page.locator("#replicas").count() == 0
    assert not any(url.endswith("/cluster") for url in window.asked)
