#pragma once
// A driver for libhdf5 that reads and writes through our File, so that what HDF5 writes fails,
// syncs and goes past the page cache as everything else does. Raw data can be placed without being
// written: the caller, who has the bytes, is told where they belong.
#include "unishard/format/storage.hpp"

#include <hdf5.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>

namespace unishard::detail {

/// What the driver works on and what it tells. To HDF5 every access succeeds, because it crashes
/// when it closes a file that cannot be written: look at `failure` after every HDF5 call. Shared
/// with the driver: HDF5 may keep a file that it could not close until the program ends.
struct Hdf5Target {
  File* file = nullptr;          ///< null, after a failure too: what HDF5 still writes goes nowhere
  std::uint64_t end = 0;         ///< of what HDF5 has allocated
  bool places_raw_data = false;  ///< do not write it (HDF5 counts its global heap as raw data too)
  std::optional<std::uint64_t> raw_data_at = {};  ///< where it was last to be written
  std::exception_ptr failure = nullptr;           ///< what `file` threw
};

/// Files that are created with the property list `access` use `target`. Hold the Hdf5Lock. Returns
/// a negative value on failure, as HDF5 does.
herr_t set_driver(hid_t access, const std::shared_ptr<Hdf5Target>& target);

}  // namespace unishard::detail
