// Waits in the kernel for a word in shared memory to change, without using CPU time.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "runtime/clock.h"

namespace virtual_npu {

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

// Returns when the word is no longer `seen`, after a wake-up, after the timeout, or spuriously.
inline void wait_on(Word* word, uint32_t seen, int64_t nanoseconds) {
  const timespec time{nanoseconds / 1000000000, nanoseconds % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

inline void wake(Word* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

}  // namespace virtual_npu
