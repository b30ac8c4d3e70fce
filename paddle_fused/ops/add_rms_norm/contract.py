"""RMSNorm of a sum."""

from paddle_fused.contracts.rule import PARAM_INVALID, ContractRule, listed

from ..rms_norm.contract import FLOATS
from ..rms_norm.contract import LIMITS as RMS_NORM_LIMITS

LIMITS = {}
DTYPES = {"add_rms_norm.dtype": FLOATS}

_ADD_RMS = ("aclnnAddRmsNorm", "add_rms_norm")
_ADD_RMS_DOC = "hicann/ops-nn norm/add_rms_norm/docs/aclnnAddRmsNorm.md"

RULES = (
    ContractRule(
        "add_rms_norm.dtype",
        _ADD_RMS,
        PARAM_INVALID,
        listed(FLOATS) + ", the same for x, residual and gamma",
        "Cast them with tensor.astype.",
        _ADD_RMS_DOC,
    ),
    ContractRule(
        "add_rms_norm.residual",
        _ADD_RMS,
        PARAM_INVALID,
        "x and residual with the same shape",
        "Expand one of them; they are not broadcast.",
        _ADD_RMS_DOC,
    ),
    ContractRule(
        "add_rms_norm.shape",
        _ADD_RMS,
        PARAM_INVALID,
        f"x of rank 1 to {RMS_NORM_LIMITS['rms_norm.rank']} and gamma with the shape of x's last dimensions",
        "Pass a gamma that covers the normalized dimensions.",
        _ADD_RMS_DOC,
    ),
    ContractRule(
        "add_rms_norm.epsilon",
        _ADD_RMS,
        PARAM_INVALID,
        "a non-negative number, such as 1e-6",
        "Pass a positive epsilon to avoid a division by zero.",
        _ADD_RMS_DOC,
    ),
)
