"""The programs of PaddleFormers and ERNIE, unmodified, on npu: ``llm-npu formers train FILE.yaml``.

    __main__   chooses the device, and replaces this process by the program
    switches   keys of a file that have no effect
    fused      what such a process does before and after it imports paddleformers

Importing this package imports no framework.
"""
