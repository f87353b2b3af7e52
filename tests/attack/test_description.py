"""Every route does what /openapi.json says of it, whatever it is sent: schemathesis makes the requests.

All but one: /v1/kv/watch is a stream that does not end, and would hold each request for its timeout and more.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attack.house import serving

pytestmark = [pytest.mark.real_model, pytest.mark.attack]

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"


def test_no_request_gets_a_5xx_or_a_status_that_is_not_described(tmp_path: Path) -> None:
    tool = Path(sys.executable).with_name("schemathesis")
    if not tool.exists() and shutil.which("schemathesis") is None:
        pytest.skip("schemathesis is not installed: make test-attack installs it")
    command = str(tool) if tool.exists() else "schemathesis"
    options = ["--max-examples", "25", "--max-time", "120", "--request-timeout", "20", "--no-color"]
    options += ["--exclude-path", "/v1/kv/watch"]
    # A short context, because many of its requests leave max_tokens out.
    with serving(tmp_path, "--context-length", "256", "--log-level", "warning") as house:
        told = subprocess.run(
            [
                command,
                "run",
                f"{house.url}/openapi.json",
                "--checks",
                CHECKS,
                *options,
                "--continue-on-failure",
            ],
            capture_output=True,
            text=True,
            timeout=280,
            cwd=tmp_path,
        )
        assert told.returncode == 0, told.stdout[-6000:]
        assert "Traceback" not in house.log.read_text()
