#include "workflows/catalog_digests.hpp"

#include "team/shared_digests.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace unishard::tools {

void add_digests(const converters::Source& source, const std::vector<std::size_t>& tensor_map,
                 const TransferOptions& options, Team& team, Catalog& catalog) {
  DigestJob job{
      .catalog = &catalog,
      .tensors = {},
      .read = [&](std::size_t tensor, ElementRange range,
                  std::span<std::byte> out) { source.read(tensor_map[tensor], range, out); },
      .boundary =
          [&](std::size_t tensor, std::uint64_t element) {
            return source.read_boundary(tensor_map[tensor], element);
          }};
  for (std::size_t i = 0; i < catalog.tensors.size(); ++i) {
    if (!catalog.tensors[i].crc64) job.tensors.push_back(i);
  }
  const auto digests = gather_digests(team, catalog, digest_share(job, team, options));
  for (const std::size_t i : job.tensors) catalog.tensors[i].crc64 = digests[i];
}

Catalog with_digests(const converters::Source& source, const TransferOptions& options, Team& team) {
  Catalog catalog = source.catalog();
  std::vector<std::size_t> itself(catalog.tensors.size());
  std::iota(itself.begin(), itself.end(), std::size_t{0});
  add_digests(source, itself, options, team, catalog);
  return catalog;
}

Catalog with_digests(const converters::Source& source, const TransferOptions& options) {
  Team alone;
  return with_digests(source, options, alone);
}

std::vector<std::string> differing(const Catalog& expected, const Catalog& written,
                                   const std::vector<std::size_t>& left_out) {
  std::map<std::pair<std::string_view, std::string_view>, const TensorInfo*> there;
  for (const TensorInfo& tensor : written.tensors) there[{tensor.fqn, tensor.state}] = &tensor;
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    const TensorInfo& tensor = expected.tensors[i];
    const auto found = there.find({tensor.fqn, tensor.state});
    if (found == there.end() && std::ranges::binary_search(left_out, i)) continue;
    const bool equal = found != there.end() && found->second->dtype == tensor.dtype &&
                       found->second->shape == tensor.shape && found->second->crc64 == tensor.crc64;
    if (!equal) labels.push_back(tensor.label());
  }
  return labels;
}

}  // namespace unishard::tools
