"""The five layouts of attention, and conversions between them.

Legend: B batch, S sequence, T tokens, N heads, D head size, H = N * D.
"""

from __future__ import annotations

from typing import NamedTuple

from paddle_fused import contracts

from ..arguments import check_int

OPERATOR = "flash_attention"
RANKS = {"BSH": 3, "SBH": 3, "BSND": 4, "BNSD": 4, "TND": 3}
_HEADS = {"BSND": 2, "BNSD": 1, "TND": 1}  # the dimension of the heads, in layouts that have one


class Heads(NamedTuple):
    """Numbers of heads and head sizes."""

    query: int
    key: int
    head_dim: int
    value_dim: int


def heads_of(
    layout: str,
    query_shape,
    key_shape,
    value_shape,
    num_heads: int | None,
    operator: str = OPERATOR,
    name: str = "num_heads",
) -> Heads:
    """The heads of tensors whose rank fits the layout. Raises ValueError if H is not a multiple of D.

    ``name`` is the argument name of num_heads in ``operator``.
    """
    num_heads = None if num_heads is None else check_int(operator, name, num_heads)
    _check_known(operator, layout, query=query_shape, key=key_shape, value=value_shape)
    if layout in _HEADS:
        dim = _HEADS[layout]
        if num_heads is not None and num_heads != query_shape[dim]:
            raise ValueError(
                f"{operator}: {name} is {num_heads}, but query of shape {list(query_shape)} in layout "
                f"{layout} has {query_shape[dim]} heads. Pass {query_shape[dim]}."
            )
        return Heads(query_shape[dim], key_shape[dim], query_shape[-1], value_shape[-1])
    if num_heads is None:
        raise ValueError(f"{operator}: layout {layout} requires {name}, the number of query heads.")
    head_dim, rest = divmod(query_shape[-1], num_heads) if num_heads > 0 else (0, 1)
    key_heads, key_rest = divmod(key_shape[-1], head_dim) if head_dim else (0, 1)
    value_dim, value_rest = divmod(value_shape[-1], key_heads) if key_heads else (0, 1)
    if rest or key_rest or value_rest:
        raise ValueError(
            f"{operator}: with {name} {num_heads}, the last dimensions of query {list(query_shape)}, key "
            f"{list(key_shape)} and value {list(value_shape)} are not multiples of the head size; "
            "accepted: N * D, Nkv * D and Nkv * Dv."
        )
    return Heads(num_heads, key_heads, head_dim, value_dim)


def _check_known(operator: str, layout: str, **shapes) -> None:
    dims = (-1,) if layout not in _HEADS else (_HEADS[layout], -1)
    for name, shape in shapes.items():
        if any(shape[dim] == -1 for dim in dims):
            raise ValueError(
                f"{operator}: {name} has shape {list(shape)} in layout {layout}; accepted: -1 for "
                "batch and sequence only. Specify the number of heads and the head size in the InputSpec."
            )


def with_heads(x, layout: str, heads: int):
    """[..., H] -> [..., N, D]; other layouts are unchanged."""
    if layout in _HEADS:
        return x
    return x.reshape([*_leading(x), heads, x.shape[-1] // heads])


def without_heads(x, layout: str):
    """The inverse of ``with_heads``."""
    return x if layout in _HEADS else x.reshape([*_leading(x), x.shape[2] * x.shape[3]])


def _leading(x) -> list[int]:
    """The first two sizes for reshape. 0 keeps a size that is unknown in a captured program."""
    return [max(0, size) for size in x.shape[:2]]


def as_bsnd(x, layout: str, heads: int):
    """[B, S, N, D] from any layout but TND."""
    x = with_heads(x, layout, heads)
    if layout == "SBH":
        return x.transpose([1, 0, 2, 3])
    return x.transpose([0, 2, 1, 3]) if layout == "BNSD" else x


def as_tokens(x, layout: str, heads: int):
    """[B * S, N, D] from any layout but TND: the rows of the batch, concatenated."""
    x = as_bsnd(x, layout, heads)
    return x.reshape([x.shape[0] * x.shape[1], *x.shape[2:]])


def from_bsnd(x, layout: str):
    """The inverse of ``as_bsnd``."""
    if layout == "BNSD":
        return x.transpose([0, 2, 1, 3])
    if layout == "BSND":
        return x
    return without_heads(x.transpose([1, 0, 2, 3]) if layout == "SBH" else x, layout)


def check_rank(operator: str, layout: str, shapes: dict) -> None:
    """Raises ContractError unless the layout exists and every shape has its rank."""
    if layout not in RANKS:
        contracts.refuse("attention.layout", operator, f"the layout is {layout!r}")
    for name, shape in shapes.items():
        if len(shape) != RANKS[layout]:
            received = f"{name} has shape {list(shape)} in layout {layout}"
            contracts.refuse("attention.rank", operator, received)
