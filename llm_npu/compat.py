"""Cures for defects of stock Paddle and PaddleNLP. Each says where the defect is and how it shows itself.

A cure is applied only to the version that has the defect; ``tests/test_compat.py`` fails without it, and so
shows when it can go.
"""

from __future__ import annotations

import functools

import paddle


def apply() -> None:
    """Apply the cures that the installed versions need; a second call changes nothing."""
    if paddle.__version__.startswith("3.3."):
        data_loader_reports_errors()


@functools.cache
def data_loader_reports_errors() -> None:
    """Paddle 3.3: when a dataset raises, ``DataLoader`` with ``num_workers=0`` waits for ever.

    The thread that reads the dataset ends without closing its queue (``_thread_loop`` fetches outside its
    ``try``). Here it closes the queue, and the iteration raises what the dataset raised.
    """
    from paddle.io.dataloader.dataloader_iter import _DataLoaderIterSingleProcess as Iteration

    read, take = Iteration._thread_loop, Iteration.__next__

    def _thread_loop(self, place):
        try:
            read(self, place)
        except BaseException as error:
            self.read_error = error
            self._exit_thread_unexpectedly()

    def __next__(self):
        try:
            return take(self)
        except Exception:
            if getattr(self, "read_error", None) is not None:
                raise self.read_error from None
            raise

    Iteration._thread_loop, Iteration.__next__ = _thread_loop, __next__
