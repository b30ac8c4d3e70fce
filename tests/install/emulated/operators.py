"""A small case of every operator on every backend and device, by the bounds of ``paddle_fused.parity``.

On an emulated processor, where all cases would take hours. Prints what each backend gave, as JSON.
"""

import json
import sys

from paddle_fused import parity

parity.use_an_npu()  # before paddle is imported
import numpy as np  # noqa: E402

from paddle_fused.dispatch import BACKENDS, BackendError  # noqa: E402
from paddle_fused.registry import all_cases  # noqa: E402


def size(case) -> int:
    arrays = case.arrays(np.random.default_rng(0)).values()
    return sum(array.size for array in arrays if array is not None)


def representatives():
    """Of each operator the case in the middle of its cases by size: small, and none of the empty ones."""
    cases = {}
    for case in all_cases():
        cases.setdefault(case.operator, []).append(case)
    return {
        name: sorted(cases_of_operator, key=size)[len(cases_of_operator) // 2]
        for name, cases_of_operator in cases.items()
    }


results = []
for operator, case in representatives().items():
    for dtype in case.dtypes[:2]:  # float32 and bfloat16
        prepared = parity.Case(case, dtype)
        for backend in BACKENDS:
            for device in ("cpu", "npu"):
                try:
                    tensors, refused = prepared.measure(backend, device), None
                except BackendError as error:
                    tensors, refused = {}, error.reasons[backend]
                result = parity.Result(operator, case.name, backend, "", device, dtype, refused, tensors)
                print(parity.line_of(result), file=sys.stderr, flush=True)
                ran = None if refused else result.passed
                results.append({"operator": operator, "backend": backend, "device": device, "passed": ran})
print(json.dumps({"environment": parity.environment(), "found": results}))
