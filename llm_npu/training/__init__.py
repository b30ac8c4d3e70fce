"""The trainer and what it is made of: steps, evaluation, resuming, metrics, checkpoints."""
