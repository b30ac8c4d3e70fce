"""Saving and loading for PaddleNLP's Trainer, with mesh-independent checkpoints.

    model.safetensors, config.json      the weights, in Hugging Face's format
    tokenizer.json, ...                 the tokenizer
    optimizer.safetensors               fp32 master weights and moments, named after the weights
    scheduler.json                      the learning rate schedule
    scaler.json                         the loss scale of fp16
    rng_state_<rank>.json               the random number generators of each rank
    trainer_state.json                  the step, which determines the data position
    run.json                            the run's settings and mesh (``llm_npu.training.resume``)
    complete.json                       the mark (``llm_npu.training.checkpoint.folder``)

On the same mesh a run resumes bit for bit; on another mesh it matches up to rounding, with new dropout masks.
Reading a checkpoint runs no code from it.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

import paddle

from llm_npu.core.atomic import replace, unfinished
from llm_npu.core.ranks import Ranks
from llm_npu.data.text import chat_template
from llm_npu.models import layout, lora, weights
from llm_npu.training import nonfinite
from llm_npu.training.checkpoint import states
from llm_npu.training.checkpoint.disks import Disks
from llm_npu.training.checkpoint.random_state import as_plain, from_plain, random_state, set_random_state
from llm_npu.training.checkpoint.saving import Checkpoints, Files, Saved, export
from llm_npu.training.checkpoint.tensors import load, of_optimizer, of_parameters
from llm_npu.training.upstream_trainer import TrainerCallback
from paddle_fused import strict_json

OPTIMIZER = "optimizer"
MERGED = "merged"  # the merged LoRA model in a run's output folder


class Checkpointing:
    """A mixin for a Trainer: saves and loads checkpoints as described above.

    The Trainer has ``settings``, the content of ``run.json``, a ``recorder`` for saved checkpoints, and
    ``skipped``, which counts skipped steps.

    Attributes:
        disks: The disks of the output folder; None if all ranks see one folder.
    """

    disks: Disks | None = None

    _random_state: dict | None = None  # from a checkpoint of the same mesh, until it is restored

    @cached_property
    def checkpoints(self) -> Checkpoints:
        arguments = self.args
        return Checkpoints(
            arguments.output_dir,
            Ranks.of_run(),
            arguments.save_total_limit,
            async_save=arguments.async_save,
            disks=self.disks,
        )

    def wait_for_checkpoints(self) -> None:
        """Wait until the checkpoint in progress is complete. Raises OSError if it fails."""
        self._record(self.checkpoints.finish())

    def _save_checkpoint(self, model, metrics=None):
        ranks = Ranks.of_run()
        consequence = f"checkpoint-{self.state.global_step} is not written"
        nonfinite.check_weights(nonfinite.weights_of(self.model), consequence, self.args.output_dir)
        with ranks.raise_on_all_ranks():
            held = {OPTIMIZER: of_optimizer(self.optimizer, *self._named())}
            if not lora.is_wrapped(self.model):
                held["model"] = of_parameters(*self._named())
            files = self._small_files()
            own = states.file_of(states.rng_name(ranks.rank))
            state = states.text(as_plain(random_state()))
        own_files = {own: lambda folder: (folder / own).write_text(state)}
        prune = not self.skipped.in_a_row  # older checkpoints are good
        self._record(self.checkpoints.save(self.state.global_step, held, files, own_files, prune))

    def _small_files(self) -> Files:
        """The files that rank 0 writes, with the values at the time of writing."""

        def tokenizer(folder: Path) -> None:
            chat_template.save(self.tokenizer, folder)

        def model(folder: Path) -> None:
            if lora.is_wrapped(self.model):
                lora.save(self.model, folder)
            else:
                weights.save_config(self.model, folder)

        files = {
            "config.json": model,
            states.RUN_FILE: lambda folder: states.write_run(self.settings, folder),
            "tokenizer.json": tokenizer,
            "trainer_state.json": self._write_state,
        }
        texts = {states.SCHEDULER: states.text(self.lr_scheduler.state_dict())}
        if self.do_grad_scaling:
            texts[states.SCALER] = states.text(self.scaler.state_dict())
        for name, text in texts.items():
            file = states.file_of(name)
            files[file] = lambda folder, file=file, text=text: (folder / file).write_text(text)
        return files

    def _write_state(self, folder: Path) -> None:
        """Replacement of the upstream ``save_to_json``, which writes NaN."""
        text = strict_json.dumps(dataclasses.asdict(self.state), indent=2, sort_keys=True)
        (folder / "trainer_state.json").write_text(text + "\n")

    def _load_from_checkpoint(self, resume_from_checkpoint=None):
        if resume_from_checkpoint is None:
            return
        if lora.is_wrapped(self.model):
            lora.load(self.model, resume_from_checkpoint)
        else:
            weights.load(self.model, resume_from_checkpoint)
        folder = Path(resume_from_checkpoint)
        # Read early, so that errors are raised before anything changes.
        if states.read_run(folder)["mesh"] == self.settings["mesh"]:
            name = states.rng_name(Ranks.of_run().rank)
            state = states.read(folder, name)
            self._random_state = from_plain(state, str(folder / states.file_of(name)))

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is None or self.args.ignore_load_lr_and_optim:
            return
        folder = Path(checkpoint)
        load(folder, OPTIMIZER, of_optimizer(self.optimizer, *self._named()))
        self.lr_scheduler.set_state_dict(self._state(folder, states.SCHEDULER, self.lr_scheduler))
        # The state also contains the next learning rate of the previous run; the schedule may have changed.
        self.lr_scheduler.last_lr = self.lr_scheduler.get_lr()
        if self.do_grad_scaling:
            self.scaler.load_state_dict(self._state(folder, states.SCALER, self.scaler))

    def _state(self, folder: Path, name: str, holder):
        stored = states.read(folder, name)
        return states.like(stored, holder.state_dict(), f"{folder}, {name}")

    def _load_rng_state(self, checkpoint):
        if checkpoint is not None and self._random_state is not None:
            set_random_state(self._random_state)

    def _named(self) -> tuple[dict, object]:
        """The trained parameters by name, and the configuration for those names."""
        if lora.is_wrapped(self.model):
            return self.model.get_trainable_state_dict(), None
        return layout.parameters(self.model), self.model.config

    def _record(self, saved: list[Saved]) -> None:
        for checkpoint in saved:
            self.recorder.saved(checkpoint)


class AsyncSave(TrainerCallback):
    """Advances the checkpoint in progress after every step."""

    def __init__(self, trainer: Checkpointing):
        self._trainer = trainer

    def on_step_end(self, args, state, control, **kwargs):
        self._trainer._record(self._trainer.checkpoints.poll())


def export_model(model, folder: str | Path, tokenizer=None) -> None:
    """Write weights, configuration and tokenizer of a model that may be sharded over ranks.

    Uses the Hugging Face layout, as in checkpoints; ``folder`` appears atomically. Collective.
    """
    files: Files = {"config.json": lambda folder: weights.save_config(model, folder)}
    if tokenizer is not None:
        files["tokenizer.json"] = lambda folder: chat_template.save(tokenizer, folder)
    export(Path(folder), of_parameters(layout.parameters(model), model.config), files, Ranks.of_run())


def export_merged(model, tokenizer, folder: Path) -> None:
    """Write the merged LoRA model and its tokenizer in the Hugging Face layout, atomically."""
    with unfinished(folder) as new:
        with paddle.no_grad(), lora.merged(model):
            weights.save(lora.unwrapped(model), new)
        chat_template.save(tokenizer, new)
        replace(new, folder)
