"""Optimizers, schedules, clipping and automatic differentiation."""

from dataclasses import replace

import paddle

from api_sweep.case import case
from api_sweep.inputs import integers, normal

TRAINING = "the gradients are inside: the parameters after three steps are compared"
BETA_POWERS = "Paddle keeps the powers of beta on the host on every place"
STEPS = 3


def _trained(optimizer, x, **options):
    """A linear layer after three steps, with the optimizer's own state."""
    model = paddle.nn.Linear(5, 3)
    model.weight.set_value(paddle.linspace(-1, 1, 15).reshape([5, 3]))
    updates = optimizer(parameters=model.parameters(), **options)
    for _ in range(STEPS):
        model(x).square().mean().backward()
        updates.step()
        updates.clear_grad()
    state = [value for value in updates.state_dict().values() if isinstance(value, paddle.Tensor)]
    return [*model.parameters(), *state]


def _trained_by_closure(optimizer, x, **options):
    """LBFGS evaluates the loss itself, through a closure."""
    weight = paddle.create_parameter(
        [5, 3], "float32", default_initializer=paddle.nn.initializer.Constant(0.5)
    )
    updates = optimizer(parameters=[weight], **options)

    def closure():
        updates.clear_grad()
        loss = (paddle.matmul(x, weight) - 1.0).square().mean()
        loss.backward()
        return loss

    return [updates.step(closure), weight]


def _scheduled(schedule, *args, **options):
    """Five learning rates, used by SGD."""
    rates = schedule(*args, **options)
    weight = paddle.create_parameter([2], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    updates = paddle.optimizer.SGD(rates, [weight])
    seen = []
    for _ in range(5):
        weight.square().sum().backward()
        updates.step()
        updates.clear_grad()
        rates.step()
        seen.append(weight.clone())
    return seen


def _clipped(clip, x, *args):
    """SGD with gradient clipping."""
    return _trained(paddle.optimizer.SGD, x, learning_rate=0.1, grad_clip=clip(*args))


def _sparse(optimizer, ids, **options):
    """An embedding whose gradient is a SelectedRows."""
    table = paddle.nn.Embedding(7, 4, sparse=True)
    table.weight.set_value(paddle.linspace(-1, 1, 28).reshape([7, 4]))
    updates = optimizer(parameters=table.parameters(), **options)
    for _ in range(STEPS):
        table(ids).square().sum().backward()
        updates.step()
        updates.clear_grad()
    return table.weight


OPTIMIZERS = {
    "SGD": {},
    "Momentum": {"use_nesterov": True, "weight_decay": 0.01},
    "Adagrad": {},
    "Adadelta": {},
    "Adam": {},
    "Adamax": {},
    "AdamW": {"weight_decay": 0.1},
    "ASGD": {"batch_num": 2},
    "Lamb": {},
    "NAdam": {},
    "RAdam": {},
    "RMSProp": {"centered": True, "momentum": 0.9},
    "Rprop": {},
}
SCHEDULES = [
    case("optimizer.lr.NoamDecay", 16, 2),
    case("optimizer.lr.PiecewiseDecay", [2, 4], [0.3, 0.2, 0.1]),
    case("optimizer.lr.ExponentialDecay", 0.3, 0.9),
    case("optimizer.lr.PolynomialDecay", 0.3, 4),
    case("optimizer.lr.LinearWarmup", 0.3, 3, 0.0, 0.3),
    case("optimizer.lr.CosineAnnealingDecay", 0.3, 4),
    case("optimizer.lr.StepDecay", 0.3, 2),
    case("optimizer.lr.LambdaDecay", 0.3, lambda epoch: 0.9**epoch),
]
WITHIN = [
    *(
        replace(
            case(f"optimizer.{name}", normal(4, 5), learning_rate=0.1, **options).via(_trained),
            host_outputs=BETA_POWERS if name in ("Adam", "AdamW", "Lamb") else "",
        )
        for name, options in OPTIMIZERS.items()
    ),
    case("optimizer.LBFGS", normal(4, 5), learning_rate=0.5, max_iter=4).via(_trained_by_closure),
    case("optimizer.SGD", integers(7, 6), learning_rate=0.1).via(_sparse).named("SelectedRows"),
    case("optimizer.Momentum", integers(7, 6), learning_rate=0.1).via(_sparse).named("SelectedRows"),
    case("optimizer.Adam", integers(7, 6), learning_rate=0.1).via(_sparse).named("SelectedRows"),
    case("optimizer.Adam", integers(7, 6), learning_rate=0.1, lazy_mode=True)
    .via(_sparse)
    .named("lazy SelectedRows"),
    case("nn.ClipGradByNorm", normal(4, 5), 0.1).via(_clipped),
    case("nn.ClipGradByValue", normal(4, 5), 0.05).via(_clipped),
    case("nn.ClipGradByGlobalNorm", normal(4, 5), 0.1).via(_clipped),
    *(schedule.via(_scheduled) for schedule in SCHEDULES),
]


def _second_order(grad, x):
    """d/dx of the sum of d(x^3)/dx."""
    first = grad((x**3).sum(), x, create_graph=True)[0]
    return [first, *grad(first.sum(), x)]


def _clip_helper(clip, x, limit):
    x.sum().backward()
    result = clip([x], limit)
    return [x.grad, result]


def _scaled(scaler, x):
    """Loss scaling, one step: the scale is divided out again."""
    model = paddle.nn.Linear(5, 3)
    model.weight.set_value(paddle.linspace(-1, 1, 15).reshape([5, 3]))
    updates = paddle.optimizer.SGD(0.1, model.parameters())
    scaling = scaler(init_loss_scaling=1024.0)
    scaling.scale(model(x).square().mean()).backward()
    scaling.step(updates)
    scaling.update()
    return model.weight


DIFFERENTIATION = [
    case("grad", normal(3, 4)).via(_second_order),
    case("autograd.jacobian", normal(3)).via(lambda jacobian, x: jacobian(x.square(), x)[:]),
    case("autograd.hessian", normal(3)).via(lambda hessian, x: hessian((x**3).sum(), x)[:]),
    case("incubate.autograd.vjp", normal(3)).via(lambda vjp, x: vjp(paddle.sin, x)),
    case("nn.utils.clip_grad_norm_", normal(3, 4), 0.5).via(_clip_helper),
    case("nn.utils.clip_grad_value_", normal(3, 4), 0.5).via(_clip_helper),
    case("amp.GradScaler", normal(4, 5)).via(_scaled).forward_only(TRAINING),
    case("nn.utils.parameters_to_vector", [normal(3, 4), normal(2)]).forward_only(),
]

CASES = [*(case.forward_only(TRAINING) for case in WITHIN), *DIFFERENTIATION]
