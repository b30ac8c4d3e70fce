// Who waits for whom, across all groups of all processes.
//
// If all communicating threads of a process wait for other processes, the process records this in its own page, which
// others read through /proc. Each edge of this wait-for graph is exact: only the process it points to can end the wait.
// So if a process finds a cycle by following edges, the processes in it are deadlocked.
#pragma once
#include <string>
#include <vector>

#include "collectives/process.h"

namespace virtual_npu {

// The descriptor of this process's page.
int status_file();

struct Awaited {
  ProcessId process;
  int32_t status_file = -1;
};

// Records that this process waits for all of `awaited` since `since`, described by `text`, if all its threads wait;
// returns whether they do.
bool publish_status(const std::string& text, int64_t since, const std::vector<Awaited>& awaited);
void withdraw_status();

// Follows the edges from `awaited`. The waits of those that lead into a cycle, as "; ..." each; "" if all paths end.
std::string find_cycle(const std::vector<Awaited>& awaited);

}  // namespace virtual_npu
