"""Tools that locate numerical errors: the layer, the operator and the first step.

    nan_inf.py            stops at the first NaN or infinity (--check_nan_inf)
    compare_backends.py   runs a step with and without fused operators (--compare_with)
    recording.py          outputs and gradients of all layers in a step
    comparison.py         compares two recordings, with a tolerance for rounding
    reproducible.py       bit-identical results in every run (--deterministic)
    options.py            the trainer's features; writes the files of --dump_tensors
    dumped.py             reads the files of --dump_tensors

``llm-npu numerics compare DIR DIR2`` compares the dumps of two runs. Importing this package imports no
framework: ``reproducible`` runs before paddle is imported.
"""
