"""Runs unmodified programs of PaddleFormers and ERNIE on npu: ``llm-npu formers train FILE.yaml``.

    __main__   selects the device and replaces this process by the program
    switches   keys of an argument file without effect
    images     images of a vision-language job that PaddleFormers would skip
    models     models and layouts that PaddleFormers' programs cannot train
    fused      hooks before and after the import of paddleformers
    trainer    hooks before and after the import of its trainer

Importing this package imports no framework.
"""
