#pragma once
// A checkpoint of any format as another format, world size, stage, or a part of it. The plan is a
// pure value; copy() of the converters carries it out.
#include "unishard/converters/sink.hpp"

#include "team/team.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::tools {

/// Every match of the regular expression `from` (ECMAScript) in an fqn becomes `to`, where $1 is
/// its first group.
struct RenameRule {
  std::string from;
  std::string to;
};

/// "FROM=TO", or "@file" with one such rule a line (blank lines and # comments are skipped). Throws
/// InvalidArgument naming the rule.
std::vector<RenameRule> parse_renames(const std::vector<std::string>& texts);

struct ConvertOptions {
  std::optional<std::uint32_t> world_size = {}, stage = {};  ///< nullopt keeps the source's
  std::optional<DType> dtype = {};     ///< of the tensors in state "weights" that float
  std::vector<std::string> only = {};  ///< shell patterns of fqns; empty takes all
  std::vector<RenameRule> renames = {};
  bool weights_only = false;  ///< one tensor per parameter and buffer, and nothing else
};

struct ConvertPlan {
  Catalog target;
  std::vector<std::size_t> tensor_map;  ///< target tensor -> source tensor
  std::vector<std::string> notes;       ///< what is left out because of the options
};

/// Throws InvalidArgument when nothing is left, or two tensors get one name.
ConvertPlan plan_convert(const converters::Source& source, const ConvertOptions& options);

/// Gives tensor i of `catalog`, where it has no digest, that of tensor tensor_map[i] of `source`,
/// measured by reading: each process of the team a part.
void add_digests(const converters::Source& source, const std::vector<std::size_t>& tensor_map,
                 const TransferOptions& options, Team& team, Catalog& catalog);

/// The source's catalog with the digest of every tensor.
Catalog with_digests(const converters::Source& source, const TransferOptions& options, Team& team);
Catalog with_digests(const converters::Source& source, const TransferOptions& options);

/// Labels of the tensors of `expected` whose digest `written` lacks or has otherwise. Both must
/// have digests.
std::vector<std::string> differing(const Catalog& expected, const Catalog& written);

}  // namespace unishard::tools
