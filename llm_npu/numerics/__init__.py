"""When the numbers are wrong: which layer and operator, and since when.

    nan_inf.py        stops at the first NaN or infinity (--check_nan_inf)
    both_ways.py      runs a step with the fused operators and without (--compare_with)
    recording.py      the outputs and gradients of all layers in a step
    dump.py           such recordings as safetensors files (--dump_tensors), which dumped.py reads
    comparison.py     where two recordings part by more than rounding
    rounding.py       what rounding alone can do: the same model with other roundings
    routing.py        the same experts in every run
    reproducible.py   the same bits in every run (--deterministic)
    options.py        adds to a trainer what its arguments ask for

``python -m llm_npu.numerics compare DIR DIR2`` compares the dumps of two runs. Importing this package imports
no framework: ``reproducible`` is needed before paddle.
"""
