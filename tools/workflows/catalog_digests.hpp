#pragma once
// Catalogs with the digest of every tensor, and their comparison.
#include "unishard/converters/source.hpp"
#include "unishard/format/bounded_executor.hpp"

#include "team/team.hpp"

#include <string>
#include <vector>

namespace unishard::tools {

/// Gives tensor i of `catalog`, where it has no digest, that of tensor tensor_map[i] of `source`,
/// measured by reading: each process of the team reads a part.
void add_digests(const converters::Source& source, const std::vector<std::size_t>& tensor_map,
                 const TransferOptions& options, Team& team, Catalog& catalog);

/// Returns the source's catalog with the digest of every tensor.
Catalog with_digests(const converters::Source& source, const TransferOptions& options, Team& team);
Catalog with_digests(const converters::Source& source, const TransferOptions& options);

/// Returns the labels of the tensors of `expected` that `written` lacks or has with another dtype,
/// shape or digest, except those that are in `left_out` (ascending indices) and that `written`
/// lacks.
/// Pre: both have digests.
std::vector<std::string> differing(const Catalog& expected, const Catalog& written,
                                   const std::vector<std::size_t>& left_out = {});

}  // namespace unishard::tools
