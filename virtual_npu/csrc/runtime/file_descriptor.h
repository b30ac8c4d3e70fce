// A descriptor of an open file, closed with the object that owns it.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace virtual_npu {

class FileDescriptor {
 public:
  // Takes over what open and its like return: a descriptor, or -1.
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  ~FileDescriptor() {
    const int error = errno;  // of what failed before, which is still to be reported
    if (is_open()) close(number_);
    errno = error;
  }

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace virtual_npu
