"""Rank 0, which has the store: it ends as it should, and the store has one address."""

import signal
import socket

import pytest

pytestmark = pytest.mark.sampled

# Another process holds a connection to the store and closes it when this one has left Paddle's libraries
# behind: what is registered before paddle is imported is called after what its libraries register, and of two
# handlers the last one first.
PROGRAM = """
import ctypes, os, subprocess, sys

reading, writing = os.pipe()
libc = ctypes.CDLL(None)
# Handlers get the exit status, which is 0, and a pointer.
libc.on_exit(ctypes.cast(libc.wait, ctypes.c_void_p), None)  # waits for the other process
libc.on_exit(ctypes.cast(libc.dup2, ctypes.c_void_p), ctypes.c_void_p(writing))  # closes this end of the pipe

from llm_npu import device
device.select("npu")
import paddle
from paddle.base import core
if sys.argv[1] == "cured":
    from llm_npu.patches import store
    store.fix_store_at_exit()
    store.fix_store_at_exit()
kept = core.create_or_get_global_tcp_store()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # as by Paddle's groups, which nothing deletes at the end
if sys.argv[1] == "communicating":
    paddle.set_device("npu:0")
    group = core.ProcessGroupCustom.create(kept, "npu", 0, 1, 0)
    group.all_reduce(paddle.ones([4]), core.ReduceOp.SUM, True).wait()

host, _, port = os.environ["PADDLE_MASTER"].rpartition(":")
other = subprocess.Popen(
    [sys.executable, "-c", f'''
import os, socket
with socket.create_connection(({host!r}, {port})) as connection:
    print("connected", flush=True)
    os.read({reading}, 1)  # returns when the pipe is closed
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)  # returns when the store has noticed
'''],
    pass_fds=[reading], stdout=subprocess.PIPE, text=True,
)
print(other.stdout.readline().strip())
other.returncode = 0  # the handler waits for it, not Python
"""


# Which addresses of this host accept a connection to the store.
REACHED = """
import os, socket, sys
from paddle.base import core
if sys.argv[1] == "patched":
    from llm_npu.patches import store
    store.fix_store_address()
kept = core.create_or_get_global_tcp_store()
for address in ("127.0.0.1", "127.0.0.2"):
    try:
        socket.create_connection((address, int(os.environ["PADDLE_MASTER"].rpartition(":")[2])), 1).close()
        print(address)
    except TimeoutError:
        pass
kept.set("key", "value")
print(kept.get("key").decode(), flush=True)
os._exit(0)  # past the end of Paddle's threads, which is not what this is about
"""


def alone() -> dict[str, str]:
    """The environment of the only rank of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = f"127.0.0.1:{free.getsockname()[1]}"
    return {"PADDLE_MASTER": master, "PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "1"}


def ended(run_python, way: str):
    done = run_python("-c", PROGRAM, way, **alone())
    assert "connected" in done.stdout, done.stderr
    return done.returncode


@pytest.mark.slow
def test_the_defect_is_there(run_python):
    assert ended(run_python, "upstream") in (-signal.SIGABRT, -signal.SIGSEGV)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cured", "communicating"])
def test_the_end_is_quiet(way, run_python):
    assert ended(run_python, way) == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["upstream", "patched"])
def test_the_store_answers_on_the_address_of_the_master(way, run_python):
    done = run_python("-c", REACHED, way, **alone())
    assert done.returncode == 0, done.stderr
    reached = ["127.0.0.1", *(["127.0.0.2"] if way == "upstream" else []), "value"]
    assert done.stdout.split() == reached
