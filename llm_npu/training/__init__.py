"""Training: the run, the trainer and its callbacks.

run               a training run and `Feature`, the interface of its optional parts
trainer           PaddleNLP's Trainer with atomic checkpoints, bitwise resume and global losses
model             the model of a run, with its weights, and whether its loss has logits
dpo               stage dpo: the cached reference, the trainer and the feature
resume            the checkpoint to continue from, and the settings that may differ between the two runs
checkpoint        writes and reads checkpoints
metrics           the records of a run: metrics.jsonl, MFU and plots
step              the figures of a step over all ranks; its times
end_of_run        the last step, the time limit, and signals
nonfinite         NaN and infinity in loss or gradients
out_of_memory     advice for exhausted memory
dry_run           a run without arithmetic: its features, and the reader of its journal
upstream_trainer  the trainer of the installed library
"""
