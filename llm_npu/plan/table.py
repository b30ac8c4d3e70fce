"""The planner's answer as text: a few sentences, and tables."""

from __future__ import annotations

import shlex

from llm_npu.models import other_library
from llm_npu.models.families import FAMILIES
from llm_npu.report.table import Table, share

from .answer import GIB, Answer, left_out, usable
from .interval import OTHER
from .layout import Layout
from .shape import ModelShape

COLUMNS = 8  # of stages, in a table
CARDS_OF_SERVER = 8  # --nproc starts the processes of one machine
SOURCE = (
    "Times are from a cost model fitted to published runs of MindSpeed-LLM and MindFormers on Atlas 900 A2 "
    "(910B, 64 GB), memory from a model of the program; nothing was measured on a card. "
    "--card 910b stands for the 910B2. Details: docs/planning.md."
)


def write(answer: Answer) -> str:
    """The whole answer."""
    parts = [*sentences(answer), *(each.text() for each in tables(answer))]
    return "\n\n".join(filter(None, [*parts, command(answer), *notes(answer)])) + "\n"


def sentences(answer: Answer) -> list[str]:
    """The answer as a few sentences."""
    time, peak = answer.time, answer.memory.fullest
    low, high = answer.interval.around(time.step_time_s)
    speed = (
        f"{answer.shape.name} on {answer.layout.cards} x {answer.card.name}: "
        f"{time.tokens_per_second_per_card:.0f} tokens/s per card, {time.step_time_s:.2f} s per step "
        f"({low:.2f} to {high:.2f} s), MFU {100 * time.mfu:.1f}%."
    )
    size = (
        f"peak memory {peak.fullest.bytes / GIB:.1f} GiB per card, on stage {peak.stage} "
        f"({peak.fullest.phase}); {answer.limit / GIB:.1f} GiB are available."
    )
    speeds = [assumed(answer), speed, trust(answer)]
    if answer.close:
        least, most = (each / GIB for each in answer.memory_range)
        return [
            *speeds,
            f"Close to the limit: {size} The prediction stands for {least:.1f} to {most:.1f} GiB "
            f"(±{100 * answer.memory_width:.0f}%), so that the run may run out of memory.",
        ]
    if answer.fits:
        return [*speeds, f"It fits: {size}"]
    found = answer.change
    if not found:
        return [
            *speeds,
            f"It does not fit: {size} No layout of {_cards(answer.layout.cards)} fits; give more --cards.",
        ]
    words = ", ".join(_changed(name, value) for name, value in answer.to_change.items())
    limit = f"{usable(answer.card, found.layout) / GIB:.1f} GiB"
    near = f" This is close to the limit, {limit}: the run may run out of memory."
    return [
        *speeds,
        f"It does not fit: {size}",
        f"Cheapest change that fits: {words}: {found.memory.peak_memory_bytes / GIB:.1f} GiB, "
        f"{found.seconds:.2f} s per step.{near if answer.close_with(found) else ''}",
    ]


def assumed(answer: Answer) -> str:
    """The layout of the answer, with what the command line left open."""
    layout = answer.layout
    degrees = [
        f"{name} {degree}"
        for name, degree in (
            ("tensor", layout.tensor_parallel_degree),
            ("pipeline", layout.pipeline_parallel_degree),
            ("data parallel", layout.data_parallel_degree),
        )
        if degree > 1
    ]
    found = (
        f"Layout: {', '.join(degrees) or 'one card'}; {layout.global_batch_size} "
        f"{'sample' if layout.global_batch_size == 1 else 'samples'} of "
        f"{layout.max_seq_length} tokens per step in {layout.micro_batches} micro "
        f"{'batch' if layout.micro_batches == 1 else 'batches'} of {layout.per_device_train_batch_size}."
    )
    if layout.pipeline_parallel_degree > layout.micro_batches:
        found += (
            " The stages of the pipeline idle most of the time with so few micro batches; a larger "
            "--global_batch_size fills them."
        )
    elif layout.micro_batches == 1:
        found += (
            " With one micro batch, the exchange of gradients and the update weigh most; a larger "
            "--global_batch_size spreads them over more samples."
        )
    return found


