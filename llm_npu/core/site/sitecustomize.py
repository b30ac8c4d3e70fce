"""Python imports this module at startup because ``llm_npu.core.on_import`` puts its folder on PYTHONPATH.

A job has several processes: a command line, ``paddle.distributed.launch`` and the ranks. All inherit the
environment, and this module prepares each process when it imports one of the libraries listed in
LLM_NPU_ON_IMPORT. Processes that import none, such as a launcher, are not slowed down.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

# {library: the module whose before_library() and after_library() run around its execution}
PREPARED = dict(
    entry.split("=") for entry in filter(None, os.environ.get("LLM_NPU_ON_IMPORT", "").split(","))
)


class Prepared:
    """Finds a library as Python does, and calls its module's functions before and after execution."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in PREPARED:
            return None
        others = (finder for finder in sys.meta_path if finder is not cls)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            spec.loader = Loader(spec.loader, PREPARED[name])
        return spec


class Loader:
    def __init__(self, loader, surrounding):
        self._loader, self._surrounding = loader, surrounding

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        surrounding = importlib.import_module(self._surrounding)
        surrounding.before_library()
        self._loader.exec_module(module)
        surrounding.after_library()


def run_hidden() -> None:
    """Run the ``sitecustomize`` that this one shadows."""
    others = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    spec = importlib.machinery.PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, Prepared)
run_hidden()
