#pragma once
// Names the work that a collective belongs to, for the message of a failure.
#include <string>
#include <string_view>

namespace unishard::trainer::detail {

/// While it lives, failures of communicators on this thread say that they happened while `verb`
/// `object`, for example "gathering" "unit h.3". Scopes nest; the innermost counts.
/// Lifetime: both texts must outlive this object.
class OperationScope {
 public:
  OperationScope(std::string_view verb, std::string_view object);
  ~OperationScope();
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  std::string_view verb_, object_;
  const OperationScope* outer_;
  friend std::string in_scope(std::string_view operation);
};

/// Returns "gathering unit h.3: all-gather" for the operation "all-gather", or the operation alone
/// outside of any scope.
std::string in_scope(std::string_view operation);

/// Returns what a library says of a failure without the stack trace below it.
std::string first_line(std::string_view message);

}  // namespace unishard::trainer::detail
