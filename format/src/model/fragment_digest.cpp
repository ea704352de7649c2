#include "unishard/format/fragment_digest.hpp"

#include "unishard/format/crc64.hpp"

#include <algorithm>
#include <vector>

namespace unishard {
namespace {

/// Multiplies by x^(8 * bytes) for the few distances between the runs of a box.
class Shifts {
 public:
  std::uint64_t operator()(std::uint64_t bytes, std::uint64_t remainder) {
    for (const auto& [known, shift] : known_)
      if (known == bytes) return shift(remainder);
    return known_.emplace_back(Known{bytes, Crc64Shift(bytes)}).shift(remainder);
  }

 private:
  struct Known {
    std::uint64_t bytes;
    Crc64Shift shift;
  };
  std::vector<Known> known_;
};

}  // namespace

// The CRC of all bytes goes on from run to run. That of one run, which the contribution needs,
// follows from the CRCs before and after it.
FragmentDigest digest_elements(const ElementMap& map, std::uint64_t tensor_elements,
                               std::uint64_t width, ElementRange own,
                               std::span<const std::byte> bytes) {
  FragmentDigest digest;
  Shifts shift;
  std::uint64_t sum = 0;  // of the runs so far, as if the tensor ended with the last one
  std::uint64_t end = 0;  // element behind the last run
  std::uint64_t zeros = 0, zeros_of = 0;
  map.each_run(own, [&](std::uint64_t first, ElementRange run) {
    const std::uint64_t run_bytes = run.size() * width;
    const std::uint64_t before = digest.crc64;
    digest.crc64 = crc64(bytes.subspan((first - own.begin) * width, run_bytes), before);
    if (run_bytes != zeros_of) zeros = crc64_zeros(run_bytes), zeros_of = run_bytes;
    const std::uint64_t raw = digest.crc64 ^ shift(run_bytes, before) ^ zeros;
    sum = (sum == 0 ? 0 : shift((run.end - end) * width, sum)) ^ raw;
    end = run.end;
  });
  digest.contribution = crc64_contribution(sum, 0, (tensor_elements - end) * width);
  return digest;
}

}  // namespace unishard
