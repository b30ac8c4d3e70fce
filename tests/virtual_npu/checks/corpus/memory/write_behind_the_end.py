"""A kernel written by hand processes whole blocks, and its last block is longer than the rest of the tensor.

ctypes stands for a custom operator in C++, which gets the same address.
"""

import ctypes
import sys

import paddle

BLOCK = 256


def clear(tensor):
    count = tensor.numel().item()
    rounded = (count + BLOCK - 1) // BLOCK * BLOCK
    ctypes.memset(tensor.data_ptr(), 0, 4 * (count if "corrected" in sys.argv else rounded))


paddle.set_device("npu")
gradient = paddle.ones([1000])
clear(gradient)
norm = gradient.norm()  # planted
