#pragma once
// Files that hold a part of the module and nothing else: the layers of a pipeline and the experts
// of a mixture of experts.
#include "formats/deepspeed/layout.hpp"
#include "formats/deepspeed/parameter_table.hpp"
#include "formats/deepspeed/pickle_fields.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace unishard::converters::deepspeed {

/// One such file.
struct ModuleFile {
  FileName numbers;  ///< what its name says
  std::string name;
  std::vector<NamedView> entries;
};
/// Returns the name of the file without its folder.
std::string file_name(const ModuleFile& file);

/// Opens a file of a rank, a layer or an expert, and checks that the archive in it has the numbers
/// of the file's name: torch names the archive after the file that it writes, so that a renamed
/// file shows.
/// Throws: Corrupt, naming both.
TorchFile open_rank_file(const std::shared_ptr<FilePool>& pool, const Path& path);
/// Returns whether the archive in `file` has the name of a rank's, layer's or expert's file.
bool tells_its_name(const TorchFile& file);

/// Reads the names and places of the tensors in one file.
/// Throws: Corrupt, naming the file.
ModuleFile read_module_file(const std::shared_ptr<FilePool>& pool, const NumberedFile& file,
                            Notes& notes);

/// The shapes of the tensors in such a file, by name.
using TensorShapes = std::map<std::string, Shape>;
/// Returns the first `count` tensors of `kind` that `odd` lacks or has in another shape, a phrase
/// that begins with "has" for each.
std::vector<std::string> differences(const TensorShapes& odd, const TensorShapes& kind,
                                     std::size_t count);

/// Notes each layer that lacks a tensor of its kind, or has it in another shape. Layers that have
/// nearly the same tensors are of one kind, which is as most of them are. Only some models are made
/// so, and no other file tells what a frozen layer holds.
void doubt_odd_layers(const std::vector<ModuleFile>& layers, Notes& notes);

/// Checks that the optimizer's fp32 copy rounds to the values in `file`: in other numbers, the file
/// is in another's place or of another save. `is_exact`: one parameter that differs is enough, else
/// it takes half of those whose values tell anything. `where` begins messages.
/// Throws: Corrupt, naming the file and a parameter.
void check_against_masters(const ModuleFile& file, const ParameterTable& parameters, bool is_exact,
                           const std::string& where);

}  // namespace unishard::converters::deepspeed
