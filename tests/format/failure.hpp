#pragma once
#include "unishard/format/error.hpp"

#include <functional>
#include <string>

namespace unishard {

/// Returns the Error that `action` throws, or an Internal one with "no failure".
inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::Internal, "no failure"};
}

inline std::string failure(const std::function<void()>& action) { return error_of(action).what(); }

inline std::string failure_and_hint(const std::function<void()>& action) {
  const Error error = error_of(action);
  return std::string(error.what()) + " | " + error.hint();
}

}  // namespace unishard
