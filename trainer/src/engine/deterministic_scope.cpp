#include "engine/deterministic_scope.hpp"

#include "unishard/format/error.hpp"

#include <ATen/Context.h>
#include <torch/version.h>

#include <mutex>
#include <string>

namespace unishard::trainer::detail {
namespace {

#define UNISHARD_FILLS_MEMORY \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2))

bool fills_memory() {
#if UNISHARD_FILLS_MEMORY
  return at::globalContext().deterministicFillUninitializedMemory();
#else
  return false;
#endif
}

void fill_memory([[maybe_unused]] bool fills) {
#if UNISHARD_FILLS_MEMORY
  at::globalContext().setDeterministicFillUninitializedMemory(fills);
#endif
}

/// The scopes of all threads, and what the user had before the first of them.
struct Switches {
  std::mutex mutex;
  int scopes = 0;
  bool was_deterministic = false, warned_only = false, filled = false;
};

Switches& switches() {
  static Switches instance;
  return instance;
}

}  // namespace

DeterministicScope::DeterministicScope(c10::Device device, bool is_wanted)
    : is_active_(is_wanted && !device.is_cpu()) {
  if (!is_active_) return;
  Switches& shared = switches();
  const std::lock_guard lock(shared.mutex);
  if (shared.scopes++ > 0) return;
  at::Context& context = at::globalContext();
  shared.was_deterministic = context.deterministicAlgorithms();
  shared.warned_only = context.deterministicAlgorithmsWarnOnly();
  shared.filled = fills_memory();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  fill_memory(false);
}

DeterministicScope::~DeterministicScope() {
  if (!is_active_) return;
  Switches& shared = switches();
  const std::lock_guard lock(shared.mutex);
  if (--shared.scopes > 0) return;
  at::globalContext().setDeterministicAlgorithms(shared.was_deterministic, shared.warned_only);
  fill_memory(shared.filled);
}

void require_deterministic(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const std::size_t found = text.find(" does not have a deterministic implementation");
  const bool is_cublas = text.find("CUBLAS_WORKSPACE_CONFIG") != text.npos;
  if (found == text.npos && !is_cublas) return;
  raise(ErrorCode::Unsupported,
        is_cublas ? "cuBLAS has run before it was told to be deterministic"
                  : text.substr(0, found) + " has no deterministic way on this device",
        is_cublas ? "set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the program starts"
                  : "\"deterministic\": false in the configuration allows it: repeated runs then "
                    "differ in their last bits");
}

}  // namespace unishard::trainer::detail
