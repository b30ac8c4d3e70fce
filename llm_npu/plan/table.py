"""The planner's answer as text: a few sentences, and tables."""

from __future__ import annotations

import shlex

from llm_npu.profiling.report.pages.table import Table, share

from .answer import GIB, Answer
from .layout import Layout
from .shape import ModelShape

CARDS_OF_SERVER = 8  # --nproc starts the processes of one machine
SOURCE = (
    "The time is that of a model fitted to published runs of MindSpeed-LLM on Atlas 900 A2 (910B, 64 GB), "
    "the memory that of this trainer; nothing was measured on a card. docs/planning.md says how."
)


def write(answer: Answer) -> str:
    """The whole answer."""
    parts = [*sentences(answer), *(each.text() for each in tables(answer))]
    return "\n\n".join(filter(None, [*parts, command(answer), *notes(answer)])) + "\n"


def sentences(answer: Answer) -> list[str]:
    """What the answer comes to."""
    time, peak = answer.time, answer.memory.fullest
    speed = (
        f"{answer.shape.name} on {answer.layout.cards} x {answer.card.name}: "
        f"{time.tokens_per_second_per_card:.0f} tokens/s a card, {time.step_time_s:.2f} s a step, MFU "
        f"{100 * time.mfu:.1f}%, within {100 * time.error:.0f}% by what the model misses of published runs."
    )
    size = (
        f"{peak.fullest.bytes / GIB:.1f} GiB a card at most, on stage {peak.stage} ({peak.fullest.phase}), "
        f"of {answer.limit / GIB:.1f} GiB that a program has."
    )
    if answer.fits:
        return [speed, f"It fits: {size}"]
    found = answer.change
    if not found:
        return [
            speed,
            f"It does not fit: {size} No layout of {_cards(answer.layout.cards)} does; give more --cards.",
        ]
    words = ", ".join(_changed(name, value) for name, value in answer.to_change.items())
    return [
        speed,
        f"It does not fit: {size}",
        f"Cheapest change that makes it fit: {words}: {found.memory.peak_memory_bytes / GIB:.1f} GiB, "
        f"{found.seconds:.2f} s a step.",
    ]


def _changed(name: str, value: object) -> str:
    if value == "":
        return f"without --{name}"
    return f"--{name} {str(value).lower() if isinstance(value, bool) else value}"


def _cards(number: int) -> str:
    return "1 card" if number == 1 else f"{number} cards"


def command(answer: Answer) -> str:
    """How the run is started: of the layout that fits, if one does; "" if none does."""
    if not answer.fits and not answer.change:
        return ""
    layout = answer.change.layout if answer.change else answer.layout
    words = arguments(answer.shape, layout)
    return "python scripts/run_llama_npu.py " + " ".join(map(shlex.quote, words))


def arguments(shape: ModelShape, layout: Layout) -> list[str]:
    """Those of the script, with ``--nproc`` where one machine is enough."""
    own = ["--nproc", str(layout.cards)] if 1 < layout.cards <= CARDS_OF_SERVER else []
    return [*own, *layout.arguments(shape)]


def notes(answer: Answer) -> list[str]:
    """What the reader must know beside the figures."""
    layout = answer.layout
    found = [SOURCE]
    if layout.cards > CARDS_OF_SERVER:
        found.append(
            "Several machines: start the script on each with paddle.distributed.launch (docs/distributed.md)."
        )
    if max(layout.tensor_parallel_degree, layout.pipeline_parallel_degree) > 1:
        whole = 4 * answer.shape.parameters
        found.append(
            f"Random weights: the first process of each machine makes the whole model, {whole / GIB:.1f} "
            "GiB; a directory with weights is read in parts."
        )
    if layout.mask in ("full", "band"):
        found.append(f"--mask {layout.mask}: the script has no argument for it; its attention is causal.")
    if layout.sharding == "stage3":
        found.append(
            "--sharding stage3: every process makes the whole model before it is shared, "
            f"{4 * answer.shape.parameters / GIB:.1f} GiB, which the memory leaves out."
        )
    return found


