// The wait-for graph across all groups of all processes.
//
// If all communicating threads of a process wait for other processes, the process records this in its own page, which
// others read through /proc. Each edge of this graph is exact: only the process it points to can end the wait.
// Processes in a cycle are therefore deadlocked.
#pragma once
#include <string>
#include <vector>

#include "collectives/process.h"

namespace virtual_npu {

// The file descriptor of this process's page.
int status_file();

struct Awaited {
  ProcessId process;
  int32_t status_file = -1;
};

// If all threads wait, records that this process waits for all of `awaited` since `since`, described by `text`.
// Returns whether they do.
bool publish_status(const std::string& text, int64_t since, const std::vector<Awaited>& awaited);
void withdraw_status();

// Follows the edges from `awaited`. Describes the waits that lead into a cycle, as "; ..." each; "" if all paths end.
std::string find_cycle(const std::vector<Awaited>& awaited);

}  // namespace virtual_npu
