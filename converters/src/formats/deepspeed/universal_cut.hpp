#pragma once
// What a universal checkpoint says of a whole tensor, so that DeepSpeed's loader cuts it for any
// number of tensor-parallel ranks.
#include "unishard/converters/cut_patterns.hpp"

#include "containers/pickle_writer.hpp"
#include "formats/deepspeed/name_pattern.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// Source: load_hp_checkpoint_state() of deepspeed/checkpoint/universal_checkpoint.py.
struct UniversalCut {
  std::uint32_t dimension = 0;       ///< along which the ranks' parts lie
  std::uint64_t sub_parameters = 1;  ///< equally large, one behind the other, each cut by itself
  bool is_vocabulary = false;        ///< gets rows of padding
  bool is_whole = false;             ///< every rank has all of it
};

/// One pattern of parameter_with_sub_params.
struct SubParameterRule {
  std::string pattern;
  std::uint32_t dimension = 0;
  std::size_t dimensions = 0;  ///< of the parameters that it matches
  std::uint64_t count = 0;     ///< of equal parts; 0 for unequal ones
  std::vector<std::uint64_t>
      sizes;  ///< of unequal parts, as q, k and v are with fewer heads of keys
};

/// Not thread-safe.
class UniversalCuts {
 public:
  /// Reads the patterns in a client state; without any, all tensors are cut along dimension 0.
  /// Throws: Unsupported for patterns that are not understood; Corrupt.
  explicit UniversalCuts(const Json& client_state);

  /// Throws: Unsupported when the parameter consists of unequal parts, which the files cannot tell.
  UniversalCut cut_of(const std::string& fqn) const;
  /// Returns the rule of parameter_with_sub_params for the parameter; null when there is none, or
  /// another list counts before it.
  const SubParameterRule* sub_parameters_of(const std::string& fqn) const;
  /// Returns whether a list has a pattern of the name: else the parameter is cut along dimension 0
  /// because nothing says otherwise.
  bool describes(const std::string& fqn) const;
  /// Returns whether there is any pattern.
  bool empty() const;

 private:
  enum List : std::uint8_t { Replicated, Mean, Halves, Rows, Vocabulary };
  void read_list(const Json& info, const char* key, List list);
  void read_sub_parameters(const Json& info);

  std::array<NamePatterns, 5> patterns_;          ///< by List
  NamePatterns sub_parameter_patterns_;           ///< their numbers are positions in the rules
  std::vector<SubParameterRule> sub_parameters_;  ///< one for each pattern
};

/// Appends the keys to an open dict.
void write_cut(torch::PickleWriter& pickle, const UniversalCut& cut);

}  // namespace unishard::converters::deepspeed