def tables(answer: Answer) -> list[Table]:
    """Time, memory, what would be gained, other layouts and numbers of cards."""
    return [
        table
        for table in (
            _time(answer),
            _memory(answer),
            _moments(answer),
            _gains(answer),
            _search(answer),
            _scaling(answer),
        )
        if table.rows
    ]


def _time(answer: Answer) -> Table:
    step = answer.time.step_time_s
    rows = [[name, f"{seconds:.3f}", share(seconds, step)] for name, seconds in answer.shares.items()]
    remark = (
        f"Of the stage that takes longest. Communication behind computing: {answer.time.hidden:.3f} s. On "
        f"AICPU or the host: {100 * answer.aicpu_share:.1f}%."
    )
    return Table("Seconds of a step", ["spent on", "s", "share"], rows, remark=remark)


def _memory(answer: Answer) -> Table:
    stages = answer.memory.stages
    names = dict.fromkeys(name for stage in stages for name in stage.fullest.parts)
    rows = [[name, *(f"{stage.fullest.parts.get(name, 0) / GIB:.2f}" for stage in stages)] for name in names]
    rows.append(["together", *(f"{stage.fullest.bytes / GIB:.2f}" for stage in stages)])
    return Table("GiB of a card at its peak", ["part", *(f"stage {stage.stage}" for stage in stages)], rows)


def _moments(answer: Answer) -> Table:
    stage = answer.memory.fullest
    rows = [[moment.phase, f"{moment.bytes / GIB:.2f}"] for moment in stage.moments]
    return Table(f"GiB in the course of a step, stage {stage.stage}", ["phase", "at most"], rows)


def _gains(answer: Answer) -> Table:
    now = answer.time.step_time_s
    rows = []
    for gain in answer.gains:
        words = ("without " if gain.used else "with ") + gain.what
        difference = (gain.bytes - answer.memory.peak_memory_bytes) / GIB
        rows.append(
            [words, f"{gain.seconds:.2f}", f"{100 * (gain.seconds / now - 1):+.1f}%", f"{difference:+.2f}"]
        )
    return Table("What else would change", ["run", "s a step", "time", "GiB"], rows)


def _search(answer: Answer) -> Table:
    if not answer.search:
        return Table("", [], [])
    best = answer.search.best
    words = [found.layout.arguments(answer.shape) for found in best]
    pairs = [list(zip(given[::2], given[1::2], strict=True)) for given in words]
    same = set.intersection(*map(set, pairs)) if len(best) > 1 else set()
    rows = [
        [
            " ".join(f"{name} {value}" for name, value in given if (name, value) not in same) or "-",
            f"{found.seconds:.2f}",
            f"{found.memory.peak_memory_bytes / GIB:.1f}",
        ]
        for found, given in zip(best, pairs, strict=True)
    ]
    remark = f"{answer.search.fitting} of {answer.search.considered} layouts fit."
    return Table(
        "The fastest layouts", ["arguments, where they differ", "s a step", "GiB"], rows, remark=remark
    )


def _scaling(answer: Answer) -> Table:
    grown = [scale for scale in answer.scaling if scale.grows]
    kept = [scale for scale in answer.scaling if not scale.grows]
    rows = [
        [str(more.cards), *(cell for scale in (more, same) for cell in (_speed(scale.speed), scale.limit))]
        for more, same in zip(grown, kept, strict=True)
    ]
    columns = ["cards", "batch grows: tokens/s a card", "limit", "batch as now: tokens/s a card", "limit"]
    remark = "The same replica. The limit: what most of the lost time goes to, or why it cannot run."
    return Table("Other numbers of cards", columns, rows, words=0, remark=remark)


def _speed(speed: float) -> str:
    return f"{speed:.0f}" if speed else "-"
