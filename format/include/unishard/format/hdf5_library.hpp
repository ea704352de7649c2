#pragma once
// Shared parts of all code that calls libhdf5: the process-wide lock, owned identifiers, error
// texts and element types. Only one thread at a time may call HDF5, however the library was built.
// Not installed, because it needs libhdf5's own headers.
#include "unishard/format/dtype.hpp"
#include "unishard/format/error.hpp"

#include <hdf5.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace unishard {

/// Excludes other threads from HDF5. Hold it around every HDF5 call, including the closing of
/// identifiers. Not recursive.
class Hdf5Lock {
 public:
  Hdf5Lock();
  /// Clears this thread's HDF5 error stack. HDF5 would otherwise hold references until the program
  /// ends, and then report them as leaks.
  ~Hdf5Lock();
  Hdf5Lock(const Hdf5Lock&) = delete;
  Hdf5Lock& operator=(const Hdf5Lock&) = delete;

 private:
  std::scoped_lock<std::mutex> lock_;
};

/// Owns one HDF5 identifier, or none (negative). Hold the Hdf5Lock when it is destroyed.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(Hdf5Handle&&) = delete;
  operator hid_t() const { return id_; }
  /// Gives up ownership, so that the caller can close the identifier and check the result.
  hid_t release() { return std::exchange(id_, -1); }

 private:
  hid_t id_;
  Close close_;
};

/// Returns the reasons why this thread's last HDF5 call failed, from HDF5's error stack; safe to
/// print.
std::string hdf5_reasons();

/// Returns the code for `reasons`: MemoryLimit when libhdf5 could not allocate memory, else
/// Corrupt.
ErrorCode hdf5_failure(std::string_view reasons);

/// Returns the type of a little-endian IEEE-like float: sign, exponent, mantissa.
/// Pre: 1 + exponent_bits + mantissa_bits is a multiple of 8.
Hdf5Handle hdf5_float(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias);

/// Returns the file type of an element. 8-bit floats and bool are stored as unsigned bytes: no HDF5
/// type of 8-bit floats is converted by every reader, and bool is 0 or 1.
Hdf5Handle hdf5_type(DType dtype);

}  // namespace unishard
