"""What the run asks for against what the model is."""

from __future__ import annotations

from .arguments import RunConfig


def check_model(run: RunConfig, config) -> None:
    """ValueError when the model of the ``LlamaConfig`` ``config`` cannot be trained as ``run`` asks."""
    length, positions = run.data.max_seq_length, config.max_position_embeddings
    if length > positions:
        raise ValueError(
            f"--max_seq_length is {length}, but {run.model.model_name_or_path} has {positions} positions; "
            f"give {positions} or less"
        )
    head_dim = config.hidden_size // config.num_attention_heads
    if run.training.use_fused_rope and run.device != "cpu" and head_dim % 64:
        raise ValueError(
            f"--use_fused_rope needs a head size that is a multiple of 64, but that of "
            f"{run.model.model_name_or_path} is {head_dim}; add --use_fused_rope false"
        )
    for layer in run.training.no_recompute_layers or ():
        if not 0 <= layer < config.num_hidden_layers:
            raise ValueError(
                f"--no_recompute_layers names layer {layer}, but the model has layers 0 to "
                f"{config.num_hidden_layers - 1}"
            )
