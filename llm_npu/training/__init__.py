"""Training: the run, the trainer and its callbacks.

run               a training run and `Feature`, the interface of its optional parts
trainer           PaddleNLP's Trainer with atomic checkpoints, bitwise resume and losses over all ranks
model             builds the model of a run and chooses its loss
dpo               stage dpo: the cached reference, the trainer and the feature
resume            the checkpoint to resume from, and the settings that may change
checkpoint        writes and reads checkpoints
metrics           metrics.jsonl, MFU and plots
step              loss, tokens, memory and times of a step over all ranks
end_of_run        the last step, the time limit, and signals
nonfinite         NaN and infinity in loss or gradients
out_of_memory     advice on out-of-memory errors
dry_run           a run without arithmetic, and the reader of its journal
upstream_trainer  the trainer of the installed library
"""
