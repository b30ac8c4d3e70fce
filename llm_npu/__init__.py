"""Training of PaddleNLP language models on NPUs, real or virtual. Importing it imports no framework."""
