"""Recompute rewinds Python's and NumPy's global generators, from which other threads draw.

In the backward pass, ``switch_rng_state_tracker`` sets the states of ``random`` and ``numpy.random`` to
those of the forward pass, and restores them afterwards. All threads of the process share them. A
``DataLoader`` without workers reads in a thread, and random transformations of ``paddle.vision.transforms``
draw there. Their draws are repeated or lost, depending on the time. The same seed gives other images in each
run, and in each process of a tensor-parallel group. The program draws in a thread during the recomputation.

:versions: paddlepaddle 3.3.1
:device: cpu
:at:
    paddle/distributed/fleet/recompute/recompute.py:162 `random.setstate(random_state)`
    paddle/vision/transforms/transforms.py:1290 `random.shuffle(transforms)`
:prints:
    the thread's draws differ: False
:should print:
    the thread's draws differ: True
:change: Give the reader of a DataLoader and the random transformations a generator of their own, or switch
    the states of random and numpy.random only for functions that ask for it.
:workaround: llm_npu.patches.paddleformers.vision.fix_augmentation_in_threads
"""

import random
import threading

import paddle
from paddle.distributed.fleet.utils import recompute

paddle.set_device("cpu")
draws = []


def layer(x):
    thread = threading.Thread(target=lambda: draws.append(random.random()))
    thread.start()
    thread.join()
    return x * 2


x = paddle.ones([1])
x.stop_gradient = False
recompute(layer, x).backward()
print("the thread's draws differ:", draws[0] != draws[1])
