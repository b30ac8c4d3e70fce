"""The planner's answer as text: a few sentences, and tables."""

from __future__ import annotations

import shlex

from llm_npu.models import other_library
from llm_npu.models.families import FAMILIES
from llm_npu.models.paddleformers.vision_language import FAMILIES as VISION_LANGUAGE
from llm_npu.report.table import Table, share

from .answer import GIB, Answer, left_out, usable
from .interval import OTHER, around
from .layout import Layout
from .shape import ModelShape

COLUMNS = 8  # the most stages in a table
CARDS_OF_SERVER = 8
SOURCE = (
    "Times come from a cost model fitted to published runs of MindSpeed-LLM and MindFormers on Atlas 900 A2 "
    "(910B, 64 GB), memory from a model of the allocations; nothing was measured on a card. "
    "--card 910b means the 910B2. Details: docs/planning.md."
)


def write(answer: Answer) -> str:
    """The complete answer as text."""
    parts = [*sentences(answer), *(table.text() for table in tables(answer))]
    return "\n\n".join(filter(None, [*parts, command(answer), *notes(answer)])) + "\n"


def sentences(answer: Answer) -> list[str]:
    """The summary of the answer."""
    time, peak = answer.time, answer.memory.fullest
    low, high = around(time.step_time_s, answer.interval.width)
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
        low, high = answer.memory_range
        return [
            *speeds,
            f"Close to the limit: {size} The predicted range is {low / GIB:.1f} to {high / GIB:.1f} GiB "
            f"(±{100 * answer.memory_width:.0f}%), and the run may run out of memory.",
        ]
    if answer.fits:
        return [*speeds, f"It fits: {size}"]
    change = answer.change
    if not change:
        return [
            *speeds,
            f"It does not fit: {size} No layout fits on --cards {answer.layout.cards}; increase it.",
        ]
    words = ", ".join(_changed(name, value) for name, value in answer.to_change.items())
    limit = f"{usable(answer.card, change.layout) / GIB:.1f} GiB"
    near = f" This is close to the limit, {limit}: the run may run out of memory."
    return [
        *speeds,
        f"It does not fit: {size}",
        f"Cheapest change that fits: {words}: {change.memory.peak_memory_bytes / GIB:.1f} GiB, "
        f"{change.seconds:.2f} s per step.{near if answer.close_with(change) else ''}",
    ]


def assumed(answer: Answer) -> str:
    """The layout of the answer, including the values that the command line left open."""
    layout = answer.layout
    degrees = [
        f"{name} {degree}"
        for name, degree in (
            ("tensor", layout.tensor_parallel_degree),
            ("pipeline", layout.pipeline_parallel_degree),
            ("Ulysses", layout.sep_parallel_degree),
            ("ring", layout.context_parallel_degree),
            ("experts", layout.expert_parallel_degree),
            ("data parallel", layout.data_parallel_degree),
        )
        if degree > 1
    ]
    degrees += ["DualPipeV"] * layout.in_v
    text = (
        f"Layout: {', '.join(degrees) or 'one card'}; {layout.global_batch_size} "
        f"{'sample' if layout.global_batch_size == 1 else 'samples'} of "
        f"{layout.max_seq_length} tokens per step in {layout.micro_batches} micro "
        f"{'batch' if layout.micro_batches == 1 else 'batches'} of {layout.per_device_train_batch_size}."
    )
    if layout.pipeline_parallel_degree > layout.micro_batches:
        text += (
            " The stages of the pipeline idle most of the time with so few micro batches; a larger "
            "--global_batch_size fills them."
        )
    elif layout.micro_batches == 1:
        text += (
            " With one micro batch, gradient communication and the update cost most per sample; a larger "
            "--global_batch_size spreads them over more samples."
        )
    return text


def trust(answer: Answer) -> str:
    """How reliable the range of the time is."""
    interval = answer.interval
    if interval.unlike:
        text = (
            f"No published run has {', or '.join(interval.unlike)}: the range is the widest of all families "
            f"of published runs (±{100 * interval.width:.0f}%), and no measurement confirms it."
        )
    else:
        text = (
            f"90 % of {interval.runs} published runs ({interval.family}) were predicted within "
            f"±{100 * interval.width:.0f}%, each from the runs of other "
            f"{'programs' if interval.family == OTHER else 'models'}."
        )
    return f"{text} The published runs used MindSpeed-LLM and MindFormers, not this trainer."


def _changed(name: str, value: object) -> str:
    if value == "":
        return f"without --{name}"
    return f"--{name} {str(value).lower() if isinstance(value, bool) else value}"


