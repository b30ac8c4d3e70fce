"""Training of a parameter in the tests of FusedAdamW, and its reference."""

import numpy as np
import paddle
from optimizer_rules import LEARNING_RATE, AdamRule, exact, gradient, parameter

DECAY = 0.1
STEPS = 100


def train(cls, dtype="float32", steps=STEPS, resume=None, first=0, grad_dtype=None, **options):
    """The parameter and the optimizer after the steps; ``resume``: a state dict and a parameter's values."""
    with paddle.utils.unique_name.guard():
        param = parameter(exact(0) if resume is None else resume[1], dtype, name="weight")
        options = {"learning_rate": LEARNING_RATE, "weight_decay": DECAY, "parameters": [param], **options}
        optimizer = cls(**options)
        if resume is not None:
            optimizer.set_state_dict(resume[0])
        for step in range(first, first + steps):
            param.grad = paddle.to_tensor(gradient(step).astype("float32")).astype(grad_dtype or dtype)
            optimizer.step()
    return param, optimizer


def in_float32(tensor):
    return tensor.astype("float32").numpy()


def weights_of(param, optimizer):
    """The weights in their highest available precision."""
    return in_float32(optimizer._master_weights.get(param.name, param))


def truth(steps=STEPS, rule=None, sign=1.0):
    rule, weight = rule or AdamRule(DECAY), exact(0)
    for step in range(steps):
        weight = rule(weight, sign * gradient(step))
    return weight


def error(trained, expected):
    return np.abs(weights_of(*trained) - expected).max()
