"""Prints what an image installs beside Sightline: its dependencies, and those of some extras.

python docker/requirements.py pyproject.toml EXTRA…
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
print(*project["dependencies"], sep="\n")
for extra in sys.argv[2:]:
    print(*project["optional-dependencies"][extra], sep="\n")
