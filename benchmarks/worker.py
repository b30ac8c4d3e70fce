"""A contender's process: reads requests from stdin, one JSON object per line, and answers each with one.

    python -m benchmarks.worker benchmarks.step.paddle_llama.PaddleLlama '{"device": "cpu", "threads": 2}'

The object is constructed with these settings. A request ``{"do": "losses", "steps": 2}`` calls its method
``losses(steps=2)`` and is answered with ``{"ok": ...}``, ``{"unavailable": reason}`` or ``{"error":
message}``. A first answer without a request reports that the process is ready: its ``version``, or why it is
unavailable.
"""

import importlib
import json
import os
import sys
import traceback

from .work import Unavailable


def serve(make):
    """Answer the requests on stdin with the methods of the object that ``make`` returns, until stdin
    ends."""
    # Library output on stdout must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        worker = make()
        answer = {"ok": worker.version}
    except Unavailable as reason:
        answer = {"unavailable": str(reason)}
    print(json.dumps(answer), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(worker, request.pop("do"))(**request)}
        except Unavailable as reason:
            answer = {"unavailable": str(reason)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).strip() or 'no message'}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    _class, _settings = sys.argv[1:]
    _module, _, _name = _class.rpartition(".")
    serve(lambda: getattr(importlib.import_module(_module), _name)(**json.loads(_settings)))
