// The functions of the Python interpreter in this process, if there is one. The plugin is not linked to Python.
#pragma once

namespace virtual_npu {

struct Python {
  using Object = void*;
  int (*is_initialized)();
  Object (*state_of_this_thread)();
  int (*holds_lock)();
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

  // Whether the calling thread may wait for the interpreter lock. A thread without a Python state must not, because
  // the thread that holds the lock may be waiting for it.
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
