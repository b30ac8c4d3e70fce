"""Attention mask types: ``causal``, ``band``, ``prefix``, ``documents``, ``dense``, combined by ``&``.

    from paddle_fused import flash_attention, masks

    mask = masks.causal() & masks.band(127, None)  # the last 128 keys
    out = flash_attention(query, key, value, mask)
    print(mask.explain(query.shape))  # the CANN mode that it compiles to, and its cost
    hidden = mask.to_dense(512)  # bool [512, 512], True = masked

In this package **True means masked**, as in CANN. With ``paddle.jit.to_static`` without ``full_graph=True``,
create masks outside the function, because Paddle 3.3.1 cannot trace their construction.
"""

from .compiler import compile_mask
from .explain import explain as _explain
from .modes import hidden_matrix, hidden_sequences, mode_of
from .row_indices import row_indices, within_bands
from .sequences import MaskPlan, Shapes, shapes_of
from .tensors import compressed
from .types import Mask, band, causal, dense, documents, prefix

# Set here: ``explain`` needs the compiler, which imports the class.
Mask.explain = _explain

__all__ = ["Mask", "MaskPlan", "Shapes", "band", "causal", "compile_mask", "compressed", "dense"]
__all__ += [
    "documents",
    "hidden_matrix",
    "hidden_sequences",
    "mode_of",
    "prefix",
    "row_indices",
    "shapes_of",
    "within_bands",
]
