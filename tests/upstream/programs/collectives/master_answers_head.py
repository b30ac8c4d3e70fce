"""The master of the launchers tells anybody which files its working folder has.

``KVHandler`` extends ``SimpleHTTPRequestHandler`` and replaces GET, PUT, POST and DELETE, but not HEAD.
HEAD answers from the working folder: whether a file is there, its size and its date. The server listens on
all addresses and asks for no password.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/distributed/launch/utils/kv_server.py:24 `class KVHandler(SimpleHTTPServer.SimpleHTTPRequest`
    paddle/distributed/launch/utils/kv_server.py:72 `super().__init__(('', port), KVHandler)`
:prints:
    HEAD /notes.txt: 200, 7 bytes
:should print:
    HEAD /notes.txt: 501
:change: Extend ``BaseHTTPRequestHandler``, which answers only the methods that the class defines.
:workaround: llm_npu/cluster/master.py
"""

import http.client
import os
import tempfile
import threading
from pathlib import Path

from paddle.distributed.launch.utils.kv_server import KVServer

os.chdir(tempfile.mkdtemp())
Path("notes.txt").write_text("private")
server = KVServer(0)
threading.Thread(target=server.handle_request, daemon=True).start()
connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
connection.request("HEAD", "/notes.txt")
answer = connection.getresponse()
size = f", {answer.headers['Content-Length']} bytes" if answer.status == 200 else ""
print(f"HEAD /notes.txt: {answer.status}{size}")
