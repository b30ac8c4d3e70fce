"""Recommendations with evidence, ordered by the time at stake."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from . import classes
from .fusion import Coverage
from .measure import Measured, Operator
from .stragglers import Straggler, Stragglers
from .times import text

_WORTH_MENTIONING = 0.01  # of the window
_FINDS_DTYPES = (
    "llm_npu.dtypes names the line of each: python scripts/check_dtypes.py MODEL --host, or "
    "llm_npu.dtypes.watch(model) around a step (docs/dtypes.md)"
)
_MANY_SMALL = 0.05  # normal share of casts, transposes and copies


@dataclass(frozen=True)
class Advice:
    """A recommendation.

    Attributes:
        at_stake: the time that the evidence covers, in ns over all ranks; an upper bound of the gain.
        always: show it regardless of the time at stake.
    """

    title: str
    evidence: str
    fix: str
    at_stake: int
    always: bool = False


def advise(
    ranks: list[Measured], operators: list[Operator], coverage: list[Coverage], stragglers: Stragglers | None
) -> list[Advice]:
    """Ranked advice; ``operators`` and ``coverage`` are totals over all ranks."""
    candidates = [
        *_slow_engines(operators),
        *_wide_products(operators),
        *_unfused(coverage),
        *_communication(ranks, operators),
        *_idle(ranks),
        *_conversions(operators),
        *_steps(ranks),
        *_memory(ranks),
        *_stragglers(stragglers, ranks),
    ]
    enough = _WORTH_MENTIONING * sum(rank.window for rank in ranks)
    chosen = [advice for advice in candidates if advice.always or advice.at_stake > enough]
    return sorted(chosen, key=lambda advice: -advice.at_stake)


def _names(operators: list[Operator], count: int = 3) -> str:
    """The first operators with dtypes, most expensive call site, calls and time."""
    shown = []
    for operator in operators[:count]:
        dtypes = f" ({operator.dtypes})" if operator.dtypes else ""
        site = f" at {operator.site}" if operator.site else ""
        shown.append(f"{operator.name}{dtypes}{site}: {operator.calls} calls, {text(operator.time)}")
    rest = len(operators) - count
    return "; ".join(shown) + (f"; and {rest} more" if rest > 0 else "")


def _slow_engines(operators: list[Operator]):
    for work, title, fix in (
        (
            classes.AICPU,
            "AICPU runs operators that belong on the AI cores",
            "float64 and complex tensors, and int64 in some operators, run on the control processor. "
            f"{_FINDS_DTYPES}, with the responsible tensor; make it float32 or int32 where it is created.",
        ),
        (
            classes.HOST,
            "Host CPU runs operators without a kernel in the plugin",
            "Each of these operators copies its tensors to the host and back. "
            f"{_FINDS_DTYPES} if another dtype would help; otherwise use another operator.",
        ),
    ):
        slow = [operator for operator in operators if operator.work == work]
        if slow:
            yield Advice(title, _names(slow), fix, sum(operator.time for operator in slow), always=True)


def _wide_products(operators: list[Operator]):
    products = [operator for operator in operators if operator.work in (classes.MATMUL, classes.ATTENTION)]
    wide = [operator for operator in products if operator.dtypes.startswith(("float32", "float64"))]
    if wide:
        yield Advice(
            "Matmuls run in float32",
            _names(wide),
            "The cube units are fastest with bfloat16 and float16: train with --bf16 true, or run the "
            "forward pass under paddle.amp.auto_cast.",
            sum(operator.time for operator in wide),
        )


def _unfused(coverage: list[Coverage]):
    for kind in coverage:
        if kind.unfused_time:
            beside = f"; {kind.fused_calls} calls ran fused" if kind.fused_calls else ""
            yield Advice(
                f"{kind.name} is {kind.status}",
                f"{', '.join(kind.parts)}: {kind.unfused_calls} calls, {text(kind.unfused_time)}{beside}",
                f"Use {kind.fix}; the run prints why a layer was not fused.",
                kind.unfused_time,
            )


def _communication(ranks: list[Measured], operators: list[Operator]):
    exposed = sum(rank.exposed for rank in ranks)
    total = sum(rank.communication for rank in ranks)
    if exposed:
        collectives = [operator for operator in operators if operator.work == classes.COMMUNICATION]
        yield Advice(
            "Communication is exposed",
            f"{text(exposed)} of {text(total)} ({100 * exposed / total:.0f}%) is not hidden behind "
            f"computation: {_names(collectives)}",
            "In tensor- and sequence-parallel layers use --overlap auto (pipelined, or fused with the "
            "matmul); with data parallelism and sharding, send gradients during the backward pass; a degree "
            "within one machine keeps collectives on the fast links.",
            exposed,
        )


def _idle(ranks: list[Measured]):
    idle = sum(rank.idle for rank in ranks)
    if not idle:
        return
    known = [rank.launch_bound for rank in ranks if rank.launch_bound is not None]
    loading = sum(rank.data_loading for rank in ranks)
    evidence = f"{text(idle)}, {100 * idle / sum(rank.window for rank in ranks):.0f}% of the time"
    if known:
        evidence += f"; for {text(sum(known))} of it the next kernel had not been launched yet"
    fix = (
        "Python launches kernels more slowly than the device runs them: fuse operators, enlarge the batch, "
        "capture the step with to_static, and avoid reading tensors (.item(), .numpy(), a printed loss) in a "
        "step."
    )
    if loading > idle / 2:
        evidence += f"; {text(loading)} of data stall"
        fix = "Use more data loader workers, or pack the samples beforehand. " + fix
    yield Advice("The device is idle", evidence, fix, idle)


def _conversions(operators: list[Operator]):
    busy = sum(operator.time for operator in operators)
    words = (
        "cast",
        "transdata",
        "transpose",
        "tensormove",
        "viewcopy",
        "contiguous",
        "stridedcopy",
        "asstrided",
    )
    moving = [operator for operator in operators if operator.work in (classes.VECTOR, classes.COPY)]
    small = [operator for operator in moving if any(word in classes.key(operator.name) for word in words)]
    time = sum(operator.time for operator in small)
    if time > _MANY_SMALL * busy:
        yield Advice(
            "Conversions of dtype and layout take a large share of the time",
            f"{_names(small)}: {100 * time / busy:.0f}% of the tasks' time",
            "Keep one dtype throughout a layer (a float32 constant promotes everything after it), and avoid "
            "transposed views, which are copied before use.",
            time,
        )


def _steps(ranks: list[Measured]):
    for rank in ranks:
        times = [step.time for step in rank.steps]
        if len(times) < 3:
            continue
        usual = median(times)
        slow = [step for step in rank.steps if step.time > 1.5 * usual]
        if slow:
            first = slow[0] is rank.steps[0]
            yield Advice(
                f"Steps of rank {rank.rank} differ",
                f"{slow[0].name} took {text(slow[0].time)}, the median is {text(usual)}",
                "The first steps compile kernels and fill caches: profile later steps."
                if first
                else "See that step's row below; it may include evaluation, checkpoints or data loading.",
                int(sum(step.time - usual for step in slow)),
            )


def _memory(ranks: list[Measured]):
    for rank in ranks:
        _, allocated, reserved = rank.memory
        used, held = int(allocated.max(initial=0)), int(reserved.max(initial=0))
        if used and held > 1.5 * used:
            yield Advice(
                f"Rank {rank.rank} reserves more memory than it uses",
                f"the peak in use is {used / 2**20:.0f} MiB, {held / 2**20:.0f} MiB are reserved",
                "The allocator keeps freed blocks that do not fit later requests: use the same shapes in "
                "every step, or set FLAGS_allocator_strategy=auto_growth.",
                0,
                always=True,
            )


def _stragglers(stragglers: Stragglers | None, ranks: list[Measured]):
    slow = stragglers.slow if stragglers else ()
    names = {rank.rank: rank.machine for rank in ranks}
    alone = list(slow)
    for machine in dict.fromkeys(filter(None, names.values())):
        local = [rank for rank in slow if names[rank.rank] == machine]
        if len(local) > 1 and len(local) == list(names.values()).count(machine):
            alone = [rank for rank in alone if rank not in local]
            yield _slow_machine(machine, local)
    for straggler in alone:
        rank, reason = straggler.rank, straggler.reason
        if len(straggler.others) == len(ranks) - 1:
            who = "The other ranks wait"
        elif len(straggler.others) == 1:
            who = f"Rank {straggler.others[0]} waits"
        else:
            who = f"Ranks {', '.join(map(str, straggler.others))} wait"
        where = f" on {names[rank]}" if names[rank] else ""
        yield Advice(
            f"{who} for rank {rank}{where}",
            f"in {straggler.compared} collectives of their group the others waited {text(straggler.cost)} "
            f"longer than rank {rank}"
            + (f"; it spends more time than the others on: {reason}" if reason else ""),
            "Balance the work (layers per pipeline stage, experts, lengths of packed samples); with equal "
            "work look for another process on that device's host, or for a throttled card.",
            straggler.at_stake,
        )


def _slow_machine(machine: str, slow: list[Straggler]) -> Advice:
    """The advice for a machine whose ranks are all stragglers."""
    own = {straggler.rank for straggler in slow}
    others = sorted({other for straggler in slow for other in straggler.others} - own)
    cost = max(straggler.cost for straggler in slow)
    reasons = ", ".join(dict.fromkeys(straggler.reason for straggler in slow if straggler.reason))
    return Advice(
        f"Ranks {', '.join(map(str, others))} wait for the machine {machine}",
        f"all of its ranks are stragglers, by up to {text(cost)}"
        + (f"; they spend more time than the others on: {reasons}" if reasons else ""),
        "Look for another program on that machine, fewer cores or a lower host clock, and throttled "
        "cards; with pipeline stages, balance the layers.",
        cost * len(others),
    )
