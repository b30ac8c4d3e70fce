"""The store listens on all addresses of the first machine, whatever address PADDLE_MASTER names.

The thread that serves the TCPStore binds 0.0.0.0. Also in a job on one machine, whose ranks talk over the
loopback interface, everybody who reaches the machine can read and set the store's keys, without a password.
Here the store of 127.0.0.1 answers on 127.0.0.2, too.

:versions: paddlepaddle 3.3.1
:device: cpu
:at:
    paddle/phi/core/distributed/store/tcp_store.cc `MasterDaemon`
    paddle/phi/core/distributed/store/tcp_utils.cc `tcp_listen`
:prints:
    127.0.0.2: connected
:should print:
    127.0.0.2: refused
:change:
    Pass the host of the TCPStore on to ``tcp_listen``, which takes one but gets an empty string, and bind to
    it.
:workaround:
    llm_npu.patches.store.fix_store_address
"""

import os
import socket

from paddle.base import core

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
store = core.TCPStore("127.0.0.1", port, True, 1)
try:
    socket.create_connection(("127.0.0.2", port), 1).close()
    print("127.0.0.2: connected", flush=True)
except ConnectionRefusedError:
    print("127.0.0.2: refused", flush=True)
os._exit(0)  # past the end of the store's thread, which may abort
