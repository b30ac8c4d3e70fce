"""Training of PaddleNLP's and PaddleFormers' language models on Ascend NPUs, real or virtual.

    from llm_npu import apply_fused_kernel, pipeline

    pipe = pipeline("text-generation", model="output/checkpoint-100", device="npu:0")
    print(pipe("Give three tips for staying healthy."))

Importing it imports no framework.

Packages, the highest layer first. Each imports only those below it (``tests/install/test_imports.py``):

    commands       ``llm-npu train``, ...: they attach the tools; ``__main__`` has the table
    tools          plan, profiling, doctor, dtypes, numerics, acceptance, formers, cluster
    console        what a run prints
    inference      text from a checkpoint, and programs for paddle.inference
    parallel       sharding annotations, pipelines, overlap of products with their collectives
    training       the trainer, its steps, checkpoints and metrics
    launch         several processes: started, supervised, restarted
    surgery        layers replaced by fused operators, and back
    data           text -> packed samples
    config         the arguments of a run
    models         families, presets, weights, LoRA; one folder for each library of models
    patches        patches for defects of upstream Paddle and PaddleNLP
    device         chooses the device, before anything imports paddle
    core           errors, signals, output, ranks, files that appear whole, untrusted files, cards
"""

from __future__ import annotations


def __getattr__(name: str):
    if name in ("apply_fused_kernel", "pipeline"):
        from llm_npu.inference import pipeline as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
