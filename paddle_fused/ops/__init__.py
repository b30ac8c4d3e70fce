"""The fused operators: one package for each operator, and the modules that they share.

    arguments    argument checks that hold for every backend
    case         ``OpCase``, a test case
    gated        what swiglu and geglu share

Importing this package or an operator's package imports no Paddle, because the build reads the registrations
and the contracts.
"""
