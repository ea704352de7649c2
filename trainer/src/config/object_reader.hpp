#pragma once
// Reads one JSON object of a configuration by a table of its keys, and refuses keys that the table
// does not have.
#include "unishard/format/json.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::trainer::detail {

enum class KeyUse {
  Read,      ///< used
  Harmless,  ///< known to DeepSpeed, cannot change results: accepted with a note
  NotBuilt,  ///< known to DeepSpeed, not supported: accepted only when it is switched off
};

struct Key {
  std::string_view name;
  KeyUse use = KeyUse::Read;
  double off = 0;  ///< a number that switches it off
};

/// Returns the known name with the smallest edit distance, or an empty text when none is near.
std::string nearest_key(std::string_view name, std::span<const Key> keys);

class ObjectReader {
 public:
  /// Adds a line to `notes` for each harmless key.
  /// Lifetime: `object` must outlive this object.
  /// Throws: InvalidArgument when `object` is no object, or has an unknown or unsupported key.
  ObjectReader(const Json& object, std::string path, std::span<const Key> keys,
               std::vector<std::string>& notes);

  /// Returns the member; nullptr when it is missing, null or "auto".
  const Json* find(std::string_view key) const;
  /// Return a typed member; nullopt when find() returns nullptr. Whole numbers may be written like
  /// 5e8.
  /// Throws: InvalidArgument, naming the path, for another type.
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
