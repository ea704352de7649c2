#include "containers/agreed_number.hpp"

#include "unishard/format/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unishard::converters::torch {

void AgreedNumber::check(const std::string& label, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  if (first_.empty()) {
    first_ = label;
    bytes_.assign(bytes.begin(), bytes.end());
  } else if (!std::ranges::equal(bytes, bytes_)) {
    raise(ErrorCode::Unsupported,
          fmt::format("{} and {} differ, and DeepSpeed's files have one number for all parameters "
                      "of a group",
                      first_, label),
          "choose --to deepspeed --stage 0, which has a number for each parameter of an optimizer "
          "of torch's, or another format");
  }
}

}  // namespace unishard::converters::torch
