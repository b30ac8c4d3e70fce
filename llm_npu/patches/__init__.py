"""Patches for defects in Paddle and PaddleNLP. Each docstring states the affected versions and the symptom.

Patches for PaddleFormers are in the subfolder ``paddleformers``.

A patch is applied only to affected versions. Its test (``tests/training/test_patches.py``, ``tests/models``
or ``tests/parallel``) fails without the patch, and so shows when the patch can be removed.
"""

from __future__ import annotations

import functools
import importlib.metadata

from llm_npu.cann import float_status
from paddle_fused import paddle_release

from . import (
    auto_parallel,
    devices,
    dualpipev,
    hybrid_parallel,
    layers,
    loss_scaling,
    moe,
    operators,
    paddleformers,
    store,
)


def apply() -> None:
    """Apply the patches that the installed versions need; idempotent."""
    fix_data_loader_errors()
    devices.fix_average_without_nccl()
    auto_parallel.apply()
    layers.apply()
    operators.apply()
    if paddle_release.at_least(3, 3) and paddle_release.before(3, 4):
        devices.fix_custom_devices()
    devices.fix_bfloat16_initializers()
    hybrid_parallel.apply()
    if paddle_release.at_least(3, 2):
        dualpipev.apply()
    store.fix_store_at_exit()
    store.fix_store_address()
    if float_status.choice() != float_status.PLUGIN:
        loss_scaling.decide_by_isfinite()
    if installed_version("paddlenlp").startswith("3.0.0b4"):
        if paddle_release.at_least(3, 1):
            moe.fix_mixtral_expert_weights()
        moe.fix_mixtral_router_loss_mask()
        if paddle_release.at_least(3, 2):
            moe.fix_moe_gate_int64()
            dualpipev.fix_models_of_one_tensor()
        moe.fix_moe_gate_gradient()
        layers.fix_gemma_rotary_dtype()
        layers.fix_means_of_no_losses()
        moe.fix_qwen2_moe_norm_topk_prob()
        moe.fix_qwen2_moe_gate_dtype()
        moe.fix_qwen2_moe_auxiliary_loss()
        moe.fix_qwen2_moe_groups()
        hybrid_parallel.fix_segment_parallel_exchange()
    if installed_version("paddleformers"):
        paddleformers.apply()


def installed_version(package: str) -> str:
    """The version of a model library; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def fix_data_loader_errors() -> None:
    """Paddle 3.3: ``DataLoader`` with ``num_workers=0`` hangs if the dataset raises.

    The reader thread exits without closing its queue, because ``_thread_loop`` fetches outside its ``try``.
    The patch closes the queue, and the iteration raises the dataset's exception.
    """
    from paddle.io.dataloader.dataloader_iter import _DataLoaderIterSingleProcess as Iteration

    read, take = Iteration._thread_loop, Iteration.__next__

    def _thread_loop(self, place):
        try:
            read(self, place)
        except BaseException as error:
            self.read_error = error
            self._exit_thread_unexpectedly()

    def __next__(self):
        try:
            return take(self)
        except Exception:
            if getattr(self, "read_error", None) is not None:
                raise self.read_error from None
            raise

    Iteration._thread_loop, Iteration.__next__ = _thread_loop, __next__
