"""A rank of test_ranks.py: what the processes tell each other, watched for dtypes that a card lacks."""

import virtual_npu

virtual_npu.activate()

import paddle.distributed as distributed  # noqa: E402
import ranks as launcher  # noqa: E402

from llm_npu.core import ranks  # noqa: E402
from llm_npu.dtypes import watch  # noqa: E402


def main() -> None:
    distributed.init_parallel_env()
    rank = ranks.number()
    group = distributed.new_group([0, 1])
    with watch(action="collect") as own:
        table = ranks.table([rank + 0.1, 2.0**-60]).tolist()
        gathered = ranks.Ranks.of_run().gather({"rank": rank, "text": "é" * 1000 * rank})
        first = ranks.Ranks.of_run().from_first([rank])
        in_group = ranks.gathered(None if rank else "a", group)
    with watch(action="collect") as upstream:
        distributed.all_gather_object([], rank)
    launcher.write(
        {
            "table": table,
            "told": gathered,
            "first": first,
            "in group": in_group,
            "own": str(own.report()),
            "upstream": str(upstream.report()),
        }
    )


if __name__ == "__main__":
    main()
