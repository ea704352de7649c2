#pragma once
#include "unishard/format/storage.hpp"

#include <memory>

namespace unishard {

/// Returns a File that owns `descriptor`, an open descriptor of a regular file or folder. The File
/// uses the io_options() at the time of the call.
std::unique_ptr<File> make_posix_file(Path path, int descriptor, bool writable);

}  // namespace unishard
