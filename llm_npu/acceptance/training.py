"""The pieces that train: against recorded losses, resumed, and on several cards."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import reference, trained
from .journal import Journal, number
from .pieces import Job
from .rank import power_of_two


def train(job: Job, journal: Journal) -> None:
    with journal.check("20 steps"):
        _compare(job, journal, "20 steps", _whole_run(job))


def resume(job: Job, journal: Journal) -> None:
    name = "the last 10 of 20 steps again"
    with journal.check(name):
        whole = _whole_run(job)
        again = job.folder / "again"
        checkpoint = f"checkpoint-{trained.HALFWAY}"
        shutil.copytree(whole / checkpoint, again / checkpoint)
        trained.run(job, again, {"resume_from_checkpoint": again / checkpoint})
        before, after = (
            {record["step"]: record["loss"] for record in trained.steps(folder)} for folder in (whole, again)
        )
        late = range(trained.HALFWAY + 1, trained.STEPS + 1)
        apart = max(abs(before[step] - after[step]) for step in late)
        journal.judge(
            name,
            apart == 0,
            "the same losses, bit for bit" if apart == 0 else "the losses are not the same bit for bit",
            ", ".join(number(before[step]) for step in late),
            ", ".join(number(after[step]) for step in late) + f" (at most {number(apart)} apart)",
        )


def on_two_cards(job: Job, journal: Journal) -> None:
    _on_cards(job, journal, 2)


def on_all_cards(job: Job, journal: Journal) -> None:
    _on_cards(job, journal, power_of_two(job.cards))


def _on_cards(job: Job, journal: Journal, cards: int) -> None:
    """Tensor and sequence parallel in pairs, data parallel with sharded states across the pairs."""
    name, pairs = f"20 steps on {cards} cards", cards // 2
    how = {
        "tensor_parallel_degree": 2,
        "sequence_parallel": "true",
        "per_device_train_batch_size": trained.ROWS // pairs,
        **({"sharding": "stage1"} if pairs > 1 else {}),
    }
    with journal.check(name):
        output = job.folder / "out"
        trained.run(job, output, {**how, "save_strategy": "no"}, cards)
        _compare(job, journal, name, output)


def _whole_run(job: Job) -> Path:
    """The folder of the run of 20 steps, which the first piece that needs it starts."""
    output = job.shared / "training"
    if not (output / f"checkpoint-{trained.STEPS}").exists():
        shutil.rmtree(output, ignore_errors=True)
        trained.run(job, output, {})
    return output


def _compare(job: Job, journal: Journal, name: str, output: Path) -> None:
    known = reference.read()["training"]
    records = trained.steps(output)
    if trained.fingerprint(job.shared) != known["fingerprint"]:
        journal.differs(
            f"{name}: inputs", "text, weights or tokenizer are not the recorded ones: nothing was compared"
        )
        return
    for quantity in reference.QUANTITIES:
        recorded, others = known[quantity]["recorded"], known[quantity]["others"]
        found = [record[quantity] for record in records]
        bounds = reference.allowed(recorded, others)
        triples = list(zip(found, recorded, bounds, strict=True))
        # Not "apart > bound", which is false for a NaN.
        beyond = [step for step, (one, other, bound) in enumerate(triples) if not abs(one - other) <= bound]
        step = beyond[0] if beyond else max(range(len(triples)), key=lambda i: abs(found[i] - recorded[i]))
        one, other, bound = triples[step]
        where = "first beyond rounding at" if beyond else "within rounding; at"
        journal.judge(
            f"{name}: {quantity}",
            not beyond,
            f"{where} step {step + 1}: {number(abs(one - other))} apart, of {number(bound)} allowed",
            number(other),
            number(one),
        )
    speeds = sorted(record["tokens_per_s"] for record in records)
    journal.note(f"{name}: speed", f"{speeds[len(speeds) // 2]:,.0f} tokens/s in the median step")


def record(job: Job) -> dict:
    """The losses for ``reference``: the fused run, and runs that differ from it by rounding."""
    fused = {"save_strategy": "no"}
    unfused = {**fused, "disable_fused_options": "true"}
    runs = [(fused, 0), (unfused, 0), *((how, seed) for how in (fused, unfused) for seed in (1, 2, 3))]
    found = []
    for position, (how, seed) in enumerate(runs):
        output = job.folder / f"run-{position}"
        trained.run(job, output, how, disturbed=seed)
        found.append(trained.steps(output))
    values = {
        quantity: [[each[quantity] for each in records] for records in found]
        for quantity in reference.QUANTITIES
    }
    return {
        "fingerprint": trained.fingerprint(job.shared),
        **{name: {"recorded": each[0], "others": each[1:]} for name, each in values.items()},
    }
