"""Write down the names of open_clip's pretrained encoders, which `sightline models` lists without importing it.

    python tools/open_clip_names.py

To be run when a newer version of open_clip has more of them; a test compares.
"""

from __future__ import annotations

import open_clip

from sightline.models.listing import NAMES


def main() -> None:
    names = [f"{architecture}/{tag}" for architecture, tag in open_clip.list_pretrained()]
    NAMES.write_text("\n".join(names) + "\n")
    print(f"{len(names)} names of open_clip {open_clip.__version__}")


if __name__ == "__main__":
    main()
