// The CANN interface through which paddle-custom-npu runs a kernel: aclnn (functions of libopapi.so) or aclop (types of
// aclopCompileAndExecute). For each kernel, the table data/cann_calls.json lists the interfaces, "also aclnn" for further
// aclnn calls, and the type of an aclop that the kernel runs with every CANN release. It was derived from a call graph by
// function name of the plugin's sources (PaddleCustomDevice, backends/npu of 2025-02-21). A kernel that checks for its
// functions (DO_COMPATIBILITY) has both interfaces. VIRTUAL_NPU_LIBOPAPI=gone makes it run aclop, and ends the process at
// a kernel with aclnn only, whose function pointer is null on a card.
#pragma once
#include <string>

namespace virtual_npu {

// "aclnn", "aclop", or "" for kernels that call neither, such as copies, views and collectives.
const char* path_of(const std::string& kernel);

// The aclop type that paddle-custom-npu runs for a kernel with every CANN release, or null. The string is never freed.
const char* aclop_of(const std::string& kernel);

// Terminates the process like the plugin if the kernel needs libopapi.so and the library is missing.
void check_path(const std::string& kernel);

}  // namespace virtual_npu
