"""AdamW: one step of one parameter, and the optimizer. Gradients and states have the parameter's shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paddle
from paddle.base import framework

from paddle_fused import ascend, contracts, native
from paddle_fused.devices import is_captured, located
from paddle_fused.dispatch import Backend, FusedOp

from ..arguments import check_shape, check_tensor, dtype_name
from . import offload as host_states

OPERATOR = "fused_adamw"
OPTIMIZER = "FusedAdamW"


@dataclass(frozen=True)
class State:
    """The optimizer state of a parameter, and the learning rate.

    The powers of beta have one element, beta^t for the next step t. ``master`` has the float32 master weights
    of a 16-bit parameter. ``skip_update`` is a bool tensor of captured programs that skips the step.
    """

    learning_rate: Any
    moment1: Any
    moment2: Any
    beta1_pow: Any
    beta2_pow: Any
    moment2_max: Any = None
    master: Any = None
    skip_update: Any = None


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of a step. ``lr_ratio`` multiplies the learning rate."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    lr_ratio: float = 1.0
    weight_decay: float = 0.01
    maximize: bool = False


def adamw_step(param, grad, state: State, settings: Settings) -> None:
    """One step in place: updates the parameter, the moments, the powers and the master weights.

    Raises ValueError for dtypes and shapes that do not match, and for sparse gradients.
    """
    _check_gradient("param", param, grad)
    for name in ("moment1", "moment2", "moment2_max", "master"):
        tensor = getattr(state, name)
        if tensor is not None:
            check_tensor(OPTIMIZER, name, tensor)
            check_shape(OPTIMIZER, name, tensor, list(param.shape), "the parameter's shape")
    ADAMW(param, grad, state, settings)


def _check_gradient(name: str, param, grad) -> None:
    check_tensor(OPTIMIZER, name, param)
    if isinstance(grad, paddle.Tensor) and grad.is_selected_rows():
        raise ValueError(
            f"{OPTIMIZER}: the gradient of {name} is sparse; accepted: dense gradients. Create its embedding "
            "with sparse=False."
        )
    check_tensor(OPTIMIZER, f"the gradient of {name}", grad)
    check_shape(OPTIMIZER, f"the gradient of {name}", grad, list(param.shape), "the parameter's shape")


def _composed(param, grad, state: State, settings: Settings) -> None:
    # float64 parameters are updated in float64, all others in float32.
    wide = "float64" if dtype_name(param) == "float64" else "float32"
    s, weights = settings, param if state.master is None else state.master
    # Scalars have rank 0, because a scalar of shape [1] would give a 0-d parameter a dimension.
    rate, power1, power2 = (
        tensor.astype(wide).reshape([]) for tensor in (state.learning_rate, state.beta1_pow, state.beta2_pow)
    )
    rate = rate * s.lr_ratio
    g = -grad.astype(wide) if s.maximize else grad.astype(wide)
    moment1 = state.moment1.astype(wide) * s.beta1 + g * (1 - s.beta1)
    moment2 = state.moment2.astype(wide) * s.beta2 + g * g * (1 - s.beta2)
    largest = moment2
    if state.moment2_max is not None:
        largest = paddle.maximum(state.moment2_max.astype(wide), moment2)
    # The root is computed as 1 / rsqrt, because Paddle's sqrt of infinity is NaN on the CPU.
    denominator = 1 / (paddle.rsqrt(largest) * paddle.sqrt(1 - power2)) + s.epsilon
    weight = weights.astype(wide)
    updated = weight - rate * (s.weight_decay * weight + moment1 / (denominator * (1 - power1)))
    for tensor, value in (
        (param, updated),
        (state.master, updated),
        (state.moment1, moment1),
        (state.moment2, moment2),
        (state.moment2_max, largest),
        (state.beta1_pow, power1 * s.beta1),
        (state.beta2_pow, power2 * s.beta2),
    ):
        if tensor is None:
            continue
        value = value.astype(tensor.dtype).reshape(tensor.shape)
        if state.skip_update is not None:
            value = paddle.where(state.skip_update.reshape([]), tensor, value)
        paddle.assign(value, output=tensor)


def _paddle_step(param, grad, state: State, settings: Settings) -> None:
    """A step of Paddle's adamw operator."""
    s = settings
    if dtype_name(param) == "float32" or dtype_name(grad) == "float64":
        grad = grad.astype("float32")
    paddle._C_ops.adamw_(
        param, -grad if s.maximize else grad, state.learning_rate, state.moment1, state.moment2, None,
        state.beta1_pow, state.beta2_pow, state.master, state.skip_update, s.beta1, s.beta2, s.epsilon,
        s.lr_ratio, s.weight_decay, True, False, 1000, state.master is not None, False, False,
    )  # fmt: skip


