#pragma once
// The trainable parameters of a checkpoint while their pieces are gathered, and the catalog that
// they and the model file make together.
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
};

struct Parameter {
  std::string fqn;
  Shape shape;
  std::uint64_t elements = 0;
  std::int32_t group = -1;
  std::vector<StatePieces> states;  ///< fp32 first
};

class ParameterTable {
 public:
  /// Returns the new parameter's index. Throws Corrupt when the name is there already.
  std::size_t add(const std::string& fqn, Shape shape, std::int32_t group);
  void add_piece(std::size_t parameter, const std::string& state, ViewPiece piece);

  std::optional<std::size_t> find(const std::string& fqn) const;
  const std::vector<Parameter>& all() const { return parameters_; }
  std::vector<Parameter>& all() { return parameters_; }

 private:
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

/// The frozen parameters' pieces, by name: stage 3 cuts each one over the ranks.
struct FrozenPieces {
  Shape shape;
  std::vector<ViewPiece> pieces;
};
using FrozenTable = std::unordered_map<std::string, FrozenPieces>;

/// Elements of a parameter of `elements` that stage 3 gives to `rank`.
ElementRange stage3_range(std::uint64_t elements, std::uint64_t rank, std::uint64_t world_size);

struct Assembly {
  const ModelFile* model = nullptr;
  const ParameterTable* parameters = nullptr;
  const FrozenTable* frozen = nullptr;
  bool placeholders = false;  ///< stage 3: the module's parameters are empty
  bool has_optimizer = true;  ///< false: parameters without states are weights, not frozen
};
/// Tensors, aliases and pieces in the module's order. Everything else of the catalog is left as it
/// is.
void assemble(const Assembly& assembly, PiecedCatalog& out, Notes& notes);

/// groups[i]: settings[i] and the names, in the parameters' order, of those in group i.
Json describe_groups(const Json& settings, const ParameterTable& parameters);

/// Takes what the model file says of the run: counters, scheduler, configuration, client state.
void take_run_facts(const ModelFile& model, Catalog& catalog);

/// The step to put into the catalog, from those that the files have. Notes what is odd about them.
std::int64_t choose_step(const std::vector<std::int64_t>& steps, const ModelFile& model,
                         Notes& notes);

/// Fully stored 16-bit or fp32 weights of the module and the master copies are written by the same
/// step. Compares the first elements of each parameter; returns the names of those that differ.
std::vector<std::string> disagreeing_weights(const ModelFile& model,
                                             const ParameterTable& parameters);

}  // namespace unishard::converters::deepspeed
