"""Calls that break rules of ``paddle_fused.contracts``: (key of the rule, a call that breaks it alone).

Every rule has at least one. A call of an operator or function that is refused raises ValueError.
"""

import importlib
import pkgutil

MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
CALLS = [call for module in MODULES for call in module.CALLS]
