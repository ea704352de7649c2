#pragma once
// What a result may claim of its input: compared with the input's checksums, not compared
// (--no-check-input), or without checksums.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/source.hpp"

#include <string>

namespace unishard::tools {

/// How the verbs that copy treat the checksums of their input.
class InputChecking {
 public:
  /// Pre: nothing was read from `source` yet.
  InputChecking(converters::Source& source, bool is_wanted);

  /// A line that says so when no check was asked for; empty otherwise.
  const std::string& note() const { return note_; }
  bool is_ignored() const { return is_ignored_; }
  /// Marks a result that is not proven, where its format has a place for that.
  void mark(Catalog& target, converters::Output& output) const;
  /// `input_checked`: true, false (not compared), or null where the input has no checksums for all
  /// of it; and the bytes that have none.
  void report(const converters::InputCheck& input, Json& json) const;
  /// "read back and equal", and what is to be said of the input.
  std::string describe_equal(const converters::InputCheck& input) const;

 private:
  bool is_ignored_ = false;
  std::string note_;
};

inline constexpr const char* kUncheckedInput = "unchecked_input";
/// In the metadata of safetensors.
inline constexpr const char* kUncheckedMetadata = "unishard.unchecked_input";

}  // namespace unishard::tools
