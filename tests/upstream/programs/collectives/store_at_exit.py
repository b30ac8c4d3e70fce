"""Rank 0 sometimes aborts at exit, after its work is done: the store's thread outlives the logger.

The thread that serves the TCPStore runs on while the process exits. When another rank closes its
connection then, the thread writes its first VLOG line, which needs glog's mutex, already destroyed. A
line that was reached before needs none. Here another process closes its connection after Paddle's
libraries have run their exit handlers, by two handlers of this program that run later. (3.0.0, 3.1.1 and
3.2.2 end as they should.)

:versions: paddlepaddle 3.3.1
:device: cpu
:environment: PADDLE_TRAINER_ID=0 PADDLE_TRAINERS_NUM=1
:at:
    paddle/phi/core/distributed/store/tcp_store.cc `MasterDaemon::run`
:prints:
    connected
:ends: SIGABRT
:should print:
    connected
:change:
    Stop and join the thread in an ``atexit`` handler (or in the destructor of the global store, called
    from Python's exit), before glog's statics are destroyed.
:workaround:
    llm_npu.patches.store.fix_store_at_exit, virtual_npu/csrc/collectives/store.h,
    virtual_npu/csrc/collectives/store.cc
"""

import ctypes
import os
import socket
import subprocess
import sys

reading, writing = os.pipe()
libc = ctypes.CDLL(None)  # handlers of exit: the last one that is registered runs first
libc.on_exit(ctypes.cast(libc.wait, ctypes.c_void_p), None)  # waits for the other process
libc.on_exit(ctypes.cast(libc.dup2, ctypes.c_void_p), ctypes.c_void_p(writing))  # closes the pipe's end

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ["PADDLE_MASTER"] = f"127.0.0.1:{port}"

from paddle.base import core  # noqa: E402

store = core.create_or_get_global_tcp_store()
ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))  # as by Paddle's groups, which nothing deletes
OTHER = f"""
import os, socket
with socket.create_connection(("127.0.0.1", {port})) as connection:
    print("connected", flush=True)
    os.read({reading}, 1)  # returns when the pipe is closed
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
"""
other = subprocess.Popen([sys.executable, "-c", OTHER], pass_fds=[reading], stdout=subprocess.PIPE, text=True)
print(other.stdout.readline().strip(), flush=True)
other.returncode = 0  # the handler waits for it, not Python
