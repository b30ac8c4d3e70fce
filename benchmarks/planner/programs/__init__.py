"""Training programs with published results, as variants of the planner's model of this trainer.

layout      the layout of a published run, with more kinds of parallelism than this trainer has
software    properties of a program that a layout does not determine, taken from its source
stage       the operations of a step that differ; feed_forward: mixtures of experts
program     the step of a program, and the efficiencies of its releases
"""
