"""Training programs with published figures, as variants of the planner's model of this trainer.

layout      the layout of a published run: more kinds of parallelism than this trainer has
software    what a program does that a layout does not determine, read in its source
stage       the operations of a step that differ, with feed_forward for mixtures of experts
program     the step of a program, and the efficiencies of its releases
"""
