"""Calls that break rules of ``paddle_fused.contracts``: (key of the rule, a call that breaks it alone).

Every rule has at least one, in ``INVALID_CALLS`` of its operator's cases or, where more than the operator is
needed (the plugin, names of torch_npu, long tables), in ``CALLS`` of a module here. A refused call raises
ValueError.
"""

import importlib
import pkgutil

from paddle_fused import registry

MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
CALLS = [*registry.invalid_calls(), *(call for module in MODULES for call in module.CALLS)]
