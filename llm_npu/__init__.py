"""Training of PaddleNLP language models on Ascend NPUs, real or virtual. Importing it imports no framework.

In the order of ``scripts/run_llama_npu.py``, which composes them:

    device                             chooses the device, before anything imports paddle
    console, summary                   what the terminal shows
    config, presets                    the arguments, and the model they name
    corpus, tokenizer, data            text -> packed samples
    launch, ranks                      several processes, and what they tell each other
    stopping, refusal                  one sentence after a signal, and one for bad input
    model, trainer                     PaddleNLP's Llama and Trainer
    step, evaluation, nonfinite        what is counted, and noticed, over all processes
    checkpoint, weights                atomic checkpoints, in the Hugging Face layout
    metrics, generate                  losses, speed, memory, the loss curve; text
    pretrained, export                 a checkpoint as a model, and as a program for paddle.inference
    stock_config, stored, internlm2    what Hugging Face's checkpoints look like, and InternLM2's
    compat                             cures for defects of stock Paddle and PaddleNLP
    why, doctor                        why the operators run as they do; what is wrong with an installation
"""
