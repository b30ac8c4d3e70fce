"""Transfers whose order or peers depend on a rank's place in its group, as one collective each.

An all-to-all in pairwise rounds and a step of a ring send and receive differently on every rank, so the
transfers of one rank do not determine the others. In a dry run they are recorded as one ``all_to_all``,
with the parts of every rank, and one ``shift``, to the next rank.
"""

from __future__ import annotations

import functools
import math

from paddle_fused import expert_parallel
from paddle_fused.context_parallel import exchange, ring
from virtual_npu import call_marks

from .calls import ALL_TO_ALL, SHIFT, UNKNOWN_PART


@functools.cache
def record_as_collectives() -> None:
    """From now on, record them so."""
    upstream_exchange, upstream_pass = exchange.start_exchange, ring.pass_on

    @functools.wraps(upstream_exchange)
    def start_exchange(parts, shapes, group):
        sent = [UNKNOWN_PART if part is None else int(part.size) for part in parts]
        received = [UNKNOWN_PART if shape is None else math.prod(shape) for shape in shapes]
        facts = {"kind": ALL_TO_ALL, "sent": sent, "received": received}
        with call_marks.one_call(group.process_group, **facts):
            return upstream_exchange(parts, shapes, group)

    @functools.wraps(upstream_pass)
    def pass_on(tensors, call):
        with call_marks.one_call(call.group.process_group, kind=SHIFT):
            return upstream_pass(tensors, call)

    exchange.start_exchange = expert_parallel.start_exchange = start_exchange
    ring.pass_on = pass_on
