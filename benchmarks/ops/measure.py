"""One case on all contenders: prepare, verify, time alternately."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import timing
from benchmarks.contenders import TORCH
from benchmarks.machine import available_memory
from benchmarks.work import ITEM_SIZE, OPERATORS

from . import limits, verify
from .cases import Case

MEMORY_SHARE = 0.7  # share of the available memory, for all processes together
GEMM = {"float32": ("paddle", "fused npu", "torch eager"), "bfloat16": ("fused npu", "torch eager")}
SMALL_GEMM = 256
GEMM_ROUNDS = 5  # minimum
TIMEOUT = 15.0  # time limit, in seconds, of a contender's first run; slower contenders are not timed
CONTEST = 4  # contenders this many times slower than the best on a small matmul skip the large one


class Limits:
    """The machine's limits: bytes per second for sets of several sizes, operations per second."""

    def __init__(self, bandwidth: dict[str, dict[int, float]], flops: dict[str, float]):
        self.bandwidth, self.flops = bandwidth, flops

    def floor(self, case: Case) -> float:
        """The lower bound of a case, in seconds."""
        cost = case.cost
        ways = ("update",) if cost.in_place else ("copy", "copy_nontemporal")
        rate = max(limits.rate(self.bandwidth[way], cost.bytes) for way in ways)
        return max(cost.bytes / rate, cost.flops / self.flops[case.dtype])


def gemm_rates(processes: dict, size: int, rounds: int, dtypes=tuple(GEMM)) -> dict[str, float]:
    """Operations per second of the fastest contender's matmul, by dtype."""
    return fastest(gemm_contest(processes, size, rounds, dtypes))


def gemm_contest(processes: dict, size: int, rounds: int, dtypes=tuple(GEMM)) -> dict[str, dict[str, float]]:
    """{dtype: {contender: operations per second of a matmul}}; slow contenders only run a small matmul."""
    rates = {}
    for dtype in dtypes:
        contenders, rates[dtype] = {name: processes[name] for name in GEMM[dtype]}, {}
        for n in (SMALL_GEMM, size):
            case = Case(OPERATORS["linear"](n, n, n), dtype, False)
            seconds_of = times(case, contenders, max(rounds, GEMM_ROUNDS))["seconds"]
            medians = {name: timing.summary(seconds).median for name, seconds in seconds_of.items()}
            rates[dtype] |= {name: case.cost.flops / median for name, median in medians.items()}
            contenders = {
                name: contenders[name] for name in medians if medians[name] <= CONTEST * min(medians.values())
            }
    return rates


def fastest(rates: dict[str, dict[str, float]]) -> dict[str, float]:
    """{dtype: the best rate of all contenders}."""
    return {dtype: max(of.values()) for dtype, of in rates.items()}


def too_slow(case: Case, rates: dict[str, dict[str, float]]) -> dict[str, str]:
    """{contender: reason} of torch contenders whose matmuls alone would exceed the time limit."""
    rate = rates[case.dtype].get("torch eager")
    if rate is None or case.cost.flops / rate <= TIMEOUT:
        return {}
    reason = f"{case.dtype} products at {rate / 1e9:.1f} GF/s: {case.cost.flops / rate:.0f} s"
    return dict.fromkeys(TORCH, reason)


def times(case: Case, processes: dict, rounds: int) -> dict:
    """{"seconds": {contender: [...]}, "skipped": {contender: reason}}.

    All contenders hold the case's tensors at the same time and alternate. If there is not enough memory, they
    are split into groups that run one after the other. Raises Wrong and Failed.
    """
    result = {"seconds": {}, "skipped": {}}
    golden = verify.Golden(case)
    for batch in _batches(case, processes, result["skipped"]):
        first_call = {}
        try:
            for name in batch:
                reason = prepare(case, name, processes[name], golden)
                if reason is None:
                    first_call[name] = processes[name].ask("time", calls=1)["ok"]
                else:
                    result["skipped"][name] = reason
            _time(batch, processes, first_call, rounds, result)
        except KeyboardInterrupt:
            raise  # the contender's pending answer would be mistaken for the answer to another request
        except BaseException:
            _release(batch, processes)
            raise
        _release(batch, processes)
    return result


def _release(batch: list[str], processes: dict) -> None:
    for name in batch:
        processes[name].ask("release")


def _batches(case: Case, processes: dict, skipped: dict) -> list[list[str]]:
    allowed = MEMORY_SHARE * available_memory()
    batches, used = [[]], 0
    for name, process in processes.items():
        needed = case.work.memory(process.contender.kind, ITEM_SIZE[case.dtype], case.backward)
        if needed > allowed:
            skipped[name] = f"needs about {needed / 1e9:.0f} GB"
            continue
        if used + needed > allowed:
            batches, used = [*batches, []], 0
        batches[-1].append(name)
        used += needed
    return batches


def prepare(case: Case, name: str, process, golden: verify.Golden) -> str | None:
    """Create the tensors and verify one run; return why the contender does not support the case, or None."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples.npz"
        for request in ({"do": "prepare", **case.request}, {"do": "verify", "file": str(file)}):
            answer = process.ask(**request, timeout=TIMEOUT)
            if "unavailable" in answer:
                return answer["unavailable"]
        golden.check(name, file)
    return None


def peak_memory(case: Case, small: Case, processes: dict) -> dict[str, int]:
    """{contender: bytes that one run needs in addition to its inputs and results}.

    The processes are fresh; ``small`` runs first, to exclude everything that is loaded or created once.
    """
    peaks, golden = {}, verify.Golden(small)
    for name, process in processes.items():
        if prepare(small, name, process, golden) is None:
            process.ask("prepare", **case.request)
            peaks[name] = process.ask("memory")["ok"]
            process.ask("release")
    return peaks


def _time(batch, processes, first_call, rounds, result):
    for name, seconds in first_call.items():
        if seconds > timing.SECONDS_EACH:  # one round is enough
            result["seconds"][name] = [seconds]
    calls = {name: timing.calls_of_a_turn(seconds) for name, seconds in first_call.items()}
    counts = {
        name: timing.rounds_within(seconds * calls[name], rounds)
        for name, seconds in first_call.items()
        if name not in result["seconds"]
    }
    if counts:
        result["seconds"] |= timing.interleaved(
            lambda name: processes[name].ask("time", calls=calls[name])["ok"], counts, counts, warm_up=0
        )
