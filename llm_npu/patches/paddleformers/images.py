"""Patches for the images that PaddleFormers' trainer reads."""

from __future__ import annotations

import functools
import random
import threading


@functools.cache
def fix_augmentation_in_threads() -> None:
    """PaddleFormers 1.1 and 1.2: with ``dataloader_num_workers: 0`` and recompute, the ranks of a
    tensor-parallel group see different images of PaddleOCR-VL, also of different sizes ("the ranks made
    different calls").

    The augmentation draws from Python's global generator in the thread of the data loader. Recompute rewinds
    that generator in the backward pass and sets it back, so the draws depend on the time. With the patch,
    each thread of a data loader draws from a generator of its own, which the global generator seeds at the
    thread's first draw. The main thread, which waits for the first batch, does not use it at that time.
    """
    from paddle.vision.transforms import transforms
    from paddleformers.datasets.template import augment_utils

    augment_utils.random = transforms.random = _GeneratorOfThread()


class _GeneratorOfThread(threading.local):
    """The module ``random`` in the main thread, and a generator in each other thread."""

    def __init__(self):
        in_main = threading.current_thread() is threading.main_thread()
        self.generator = random if in_main else random.Random(random.getrandbits(64))

    def __getattr__(self, name: str):
        return getattr(self.generator, name)
