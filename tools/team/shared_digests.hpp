#pragma once
// Digests of whole tensors, of which each process of a team reads a part.
#include "unishard/converters/sink.hpp"

#include "team/team.hpp"

#include <functional>
#include <span>
#include <vector>

namespace unishard::tools {

/// Lifetime: `catalog` must outlive the job.
struct DigestJob {
  const Catalog* catalog = nullptr;  ///< describes the tensors
  std::vector<std::size_t> tensors;  ///< indices of the tensors to read
  std::function<void(std::size_t tensor, ElementRange range, std::span<std::byte> out)> read;
  /// Returns the best element to begin a read at, at most `element`.
  std::function<std::uint64_t(std::size_t tensor, std::uint64_t element)> boundary;
};

/// Reads this process's part, which has about as many bytes as every other's, and returns its
/// digests.
std::vector<converters::PartDigest> digest_share(const DigestJob& job, const Team& team,
                                                 const TransferOptions& options);

/// Combines the parts of all processes. Collective.
converters::Digests gather_digests(Team& team, const Catalog& catalog,
                                   const std::vector<converters::PartDigest>& parts);

}  // namespace unishard::tools
