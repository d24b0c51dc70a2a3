"""The reward lab: is a reward worth training on? Answered before training.

The package can be called, for `sl.lab(…)` and this package are one name: it is `sightline.api.lab`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallableRoom(ModuleType):
    """The package as a function. Python sets it in the place of that function as soon as a part of it is imported."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return importlib.import_module("sightline.api").lab(*arguments, **options)


sys.modules[__name__].__class__ = _CallableRoom
