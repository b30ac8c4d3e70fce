"""A group made after a program of dist.to_static can get the number of one of the program's rings.

Communicators are looked up by number, so a collective in that group goes to the ring's processes. Rings
count the static process groups, dygraph's groups count on their own, and both begin at 10.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/distributed/collective.py:149 `return _start_ring_id + max(_get_global_env().nrings, 9)`
    paddle/distributed/auto_parallel/static/process_group.py:75 `group_id = _new_ring_id() + num_groups`
:prints:
    a group has the ring's number: True
:should print:
    a group has the ring's number: False
:change: Take both numbers from one counter.
:workaround: llm_npu.patches.auto_parallel.fix_group_and_ring_numbers
"""

import paddle
from paddle.distributed import collective
from paddle.distributed.auto_parallel.static.process_group import new_process_group

paddle.enable_static()  # as while a program is built
ring = new_process_group([0, 1]).id
paddle.disable_static()
groups = [collective._new_ring_id() for _ in range(3)]
print("a group has the ring's number:", ring in groups)
