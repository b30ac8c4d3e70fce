"""Training of PaddleNLP language models on Ascend NPUs, real or virtual. Importing it imports no framework.

Packages, the lowest layer first. Each imports only those above it in this list; none imports the tools:

    core           errors, signals, output, ranks, files that appear whole, untrusted files, cards
    device         chooses the device, before anything imports paddle
    patches        patches for defects of stock Paddle and PaddleNLP
    models         families, presets, weights, LoRA; one folder for each library of models
    config         the arguments of a run
    data           text -> packed samples
    surgery        layers replaced by fused operators, and back
    launch         several processes: started, watched, restarted
    training       the trainer, its steps, checkpoints and metrics
    parallel       sharding annotations, pipelines, overlap of products with their collectives
    inference      text from a checkpoint, and programs for paddle.inference
    console        what a run says
    tools          plan, profiling, doctor, dtypes, numerics, acceptance
"""
