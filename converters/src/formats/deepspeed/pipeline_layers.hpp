#pragma once
// Which layers of a pipeline belong to which stage, and the whole names of their tensors. A layer's
// file has local names. The optimizer's names are `<layer>.<local>`, and
// `tied_modules.<key>.<local>` where several layers share a module; no file tells which layers
// those are.
#include "formats/deepspeed/module_files.hpp"
#include "formats/deepspeed/tied_states.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// A trained parameter as the files of a stage tell it.
struct ToldParameter {
  std::string fqn;
  std::optional<Shape> shape;  ///< nullopt where only the number of elements is told
  std::uint64_t elements = 0;
};

/// What the files of one stage tell about its part of the module.
struct StageFacts {
  std::string file;  ///< its model file
  std::vector<std::string> buffers;
  bool tells_buffers = false;  ///< `buffers` are all of the stage
  /// By parameter group; nullopt when the optimizer's states have numbers instead of names.
  std::optional<std::vector<std::vector<ToldParameter>>> groups;
  bool has_shapes = false;  ///< every parameter has its shape
  /// Then how many parameters the states are of, or how many elements when they are flat.
  std::uint64_t parameters = 0, elements = 0;
  std::vector<UnnamedState> states;
};

/// Checks that there are layers for the buffers and parameters that the stages name, and that no
/// layer has a buffer that its stage would name.
/// Throws: Corrupt, naming what is lost, or the layer that another save left.
void check_told_layers(const std::vector<ModuleFile>& layers, const std::vector<StageFacts>& stages,
                       const std::string& where);
/// Returns the shapes of each layer's parameters.
std::vector<std::vector<Shape>> parameter_shapes(const std::vector<ModuleFile>& layers,
                                                 const std::vector<StageFacts>& stages);
/// Returns the shapes of the parameters of layers that have one with the name and the beginning of
/// an earlier layer's, other than of one value, as the second file of a tied module does.
std::vector<Shape> repeated_parameters(const std::vector<ModuleFile>& layers,
                                       const std::vector<StageFacts>& stages);

/// Returns the layers by stage, with whole names. `layers` have local names and ascending numbers.
/// A tied module is in the first layer of each stage that has its tensors.
/// A note names the layers that no stage names: they are frozen, or left from another save.
/// Throws: Corrupt when a layer is missing, in two stages, left from another save or not the one
/// that the files tell; Unsupported when nothing tells which tied module a layer is.
std::vector<std::vector<ModuleFile>> assign_layers(std::vector<ModuleFile> layers,
                                                   const std::vector<StageFacts>& stages,
                                                   const std::string& where, Notes& notes);

/// Returns the stage of each layer when the stages' optimizers have numbers instead of names: each
/// takes as many parameters as it has states. nullopt when that leaves a choice, as tied modules
/// and frozen layers do.
std::optional<std::vector<std::size_t>> count_off_layers(const std::vector<ModuleFile>& layers,
                                                         const std::vector<StageFacts>& stages);
/// Returns a stage for each layer where count_off_layers() has none: that of its buffers, else that
/// of the layer before it.
std::vector<std::size_t> stages_by_buffers(const std::vector<ModuleFile>& layers,
                                           const std::vector<StageFacts>& stages);
/// Returns the layers by stage, under their numbers. `stage_of` is that of each layer.
std::vector<std::vector<ModuleFile>> place_layers(std::vector<ModuleFile> layers,
                                                  const std::vector<std::size_t>& stage_of,
                                                  std::size_t stages);

/// Returns the tied modules ("tied_modules.embed") of whose parameters no layer has one. `layers`
/// are those of the stages, with whole names.
std::vector<std::string> tied_modules_without_layer(
    const std::vector<StageFacts>& stages, const std::vector<std::vector<ModuleFile>>& layers);

/// Returns the parameters of a stage with their shapes, which layers have where they are not told.
/// `layers` are those of all stages: a tied module has a file on one of its stages only, where its
/// layers on the others have a forward_fn.
/// Throws: Unsupported when no layer has a parameter with as many elements as are told.
ShapeGroups shapes_of_stage(const StageFacts& stage,
                            const std::vector<std::vector<ModuleFile>>& layers);

}  // namespace unishard::converters::deepspeed
