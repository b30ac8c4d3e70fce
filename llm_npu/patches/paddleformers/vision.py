"""Patches for the vision-language models of PaddleFormers: their towers, and the images that they read."""

from __future__ import annotations

import functools
import random
import re
import threading

from paddle.distributed import fleet
from paddle.distributed.fleet.layers.mpu.mp_ops import _c_identity
from paddle.distributed.fleet.utils import recompute


@functools.cache
def fix_qwen3_vl_recompute() -> None:
    """PaddleFormers 1.1 and 1.2: Qwen3-VL cannot recompute a vision tower that is trained ("got an unexpected
    keyword argument 'attn_mask_startend_row_indices'").

    ``recompute_training_full`` lacks the argument that the tower passes. The patch adds it.
    """
    from paddleformers.transformers.qwen3_vl.modeling import Qwen3VLVisionModel

    def recompute_training_full(
        self,
        layer_module,
        hidden_states,
        cu_seqlens,
        rotary_pos_emb=None,
        position_embeddings=None,
        attn_mask_startend_row_indices=None,
    ):
        inputs = cu_seqlens, rotary_pos_emb, position_embeddings, attn_mask_startend_row_indices
        return recompute(layer_module, hidden_states, *inputs)

    Qwen3VLVisionModel.recompute_training_full = recompute_training_full


@functools.cache
def fix_qwen3_vl_deepstack_gradients() -> None:
    """PaddleFormers 1.1 and 1.2: with sequence parallelism, Qwen3-VL trains its vision tower with a part of
    the gradients of its deepstack features, so the processes' weights diverge.

    Each process adds the features of its local tokens and has only their gradients. The patch sums the
    gradients over the processes in the backward pass.
    """
    from paddleformers.transformers.qwen3_vl.modeling import Qwen3VLTextModel

    add_features = Qwen3VLTextModel._deepstack_process

    @functools.wraps(add_features)
    def _deepstack_process(self, hidden_states, visual_pos_masks, visual_embeds):
        if self.config.sequence_parallel:
            group = fleet.get_hybrid_communicate_group().get_model_parallel_group()
            visual_embeds = _c_identity(visual_embeds, group)
        return add_features(self, hidden_states, visual_pos_masks, visual_embeds)

    Qwen3VLTextModel._deepstack_process = _deepstack_process


@functools.cache
def fix_paddleocr_vl_shards() -> None:
    """PaddleFormers 1.1 and 1.2: PaddleOCR-VL fails under tensor parallelism ("In operator matmul, the [1]
    dimension of Input(X) must be equal", "The 'shape' in ReshapeOp is invalid").

    Its attention reshapes a process's queries and keys to the heads of all processes. Both layers of its
    projector are divided by columns, so the second one gets a part of its inputs. The patch sets the sizes of
    the local heads, and divides the second layer by rows. The projector's tokens are whole on every process,
    also with sequence parallelism.
    """
    from paddleformers.nn.linear import Linear
    from paddleformers.transformers.paddleocr_vl import modeling

    build_attention, build_projector = modeling.Ernie4_5Attention.__init__, modeling.Projector.__init__

    @functools.wraps(build_attention)
    def attention(self, config, layer_idx=0):
        build_attention(self, config, layer_idx)
        if config.tensor_model_parallel_size > 1:  # the trainer's value for one process is -1
            self.q_hidden_size //= config.tensor_model_parallel_size
            self.kv_hidden_size //= config.tensor_model_parallel_size

    @functools.wraps(build_projector)
    def projector(self, text_config, vision_config):
        build_projector(self, text_config, vision_config)
        if text_config.tensor_model_parallel_size > 1:
            size = self.hidden_size
            self.linear_1 = Linear.create(size, size, has_bias=True, linear_type="colwise")
            self.linear_2 = Linear.create(size, text_config.hidden_size, has_bias=True, linear_type="rowwise")

    modeling.Ernie4_5Attention.__init__, modeling.Projector.__init__ = attention, projector


@functools.cache
def fix_lora_of_frozen_parts() -> None:
    """PaddleFormers 1.1 and 1.2: LoRA trains layers of the parts that ``freeze_config`` freezes.

    In PaddleOCR-VL these are queries, keys and values of the vision tower; in Qwen2.5-VL, all layers.

    The filter compares the parts' prefixes with LoRA's patterns instead of the names of the layers that the
    patterns match. With the patch, no pattern matches a layer of a frozen part.
    """
    from paddleformers.cli.utils import mllm_utils

    upstream = mllm_utils.get_multimodel_lora_target_modules

    @functools.wraps(upstream)
    def get_multimodel_lora_target_modules(model, target_modules, freeze_config):
        patterns = upstream(model, target_modules, freeze_config)
        parts = mllm_utils.get_multimodel_target_modules(model.config.model_type)
        if parts is None:
            return patterns
        frozen, trained = [], []
        for part in mllm_utils._ALL_MODULES:
            prefixes = frozen if f"freeze_{part}" in freeze_config else trained
            prefixes += (re.escape(f"{prefix}.") for prefix in getattr(parts, part))
        if not frozen:
            return patterns
        # The longest prefix decides: a projector may be a layer of the vision tower.
        exceptions = [f"(?!{name})" for name in trained if name.startswith(tuple(frozen))]
        return [f"(?!{''.join(exceptions)}(?:{'|'.join(frozen)})){pattern}" for pattern in patterns]

    mllm_utils.get_multimodel_lora_target_modules = get_multimodel_lora_target_modules


@functools.cache
def fix_augmentation_in_threads() -> None:
    """PaddleFormers 1.1 and 1.2: with ``dataloader_num_workers: 0`` and recompute, the ranks of a
    tensor-parallel group see different images of PaddleOCR-VL, also of different sizes ("the ranks made
    different calls").

    The augmentation draws from Python's global generator in the thread of the data loader. Recompute rewinds
    that generator in the backward pass and sets it back, so the draws depend on the time. With the patch,
    each thread of a data loader has its own generator, seeded from the global one at the thread's first draw.
    The main thread does not use the global generator then, because it waits for the first batch.
    """
    from paddle.vision.transforms import transforms
    from paddleformers.datasets.template import augment_utils

    augment_utils.random = transforms.random = _GeneratorOfThread()


class _GeneratorOfThread(threading.local):
    """The module ``random`` in the main thread, and a generator in each other thread."""

    def __init__(self):
        in_main = threading.current_thread() is threading.main_thread()
        self.generator = random if in_main else random.Random(random.getrandbits(64))

    def __getattr__(self, name: str):
        return getattr(self.generator, name)
