#include "campaign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace unishard::test {

Campaign Campaign::from_arguments(int argc, char** argv) {
  Campaign campaign;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool has_value = i + 1 < arguments.size();
    if (arguments[i] == "--long") {
      campaign.is_long = true;
    } else if (arguments[i] == "--seed" && has_value) {
      campaign.seed = std::strtoull(arguments[++i].c_str(), nullptr, 10);
    } else if (arguments[i] == "--count" && has_value) {
      campaign.count = std::strtoull(arguments[++i].c_str(), nullptr, 10);
    } else if (arguments[i].starts_with("-")) {
      fmt::print(stderr, "usage: {} [--long] [--seed N] [--count N] [PART...]\n", argv[0]);
      std::exit(2);
    } else {
      campaign.only.push_back(arguments[i]);
    }
  }
  return campaign;
}

bool Campaign::wants(const std::string& part) const {
  return only.empty() || std::ranges::find(only, part) != only.end();
}

void Findings::add(const std::string& text) {
  constexpr std::uint64_t kPrinted = 20;
  if (count_++ < kPrinted) fmt::print("FINDING {}\n", text);
  std::fflush(stdout);
}

double Stopwatch::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void print_row(const std::string& part, std::uint64_t count, const std::string& what,
               std::uint64_t findings, double seconds, std::uint64_t seed) {
  fmt::print("{:<34} | {:>9} {:<22} | {:>3} findings | {:>7.1f} s | seed {}\n", part, count, what,
             findings, seconds, seed);
  std::fflush(stdout);
}

}  // namespace unishard::test
