"""Patches for PaddleFormers' trainer on several ranks."""

from __future__ import annotations

import functools


@functools.cache
def fix_gradient_clipping_in_float32() -> None:
    """PaddleFormers 1.1 and 1.2: a float32 job with tensor parallelism fails before its first step ("'AdamW'
    object has no attribute '_inner_opt'").

    ``_wrap_distributed_optimizer`` installs its log of the gradient norm through ``optimizer._inner_opt``,
    which only the optimizer of ``amp_master_grad`` has. The patch supplies the attribute for this time.
    """
    from paddleformers.trainer import Trainer

    upstream = Trainer._wrap_distributed_optimizer

    @functools.wraps(upstream)
    def _wrap_distributed_optimizer(self, optimizer):
        if hasattr(self.optimizer, "_inner_opt"):
            return upstream(self, optimizer)
        own = self.optimizer
        own._inner_opt = own
        try:
            return upstream(self, optimizer)
        finally:
            del own._inner_opt

    Trainer._wrap_distributed_optimizer = _wrap_distributed_optimizer
