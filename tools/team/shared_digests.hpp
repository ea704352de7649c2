#pragma once
// Digests of whole tensors, of which each process of a team reads a part.
#include "unishard/converters/sink.hpp"

#include "team/team.hpp"

#include <functional>
#include <span>
#include <vector>

namespace unishard::tools {

struct DigestJob {
  const Catalog* catalog = nullptr;  ///< whose tensors are read
  std::vector<std::size_t> tensors;  ///< which of them
  std::function<void(std::size_t tensor, ElementRange range, std::span<std::byte> out)> read;
  /// The last element up to `element` at which a read may best begin.
  std::function<std::uint64_t(std::size_t tensor, std::uint64_t element)> boundary;
};

/// Reads this process's part: about as many bytes as every other's.
std::vector<converters::PartDigest> digest_share(const DigestJob& job, const Team& team,
                                                 const TransferOptions& options);

/// Everybody's parts put together.
converters::Digests gather_digests(Team& team, const Catalog& catalog,
                                   const std::vector<converters::PartDigest>& parts);

}  // namespace unishard::tools
