// Through which interface of CANN paddle-custom-npu runs a kernel: aclnn (functions of libopapi.so) or aclop (types of
// aclopCompileAndExecute). The table, data/cann_calls.json, lists for each kernel the interfaces that it runs through, "also
// aclnn" if it calls functions besides, and the type of an aclop that it runs with every CANN. It is from the plugin's
// sources (PaddleCustomDevice, backends/npu of 2025-02-21) by a call graph of names. A kernel that checks for its
// functions (DO_COMPATIBILITY) has both interfaces; VIRTUAL_NPU_LIBOPAPI=gone makes it run aclop, and ends the run at a
// kernel with aclnn only, whose function pointer is null on a card.
#pragma once
#include <string>

namespace virtual_npu {

// "aclnn", "aclop", or "" for kernels that call neither, such as copies, views and collectives.
const char* path_of(const std::string& kernel);

// The aclop type that paddle-custom-npu runs for a kernel with every CANN; null if it runs none. The string is never freed.
const char* aclop_of(const std::string& kernel);

// Ends the process as the plugin does if the kernel needs libopapi.so and the library is gone.
void check_path(const std::string& kernel);

}  // namespace virtual_npu
