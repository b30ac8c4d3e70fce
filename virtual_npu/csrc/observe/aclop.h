// Kernels that paddle-custom-npu runs as aclop: single operators of the graph engine, started by their type's name with
// aclopCompileAndExecute. A 910C may lack the FloatStatus operators that precede them; the 950 refuses all of them.
#pragma once
#include <string>

namespace virtual_npu {

// What the plugin does before it runs an aclop: the first time, it allocates and clears the FloatStatus. Throws if the
// chip has no such operator, or if it runs no aclop.
void before_aclop(const std::string& kernel, const char* type);

// Whether the FloatStatus decides about overflow, and not aclnnForeachNonFiniteCheckAndUnscale: assumed where
// VIRTUAL_NPU_FLOAT_STATUS=refused.
bool overflow_is_float_status();

// NPUGetFloatStatus. Throws if the chip has no such operator.
void get_float_status();

}  // namespace virtual_npu
