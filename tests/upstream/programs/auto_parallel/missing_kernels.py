"""Auto-parallel programs need operators that Paddle registers for no custom device, or not in bfloat16.

Paddle inserts ``reduce_scatter``, ``share_data_``, ``add_n``, ``p_send`` and ``p_recv`` into programs.
It has kernels of other collectives for all custom devices (backend CUSTOM), so that plugins need none;
of these it has none, and the others are without bfloat16. The executor falls back to the CPU, where
there are no collectives of the device. (In the wheel for the CPU the CUSTOM kernels of all_reduce,
all_gather and all_to_all take an xccl communicator for one of gloo's and crash, unless a plugin
registers its own.)

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    paddle/phi/kernels/cpu/all_reduce_kernel.cc `PD_REGISTER_KERNEL(all_reduce, Custom, ...)`
    paddle/phi/kernels/cpu/reduce_scatter_kernel.cc `PD_REGISTER_KERNEL(reduce_scatter, CPU, ...)`
:prints:
    all_reduce has bfloat16: False
    all_gather has bfloat16: False
    reduce_scatter is there: False
    share_data is there: False
    p_send is there: False
:should print:
    all_reduce has bfloat16: True
    all_gather has bfloat16: True
    reduce_scatter is there: True
    share_data is there: True
    p_send is there: True
:change:
    Register these operators for CUSTOM over ``XCCLCommContext``, as ``c_allreduce_sum`` is, in all
    dtypes that the device type supports.
:workaround:
    llm_npu.patches.program_kernels.use_available_kernels,
    virtual_npu/csrc/phi_kernels/collectives/collectives.cc,
    virtual_npu/csrc/phi_kernels/collectives/c_allreduce.cc
"""

from paddle.base import core

kernels = core._get_registered_phi_kernels("function")


def of_custom_devices(name):
    return [key for key in kernels[name] if "CUSTOM" in key]


for name in ("all_reduce", "all_gather"):
    print(name, "has bfloat16:", any("bfloat16" in key for key in of_custom_devices(name)))
for name in ("reduce_scatter", "share_data", "p_send"):
    print(name, "is there:", bool(of_custom_devices(name)))
