"""The update rules of the optimizers in float64, and how a test runs an optimizer against them."""

import numpy as np
import paddle

SHAPE = (37, 21)  # no multiple of any vector width
STEPS = 20
LEARNING_RATE = 1e-2
LOW = ("bfloat16", "float16")
# Half a unit in the last place of a value in [1, 2).
HALF_UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
MASTER_TOLERANCE = (
    1e-5  # float32 state over 20 steps of 1e-2: a few roundings of the weights and of lr / sqrt(v)
)


def exact(seed, scale=1.0):
    """Random values that float16 and bfloat16 represent exactly."""
    return np.round(np.random.RandomState(seed).randn(*SHAPE) * 16).clip(-64, 64) / 16 * scale


def gradient(step):
    return exact(100 + step, 0.25)


def parameter(values, dtype, name=None):
    tensor = paddle.to_tensor(values.astype("float32")).astype(dtype)
    return paddle.base.framework.EagerParamBase.from_tensor(tensor, name=name)


def run(make, dtype, steps=STEPS, gradients=None, grad_dtype=None):
    """The parameter and the optimizer after `steps` steps with gradient(0), gradient(1), ..."""
    param = parameter(exact(0), dtype)
    optimizer = make([param])
    for step in range(steps):
        values = gradient(step) if gradients is None else gradients[step]
        param.grad = paddle.to_tensor(values.astype("float32")).astype(grad_dtype or dtype)
        optimizer.step()
    return param, optimizer


def float32(tensor):
    return tensor.astype("float32").numpy()


def master_of(optimizer, param):
    return optimizer._master_weights[param.name].numpy()


class AdamRule:
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w = (1 - lr wd) w - lr m^ / (sqrt(v^) + eps)."""

    def __init__(self, weight_decay=0.0, lr=LEARNING_RATE, amsgrad=False):
        self.weight_decay, self.lr, self.amsgrad = weight_decay, lr, amsgrad
        self.m = self.v = self.largest = 0.0
        self.t = 0

    def __call__(self, weight, grad):
        beta1, beta2, epsilon = 0.9, 0.999, 1e-8
        self.t += 1
        self.m = beta1 * self.m + (1 - beta1) * grad
        self.v = beta2 * self.v + (1 - beta2) * grad**2
        self.largest = np.maximum(self.largest, self.v) if self.amsgrad else self.v
        denominator = np.sqrt(self.largest / (1 - beta2**self.t)) + epsilon
        weight = weight * (1 - self.lr * self.weight_decay)
        return weight - self.lr * self.m / (1 - beta1**self.t) / denominator


class MomentumRule:
    """v = mu v + g + l2 w;  w = w - lr v,  with Nesterov w = w - lr (g + l2 w + mu v)."""

    def __init__(self, nesterov=False, l2=0.0, lr=LEARNING_RATE):
        self.nesterov, self.l2, self.lr = nesterov, l2, lr
        self.velocity = 0.0

    def __call__(self, weight, grad):
        grad = grad + self.l2 * weight
        self.velocity = 0.9 * self.velocity + grad
        return weight - self.lr * (grad + 0.9 * self.velocity if self.nesterov else self.velocity)


def sgd_rule(weight, grad):
    return weight - LEARNING_RATE * grad


def golden(rule, gradients=None):
    weight = exact(0)
    for step in range(STEPS):
        weight = rule(weight, gradient(step) if gradients is None else gradients[step])
    return weight


def adam(params, **options):
    return paddle.optimizer.Adam(LEARNING_RATE, parameters=params, **options)


def adamw(params, **options):
    return paddle.optimizer.AdamW(LEARNING_RATE, parameters=params, weight_decay=0.1, **options)


def momentum(params, **options):
    return paddle.optimizer.Momentum(LEARNING_RATE, 0.9, parameters=params, **options)


RULES = {
    "adam": (adam, AdamRule),
    "adam amsgrad": (lambda p, **o: adam(p, amsgrad=True, **o), lambda: AdamRule(amsgrad=True)),
    "adam multi-tensor": (lambda p, **o: adam(p, use_multi_tensor=True, **o), AdamRule),
    "adamw": (adamw, lambda: AdamRule(0.1)),
    "adamw amsgrad": (lambda p, **o: adamw(p, amsgrad=True, **o), lambda: AdamRule(0.1, amsgrad=True)),
    "adamw lr_ratio": (
        lambda p, **o: adamw(p, lr_ratio=lambda _: 0.5, **o),
        lambda: AdamRule(0.1, lr=0.5 * LEARNING_RATE),
    ),
    "adamw without decay": (lambda p, **o: adamw(p, apply_decay_param_fun=lambda _: False, **o), AdamRule),
    "momentum": (momentum, MomentumRule),
    "momentum nesterov": (
        lambda p, **o: momentum(p, use_nesterov=True, **o),
        lambda: MomentumRule(nesterov=True),
    ),
    "momentum l2": (lambda p, **o: momentum(p, weight_decay=0.1, **o), lambda: MomentumRule(l2=0.1)),
    "momentum multi-tensor": (lambda p, **o: momentum(p, use_multi_tensor=True, **o), MomentumRule),
    "sgd": (lambda p, **o: paddle.optimizer.SGD(LEARNING_RATE, parameters=p, **o), lambda: sgd_rule),
}
