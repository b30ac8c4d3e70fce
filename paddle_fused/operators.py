"""Makes the operators known to Paddle, for processes that run saved programs."""

from . import ascend, native


def load_operators() -> None:
    """Loads the host operators (``pf_...``) and those of the npu plugin, if there is one, into Paddle.

    To be called before ``paddle.jit.load`` or ``paddle.inference.create_predictor`` reads a program with them
    in it. RuntimeError says why the host operators could not be loaded.
    """
    native.register()
    ascend.register()
