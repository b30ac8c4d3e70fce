# Has cmake compile for aarch64 on another machine; the compiler is the one that the variable CXX names.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
