#include "config/key_problems.hpp"

#include "unishard/format/error.hpp"

namespace unishard::trainer::detail {

void KeyProblems::add(const std::string& problem, const std::string& hint) {
  problems_ += (problems_.empty() ? "" : "; ") + problem;
  if (hint.empty() || hints_.find(hint) != hints_.npos) return;
  hints_ += (hints_.empty() ? "" : "; ") + hint;
}

void KeyProblems::raise_any() const {
  if (!problems_.empty()) raise(ErrorCode::InvalidArgument, "configuration: " + problems_, hints_);
}

}  // namespace unishard::trainer::detail
