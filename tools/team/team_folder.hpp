#pragma once
// The small files by which processes talk: each appears whole, under a name that only one process
// writes. Not durable, and need not be.
#include "unishard/format/storage.hpp"

#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace unishard::tools {

class TeamFolder {
 public:
  /// `writer` is different in every process that uses the folder.
  TeamFolder(Storage& storage, Path path, std::string writer)
      : storage_(storage), path_(std::move(path)), writer_(std::move(writer)) {}

  const Path& path() const { return path_; }
  TeamFolder below(const std::string& name) const { return {storage_, path_ / name, writer_}; }
  /// Makes the folder, for this user alone, in one that is there. Throws InvalidArgument when it is
  /// another user's.
  void make() const;
  /// Written beside and renamed. Threads must use different names.
  void put(const std::string& name, std::string_view text) const;
  /// nullopt when it is not there. Throws Corrupt when it is larger than `limit_bytes`.
  std::optional<std::string> get(const std::string& name, std::uint64_t limit_bytes) const;
  void remove(const std::string& name) const { storage_.remove_file(path_ / name); }
  /// What is there now, from the file system itself: opening a folder makes a network file system
  /// look, where asking for a name may be answered from a cache. Empty when the folder is not
  /// there.
  std::set<std::string, std::less<>> names() const;

 private:
  Storage& storage_;
  Path path_;
  std::string writer_;
};

}  // namespace unishard::tools
