#pragma once
#include "unishard/format/storage.hpp"

#include <memory>

namespace unishard {

/// Takes over an open descriptor of a regular file or folder.
std::unique_ptr<File> make_posix_file(Path path, int descriptor, bool writable);

}  // namespace unishard
