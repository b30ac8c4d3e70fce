// Paddle's rendezvous store, served by a thread of rank 0's process.
#pragma once

namespace virtual_npu {

// Paddle 3.3 leaves that thread running while the process exits. When another rank then closes its connection, the
// thread logs for the first time from that line of code, which takes a lock of the logging library that has already
// been destroyed, so the process sometimes aborts after finishing its work. Later logging from the same line takes no
// lock. This function therefore triggers the lines once, by connecting to the store and closing the connection in both
// ways. It does nothing in processes without the store.
void close_a_connection_to_the_store();

}  // namespace virtual_npu
