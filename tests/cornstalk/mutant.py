"""A pytest plugin: one module of cornstalk is loaded with one piece of its text replaced.

MUTANT in the environment is JSON: [module, old text, new text]. The file stays as it is.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

MODULE, OLD, NEW = json.loads(os.environ["MUTANT"])


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        if source.count(OLD) != 1:
            raise RuntimeError(f"{MODULE} has {source.count(OLD)} times: {OLD}")
        return compile(source.replace(OLD, NEW), self.path, "exec")


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == MODULE else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder)
