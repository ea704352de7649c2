#pragma once
// What LibTorch does in a piece of work: its operators, the bytes that they write, and the memory
// that stays allocated.
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unishard::test {

/// An operator that was called, with its name without "aten::".
struct RecordedOperator {
  std::string name;
  /// Bytes of its results that are no views, without those that operators in it wrote.
  std::uint64_t written = 0;
};

namespace detail {

inline std::mutex recording_mutex;
inline std::vector<RecordedOperator> recorded;
/// For each operator that runs on this thread: the bytes that operators in it wrote.
inline thread_local std::vector<std::uint64_t> written_inside;

inline bool is_view(const c10::FunctionSchema& schema) {
  return std::ranges::all_of(schema.returns(), [](const c10::Argument& each) {
    return each.alias_info() && !each.alias_info()->isWrite();
  });
}

inline std::uint64_t bytes_of(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor().nbytes();
  std::uint64_t sum = 0;
  if (value.isTensorList())
    for (const at::Tensor& each : value.toTensorVector()) sum += each.nbytes();
  return sum;
}

inline std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction&) {
  written_inside.push_back(0);
  return nullptr;
}

inline void end_operator(const at::RecordFunction& function, at::ObserverContext*) {
  constexpr std::string_view kOperator = "aten::";
  const std::string_view name = function.name();  // other names are those of autograd's nodes
  const std::uint64_t inside = written_inside.back();
  written_inside.pop_back();
  std::uint64_t results = 0;
  const auto schema = function.operator_schema();
  if (schema && !is_view(*schema) && !name.starts_with("aten::empty"))
    for (const c10::IValue& each : function.outputs()) results += bytes_of(each);
  const std::uint64_t written = results - std::min(results, inside);
  if (!written_inside.empty()) written_inside.back() += inside + written;
  if (!name.starts_with(kOperator)) return;
  const std::lock_guard lock(recording_mutex);
  recorded.push_back({std::string(name.substr(kOperator.size())), written});
}

}  // namespace detail

/// Returns the operators that all threads call during `work`, those that others call included.
template <class Work>
std::vector<RecordedOperator> operators_of(const Work& work) {
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(detail::begin_operator, detail::end_operator)
                                .needsOutputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  return std::exchange(detail::recorded, {});
}

inline std::uint64_t written_by(const std::vector<RecordedOperator>& operators) {
  std::uint64_t sum = 0;
  for (const RecordedOperator& each : operators) sum += each.written;
  return sum;
}

inline std::int64_t count_of(const std::vector<RecordedOperator>& operators,
                             std::string_view name) {
  return std::ranges::count(operators, name, &RecordedOperator::name);
}

/// Counts the host memory that this thread allocates and frees while it lives.
class AllocatedBytes {
 public:
  std::int64_t now() const { return counter_->now; }

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    // LibTorch 1.13 and 2.x differ in the types of the sums.
    void reportMemoryUsage(void*, std::int64_t size, std::int64_t, std::int64_t,
                           c10::Device) /*override*/ {
      now += size;
    }
    void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t,
                           c10::Device) /*override*/ {
      now += size;
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::int64_t now = 0;
  };

  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

}  // namespace unishard::test