def command(answer: Answer) -> str:
    """The command line of the layout that fits; "" if none fits, or if the model has no preset."""
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
    lines = [SOURCE]
    if answer.search:
        lines += [f"{sentence}." for sentence in left_out(answer.shape, layout).values()]
    if layout.overlap != "serial" and layout.tensor_parallel_degree == 1:
        lines.append(f"--overlap {layout.overlap} has no effect without --tensor_parallel_degree.")
    if layout.pipeline_schedule and layout.pipeline_parallel_degree == 1:
        schedule = f"--pipeline_schedule {layout.pipeline_schedule}"
        lines.append(f"{schedule} has no effect without --pipeline_parallel_degree.")
    if answer.shape.model_type in VISION_LANGUAGE:
        lines.append("Train it with llm-npu formers train FILE.yaml (docs/ocr.md).")
    elif answer.shape.planned_only:
        elsewhere = "" if answer.shape.model_type in FAMILIES else other_library.hint(answer.shape.model_type)
        lines.append(
            f"{answer.shape.name}: only the planner has its sizes built in; to train it, pass the script a "
            f"directory with its config.json.{elsewhere}"
        )
    if layout.cards % CARDS_OF_SERVER and layout.cards > CARDS_OF_SERVER:
        lines.append(
            f"{layout.cards} cards is not a multiple of {CARDS_OF_SERVER} (cards per server): the times "
            "assume full servers, and a group that spans a partial server is slower."
        )
    if layout.cards > CARDS_OF_SERVER:
        link = answer.card.between_servers
        lines.append(
            f"Between servers every card reaches {link.bandwidth * link.efficiency / 1e9:.0f} GB/s at any "
            "load: the times assume a network without oversubscription, with one rail per card."
        )
        lines.append(
            "Several machines: start the script on each with paddle.distributed.launch (docs/distributed.md)."
        )
    if max(layout.tensor_parallel_degree, layout.pipeline_parallel_degree) > 1:
        whole = 4 * answer.shape.parameters
        lines.append(
            f"Random weights: the first process of each machine builds the whole model, {whole / GIB:.1f} "
            "GiB; weights of a directory are read in parts."
        )
    if layout.offload_optimizer or layout.offload_activations:
        on_host = "; the update on the host is not included" if layout.offload_optimizer == "host" else ""
        lines.append(
            f"Offload: copies take the time of {answer.card.to_host.name}, without overlap{on_host}. "
            "Host memory is not checked."
        )
    if layout.sharding == "stage3":
        lines.append(
            "--sharding stage3: every process builds the whole model before sharding it, "
            f"{4 * answer.shape.parameters / GIB:.1f} GiB, which the peak does not include."
        )
    return lines


def tables(answer: Answer) -> list[Table]:
    """Tables of time, memory and other layouts."""
    all_tables = (_time(answer), _memory(answer), _moments(answer), _search(answer))
    return [table for table in all_tables if table.rows]


def _time(answer: Answer) -> Table:
    step = answer.time.step_time_s
    rows = [[name, f"{seconds:.3f}", share(seconds, step)] for name, seconds in answer.shares.items()]
    remark = f"Slowest stage. Communication hidden behind computation: {answer.time.hidden:.3f} s."
    return Table("Time per step", ["component", "s", "share"], rows, remark=remark)


def _memory(answer: Answer) -> Table:
    stages = answer.memory.stages
    if len(stages) > COLUMNS:  # --json prints all of them
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


def _search(answer: Answer) -> Table:
    if not answer.search:
        return Table("", [], [])
    best = list(answer.search.best)
    words = [candidate.layout.arguments(answer.shape) for candidate in best]
    pairs = [list(zip(flags[::2], flags[1::2], strict=True)) for flags in words]
    same = set.intersection(*map(set, pairs)) if len(best) > 1 else set()
    rows = [
        [
            " ".join(f"{name} {value}" for name, value in flags if (name, value) not in same) or "-",
            f"{candidate.seconds:.2f}",
            f"{candidate.memory.peak_memory_bytes / GIB:.1f}"
            f"{', close' if answer.close_with(candidate) else ''}",
        ]
        for candidate, flags in zip(best, pairs, strict=True)
    ]
    kept = [pair for pair in pairs[0] if pair in same]
    near = " Close: near the memory limit." if any(map(answer.close_with, best)) else ""
    remark = (
        f"{answer.search.fitting} of {answer.search.considered} layouts fit. Common to all rows: "
        f"{' '.join(f'{name} {value}' for name, value in kept) or '-'}.{near}"
    )
    return Table("Fastest layouts", ["arguments that differ", "s per step", "GiB"], rows, remark=remark)
