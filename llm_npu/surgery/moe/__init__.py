"""MoE layers: PaddleNLP's feed-forward layers, PaddleFormers' blocks, and expert parallelism."""
