"""Many runs of scripts/run_llama_npu.py, one after the other, in one process."""


def forget_groups(same_method: bool = False) -> None:
    """Let the next run set up groups of its own: a process of PaddleNLP's makes them once.

    Plain data parallel has none, and stands before the others. If ``same_method``, the next run is plain data
    parallel, too, and needs the context of the first, which PaddleFormers makes only once.
    """
    from paddle.distributed import fleet, parallel_helper
    from paddle.distributed.fleet.base import topology
    from paddle.distributed.fleet.layers.mpu.random import get_rng_state_tracker

    if not same_method or topology._HYBRID_PARALLEL_GROUP is not None:
        parallel_helper.__dict__["__parallel_ctx__clz__"] = None
    topology._HYBRID_PARALLEL_GROUP = None
    fleet.fleet.__dict__.pop("_hcg", None)
    get_rng_state_tracker().reset()
