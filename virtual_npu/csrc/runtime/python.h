// The functions of the Python that runs in this process, if one does: the plugin is not linked to any.
#pragma once

namespace virtual_npu {

struct Python {
  using Object = void*;
  int (*is_initialized)();
  Object (*state_of_this_thread)();
  int (*acquire)();
  void (*release)(int);
  Object (*frame)();
  Object (*back)(Object);
  Object (*code)(Object);
  int (*line)(Object);
  Object (*attribute)(Object, const char*);
  const char* (*text)(Object);
  void (*unref)(Object);
  void (*ref)(Object);
  Object (*error)();
  void (*clear_error)();
  void (*print_error)();
  Object (*import)(const char*);
  Object (*call_method)(Object, const char*, const char* format, ...);
  Object (*module_search_path)(const char* name);
  Object (*path_text)(const char*);
  int (*append)(Object list, Object);
  int (*add_pending_call)(int (*)(void*), void*);

  // Whether the calling thread may wait for the interpreter's lock. One without a state of its own must not: the thread
  // that holds the lock may be waiting for it.
  bool runs_on_this_thread() const { return is_there() && state_of_this_thread(); }
  bool is_there() const { return complete_ && is_initialized(); }

 private:
  friend const Python& python();
  Python();
  template <typename Function>
  void find(Function* function, const char* name);

  bool complete_ = true;
};

const Python& python();

}  // namespace virtual_npu
