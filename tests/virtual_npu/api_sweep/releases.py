"""The part of the sweep, made for Paddle 3.3, that an older release supports."""

from __future__ import annotations

from api_sweep.case import Case
from api_sweep.run import resolve
from paddle_fused.paddle_release import at_least, before

# From which release on the CPU place computes them.
SINCE = {
    "paddle.nn.functional.scaled_dot_product_attention[causal": (3, 3),
    "paddle.linalg.matrix_norm[nuclear": (3, 1),
}


def is_there(case: Case) -> bool:
    """Whether this release's CPU place can compute it; before 3.1 kernels crash without elements."""
    if before(3, 1) and "empty" in case.id:
        return False
    if any(case.id.startswith(name) and before(*release) for name, release in SINCE.items()):
        return False
    try:
        resolve(case.api)
    except AttributeError:
        return at_least(3, 3)  # where each is: a failure, then
    return True
