#include "observe/python_module.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "runtime/python.h"

namespace virtual_npu {
namespace {

// The folder that contains the packages. This library is in virtual_npu/plugin.
std::string folder_of_packages() {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&start_python_module), &here);
  std::string path = here.dli_fname ? here.dli_fname : "";
  for (int up = 0; up < 3; ++up) path.resize(std::min(path.size(), path.rfind('/')));
  return path;
}

// Programs that activate the plugin only through their environment may be unable to import the package.
Python::Object import_module(const Python& py, const std::string& name) {
  if (Python::Object module = py.import(name.c_str())) return module;
  py.clear_error();
  Python::Object folder = py.path_text(folder_of_packages().c_str());
  if (folder) py.append(py.module_search_path("path"), folder);
  if (folder) py.unref(folder);
  return py.import(name.c_str());
}

}  // namespace

void start_python_module(const char* name, const char* consequence) {
  const Python& py = python();
  if (!py.runs_on_this_thread()) return;
  const int state = py.acquire();
  Python::Object module = import_module(py, std::string("virtual_npu.") + name);
  Python::Object nothing = module ? py.call_method(module, "start", nullptr) : nullptr;
  if (!nothing) {
    std::fprintf(stderr, "virtual npu: %s:\n", consequence);
    py.print_error();
  }
  if (module) py.unref(module);
  if (nothing) py.unref(nothing);
  py.release(state);
}

}  // namespace virtual_npu
