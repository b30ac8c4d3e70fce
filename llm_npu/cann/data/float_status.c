// Answers three aclop types in CANN's place, and forwards all others. Loaded before paddle-custom-npu, with RTLD_GLOBAL.
//
// The plugin allocates and clears the FloatStatus before its first aclop. Nothing reads what these operators would
// write if the loss scaler decides about overflow by isfinite.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

typedef int Function(const char* type, int inputs, void* input_descriptions, void* input_buffers, int outputs,
                     void* output_descriptions, void* output_buffers, void* attributes, int engine, int compile,
                     const char* path, void* stream);

enum { kSuccess = 0, kInternalError = 500000 };

static Function* real_function(void) {
  void* found = dlsym(RTLD_NEXT, "aclopCompileAndExecute");
  if (!found) {  // the plugin was loaded with RTLD_LOCAL, and so was the library that it needs
    void* library = dlopen("libacl_op_compiler.so", RTLD_LAZY);
    if (library) found = dlsym(library, "aclopCompileAndExecute");
  }
  return (Function*)found;
}

int aclopCompileAndExecute(const char* type, int inputs, void* input_descriptions, void* input_buffers, int outputs,
                           void* output_descriptions, void* output_buffers, void* attributes, int engine, int compile,
                           const char* path, void* stream) {
  static Function* real;
  if (!strcmp(type, "NPUAllocFloatStatus") || !strcmp(type, "NPUClearFloatStatus") || !strcmp(type, "NPUGetFloatStatus"))
    return kSuccess;
  if (!real) real = real_function();
  if (!real) return kInternalError;
  return real(type, inputs, input_descriptions, input_buffers, outputs, output_descriptions, output_buffers, attributes,
              engine, compile, path, stream);
}
