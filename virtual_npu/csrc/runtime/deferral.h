// VIRTUAL_NPU_DEFER: the seeded order in which streams run ahead of what the program waits for.
#pragma once
#include <memory>

#include "runtime/stream.h"

namespace virtual_npu {
namespace deferral {

// A stream that has received its first work.
void add(const std::shared_ptr<Stream>& stream);
// Called before each launch. After about one launch in four, a random stream may run everything that it has received.
void run_ahead();

}  // namespace deferral
}  // namespace virtual_npu