def _native(param, grad, state: State, settings: Settings) -> None:
    s = settings
    # In dygraph, a custom operator may not write to a leaf that requires a gradient, but it may write to a
    # view of it.
    weights = param if is_captured(param) else param.detach()
    native.call(
        "pf_adamw_", weights, grad, state.learning_rate, state.moment1, state.moment2,
        state.moment2_max, state.beta1_pow, state.beta2_pow, state.master,
        1 - s.beta1, 1 - s.beta2, s.epsilon, s.lr_ratio, s.weight_decay, s.maximize,
    )  # fmt: skip


def _native_many(calls: list[tuple[Any, Any, State, Settings]]) -> None:
    """``_native`` for many parameters at once, in dygraph.

    They share settings, learning rate and device, and have the same optional tensors.
    """
    params, grads, states, settings = zip(*calls, strict=True)
    s, first = settings[0], states[0]

    def of_all(name):
        return [getattr(state, name) for state in states] if getattr(first, name) is not None else None

    native.call(
        "pf_adamw_many_", [param.detach() for param in params], list(grads), first.learning_rate,
        *map(of_all, ("moment1", "moment2", "moment2_max", "beta1_pow", "beta2_pow", "master")),
        1 - s.beta1, 1 - s.beta2, s.epsilon, s.lr_ratio, s.weight_decay, s.maximize,
    )  # fmt: skip


def _native_unsupported(param, grad, state, settings):
    if state.skip_update is not None:
        return "pf_adamw_ does not support skip_update, which this program sets for infinite gradients"
    if "float64" in (dtype_name(param), dtype_name(grad)):
        return "the host kernels do not support float64"
    if dtype_name(state.beta1_pow) != "float32":
        return f"the powers of beta are {dtype_name(state.beta1_pow)}; pf_adamw_ requires float32"
    if param.is_dist():
        return "pf_adamw_ does not support placements of auto-parallel tensors"
    updated = (param, state.moment1, state.moment2, state.moment2_max, state.master)
    if not is_captured(param) and not all(t is None or t.is_contiguous() for t in updated):
        return "a tensor to update is a non-contiguous view, and Paddle would update a copy of it"
    return native.unsupported_reason(param, grad)


def _ascend(param, grad, state, settings) -> None:
    if _not_the_plugin(param, state) is None:
        _paddle_step(param, grad, state, settings)
    else:
        _composed(param, grad, state, settings)


def _ascend_unsupported(param, grad, state, settings):
    reason = ascend.unsupported_reason(param, grad)
    if reason is None and dtype_name(param) not in contracts.dtypes("adamw.dtype"):
        reason = contracts.reason("adamw.dtype", OPTIMIZER, f"the parameter is {dtype_name(param)}")
    return reason


def _ascend_mode(param, grad, state, settings):
    reason = _not_the_plugin(param, state)
    if reason is not None:
        return f"composition of the card's kernels: {reason}"
    return "adamw of Paddle, on a card Mul and ApplyAdamD"


def _not_the_plugin(param, state) -> str | None:
    """The reason why the plugin's adamw kernel cannot compute this step, or None."""
    if state.moment2_max is not None:
        return "the plugin's adamw does not support amsgrad"
    if dtype_name(state.moment1) != "float32" or dtype_name(state.beta1_pow) != "float32":
        return "the plugin's adamw keeps its moments in float32"
    return None


def _number(value) -> float:
    return value.item() if isinstance(value, paddle.Tensor) else float(value)


ADAMW = FusedOp(
    OPERATOR,
    ascend=Backend(_ascend, _ascend_unsupported, _ascend_mode),
    native=Backend(_native, _native_unsupported, "pf_adamw_"),
    composed=Backend(_composed),
)


def _steps(calls: list[tuple[Any, Any, State, Settings]]) -> None:
    """Runs ``ADAMW`` on all calls. The native backend batches them: a call costs more than a small update."""
    together: dict[tuple, list[tuple]] = {}
    selected = [(ADAMW.select(*call), call) for call in calls]
    observed = [after for selection, call in selected for after in ADAMW.observe(selection, call)]
    for selection, call in selected:
        param, _, state, settings = call
        if selection.backend == "native":
            rate, largest, master = state.learning_rate, state.moment2_max, state.master
            alike = (settings, id(rate), located(param), largest is None, master is None)
            together.setdefault(alike, []).append(call)
        else:
            ADAMW.backends[selection.backend].run(*call)
        selection.record()
    for alike in together.values():
        _native_many(alike)
    for after in observed:
        after(None)


