"""A lower bound for any pipeline of a matmul and its collective.

There are two lanes, compute and link. A chunk of the matmul must be complete before its collective starts
(reduce), or vice versa (gather). Collectives run sequentially on the link, matmuls on the compute lane. Times
are in seconds.
"""

from __future__ import annotations

from llm_npu.parallel.overlap import Product
from llm_npu.parallel.overlap.product import GATHER, item_size

# Number of chunks of the virtual NPU's fused operators (mm_operands.cc). A card's operators do not report
# theirs.
MC2_CHUNKS, MC2_ROWS, MC2_BYTES = 8, 32, 1 << 16


def reduce_lanes(products: list[float], collectives: list[float], concurrent: float = 0.0) -> float:
    """End time of a pipeline of matmuls, each followed by a collective; ``concurrent`` is computed last."""
    computed = travelled = 0.0
    for product, collective in zip(products, collectives, strict=True):
        computed += product
        travelled = max(travelled, computed) + collective
    return max(computed + concurrent, travelled)


def gather_lanes(own: float, products: list[float], collectives: list[float]) -> float:
    """End time of a pipeline of collectives, each followed by a matmul; ``own`` is computed first."""
    computed, travelled = own, 0.0
    for product, collective in zip(products, collectives, strict=True):
        travelled += collective
        computed = max(computed, travelled) + product
    return computed


def bound(
    product: Product,
    chunks: int,
    multiply: float,
    communicate: float,
    handled: float = 0.0,
    concurrent: float = 0.0,
) -> float:
    """End time of an ideal pipeline of ``chunks``, which are split without loss.

    Args:
        multiply: the whole matmul.
        communicate: its collective.
        concurrent: a concurrent matmul, if any.
        handled: the time that the processor itself spends on the collective, copying and adding. It computes
            no matmul meanwhile; a card's transfers cost the processor nothing.
    """
    communicated, worked = [communicate / chunks] * chunks, [handled / chunks] * chunks
    if product.kind != GATHER:
        return _reduced([multiply / chunks] * chunks, communicated, worked, concurrent)
    own = multiply / product.ranks
    return _gathered(own, [(multiply - own) / chunks] * chunks, communicated, worked)


def _gathered(own: float, products: list[float], communicated: list[float], worked: list[float]) -> float:
    slowed = [time + work for time, work in zip(products, worked, strict=True)]
    return gather_lanes(own, slowed, communicated)


def _reduced(
    products: list[float], communicated: list[float], worked: list[float], concurrent: float
) -> float:
    # A collective runs during the next chunk's product; the last one slows down the concurrent product.
    slowed = [time + work for time, work in zip(products, [0.0, *worked[:-1]], strict=True)]
    return reduce_lanes(slowed, communicated, concurrent + worked[-1] if concurrent else 0.0)


def mc2_chunks(product: Product) -> int:
    """The number of chunks of a fused operator; 1 if its whole matmul runs concurrently with another one."""
    if product.concurrent:
        return 1
    width = product.depth if product.kind == GATHER else product.columns
    row = width * item_size(product.dtype)
    return max(1, min(MC2_CHUNKS, product.parts // MC2_ROWS, product.parts * row // MC2_BYTES))
