"""The public names, for editors and type checkers; ``__init__.py`` imports them on first access."""

from . import compat as compat
from . import contracts as contracts
from . import masks as masks
from .acl_errors import AclError as AclError
from .acl_errors import watch_acl_errors as watch_acl_errors
from .dispatch import BackendError as BackendError
from .dispatch import dispatch_log as dispatch_log
from .dispatch import explain_dispatch as explain_dispatch
from .dispatch import reset_dispatch_log as reset_dispatch_log
from .dispatch import use_backend as use_backend
from .ops.add_rms_norm.op import add_rms_norm as add_rms_norm
from .ops.attention.op import flash_attention as flash_attention
from .ops.dropout_add_norm.op import dropout_add_layer_norm as dropout_add_layer_norm
from .ops.dropout_add_norm.op import dropout_add_rms_norm as dropout_add_rms_norm
from .ops.flashmask_attention.op import flashmask_attention as flashmask_attention
from .ops.fused_adamw.op import FusedAdamW as FusedAdamW
from .ops.geglu.op import geglu as geglu
from .ops.grouped_matmul.op import grouped_matmul as grouped_matmul
from .ops.linear_cross_entropy.op import linear_cross_entropy as linear_cross_entropy
from .ops.moe_token_permute.op import moe_token_permute as moe_token_permute
from .ops.moe_token_unpermute.op import moe_token_unpermute as moe_token_unpermute
from .ops.rms_norm.op import rms_norm as rms_norm
from .ops.rotary.op import apply_rotary as apply_rotary
from .ops.rotary.op import rotary_mul as rotary_mul
from .ops.swiglu.op import swiglu as swiglu
from .registry import load_operators as load_operators
