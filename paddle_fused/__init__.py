"""Fused operators for Ascend NPUs and for the host, and the virtual NPU that stands in for a card.

    import paddle_fused

    out = paddle_fused.rms_norm(x, weight)
    paddle_fused.what_ran()

Importing this package imports no framework: ``paddle_fused.virtual_npu`` has to act before paddle is
imported. The operators import it when they are first asked for.
"""

import importlib

# Where each public name stands.
_PUBLIC = {
    "BackendError": "dispatch",
    "ask": "dispatch",
    "reset_what_ran": "dispatch",
    "use_backend": "dispatch",
    "what_ran": "dispatch",
    "add_rms_norm": "ops.add_rms_norm",
    "apply_rotary": "ops.rotary",
    "dropout_add_layer_norm": "ops.dropout_add_norm",
    "dropout_add_rms_norm": "ops.dropout_add_norm",
    "flash_attention": "ops.attention",
    "fused_moe": "ops.fused_moe",
    "FusedAdamW": "ops.adamw",
    "grouped_matmul": "ops.grouped_matmul",
    "linear_cross_entropy": "ops.linear_cross_entropy",
    "load_operators": "operators",
    "moe_token_permute": "ops.moe_token_permute",
    "moe_token_unpermute": "ops.moe_token_unpermute",
    "rms_norm": "ops.rms_norm",
    "rotary_mul": "ops.rotary",
    "swiglu": "ops.swiglu",
}
_MODULES = ("compat", "contracts", "masks")

__all__ = [*_PUBLIC, *_MODULES, "virtual_npu"]


def __getattr__(name: str):
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
