"""Calls that break rules of ``paddle_fused.contracts``: (key of the rule, a call that breaks it alone).

Every rule has at least one. A call of an operator or function that is refused raises ValueError.
"""

from . import adamw, attention, moe, norms, plugin, rotary, swiglu

MODULES = (adamw, attention, moe, norms, plugin, rotary, swiglu)
CALLS = [call for module in MODULES for call in module.CALLS]
