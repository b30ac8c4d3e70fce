"""Python imports this at its start, because ``python -m llm_npu.formers`` put this folder on PYTHONPATH.

A job of PaddleFormers has several processes: its command line, ``paddle.distributed.launch`` and the ranks.
All inherit the environment, and this file makes each of them prepare itself when it imports paddleformers. A
process that does not, such as the launcher, is not slowed down.
"""

import importlib.machinery
import importlib.util
import sys

LIBRARY = "paddleformers"


class Prepared:
    """Finds paddleformers as Python would, and surrounds its execution by ``llm_npu.formers.fused``."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != LIBRARY:
            return None
        others = (finder for finder in sys.meta_path if finder is not cls)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            spec.loader = Loader(spec.loader)
        return spec


class Loader:
    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def exec_module(self, module):
        from llm_npu.formers import fused

        fused.before_library()
        self._loader.exec_module(module)
        fused.after_library()


def run_hidden() -> None:
    """Run the ``sitecustomize`` that Python would have found without this one."""
    others = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    spec = importlib.machinery.PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, Prepared)
run_hidden()
