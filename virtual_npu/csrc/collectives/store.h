// Paddle's rendezvous store, served by a thread of rank 0's process.
#pragma once

namespace virtual_npu {

// Paddle 3.3 leaves this thread running while the process exits. When another rank then closes its connection, the
// thread logs from that line of code for the first time, which locks a mutex of the logging library that has already
// been destroyed. The process then sometimes aborts after finishing its work. Later logging from the same line needs
// no lock.
// This function therefore triggers the lines once: it connects to the store and closes the connection in both ways.
// It does nothing in processes without the store.
void close_a_connection_to_the_store();

}  // namespace virtual_npu
