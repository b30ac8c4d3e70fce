"""Paddle and the host kernels share a thread pool: OMP_NUM_THREADS and Paddle's setting apply to both.

The threads of a process are counted in /proc. Two processes of one thread each therefore never run more
threads than they were given, on whatever machine.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc has the threads on Linux")

# Prints the threads of the process after a product of Paddle's and after the fused operators, and a digest
# of what these computed.
PROGRAM = """
import hashlib, os, sys
import numpy as np
import paddle
import paddle_fused

def threads():
    return len(os.listdir("/proc/self/task"))

paddle.set_device("cpu")
count = int(sys.argv[1])
if count:
    paddle.base.core.set_num_threads(count)
random = np.random.default_rng(0)
x, y, gradient = (paddle.to_tensor(random.standard_normal((256, 1024), dtype="float32")) for _ in range(3))
weight = paddle.ones([1024])
x.stop_gradient = y.stop_gradient = weight.stop_gradient = False
(x.detach() @ y.detach().T).numpy()  # Paddle's own threads
before = threads()
digest = hashlib.sha256()
for _ in range(3):
    for results in (
        paddle_fused.swiglu(x, y),
        paddle_fused.rms_norm(x, weight),
        paddle_fused.dropout_add_layer_norm(x, y, weight, None, 0.0, 1e-5),
    ):
        for tensor in (results, *paddle.grad(results, [x], gradient)):
            digest.update(tensor.numpy().tobytes())
print(before, threads(), digest.hexdigest())
"""


MONITOR = 1  # the OpenMP runtime may start a thread that only watches the others


def run(run_python, threads: int, setting: int = 0) -> tuple[int, int, str]:
    """Threads after Paddle's product and after the fused operators, and the digest of their results."""
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = run_python("-c", PROGRAM, setting, **variables)  # the last is numpy's
    assert done.returncode == 0, done.stderr[-3000:]
    before, after, digest = done.stdout.split()[-3:]
    return int(before), int(after), digest


@pytest.fixture(scope="module")
def of_one_thread(run_python):
    return run(run_python, threads=1)


@pytest.mark.slow
def test_one_pool_whatever_its_size(run_python, of_one_thread):
    alone, still_alone, digest = of_one_thread
    assert (alone, still_alone) == (1, 1)
    paddles, after, same_digest = run(run_python, threads=2)
    assert 2 <= paddles == after <= 2 + MONITOR  # the host kernels run on Paddle's threads
    assert same_digest == digest


@pytest.mark.slow
def test_paddles_setting_is_followed(run_python, of_one_thread):
    _, alone, digest = of_one_thread
    _, after, same_digest = run(run_python, threads=1, setting=3)
    assert alone == 1
    assert 3 <= after <= 3 + MONITOR
    assert same_digest == digest


@pytest.mark.slow
def test_two_processes_of_one_thread_keep_to_one_thread_each(run_python):
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: run(run_python, threads=1), range(2)))
    assert [after for _, after, _ in both] == [1, 1]
    assert both[0][2] == both[1][2]
