"""Let this environment import, behind its own packages, those of another: `python add_site.py FOLDER`."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

Path(sysconfig.get_path("purelib"), "octavo-tests.pth").write_text(
    f"import site; site.addsitedir({sys.argv[1]!r})\n"
)