def trust(answer: Answer) -> str:
    """What the range of the time means."""
    found = answer.interval
    if found.unlike:
        text = (
            f"No published run has {', or '.join(found.unlike)}: the range is the widest of all families of "
            f"published runs (±{100 * found.width:.0f}%), and nothing confirms it here."
        )
    else:
        text = (
            f"Nine of ten of {found.runs} published runs ({found.family}) were predicted within such a range "
            f"(±{100 * found.width:.0f}%), each from those of other "
            f"{'programs' if found.family == OTHER else 'models'}."
        )
    return f"{text} The published runs are of MindSpeed-LLM and MindFormers, none of this trainer."


def _changed(name: str, value: object) -> str:
    if value == "":
        return f"without --{name}"
    return f"--{name} {str(value).lower() if isinstance(value, bool) else value}"


def _cards(number: int) -> str:
    return "1 card" if number == 1 else f"{number} cards"


def command(answer: Answer) -> str:
    """The command of the run, for the layout that fits; "" if none does, or without a preset of the model."""
    layout = answer.change.layout if answer.change else answer.layout
    if answer.shape.planned_only or not (answer.fits or answer.change):
        return ""
    words = arguments(answer.shape, layout)
    return "python scripts/run_llama_npu.py " + " ".join(map(shlex.quote, words))


def arguments(shape: ModelShape, layout: Layout) -> list[str]:
    """The script's arguments, with ``--nproc`` if one machine is enough."""
    own = ["--nproc", str(layout.cards)] if 1 < layout.cards <= CARDS_OF_SERVER else []
    return [*own, *layout.arguments(shape)]


def notes(answer: Answer) -> list[str]:
    """Caveats of the figures."""
    layout = answer.layout
    found = [SOURCE]
    if answer.search:
        found += [f"{sentence}." for sentence in left_out(answer.shape, layout)]
    if layout.overlap != "serial" and layout.tensor_parallel_degree == 1:
        found.append(f"--overlap {layout.overlap} changes nothing without --tensor_parallel_degree.")
    if answer.shape.planned_only:
        elsewhere = "" if answer.shape.model_type in FAMILIES else other_library.hint(answer.shape.model_type)
        found.append(
            f"{answer.shape.name}: the planner knows its sizes; the script trains it from a directory with "
            f"its config.json.{elsewhere}"
        )
    if layout.cards % CARDS_OF_SERVER and layout.cards > CARDS_OF_SERVER:
        found.append(
            f"{layout.cards} cards fill no whole number of servers of {CARDS_OF_SERVER}: the times assume "
            "full servers, and a group that is cut apart is slower."
        )
    if layout.cards > CARDS_OF_SERVER:
        found.append(network(answer))
        found.append(
            "Several machines: run the script on each with paddle.distributed.launch (docs/distributed.md)."
        )
    if max(layout.tensor_parallel_degree, layout.pipeline_parallel_degree) > 1:
        whole = 4 * answer.shape.parameters
        found.append(
            f"Random weights: the first process of each machine builds the whole model, {whole / GIB:.1f} "
            "GiB; weights of a directory are read in parts."
        )
    if layout.sharding == "stage3":
        found.append(
            "--sharding stage3: every process builds the whole model before sharding it, "
            f"{4 * answer.shape.parameters / GIB:.1f} GiB, which the peak does not include."
        )
    return found


def network(answer: Answer) -> str:
    """What the times assume of the network between servers."""
    link = answer.card.between_servers
    port = f"{link.bandwidth * link.efficiency / 1e9:.0f} GB/s"
    if link.oversubscription == 1:
        return (
            f"Between servers every card reaches {port} at all times, whatever the others send: a network "
            "without oversubscription, in which every card has its own rail. --oversubscription R tells how "
            "much less the uplinks carry."
        )
    return (
        f"Between servers a card reaches {port} within a pod of {link.pod} cards, and beyond "
        f"1/{link.oversubscription:g} of it, as if all cards of the pod sent at once."
    )


