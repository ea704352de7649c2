#pragma once
// The trainable parameters of a checkpoint while their pieces are collected, and the catalog built
// from them and the model file.
#include "containers/pieced_source.hpp"
#include "formats/deepspeed/model_file.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace unishard::converters::deepspeed {

struct StatePieces {
  std::string state;
  std::vector<ViewPiece> pieces;
  std::optional<Shape> shape = {};  ///< where it is not the parameter's
};

struct Parameter {
  std::string fqn;
  Shape shape;
  std::uint64_t elements = 0;
  std::int32_t group = -1;
  std::vector<StatePieces> states;  ///< fp32 first
};

/// Not thread-safe.
class ParameterTable {
 public:
  /// Returns the new parameter's index.
  /// Throws: Corrupt when the name is already in the table.
  std::size_t add(const std::string& fqn, Shape shape, std::int32_t group);
  /// Throws: Corrupt when the state was added as one without dimensions.
  void add_piece(std::size_t parameter, const std::string& state, ViewPiece piece);
  /// Adds a state without dimensions, unless the parameter has it: then both must be equal.
  /// Throws: Corrupt, naming `file`.
  void add_scalar(std::size_t parameter, const std::string& state, const TensorView& view,
                  const std::string& file);
  /// Adds a state as a whole, in its own shape.
  void add_whole(std::size_t parameter, const std::string& state, const TensorView& view);

  std::optional<std::size_t> find(const std::string& fqn) const;
  const std::vector<Parameter>& all() const { return parameters_; }
  std::vector<Parameter>& all() { return parameters_; }

 private:
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

/// The pieces of a frozen parameter; stage 3 splits it among the ranks.
struct FrozenPieces {
  Shape shape;
  std::vector<ViewPiece> pieces;
};
using FrozenTable = std::unordered_map<std::string, FrozenPieces>;

/// Returns the elements, of a parameter of `elements`, that stage 3 assigns to `rank`.
ElementRange stage3_range(std::uint64_t elements, std::uint64_t rank, std::uint64_t world_size);

/// Input of assemble().
/// Lifetime: everything it refers to must outlive the call.
struct Assembly {
  const ModelFile* model = nullptr;
  const ParameterTable* parameters = nullptr;
  const FrozenTable* frozen = nullptr;
  bool placeholders = false;  ///< stage 3: the module's parameters are empty
  bool has_optimizer = true;  ///< false: parameters without states are weights, not frozen
};
/// Adds tensors, aliases and pieces to `out` in the module's order. Leaves the rest of the catalog
/// unchanged.
void assemble(const Assembly& assembly, PiecedCatalog& out, Notes& notes);

/// Returns a list whose item i is settings[i] with the names of the parameters in group i, in the
/// parameters' order.
Json describe_groups(const Json& settings, const ParameterTable& parameters);

/// Copies counters, scheduler, configuration and client state from the model file into the catalog.
void take_run_facts(const ModelFile& model, Catalog& catalog);

/// Adds what the model file tells of groups that DeepSpeed's optimizers leave out: frozen
/// parameters, and groups without any other.
/// Pre: the catalog has its groups and its tensors.
void restore_groups(const ModelFile& model, Catalog& catalog);

/// Returns whose the part "module." before all names is: DeepSpeed saves the model itself, and
/// Lightning before 2.0 had it wrapped.
ModulePart module_part_of(const ModelFile& model);

/// Keeps in the client state the patterns that tell how tensor parallelism cuts parameters, those
/// of the user's before others (null: none). AutoTP's map is removed: it tells of the ranks of one
/// run, and its modules tell it anew.
void keep_cut_patterns(Catalog& catalog, const Json& users);

/// Returns the catalog's step, chosen from those in the files, which is the optimizer's own. Adds a
/// note when they contradict each other. `catalog` has all but the step.
std::int64_t choose_step(const std::vector<std::int64_t>& steps, const ModelFile& model,
                         const Catalog& catalog, Notes& notes);

/// How the weights in the module compare with the master copies, which the same step wrote.
struct WeightComparison {
  std::vector<std::string> differing;  ///< parameters whose master does not round to the weights
  std::size_t telling = 0;             ///< parameters whose values are not all equal
  std::size_t foreign = 0;  ///< those among them that differ by more than a 16-bit type rounds

  bool is_of_another_save() const { return telling > 0 && foreign == telling; }
};
/// Compares the first elements of each parameter; with `every_piece`, the first and the last ones
/// of each piece of its master.
WeightComparison compare_weights(const std::vector<NamedView>& module,
                                 const ParameterTable& parameters, bool every_piece = false);

}  // namespace unishard::converters::deepspeed
