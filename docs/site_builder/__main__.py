"""Builds the site into a folder, `../site` if none is given."""

import sys
import tempfile
import time
from pathlib import Path

from site_builder.build import ROOT, BuildError, build_site

out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"
begun = time.monotonic()
with tempfile.TemporaryDirectory() as work:
    try:
        build_site(out, Path(work))
    except (AssertionError, BuildError) as error:
        sys.exit(str(error))
print(f"{out / 'index.html'}, {time.monotonic() - begun:.0f} s")
