"""`python -m octavo.dynamo MODEL [FLAGS]`: runs a worker until a signal."""

from __future__ import annotations

from dynamo.common.backend.run import run

from octavo.cli.main import run_command
from octavo.dynamo.worker import OctavoWorker

if __name__ == "__main__":
    run_command(lambda: run(OctavoWorker))
