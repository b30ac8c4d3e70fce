// An open file descriptor, closed with the object that owns it.
#pragma once
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace virtual_npu {

class FileDescriptor {
 public:
  // Takes ownership of the result of open or a similar function: a descriptor, or -1.
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  ~FileDescriptor() {
    const int error = errno;  // of an earlier failure that has not been reported yet
    if (is_open()) close(number_);
    errno = error;
  }

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace virtual_npu
