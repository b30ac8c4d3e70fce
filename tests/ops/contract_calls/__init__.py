"""Calls that break rules of ``paddle_fused.contracts``: (key of the rule, a call that breaks it alone).

Every rule has at least one, in ``BROKEN`` of its operator's cases or, where more than the operator is needed
(the plugin, names of torch_npu, long tables), in ``CALLS`` of a module here. A call that is refused raises
ValueError.
"""

import importlib
import pkgutil

from paddle_fused import registry

MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
CALLS = [*registry.broken_rules(), *(call for module in MODULES for call in module.CALLS)]
