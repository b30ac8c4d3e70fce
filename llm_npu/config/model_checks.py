"""What the run asks for against what the model is."""

from __future__ import annotations

from .arguments import RunConfig


def check_model(run: RunConfig, config) -> None:
    """ValueError when the model of ``config`` (a ``LlamaConfig``, ...) cannot be trained as ``run`` asks."""
    if run.training.world_size > 1:
        raise ValueError(
            f"this is one of {run.training.world_size} processes, but losses and checkpoints are those of "
            "one; start the script without paddle.distributed.launch"
        )
    length, positions = run.data.max_seq_length, config.max_position_embeddings
    if length > positions:
        raise ValueError(
            f"--max_seq_length is {length}, but {run.model.model_name_or_path} has {positions} positions; "
            f"give {positions} or less"
        )
    window = getattr(config, "sliding_window", None)
    if config.model_type in ("mistral", "mixtral") and window and length > window:
        raise ValueError(
            f"--max_seq_length is {length}, but {run.model.model_name_or_path} has a sliding window of "
            f"{window} tokens, which PaddleNLP does not compute; give {window} or less"
        )
    if run.data.padding == "none" and getattr(config, "rope_scaling_type", None) == "dynamic_ntk":
        raise ValueError(
            "--padding none joins samples to one row, which the dynamic rotary scaling of "
            f"{run.model.model_name_or_path} takes for one long text; give --padding longest"
        )
    for layer in run.training.no_recompute_layers or ():
        if not 0 <= layer < config.num_hidden_layers:
            raise ValueError(
                f"--no_recompute_layers names layer {layer}, but the model has layers 0 to "
                f"{config.num_hidden_layers - 1}"
            )
