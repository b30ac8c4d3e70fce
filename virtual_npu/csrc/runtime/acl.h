// Functions of CANN's ACL that the plugin calls, as libraries on a machine with a card export them. A library that is
// loaded earlier, with RTLD_GLOBAL or LD_PRELOAD, can answer in their place, as it can on a card.
#pragma once

// Runs a single operator by its type's name. Returns 0 or ACL's error code. Only the name is used here: the kernels of
// the virtual NPU compute.
extern "C" int aclopCompileAndExecute(const char* type, int inputs, const void* const* input_descriptions,
                                      const void* const* input_buffers, int outputs,
                                      const void* const* output_descriptions, void* const* output_buffers,
                                      const void* attributes, int engine, int compiles, const char* path, void* stream);
