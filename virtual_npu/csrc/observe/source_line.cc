#include "observe/source_line.h"

#include <dlfcn.h>

#include "paddle/phi/core/kernel_factory.h"
#include "runtime/python.h"

namespace virtual_npu {
namespace {

// The folder of the paddle package, with a trailing slash.
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
  if (!py.runs_on_this_thread()) return "a static program";
  const int state = py.acquire();
  const std::string line = innermost_line(py);
  py.release(state);
  return line.empty() ? "a static program" : line;
}

std::string source_line_without_waiting() {
  const Python& py = python();
  return py.is_there() && py.holds_lock() ? innermost_line(py) : "";
}

}  // namespace virtual_npu
