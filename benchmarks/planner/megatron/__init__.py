"""The memory of a rank of Megatron with MindSpeed, by release.

memory        the states, buffers and peaks of a rank
release       what releases differ in, and switches that a layout does not have
saved_layer   what a layer saves for its backward pass
schedule      the order of passes in a pipeline stage, and what its micro batches hold
shards        the pieces of weights that a rank of the distributed optimizer updates
"""
