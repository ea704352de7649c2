#pragma once
// How tensor parallelism cut the parameters of a run, as `universal_checkpoint_info` tells: by
// AutoTP's affine_map, else by lists of patterns (AutoTP before 0.19.8, Megatron).
#include "unishard/format/json.hpp"

#include "formats/deepspeed/affine_map.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// Not thread-safe.
class CutRules {
 public:
  /// `info` is universal_checkpoint_info of the model file `file`, or what others tell instead of
  /// it, which `rules` is then (null: it is the file's): the user, or the names of the tensors.
  /// Lifetime: the pickle of `info` must outlive this object.
  /// Throws: Unsupported when `info` has no rules or such that are not understood; Corrupt.
  CutRules(std::optional<Value> info, const std::string& file, Json rules = nullptr,
           bool are_users = false);
  /// Returns whether the user gave the rules, who may have forgotten a parameter.
  bool are_users() const { return are_users_; }
  /// Returns null for those of a file.
  const Json& json() const { return json_; }

  /// Returns the cut of parameter `fqn`, whose tensors on the ranks have the shapes `shards`.
  /// Throws: Corrupt or Unsupported, naming the parameter.
  TensorCut cut_of(const std::string& fqn, const std::vector<Shape>& shards);
  /// Returns the cut that the affine map or a pattern describes; nullopt when none does.
  std::optional<TensorCut> described_cut_of(const std::string& fqn,
                                            const std::vector<Shape>& shards);

  /// Checks what the patterns of the vocabulary have matched so far: a vector, such as a bias, has
  /// as many elements, with padding, as a matrix has rows.
  /// Throws: Corrupt, or InvalidArgument for rules of the user's, naming the vector.
  void check_vocabulary() const;

  /// Returns the cut of a tensor that every rank has whole.
  TensorCut replicated(const std::string& fqn, const std::vector<Shape>& shards);

 private:
  enum class Rule : std::uint8_t { Replicated, Mean, Halves, Rows, Vocabulary, Unsupported };
  /// parameter_with_sub_params: one behind the other along `dimension`.
  struct SubParameters {
    std::size_t dimension = 0;
    Value sizes;  ///< of the sub-parameters, or their number
    std::optional<Value> widths;
    Shape view;  ///< the other dimensions; 0 where it does not say
  };

  void read_list(Value info, std::string_view key, Rule rule);
  void read_sub_parameters(Value info);
  bool matches(Rule rule, const std::string& fqn, const std::string& what) const;
  std::optional<TensorCut> listed_cut_of(const std::string& fqn, const CutContext& context);
  void require_like_lists(const TensorCut& mapped, const std::string& fqn,
                          const CutContext& context);
  std::optional<TensorCut> by_pattern(const std::string& fqn, const CutContext& context) const;
  TensorCut of_sub_parameters(const SubParameters& rule, const CutContext& context) const;
  void require_rows_of_every_rank(const std::vector<Shape>& shards, const std::string& what) const;
  [[noreturn]] void contradict(const std::string& what, const std::string& problem) const;
  void refuse_unsupported(const std::string& fqn, const std::string& what) const;

  std::string file_;
  Json json_;
  bool are_users_;
  double version_ = 0;
  std::optional<AffineMap> affine_map_;
  bool has_lists_ = false;                ///< of patterns
  std::array<NamePatterns, 6> patterns_;  ///< by Rule; their numbers are positions in the lists
  std::vector<std::string> reasons_;      ///< of the patterns of Rule::Unsupported
  std::vector<SubParameters> sub_parameters_;
  NamePatterns sub_parameter_patterns_;
  std::optional<std::uint64_t> vocabulary_;
  std::map<std::string, Shape> padded_;  ///< whole tensors of the vocabulary, by name
  MemoryBudget memory_;
};

}  // namespace unishard::converters::deepspeed
