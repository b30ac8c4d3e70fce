"""Tools for numerical errors: they find the layer, the operator and the first step.

    nan_inf.py        stops at the first NaN or infinity (--check_nan_inf)
    compare_backends.py      runs a step with and without fused operators (--compare_with)
    recording.py      outputs and gradients of all layers in a step
    dump.py           writes recordings as safetensors files (--dump_tensors); dumped.py reads them
    comparison.py     where two recordings differ by more than rounding
    rounding.py       the effect of rounding alone: the same model, rounded differently
    routing.py        the same choice of experts in every run
    reproducible.py   the same bits in every run (--deterministic)
    options.py        attaches all of this to a trainer

``python -m llm_npu.numerics compare DIR DIR2`` compares the dumps of two runs. Importing this package imports
no framework: ``reproducible`` runs before paddle is imported.
"""
