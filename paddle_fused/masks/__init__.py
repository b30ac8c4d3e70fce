"""Masks by what they mean: ``causal``, ``band``, ``prefix``, ``documents``, ``dense``, joined by ``&``.

    from paddle_fused import flash_attention, masks

    mask = masks.causal() & masks.band(127, None)  # the last 128 keys
    out = flash_attention(query, key, value, mask)
    print(mask.explain(query.shape))  # which of CANN's modes it becomes, and what that costs
    hidden = mask.to_dense(512)  # bool [512, 512], True = hidden

Everywhere in this package **True = hidden**, as in CANN. Under ``paddle.jit.to_static`` without
``full_graph=True`` make masks outside of the function: Paddle 3.3.1 cannot follow how they are made.
"""

from .compiler import compile_mask
from .explain import explain as _explain
from .intents import Mask, band, causal, dense, documents, prefix
from .modes import hidden_matrix, hidden_sequences
from .plan import SparsePlan
from .shapes import Shapes, shapes_of
from .tensors import compressed

# The compiler stands on the masks and explaining on the compiler: the class, below both, cannot import it.
Mask.explain = _explain

__all__ = ["Mask", "Shapes", "SparsePlan", "band", "causal", "compile_mask", "compressed", "dense"]
__all__ += ["documents", "hidden_matrix", "hidden_sequences", "prefix", "shapes_of"]
