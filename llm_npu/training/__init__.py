"""Training: the run, the trainer and its callbacks.

run               a training run and the Feature by which everything optional attaches itself
trainer           PaddleNLP's Trainer with atomic checkpoints, bitwise resume and global losses
model             the model of a run, with its weights
resume            the checkpoint to continue from, and what may differ between the two runs
checkpoint        what a checkpoint holds and how it is written and read
metrics           the figures of every step, metrics.jsonl and plots
step              the figures of a step, exchanged by all ranks in one collective
step_clock        the duration of a step, and its waits for data and communication
evaluation        the loss over held-out samples
out_of_memory     advice for memory that is exhausted
nonfinite         NaN and infinity in loss or gradients
dry_run           a run without arithmetic: its features, and the reader of its journal
stop_on_signal    Ctrl-C and SIGTERM: the run ends after the step, with a checkpoint
"""
