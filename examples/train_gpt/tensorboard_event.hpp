#pragma once
// The bytes of TensorBoard's event files: records of TensorFlow, each of which is an Event message
// of Protocol Buffers.
// Thread safety: pure functions.
#include <cstdint>
#include <string>
#include <string_view>

namespace train_gpt {

/// Returns the record that begins a file.
std::string first_event(double unix_seconds);
/// Returns the record of one value.
std::string scalar_event(std::string_view name, double value, std::int64_t step,
                         double unix_seconds);

}  // namespace train_gpt
