#pragma once
// What every user of libhdf5 in UniShard shares: the one lock, owned identifiers, the reasons of a
// failure, and how element types are stored. HDF5 is called by one thread at a time in the whole
// process, whatever the library was built for. Not installed: it needs libhdf5's own headers.
#include "unishard/format/dtype.hpp"
#include "unishard/format/error.hpp"

#include <hdf5.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace unishard {

/// Held around every HDF5 call, closing identifiers included. Not recursive.
class Hdf5Lock {
 public:
  Hdf5Lock();
  /// Forgets the reasons of failures that this thread has not asked for: HDF5 would count
  /// references to them until the program ends, and then complain.
  ~Hdf5Lock();
  Hdf5Lock(const Hdf5Lock&) = delete;
  Hdf5Lock& operator=(const Hdf5Lock&) = delete;

 private:
  std::scoped_lock<std::mutex> lock_;
};

/// Owns one HDF5 identifier, or none (negative).
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
  /// Gives the identifier away, to be closed where the result is looked at.
  hid_t release() { return std::exchange(id_, -1); }

 private:
  hid_t id_;
  Close close_;
};

/// Why the last call of this thread failed, from HDF5's error stack.
std::string hdf5_reasons();

/// What hdf5_reasons() mean: MemoryLimit where libhdf5 got no memory, else Corrupt.
ErrorCode hdf5_failure(std::string_view reasons);

/// A little-endian IEEE-like float: sign, exponent, mantissa. 1 + exponent_bits + mantissa_bits is
/// a multiple of 8.
Hdf5Handle hdf5_float(std::size_t exponent_bits, std::size_t mantissa_bits, std::size_t bias);

/// The file type of an element. The 8-bit floats have no HDF5 type that every reader converts, and
/// bool is stored as 0 and 1: both are unsigned bytes.
Hdf5Handle hdf5_type(DType dtype);

}  // namespace unishard
