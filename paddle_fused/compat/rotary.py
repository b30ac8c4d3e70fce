"""torch_npu's rotary position embedding, with its argument order and its limits."""

from __future__ import annotations

from .. import contracts
from ..ops.arguments import check_tensor, dtype_name, wants_gradient
from ..ops.rotary.op import MODES, rotary_mul

_OPERATOR = "npu_rotary_mul"
# The dimensions of batch, sequence and heads in each 4-D layout: BNSD, BSND, SBND.
_LAYOUTS = ((0, 2, 1), (0, 1, 2), (1, 0, 2))


def npu_rotary_mul(input, r1, r2, rotary_mode="half", rotate=None):
    """``paddle_fused.rotary_mul(input, r1, r2, rotary_mode)``, within the limits of Atlas A2 and A3.

    input: [B, N, S, D], [B, S, N, D], [S, B, N, D] or [T, N, D]. r1, r2 (cos, sin): N and B are 1 or
    input's sizes; in mode interleave both are 1. ``rotate``, another rotation matrix, must be None.
    Raises ContractError (a ValueError) with CANN's error number.

    Source: torch_npu.npu_rotary_mul; aclnnRotaryPositionEmbedding and its gradient.
    """
    for name, tensor in (("input", input), ("r1", r1), ("r2", r2)):
        check_tensor(_OPERATOR, name, tensor)
    if rotate is not None:
        contracts.refuse("rotary.rotate", _OPERATOR, f"rotate is {type(rotate).__name__}")
    if rotary_mode not in MODES:
        contracts.refuse("rotary.mode", _OPERATOR, f"rotary_mode is {rotary_mode!r}")
    if dtype_name(input) not in contracts.dtypes("rotary.dtype"):
        contracts.refuse("rotary.dtype", _OPERATOR, f"input is {dtype_name(input)}")
    if not input.dtype == r1.dtype == r2.dtype:
        names = f"input is {dtype_name(input)}, r1 {dtype_name(r1)} and r2 {dtype_name(r2)}"
        contracts.refuse("rotary.same_dtype", _OPERATOR, names)
    shape = list(input.shape)
    if len(shape) not in (3, 4):
        contracts.refuse("rotary.layout", _OPERATOR, f"input has shape {shape}")
    if shape[-1] == 0 or shape[-1] % 2 or shape[-1] >= contracts.limit("rotary.head_dim"):
        contracts.refuse("rotary.head_dim", _OPERATOR, f"the head size is {shape[-1]}")
    _check_rows(shape, list(r1.shape), list(r2.shape), rotary_mode, wants_gradient(r1, r2))
    return rotary_mul(input, r1, r2, rotary_mode)


def _check_rows(shape: list[int], r1: list[int], r2: list[int], mode: str, angle_gradients: bool) -> None:
    """Raises ContractError unless these shapes fit some layout within the limits of batch and heads."""
    came = f"input has shape {shape}, r1 {r1} and r2 {r2}"
    rows = [] if r1 != r2 else _batches_and_heads(shape, r1, mode)
    if not rows:
        contracts.refuse("rotary.angles", _OPERATOR, came)
    if mode == "interleave":
        below = contracts.limit("rotary.interleaved_rows")
        if all(batch * heads >= below for batch, heads in rows):
            contracts.refuse("rotary.interleaved_rows", _OPERATOR, came)
    batches, most_heads = contracts.limit("rotary.batch"), contracts.limit("rotary.heads")
    if all(batch >= batches or heads >= most_heads for batch, heads in rows):
        contracts.refuse("rotary.batch_heads", _OPERATOR, came)
    most = contracts.limit("rotary.angle_gradient_rows")
    if angle_gradients and all(batch * heads > most for batch, heads in rows):
        contracts.refuse("rotary.angle_gradient_rows", _OPERATOR, came)


def _batches_and_heads(shape: list[int], angles: list[int], mode: str) -> list[tuple[int, int]]:
    """(batch, heads) for each layout in which the shape of these angles is valid."""
    if len(shape) != len(angles) or shape[-1] != angles[-1]:
        return []
    if len(shape) == 3:  # [T, N, D]
        shape, angles, layouts = [1, *shape], [1, *angles], ((0, 1, 2),)
    else:
        layouts = _LAYOUTS
    found = []
    for batch, sequence, heads in layouts:
        whole = [angles[d] == shape[d] for d in range(3)]
        single = [angles[d] == 1 for d in range(3)]
        shared = single[batch] and single[heads]
        by_batch = whole[batch] and (single[heads] or whole[heads])
        if whole[sequence] and (shared or (mode == "half" and by_batch)):
            found.append((shape[batch], shape[heads]))
    return found
