"""``trainer_memory_program.py train FILE``: trains in this process and prints each step's peak of memory."""

from paddle.base import core
from paddleformers.cli.launcher import launch
from paddleformers.trainer import trainer


class Peaks(trainer.TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        core.device_memory_stat_reset_peak_value("Allocated", 0)

    def on_step_end(self, args, state, control, **kwargs):
        print("peak:", core.device_memory_stat_peak_value("Allocated", 0), flush=True)


if __name__ == "__main__":
    trainer.DEFAULT_CALLBACKS.append(Peaks)
    launch()
