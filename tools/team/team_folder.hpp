#pragma once
// The small files that processes exchange. Each file appears whole, under a name that only one
// process writes. They are not durable.
#include "unishard/format/storage.hpp"

#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace unishard::tools {

/// Thread-safe when threads use different names.
class TeamFolder {
 public:
  /// `writer` differs in every process that uses the folder.
  /// Lifetime: `storage` must outlive this object.
  TeamFolder(Storage& storage, Path path, std::string writer)
      : storage_(storage), path_(std::move(path)), writer_(std::move(writer)) {}

  const Path& path() const { return path_; }
  TeamFolder below(const std::string& name) const { return {storage_, path_ / name, writer_}; }
  /// Creates the folder, accessible to this user only, in an existing folder.
  /// Throws: InvalidArgument when it exists and belongs to another user.
  void make() const;
  /// Writes a file atomically, by a rename.
  void put(const std::string& name, std::string_view text) const;
  /// Returns the content of a file, or nullopt when it does not exist.
  /// Throws: Corrupt when it is larger than `limit_bytes`.
  std::optional<std::string> get(const std::string& name, std::uint64_t limit_bytes) const;
  void remove(const std::string& name) const { storage_.remove_file(path_ / name); }
  /// Returns the names in the folder as the file system knows them; empty when the folder does not
  /// exist. Listing a folder makes a network file system ask its server, while the look-up of a
  /// name may be answered from a cache.
  std::set<std::string, std::less<>> names() const;

 private:
  Storage& storage_;
  Path path_;
  std::string writer_;
};

}  // namespace unishard::tools
