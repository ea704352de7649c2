#pragma once
// HDF5 as an exchange format: one file, one data set per tensor, as h5py users expect it. Layout
// and rules are in MAPPING.md. make_hdf5_sink() is in sink.hpp.
#include "unishard/converters/source.hpp"

#include <memory>

namespace unishard::converters {

/// True for a file that starts as HDF5 does, and for *.h5 and *.hdf5 with a user block before that.
bool is_hdf5(Storage& storage, const Path& path);

/// Runs libhdf5 over the file. Throws Corrupt for a damaged file, Unsupported for a native shard.
std::unique_ptr<Source> open_hdf5(Storage& storage, const Path& path);

}  // namespace unishard::converters
