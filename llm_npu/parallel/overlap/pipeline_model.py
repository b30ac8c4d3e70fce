"""The time of a product and its collective: a pipeline model, and a lower bound for any pipeline.

The model has two lanes, compute and link. A chunk of the product must exist before its collective starts
(reduce), or vice versa (gather). Collectives follow each other on the link, products on the compute lane.
Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from .product import (
    GATHER,
    MC2,
    PIPELINED,
    REDUCE_SCATTER,
    SERIAL,
    Product,
    Setting,
    in_pieces,
    item_size,
    spans,
)

# Chunks chosen by the virtual NPU's fused operators (mm_operands.cc). A card's operators do not report
# theirs.
MC2_CHUNKS, MC2_ROWS, MC2_BYTES = 8, 32, 1 << 16


@dataclass(frozen=True)
class Rates:
    """Measurements for one product shape on one group.

    ``product``: seconds of a product of some rows, as (rows, seconds) in rising order.
    ``latency``, ``seconds_per_byte``: of a collective of this kind, by the bytes that a rank sends.
    ``work``, ``work_per_byte``: the part of it that the processor spends, for each collective and by the same
        bytes: it slows down what is computed at the same time.
    ``copy_per_byte``: concatenating rows. ``transpose``: a transposed copy of the weight.
    """

    product: tuple[tuple[int, float], ...]
    latency: float
    seconds_per_byte: float
    work: float
    work_per_byte: float
    copy_per_byte: float
    transpose: float = 0.0

    def multiply(self, rows: int) -> float:
        """Seconds of a product of ``rows``: interpolated, or extrapolated at the rate of the nearest
        measurement."""
        known = self.product
        nearest = known[0] if rows <= known[0][0] else known[-1]
        if rows <= known[0][0] or rows >= known[-1][0]:
            return nearest[1] * rows / nearest[0]
        upper = next(i for i, (size, _) in enumerate(known) if size >= rows)
        (low, first), (high, second) = known[upper - 1], known[upper]
        return first + (second - first) * (rows - low) / (high - low)

    def communicate(self, sent: float) -> float:
        return self.latency + sent * self.seconds_per_byte

    def worked(self, sent: float) -> float:
        return self.work + sent * self.work_per_byte


def reduce_lanes(products: list[float], collectives: list[float], beside: float = 0.0) -> float:
    """The end of a pipeline of products, each followed by a collective, and of ``beside``, computed last."""
    computed = travelled = 0.0
    for product, collective in zip(products, collectives, strict=True):
        computed += product
        travelled = max(travelled, computed) + collective
    return max(computed + beside, travelled)


def gather_lanes(own: float, products: list[float], collectives: list[float]) -> float:
    """The end of a pipeline of collectives, each followed by a product; ``own`` is computed first."""
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
    beside: float = 0.0,
) -> float:
    """The end of an ideal pipeline of ``chunks``: the whole product takes ``multiply``, its collective
    ``communicate``, and both are cut without loss. ``beside`` is the time of the product beside, if any.

    ``handled``: seconds that the processor itself spends on the collective, copying and adding. It computes
    no products meanwhile; a card's transfers cost it none.
    """
    communicated, worked = [communicate / chunks] * chunks, [handled / chunks] * chunks
    if product.kind != GATHER:
        return _reduced([multiply / chunks] * chunks, communicated, worked, beside)
    own = multiply / product.ranks
    return _gathered(own, [(multiply - own) / chunks] * chunks, communicated, worked)


def predict(product: Product, setting: Setting, rates: Rates) -> float:
    """Seconds that ``product`` takes with ``setting``, including the product beside."""
    whole = rates.multiply(product.rows_multiplied)
    beside = whole if product.beside else 0.0
    if setting.backend == SERIAL:
        return whole + rates.communicate(product.sent) + beside
    chunks = mc2_chunks(product) if setting.backend == MC2 else setting.chunks
    cut = spans(product.parts, chunks)
    shares = [(last - first) / product.parts for first, last in cut]
    communicated = [rates.communicate(share * product.sent) for share in shares]
    worked = [rates.worked(share * product.sent) for share in shares]
    lie_apart = setting.backend == PIPELINED and product.kind == REDUCE_SCATTER and len(cut) > 1
    pieces = product.ranks if lie_apart and in_pieces(product.parts // len(cut), product.parts) else 1
    copied = _scattered(product) * rates.copy_per_byte if lie_apart and pieces == 1 else 0.0
    if setting.backend == MC2 and product.transposed and not product.beside:
        copied += rates.transpose
    if product.kind == GATHER:
        own, others = rates.multiply(product.rows), product.ranks - 1
        products = [rates.multiply(max(1, round(share * product.rows))) * others for share in shares]
        return _gathered(own, products, communicated, worked) + copied
    products = [pieces * rates.multiply(max(1, round(share * product.rows / pieces))) for share in shares]
    return _reduced(products, communicated, worked, beside) + copied


def _gathered(own: float, products: list[float], communicated: list[float], worked: list[float]) -> float:
    slowed = [time + work for time, work in zip(products, worked, strict=True)]
    return gather_lanes(own, slowed, communicated)


def _reduced(products: list[float], communicated: list[float], worked: list[float], beside: float) -> float:
    # A collective runs during the next chunk's product; the last one slows down the product beside.
    slowed = [time + work for time, work in zip(products, [0.0, *worked[:-1]], strict=True)]
    return reduce_lanes(slowed, communicated, beside + worked[-1] if beside else 0.0)


def _scattered(product: Product) -> int:
    """Bytes of the chunks' rows taken from every rank's part: they are not contiguous and must be
    concatenated."""
    return product.rows * product.depth * item_size(product.dtype)


def mc2_chunks(product: Product) -> int:
    """The number of chunks that a fused operator makes; 1 if its product runs whole, beside another."""
    if product.beside:
        return 1
    width = product.depth if product.kind == GATHER else product.columns
    row = width * item_size(product.dtype)
    return max(1, min(MC2_CHUNKS, product.parts // MC2_ROWS, product.parts * row // MC2_BYTES))
