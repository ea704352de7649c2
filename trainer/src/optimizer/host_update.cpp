#include "optimizer/host_update.hpp"

#include <array>
#include <variant>

// Says of the next loop that its arrays do not overlap, and asks for 512 bits where they are had.
#if defined(__clang__)
#define UNISHARD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNISHARD_AVX512 "avx512f,avx512vl,avx512bw"
#else
#define UNISHARD_INDEPENDENT _Pragma("GCC ivdep")
#define UNISHARD_AVX512 "avx512f,avx512vl,avx512bw,prefer-vector-width=512"
#endif

namespace unishard::trainer::detail {
namespace {

template <class R>
[[gnu::always_inline]] inline void update_all(const R& given, const UpdateArrays& arrays) {
  const R rule = given;  // copies, which the arrays cannot alias
  const UpdateArrays all = arrays;
  UNISHARD_INDEPENDENT
  for (std::size_t i = 0; i < all.count; ++i) update_element(rule, all, i);
}

template <class R>
void update_compiled(const R& rule, const UpdateArrays& arrays) {
  update_all(rule, arrays);
}

#if defined(__x86_64__)
template <class R>
[[gnu::target("avx2")]] void update_avx2(const R& rule, const UpdateArrays& arrays) {
  update_all(rule, arrays);
}

template <class R>
[[gnu::target(UNISHARD_AVX512)]] void update_avx512(const R& rule, const UpdateArrays& arrays) {
  update_all(rule, arrays);
}

std::span<const VectorWidth> widths_of_processor() {
  static constexpr std::array kAll{VectorWidth::Compiled, VectorWidth::Avx2, VectorWidth::Avx512};
  if (!__builtin_cpu_supports("avx2")) return std::span(kAll).first(1);
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512bw");
  return std::span(kAll).first(wide ? 3 : 2);
}
#else
std::span<const VectorWidth> widths_of_processor() {
  static constexpr std::array kAll{VectorWidth::Compiled};
  return kAll;
}
#endif

template <class R>
void update_with(const R& rule, const UpdateArrays& arrays, VectorWidth width) {
  switch (width) {
#if defined(__x86_64__)
    case VectorWidth::Avx512:
      return update_avx512(rule, arrays);
    case VectorWidth::Avx2:
      return update_avx2(rule, arrays);
#endif
    default:
      return update_compiled(rule, arrays);
  }
}

}  // namespace

std::span<const VectorWidth> vector_widths() {
  static const std::span<const VectorWidth> widths = widths_of_processor();
  return widths;
}

void update_on_host(const Rule& rule, const UpdateArrays& arrays, VectorWidth width) {
  std::visit([&](const auto& each) { update_with(each, arrays, width); }, rule);
}

}  // namespace unishard::trainer::detail
