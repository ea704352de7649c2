#pragma once
// Rules of the user's for a tensor-parallel run whose files do not say how its tensors were cut:
// JSON with the keys of universal_checkpoint_info.
#include "unishard/format/json.hpp"

#include "containers/torch_file.hpp"
#include "formats/deepspeed/cut_rules.hpp"
#include "formats/deepspeed/pickle_fields.hpp"

#include <memory>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// Not thread-safe.
class MergeRules {
 public:
  /// `rules` is null where the user gives none.
  /// Throws: InvalidArgument, naming the key, for a key that is not known or of another type.
  explicit MergeRules(const Json& rules);

  /// Returns the user's rules.
  /// Lifetime: this object must outlive the result.
  /// Pre: the user gives some.
  CutRules cut_rules();
  /// Returns the user's rules, else those in the model file. A note says where both are there.
  /// Lifetime: this object and `file` must outlive the result.
  /// Throws: what the constructor of CutRules throws.
  CutRules cut_rules(const TorchFile& file, Notes& notes);

  /// Checks the user's rules, if any, against the parameters that they were used for. `where` is
  /// the checkpoint that messages name.
  /// Throws: InvalidArgument when they were not used; InvalidArgument, naming pattern or parameter,
  /// when a pattern matches none, two lists that exclude each other match one, or a weight does not
  /// fit the bias beside it.
  void check(const Catalog& catalog, const std::string& where) const;

 private:
  /// A pattern of one list.
  struct Listed {
    std::string list, pattern;
    bool is_exclusive = true;  ///< of a list that says how a tensor was cut
  };
  void read_patterns(const Json& rules);
  void check_patterns(const Catalog& catalog) const;

  Json rules_;
  std::unique_ptr<torch::Pickle> pickle_;  ///< null: the user gives no rules
  bool are_used_ = false;
  std::vector<Listed> patterns_;
};

}  // namespace unishard::converters::deepspeed
