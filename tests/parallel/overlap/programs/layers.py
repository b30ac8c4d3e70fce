"""Tiny Llamas, tensor and sequence parallel: the replaced layers train as the upstream ones do."""

from __future__ import annotations

import numpy as np
import paddle
from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

from llm_npu.parallel.overlap import Planner, apply_overlap, overlapped_layers, remove_overlap
from llm_npu.surgery import apply_fused_kernels, remove_fused_kernels

STEPS = 3
SIZES = {"vocab_size": 128, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
SETTINGS = {
    "pipelined:2": lambda: "pipelined:2",
    "planned": Planner,
    "customised": lambda: Planner(
        {"all_reduce": "pipelined:3", "all_gather": "pipelined:4", "reduce_scatter": "serial"}
    ),
}


def examine(group) -> dict:
    results = {}
    for sequence_parallel in (False, True):
        name = "sequence parallel" if sequence_parallel else "tensor parallel"
        model = _model(group, sequence_parallel)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        losses = {"upstream": _train(model, before)}
        for setting, make in SETTINGS.items():
            report = apply_overlap(model, make(), recompute_gather=setting == "customised", strict=True)
            losses[setting] = _train(model, before)
        summary, changed = report.summary(), remove_overlap(model)
        losses["undone"] = _train(model, before)
        results[name] = {
            "losses": losses,
            "summary": summary,
            "removed": changed,
            "left": len(overlapped_layers(model)),
            "with fused operators": _fused(model, before),
            "lora": _lora(model),
        }
    return results


def _model(group, sequence_parallel: bool):
    paddle.seed(1)
    config = LlamaConfig(
        **SIZES,
        num_attention_heads=4,
        max_position_embeddings=32,
        seq_length=16,
        tensor_parallel_degree=group.nranks,
        tensor_parallel_rank=group.rank,
        tensor_parallel_output=False,
        sequence_parallel=sequence_parallel,
        use_flash_attention=False,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    model.train()
    return model


def _train(model, weights) -> list[float]:
    for key, value in model.state_dict().items():
        value.set_value(weights[key])
    optimizer = paddle.optimizer.SGD(0.05, parameters=[p for p in model.parameters() if not p.stop_gradient])
    tokens = paddle.to_tensor(np.random.default_rng(0).integers(0, SIZES["vocab_size"], [2, 16]))
    losses = []
    for _ in range(STEPS):
        loss = model(input_ids=tokens, labels=tokens)[0]
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def _lora(model) -> dict:
    """The same with LoRA over frozen projections. The layers of ``model`` are replaced for good."""
    config = LoRAConfig(
        r=4,
        lora_alpha=8,
        target_modules=[".*q_proj", ".*o_proj", ".*gate_proj", ".*down_proj"],
        tensor_parallel_degree=model.config.tensor_parallel_degree,
    )
    wrapped = LoRAModel(model, config)
    wrapped.mark_only_lora_as_trainable()
    wrapped.train()
    weights = {key: value.clone() for key, value in wrapped.state_dict().items()}
    upstream = _train(wrapped, weights)
    report = apply_overlap(wrapped, "pipelined:2", strict=True)
    overlapped = _train(wrapped, weights)
    kinds = sorted({row.kind for row in report.rows})
    return {"upstream": upstream, "overlapped": overlapped, "kinds": kinds}


def _fused(model, weights) -> dict:
    """Both surgeries on one model, taken off one after the other."""
    apply_overlap(model, "pipelined:2")
    apply_fused_kernels(model, ["rms_norm", "swiglu"])
    counts = [len(overlapped_layers(model))]
    losses = _train(model, weights)
    remove_fused_kernels(model)
    counts.append(len(overlapped_layers(model)))
    remove_overlap(model)
    counts.append(len(overlapped_layers(model)))
    return {"losses": losses, "counts": counts}