def tables(answer: Answer) -> list[Table]:
    """Time, memory, alternatives, other layouts and scaling."""
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
        f"Of the slowest stage. Communication hidden behind computation: {answer.time.hidden:.3f} s. On "
        f"AICPU or the host: {100 * answer.aicpu_share:.1f}%."
    )
    return Table("Time per step", ["component", "s", "share"], rows, remark=remark)


def _memory(answer: Answer) -> Table:
    stages = answer.memory.stages
    if len(stages) > COLUMNS:  # JSON has all
        ends = {0, 1, answer.memory.fullest.stage, stages[-1].stage}
        stages = [stage for stage in stages if stage.stage in ends]
    names = dict.fromkeys(name for stage in stages for name in stage.fullest.parts)
    rows = [[name, *(f"{stage.fullest.parts.get(name, 0) / GIB:.2f}" for stage in stages)] for name in names]
    rows.append(["total", *(f"{stage.fullest.bytes / GIB:.2f}" for stage in stages)])
    return Table(
        "Peak memory per card, GiB", ["component", *(f"stage {stage.stage}" for stage in stages)], rows
    )


def _moments(answer: Answer) -> Table:
    stage = answer.memory.fullest
    rows = [[moment.phase, f"{moment.bytes / GIB:.2f}"] for moment in stage.moments]
    return Table(f"Memory during a step, GiB, stage {stage.stage}", ["phase", "peak"], rows)


def _gains(answer: Answer) -> Table:
    now = answer.time.step_time_s
    rows = []
    for gain in answer.gains:
        words = ("without " if gain.used else "with ") + gain.what
        difference = (gain.bytes - answer.memory.peak_memory_bytes) / GIB
        rows.append(
            [words, f"{gain.seconds:.2f}", f"{100 * (gain.seconds / now - 1):+.1f}%", f"{difference:+.2f}"]
        )
    return Table("Alternatives", ["change", "s per step", "time", "GiB"], rows)


def _search(answer: Answer) -> Table:
    if not answer.search:
        return Table("", [], [])
    best = list(answer.search.best)
    words = [found.layout.arguments(answer.shape) for found in best]
    pairs = [list(zip(given[::2], given[1::2], strict=True)) for given in words]
    same = set.intersection(*map(set, pairs)) if len(best) > 1 else set()
    rows = [
        [
            " ".join(f"{name} {value}" for name, value in given if (name, value) not in same) or "-",
            f"{found.seconds:.2f}",
            f"{found.memory.peak_memory_bytes / GIB:.1f}{', close' if answer.close_with(found) else ''}",
        ]
        for found, given in zip(best, pairs, strict=True)
    ]
    kept = [pair for pair in pairs[0] if pair in same]
    near = " Close: to the limit of memory." if any(answer.close_with(found) for found in best) else ""
    remark = (
        f"{answer.search.fitting} of {answer.search.considered} layouts fit. In all of these: "
        f"{' '.join(f'{name} {value}' for name, value in kept) or '-'}.{near}"
    )
    return Table("Fastest layouts", ["arguments that differ", "s per step", "GiB"], rows, remark=remark)


def _scaling(answer: Answer) -> Table:
    grown = [scale for scale in answer.scaling if scale.grows]
    kept = [scale for scale in answer.scaling if not scale.grows]
    rows = [
        [str(more.cards), *(cell for scale in (more, same) for cell in (_speed(scale.speed), scale.limit))]
        for more, same in zip(grown, kept, strict=True)
    ]
    columns = [
        "cards",
        "tokens/s per card, growing batch",
        "limit",
        "tokens/s per card, fixed batch",
        "limit",
    ]
    remark = f"Of {answer.scaled}. Limit: where most of the lost time goes, or why it cannot run."
    return Table("Scaling", columns, rows, words=0, remark=remark)


def _speed(speed: float) -> str:
    return f"{speed:.0f}" if speed else "-"
