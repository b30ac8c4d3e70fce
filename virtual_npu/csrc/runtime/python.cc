#include "runtime/python.h"

#include <dlfcn.h>

namespace virtual_npu {

template <typename Function>
void Python::find(Function* function, const char* name) {
  *function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  complete_ &= *function != nullptr;
}

Python::Python() {
  find(&is_initialized, "Py_IsInitialized");
  find(&state_of_this_thread, "PyGILState_GetThisThreadState");
  find(&holds_lock, "PyGILState_Check");
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
  find(&error, "PyErr_Occurred");
  find(&clear_error, "PyErr_Clear");
  find(&print_error, "PyErr_Print");
  find(&import, "PyImport_ImportModule");
  find(&call_method, "PyObject_CallMethod");
  find(&module_search_path, "PySys_GetObject");
  find(&path_text, "PyUnicode_DecodeFSDefault");
  find(&append, "PyList_Append");
  find(&add_pending_call, "Py_AddPendingCall");
}

const Python& python() {
  static const Python python;
  return python;
}

}  // namespace virtual_npu
