"""torch_npu's and MindSpeed's norms, with their argument order."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from .. import contracts
from ..ops.arguments import check_contract_dtype
from ..ops.dropout_add_norm.op import dropout_add_layer_norm, dropout_add_rms_norm
from ..ops.rms_norm.op import rms_norm_and_rstd


def npu_rms_norm(self, gamma, epsilon=1e-6):
    """(y, rstd): ``paddle_fused.rms_norm``, and rstd = 1 / sqrt(mean(self^2) + epsilon).

    rstd is float32 and has self's rank, with size 1 in the dimensions of gamma. Only y has a gradient.

    Source: torch_npu.npu_rms_norm.
    """
    check_contract_dtype("rms_norm.dtype", "npu_rms_norm", "self", self, contracts.dtypes("rms_norm.dtype"))
    y, rstd = rms_norm_and_rstd("npu_rms_norm", self, gamma, epsilon)
    return y, rstd.detach()


def _with_contract(function: Callable) -> Callable:
    """``function`` under MindSpeed's name: with CANN's dtypes only, and without ``training``.

    Source: MindSpeed docs/ops/npu_dropout_add_layer_norm.md. The mask is bool, as documented.
    """
    name, own = f"npu_{function.__name__}", inspect.signature(function)
    theirs = [each for each in own.parameters.values() if each.kind is not each.KEYWORD_ONLY]
    signature = own.replace(parameters=theirs)

    @functools.wraps(function)
    def call(*arguments, **options):
        given = signature.bind(*arguments, **options).arguments
        rule = "dropout_add_norm.dtype"
        check_contract_dtype(rule, name, "x0", given["x0"], contracts.dtypes(rule))
        if function is dropout_add_rms_norm and given["bias"] is not None:
            # MindSpeed's code accepts a bias but does not add it.
            contracts.refuse("dropout_add_norm.rms_bias", name, "bias is given")
        return function(*arguments, **options)

    call.__name__ = call.__qualname__ = name
    call.__signature__ = signature
    return call


npu_dropout_add_layer_norm = _with_contract(dropout_add_layer_norm)
npu_dropout_add_rms_norm = _with_contract(dropout_add_rms_norm)
