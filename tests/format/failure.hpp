#pragma once
#include "unishard/format/error.hpp"

#include <functional>
#include <string>

namespace unishard {

/// "message | hint" of what `action` threw.
inline std::string failure(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "no failure";
}

}  // namespace unishard
