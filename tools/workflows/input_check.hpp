#pragma once
// States what a result may claim about its input: compared with the input's checksums, not compared
// (--no-check-input), or without checksums.
#include "unishard/converters/registry.hpp"
#include "unishard/converters/source.hpp"

#include <string>

namespace unishard::tools {

/// How the verbs that copy use the checksums of their input.
class InputChecking {
 public:
  /// Pre: nothing was read from `source` yet.
  InputChecking(converters::Source& source, bool is_wanted);

  /// Returns a line that warns when no check was requested; empty otherwise.
  const std::string& note() const { return note_; }
  bool is_ignored() const { return is_ignored_; }
  /// Marks a result whose input was not checked, if its format can record that.
  void mark(Catalog& target, converters::Output& output) const;
  /// Sets `input_checked` to true, to false (not compared) or to null (not all of the input has
  /// checksums), and reports the bytes without checksums.
  void report(const converters::InputCheck& input, Json& json) const;
  /// Returns "read back and equal" with a remark about the input.
  std::string describe_equal(const converters::InputCheck& input) const;

 private:
  bool is_ignored_ = false;
  std::string note_;
};

inline constexpr const char* kUncheckedInput = "unchecked_input";
/// Key in the metadata of safetensors.
inline constexpr const char* kUncheckedMetadata = "unishard.unchecked_input";

}  // namespace unishard::tools
