#include "workflows/report/comparison.hpp"

#include "workflows/tensor_pairs.hpp"

#include <algorithm>
#include <unordered_set>

namespace unishard::tools {
namespace {

Sameness by_tables(const TensorInfo& a, const TensorInfo& b) {
  if (a.shape != b.shape || a.dtype != b.dtype) return Sameness::Different;
  if (!a.crc64 || !b.crc64) return a.elements() == 0 ? Sameness::Equal : Sameness::Unknown;
  return *a.crc64 == *b.crc64 ? Sameness::Equal : Sameness::Different;
}

/// Decides what digests could not, from what diff() has read.
void decide_by_reading(const DiffReport& read, const Catalog& a, std::vector<Sameness>& tensors) {
  std::unordered_set<std::string> differing;
  for (const TensorDiff& diff : read.differences) differing.insert(diff.tensor);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] == Sameness::OnlyInFirst || tensors[i] == Sameness::NotCompared) continue;
    tensors[i] = differing.contains(a.tensors[i].label()) ? Sameness::Different : Sameness::Equal;
  }
}

}  // namespace

DigestComparison compare_digests(const converters::Source& a, const converters::Source& b,
                                 bool deep, const TransferOptions& transfer) {
  DigestComparison out;
  const Pairing pairing = pair_tensors(a, b, {});
  out.tensors.assign(a.catalog().tensors.size(), Sameness::NotCompared);
  for (const std::size_t index : pairing.only_a) out.tensors[index] = Sameness::OnlyInFirst;
  for (const TensorPair& pair : pairing.pairs) {
    Sameness& sameness = out.tensors[pair.a];  // of all pairs, when the parameter is tied in `a`
    if (sameness != Sameness::Different)
      sameness = by_tables(a.catalog().tensors[pair.a], b.catalog().tensors[pair.b]);
  }
  for (const std::size_t index : pairing.only_b)
    out.only_second.push_back(b.catalog().tensors[index].label());
  out.information = pairing.notes;
  if (deep) {
    out.read = diff(a, b, {.tolerance = {}, .states = {}, .transfer = transfer});
    out.information = out.read->information;
    decide_by_reading(*out.read, a.catalog(), out.tensors);
  }
  const auto count = [&](Sameness sameness) {
    return static_cast<std::uint64_t>(std::ranges::count(out.tensors, sameness));
  };
  out.equal = count(Sameness::Equal);
  out.different = count(Sameness::Different);
  out.unknown = count(Sameness::Unknown);
  out.only_first = count(Sameness::OnlyInFirst);
  return out;
}

}  // namespace unishard::tools
