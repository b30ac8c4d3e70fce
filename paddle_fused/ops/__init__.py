"""The fused operators: one package per operator, and their shared modules.

    arguments    argument checks for every backend
    case         ``OpCase``, a test case
    gated        shared by swiglu and geglu

Importing this package or an operator's package does not import paddle, because the build reads the
registrations and the contracts.
"""
