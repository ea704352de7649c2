#pragma once
// Shared parts of the programs of the reliability record: their options, and the row that each
// prints.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace unishard::test {

struct Campaign {
  bool is_long = false;
  std::uint64_t seed = 1;
  std::uint64_t count = 0;  ///< 0: the default of the program's short or long form
  std::vector<std::string> only = {};

  /// Parses --long, --seed N, --count N, and names of parts. Exits with status 2 for any other
  /// argument that begins with "-".
  static Campaign from_arguments(int argc, char** argv);
  bool wants(const std::string& part) const;
};

/// Counts findings and prints the first few.
class Findings {
 public:
  void add(const std::string& text);
  std::uint64_t count() const { return count_; }

 private:
  std::uint64_t count_ = 0;
};

class Stopwatch {
 public:
  double seconds() const;

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Prints one row of the table: `part | count what | findings | seconds | seed`.
void print_row(const std::string& part, std::uint64_t count, const std::string& what,
               std::uint64_t findings, double seconds, std::uint64_t seed);

}  // namespace unishard::test