class FusedAdamW(paddle.optimizer.AdamW):
    """A drop-in ``paddle.optimizer.AdamW`` whose step runs on the first backend that accepts it.

        m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
        w = w - lr (weight_decay w + m / (1 - beta1^t) / (sqrt(u / (1 - beta2^t)) + epsilon))

    where u = v, or with ``amsgrad`` the largest v so far; ``maximize`` negates g. The arithmetic is float32,
    also for 16-bit parameters and gradients. ``multi_precision`` keeps float32 master weights.

    Args:
        maximize: gradient ascent.
        lr_ratio: as in Paddle, but also supported on the CPU.
        offload: ``"device"`` and ``"host"`` keep moments and master weights in host memory, and run the
            updates there (`fused_adamw.offload`). No effect on parameters on the CPU.

    The other arguments are the same as in ``paddle.optimizer.AdamW``, in its order. State dicts are
    interchangeable with it. Parameters are float32, bfloat16, float16 or float64 (composed only); gradients
    may have any of these dtypes.

    Raises:
        ValueError: for sparse gradients and parameters of other dtypes, in addition to Paddle's errors.

    Source: Loshchilov & Hutter 2019; Reddi et al. 2018 (amsgrad); aclnnApplyAdamWV2.
    """

    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        parameters=None,
        weight_decay=0.01,
        use_lowprecision_moment=False,
        lr_ratio=None,
        apply_decay_param_fun=None,
        grad_clip=None,
        lazy_mode=False,
        multi_precision=False,
        amsgrad=False,
        name=None,
        *,
        maximize=False,
        offload: host_states.Offload | None = None,
    ):
        if offload not in (None, *host_states.PLACES):
            raise ValueError(f"{OPTIMIZER}: offload is {offload!r}; accepted: None, 'device' or 'host'.")
        if lr_ratio is not None and not callable(lr_ratio):
            raise ValueError(f"{OPTIMIZER}: lr_ratio is {lr_ratio!r}; accepted: a function of a parameter.")
        # Set afterwards: Paddle's constructor rejects lr_ratio where Paddle's own kernel ignores it.
        super().__init__(
            learning_rate, beta1, beta2, epsilon, parameters, weight_decay, use_lowprecision_moment, None,
            apply_decay_param_fun, grad_clip, lazy_mode, multi_precision, amsgrad, name,
        )  # fmt: skip
        self._lr_ratio = lr_ratio
        self._maximize = bool(maximize)
        self._calls: list[tuple] | None = None  # during a step: the calls of its parameters
        self._offload = host_states.UPDATES[offload](_steps) if offload else None

    @classmethod
    def from_adamw(
        cls, optimizer: paddle.optimizer.AdamW, offload: host_states.Offload | None = None
    ) -> FusedAdamW:
        """A FusedAdamW with the parameters and settings of ``optimizer``, before its first step.

        Raises:
            ValueError: for optimizers other than ``paddle.optimizer.AdamW``, and after the first step.
        """
        if type(optimizer) is not paddle.optimizer.AdamW:
            raise ValueError(
                f"{OPTIMIZER}.from_adamw: the optimizer is a {type(optimizer).__name__}; accepted: a "
                "paddle.optimizer.AdamW. Other optimizers compute a different update."
            )
        if any(optimizer._accumulators.values()):
            raise ValueError(
                f"{OPTIMIZER}.from_adamw: the optimizer already has states; accepted: one before its first "
                "step. Load its state dict into the new optimizer instead."
            )
        return cls(
            optimizer._learning_rate, optimizer._beta1, optimizer._beta2, optimizer._epsilon,
            optimizer._parameter_list, optimizer._weight_decay, optimizer._use_lowprecision_moment,
            optimizer._lr_ratio, optimizer._apply_decay_param_fun, optimizer._grad_clip, optimizer._lazy_mode,
            optimizer._multi_precision, getattr(optimizer, "_amsgrad", False), optimizer._name,
            offload=offload,
        )  # fmt: skip

    def example_steps(self, parameters, master_grad: bool = False) -> list[Callable[[], None]]:
        """One function per dtype of the trained ``parameters`` that updates a small tensor.

        For use with ``paddle_fused.explain_dispatch``. Gradients are float32 with ``master_grad``, otherwise
        they have the parameter's dtype. An auto-parallel parameter is used directly, because its placements
        determine the backend.
        """
        trained = [parameter for parameter in parameters if not parameter.stop_gradient]
        kinds = {
            parameter.dtype: parameter for parameter in sorted(trained, key=lambda parameter: -parameter.size)
        }

        def step(parameter):
            tensor = parameter if parameter.is_dist() else paddle.zeros([1], parameter.dtype)
            wide = "float64" if dtype_name(tensor) == "float64" else "float32"
            states = {"moment1", "moment2"} | ({"moment2_max"} if self._amsgrad else set())
            if self._multi_precision and self._is_dtype_fp16_or_bf16(tensor.dtype):
                states.add("master")
            scalars = ("learning_rate", "beta1_pow", "beta2_pow")
            state = State(
                **{name: paddle.ones([1], wide) for name in scalars},
                **{name: paddle.zeros_like(tensor, wide) for name in states},
            )
            grad = paddle.zeros_like(tensor, "float32" if master_grad else None)
            if isinstance(self._offload, host_states.HostUpdates):
                tensor, grad = (t._copy_to(host_states.HOST, True) for t in (tensor, grad))
            adamw_step(tensor, grad, state, Settings(maximize=self._maximize))

        return [lambda parameter=parameter: step(parameter) for parameter in kinds.values()]

    def _create_optimization_pass(self, parameters_and_grads, param_group_idx=0):
        if not framework.in_dygraph_mode():
            return super()._create_optimization_pass(parameters_and_grads, param_group_idx)
        self._calls = []
        try:
            done = super()._create_optimization_pass(parameters_and_grads, param_group_idx)
            on_host = [call for call in self._calls if self._is_offloaded(call[0])]
            _steps([call for call in self._calls if not self._is_offloaded(call[0])])
            if on_host:
                self._offload(on_host)
        finally:
            self._calls = None
        return done

    def _create_accumulators(self, block, parameters):
        if self._offload is None:
            return super()._create_accumulators(block, parameters)
        if not framework.in_dygraph_mode():
            raise ValueError(f"{OPTIMIZER}: offload is set in a captured program; accepted: dygraph.")
        is_group = isinstance(parameters, dict)
        for parameter in parameters["params"] if is_group else parameters:
            if parameter.is_dist():
                raise ValueError(
                    f"{OPTIMIZER}: offload is set, but {parameter.name} is a distributed tensor of "
                    "auto-parallel; accepted: local parameters."
                )
            only = {**parameters, "params": [parameter]} if is_group else [parameter]
            super()._create_accumulators(block, only)
            if self._is_offloaded(parameter):
                host_states.to_host(self, parameter)

    def _is_offloaded(self, parameter) -> bool:
        return self._offload is not None and not parameter.place.is_cpu_place()

    def _append_optimize_op(self, block, param_and_grad):
        if not framework.in_dynamic_or_pir_mode():
            raise ValueError(
                f"{OPTIMIZER}: received a program of Paddle's old static graph; accepted: dygraph, to_static "
                "and PIR programs. Set FLAGS_enable_pir_api=1, or use paddle.optimizer.AdamW."
            )
        if isinstance(param_and_grad, dict):
            param_and_grad = self._update_param_group(param_and_grad)
        param, grad = param_and_grad
        _check_gradient(param.name, param, grad)
        of = self._get_accumulator_master
        has_master = self._multi_precision and self._is_dtype_fp16_or_bf16(param.dtype)
        decays = self._apply_decay_param_fun is None or self._apply_decay_param_fun(param.name)
        state = State(
            learning_rate=self._create_param_lr(param_and_grad),
            moment1=of(self._moment1_acc_str, param),
            moment2=of(self._moment2_acc_str, param),
            beta1_pow=of(self._beta1_pow_acc_str, param),
            beta2_pow=of(self._beta2_pow_acc_str, param),
            moment2_max=of(self._moment2_acc_max_str, param) if self._amsgrad else None,
            master=self._master_weights[param.name] if has_master else None,
            skip_update=self._get_auxiliary_var("found_inf") if is_captured(param) else None,
        )
        settings = Settings(
            beta1=_number(self._beta1),
            beta2=_number(self._beta2),
            epsilon=_number(self._epsilon),
            lr_ratio=1.0 if self._lr_ratio is None else float(self._lr_ratio(param)),
            weight_decay=float(self._weight_decay) if decays else 0.0,
            maximize=self._maximize,
        )
        if self._calls is None:
            ADAMW(param, grad, state, settings)
        else:
            self._calls.append((param, grad, state, settings))
