// What the checks of VIRTUAL_NPU_CHECK report. A finding is an error of the program, which a card would not notice.
#pragma once
#include <string>

namespace virtual_npu {
namespace checks {

// Raises the finding as an exception of Paddle, which Python sees as RuntimeError. `check` is race, init or memory.
[[noreturn]] void raise_finding(const char* check, const std::string& text);

// For places that must not throw, such as the release of memory: prints the finding, and the next launch raises it.
void raise_at_next_launch(const char* check, const std::string& text);
void raise_postponed_finding();

}  // namespace checks
}  // namespace virtual_npu
