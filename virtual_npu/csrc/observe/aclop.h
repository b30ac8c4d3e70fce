// Kernels that paddle-custom-npu runs as aclop: single operators of the graph engine, started by type name with
// aclopCompileAndExecute. A 910C may lack the FloatStatus operators that precede them; the 950 rejects all of them.
#pragma once
#include <string>

namespace virtual_npu {

// The plugin's preparation before an aclop: the first time, it allocates and clears the FloatStatus. Throws if the
// chip has no such operator, or if it does not run aclop.
void before_aclop(const std::string& kernel, const char* type);

// Whether the FloatStatus determines overflow, rather than aclnnForeachNonFiniteCheckAndUnscale. Assumed with
// VIRTUAL_NPU_FLOAT_STATUS=refused.
bool overflow_is_float_status();

// NPUGetFloatStatus. Throws if the chip has no such operator.
void get_float_status();

}  // namespace virtual_npu
