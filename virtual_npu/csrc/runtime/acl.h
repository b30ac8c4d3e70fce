// Functions of CANN's ACL that the plugin calls, exported like the libraries of a machine with a card. A library
// loaded earlier, with RTLD_GLOBAL or LD_PRELOAD, can replace them, as on a card.
#pragma once

// Runs a single operator by type name. Returns 0 or ACL's error code. Only the name is used here, because the virtual
// NPU's kernels compute.
extern "C" int aclopCompileAndExecute(const char* type, int inputs, const void* const* input_descriptions,
                                      const void* const* input_buffers, int outputs,
                                      const void* const* output_descriptions, void* const* output_buffers,
                                      const void* attributes, int engine, int compiles, const char* path, void* stream);
