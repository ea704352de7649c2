#pragma once
// Reads one JSON object of a configuration by a table of its keys, and refuses what the table does
// not know.
#include "unishard/format/json.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer::detail {

enum class KeyUse {
  Read,      ///< means something here
  Harmless,  ///< DeepSpeed knows it, it cannot change results here: accepted with a note
  NotBuilt,  ///< DeepSpeed knows it: accepted only when it is switched off
};

struct Key {
  std::string_view name;
  KeyUse use = KeyUse::Read;
};

/// The known name with the smallest edit distance, or empty when none is near.
std::string nearest_key(std::string_view name, std::span<const Key> keys);

class ObjectReader {
 public:
  /// Throws InvalidArgument for a value that is no object, an unknown key or one that is not built.
  /// `notes` gets a line for each harmless key. All references must outlive the reader.
  ObjectReader(const Json& object, std::string path, std::span<const Key> keys,
               std::vector<std::string>& notes);

  /// The member; nullptr when it is missing, null or "auto".
  const Json* find(std::string_view key) const;
  /// Typed members; nullopt as for find(). Throw InvalidArgument naming the path. Whole numbers may
  /// be written 5e8.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::string path(std::string_view key) const;

  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

 private:
  const Json& object_;
  std::string path_;
};

}  // namespace unishard::trainer::detail
