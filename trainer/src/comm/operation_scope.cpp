#include "comm/operation_scope.hpp"

#include <fmt/format.h>

namespace unishard::trainer::detail {
namespace {

thread_local const OperationScope* innermost = nullptr;

}  // namespace

OperationScope::OperationScope(std::string_view verb, std::string_view object)
    : verb_(verb), object_(object), outer_(innermost) {
  innermost = this;
}

OperationScope::~OperationScope() { innermost = outer_; }

std::string in_scope(std::string_view operation) {
  if (innermost == nullptr) return std::string(operation);
  return fmt::format("{} {}: {}", innermost->verb_, innermost->object_, operation);
}

std::string first_line(std::string_view message) {
  return std::string(message.substr(0, message.find('\n')));
}

}  // namespace unishard::trainer::detail
