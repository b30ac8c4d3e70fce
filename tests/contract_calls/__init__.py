"""Calls that break rules of ``paddle_fused.contracts``: (key of the rule, a call that breaks it alone).

Every rule has at least one. A call of an operator or function that is refused raises ValueError.
"""

from . import attention, moe, norms, plugin

CALLS = [call for module in (attention, moe, norms, plugin) for call in module.CALLS]
