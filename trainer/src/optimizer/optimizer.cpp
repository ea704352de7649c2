#include "unishard/trainer/optimizer.hpp"

#include "unishard/format/error.hpp"

#include "optimizer/rules.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace unishard::trainer {
namespace {

using Maker = std::unique_ptr<Optimizer> (*)(const Hyper&);
constexpr std::array<std::string_view, 5> kNames{"Adam", "AdamW", "SGD", "Lion", "Adagrad"};
constexpr std::array<Maker, 5> kMakers{detail::make_adam, detail::make_adam, detail::make_sgd,
                                       detail::make_lion, detail::make_adagrad};

bool same_name(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::ranges::equal(a, b, {}, lower, lower);
}

}  // namespace

std::span<const std::string_view> optimizer_names() { return kNames; }

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const Hyper& hyper) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (same_name(kNames[i], name)) return kMakers[i](hyper);
  }
  std::string known;
  for (const std::string_view each : kNames)
    known += (known.empty() ? "" : ", ") + std::string(each);
  raise(ErrorCode::InvalidArgument, "optimizer " + quote(name) + " is not supported",
        "known: " + known);
}

}  // namespace unishard::trainer
