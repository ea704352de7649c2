#include "workflows/input_check.hpp"

#include "support/size_text.hpp"

#include <fmt/format.h>

#include <utility>

namespace unishard::tools {

InputChecking::InputChecking(converters::Source& source, bool is_wanted) {
  if (is_wanted) return;
  is_ignored_ = source.ignore_checksums();
  note_ =
      is_ignored_
          ? "the input's checksums are not compared (--no-check-input): what is damaged in it is "
            "damaged in the result"
          : "--no-check-input changes nothing here: UniShard's own checkpoints are always checked";
}

void InputChecking::mark(Catalog& target, converters::Output& output) const {
  if (!is_ignored_) return;
  if (output.format == "safetensors") output.metadata.emplace_back(kUncheckedMetadata, "true");
  // A plain model file stays one: it has no place for more.
  const bool is_plain =
      target.producer.is_null() && (output.format == "safetensors" || output.format == "torch");
  if (is_plain) return;
  if (!target.producer.is_object() && !target.producer.is_null())
    target.producer = {{"producer", std::exchange(target.producer, nullptr)}};
  target.producer[kUncheckedInput] = true;
}

void InputChecking::report(const converters::InputCheck& input, Json& json) const {
  const bool is_covered = input.covered_bytes > 0 && input.uncovered_bytes == 0;
  json["input_checked"] = is_ignored_ ? Json(false) : is_covered ? Json(true) : Json(nullptr);
  json["input_bytes_without_checksum"] = input.uncovered_bytes;
  json["input_bytes_read_for_checksums"] = input.extra_bytes;
}

std::string InputChecking::describe_equal(const converters::InputCheck& input) const {
  if (is_ignored_) return "read back; the input was not checked";
  if (input.covered_bytes == 0) return "read back and equal; the input has no checksums";
  if (input.uncovered_bytes == 0) return "read back and equal";
  return fmt::format("read back and equal; {} of the input have no checksum",
                     format_bytes(input.uncovered_bytes));
}

}  // namespace unishard::tools
