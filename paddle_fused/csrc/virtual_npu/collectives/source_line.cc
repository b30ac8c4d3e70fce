#include "virtual_npu/collectives/source_line.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

#include "paddle/phi/core/kernel_factory.h"

namespace virtual_npu {
namespace {

// The functions of the Python that runs in this process, if one does: the plugin is not linked to any.
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
  bool complete = true;

  Python() {
    find(&is_initialized, "Py_IsInitialized");
    find(&state_of_this_thread, "PyGILState_GetThisThreadState");
    find(&acquire, "PyGILState_Ensure");
    find(&release, "PyGILState_Release");
    find(&frame, "PyEval_GetFrame");
    find(&back, "PyFrame_GetBack");
    find(&code, "PyFrame_GetCode");
    find(&line, "PyFrame_GetLineNumber");
    find(&attribute, "PyObject_GetAttrString");
    find(&text, "PyUnicode_AsUTF8");
    find(&unref, "Py_DecRef");
    find(&ref, "Py_IncRef");
  }

 private:
  template <typename Function>
  void find(Function* function, const char* name) {
    *function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    complete &= *function != nullptr;
  }
};

const Python& python() {
  static const Python python;
  return python;
}

// The folder of the paddle package, with a slash at its end.
const std::string& paddle_folder() {
  static const std::string folder = [] {
    Dl_info core{};
    dladdr(reinterpret_cast<const void*>(&phi::KernelFactory::Instance), &core);
    const std::string library = core.dli_fname ? core.dli_fname : "";
    return library.substr(0, library.rfind("/libs/") + 1);
  }();
  return folder;
}

bool is_of_the_program(const std::string& file) {
  return !file.empty() && file[0] != '<' && (paddle_folder().empty() || file.rfind(paddle_folder(), 0) != 0) &&
         file.find("/site-packages/paddle/") == std::string::npos;
}

std::string file_of(const Python& py, Python::Object frame) {
  Python::Object code = py.code(frame);
  Python::Object name = py.attribute(code, "co_filename");
  const char* text = name ? py.text(name) : nullptr;
  const std::string file = text ? text : "";
  if (name) py.unref(name);
  py.unref(code);
  return file;
}

std::string innermost_line(const Python& py) {
  std::string found;
  Python::Object frame = py.frame();
  if (frame) py.ref(frame);
  while (frame) {
    const std::string file = file_of(py, frame);
    if (is_of_the_program(file)) found = file + ":" + std::to_string(py.line(frame));
    Python::Object outer = found.empty() ? py.back(frame) : nullptr;
    py.unref(frame);
    frame = outer;
  }
  return found;
}

}  // namespace

std::string source_line() {
  const Python& py = python();
  // A thread without a state of its own must not ask for the interpreter's lock: the thread that holds it may be
  // waiting for this one.
  if (!py.complete || !py.is_initialized() || !py.state_of_this_thread()) return "a static program";
  const int state = py.acquire();
  const std::string line = innermost_line(py);
  py.release(state);
  return line.empty() ? "a static program" : line;
}

}  // namespace virtual_npu
