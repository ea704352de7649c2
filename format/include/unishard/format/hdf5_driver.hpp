#pragma once
// A driver for libhdf5 that reads and writes through File, so that HDF5's own writes report
// failures, sync and bypass the page cache like all others. It can also place raw data without
// writing it: the caller, which has the bytes, learns where they go.
// Not installed, because it needs libhdf5's own headers.
// Thread safety: hold the Hdf5Lock around every call.
#include "unishard/format/storage.hpp"

#include <hdf5.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>

namespace unishard {

/// Throws Io: HDF5 failed to carry out `action` on the file `path`.
[[noreturn]] void raise_hdf5_failure(const Path& path, std::string_view action);

/// State shared with the driver. To HDF5 every access succeeds, because HDF5 crashes when it closes
/// a file that cannot be written. Check `failure` after every HDF5 call.
/// Lifetime: shared, because HDF5 may keep a file that it could not close until the program ends.
struct Hdf5Target {
  File* file = nullptr;   ///< null after a failure too: HDF5's further writes are dropped
  std::uint64_t end = 0;  ///< bytes that HDF5 has allocated
  /// Place raw data without writing it. HDF5 counts its global heap as raw data too.
  bool places_raw_data = false;
  std::optional<std::uint64_t> raw_data_at = {};  ///< offset of the last raw data placed
  std::exception_ptr failure = nullptr;           ///< what `file` threw first
};

/// Checks the result of an HDF5 call on the file `path`, which uses `target`. Returns `result`
/// unless it is negative. Throws: Hdf5Target::failure, whatever `result` is; Io, with HDF5's
/// reasons, when `result` is negative.
template <class T>
T hdf5_checked(const Hdf5Target& target, const Path& path, T result, std::string_view action) {
  if (target.failure) std::rethrow_exception(target.failure);
  if (result < 0) raise_hdf5_failure(path, action);
  return result;
}

/// Makes files that are created with the property list `access` use `target`. Returns a negative
/// value on failure, as HDF5 does.
/// Pre: the caller holds the Hdf5Lock.
herr_t set_hdf5_driver(hid_t access, const std::shared_ptr<Hdf5Target>& target);

}  // namespace unishard
