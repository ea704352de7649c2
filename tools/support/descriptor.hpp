#pragma once
#include <unistd.h>

#include <utility>

namespace unishard::tools {

/// Owns a file descriptor, or none (-1); the destructor closes it.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  void close() { *this = Descriptor(); }

 private:
  int number_;
};

}  // namespace unishard::tools
