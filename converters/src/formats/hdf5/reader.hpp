#pragma once
// HDF5 as an exchange format: one file with one data set per tensor, as h5py users expect.
// MAPPING.md describes layout and rules; make_hdf5_sink() is in sink.hpp.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

/// Returns true for a file that begins like HDF5, and for *.h5 and *.hdf5 with a user block before
/// that.
bool is_hdf5(Storage& storage, const Path& path);

/// Opens the file; libhdf5 lists it in a child process.
/// Throws: Corrupt for a damaged file; Unsupported for a native shard.
std::unique_ptr<Source> open_hdf5(Storage& storage, const Path& path);

}  // namespace unishard::converters
