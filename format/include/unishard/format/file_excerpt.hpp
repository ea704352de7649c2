#pragma once
// A part of a file's bytes, to be read where the file is not: the tables of a shard on another
// node.
#include "unishard/format/overlaid_storage.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard {

struct FileExcerpt {
  std::string name;  ///< of the file within its folder
  std::uint64_t bytes = 0;
  /// Offsets and contents, in any order; they may overlap.
  std::vector<std::pair<std::uint64_t, std::vector<std::uint8_t>>> parts;
};

/// Returns the bytes that `read` reads of the files in `folder` through the storage that it gets.
/// `read` must run in one thread.
std::vector<FileExcerpt> excerpts_of(Storage& storage, const Path& folder,
                                     const std::function<void(Storage&)>& read);

/// Returns the excerpts as bytes, for another process.
std::string encode_excerpts(const std::vector<FileExcerpt>& excerpts);
/// Reads what encode_excerpts() returned.
/// Throws: Corrupt.
std::vector<FileExcerpt> decode_excerpts(std::string_view text);

/// Adds a file in `folder` with the size of the original. Its read_at() throws Io, naming the file,
/// for bytes that the excerpt lacks.
void add_excerpt(OverlaidStorage& storage, const Path& folder, FileExcerpt excerpt);

}  // namespace unishard
