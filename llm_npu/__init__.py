"""Training of PaddleNLP language models on Ascend NPUs, real or virtual. Importing it imports no framework."""
