// Vector clocks: which device work is ordered before which, according to the program's synchronization.
//
// Actors are the host (all program threads together) and every stream. Work on a stream is ordered after earlier work of
// that stream, after what the host knew when it launched the work, and after events that the stream waits for. The host
// knows what it has waited for. Callers hold no lock; all functions are thread-safe.
#pragma once
#include <cstdint>

namespace virtual_npu {
namespace checks {

using Actor = int;
constexpr Actor kHost = 0;

// A point in an actor's order.
struct Epoch {
  Actor actor = kHost;
  uint32_t time = 0;
};

// The actor of a stream; streams are identified by address.
Actor actor_of(const void* stream);
// The epoch of new work that the host launches on a stream, or does itself.
Epoch launch(Actor actor);
// Whether `earlier` is ordered before what `actor` does next.
bool is_ordered(Epoch earlier, Actor actor);
// Declares the actor a compute stream: it reuses memory that the host releases, in the order of launches.
void computes(Actor actor);
bool is_compute(Actor actor);
// Whether memory that `earlier` uses may be reused by work on `owner`: the host has seen its end, by a wait or a query, or
// it is ordered before the owner's next work. Without an owner (kHost), before the next work on any compute stream.
bool is_over(Epoch earlier, Actor owner);

void stream_is_gone(const void* stream);
void event_is_recorded(const void* event, const void* stream);
void stream_waits(const void* stream, const void* event);
void host_waits_for_event(const void* event);
void host_waits_for_stream(const void* stream);
void host_waits_for_all_streams();
// A successful query lets the host continue as if it had waited, except a query directly before the event's end: the
// destructor of Paddle's tasks asks whether they are complete, which orders nothing.
void event_is_found_complete(const void* event);
void event_is_gone(const void* event);

}  // namespace checks
}  // namespace virtual_npu
