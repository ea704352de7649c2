#pragma once
// Extracts from DeepSpeed's pickles what is not a tensor.
#include "unishard/format/json.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/torch_file.hpp"
#include "core/file_pool.hpp"
#include "reading/reader_notes.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

using torch::NodeKind;
using torch::TensorView;
using torch::TorchFile;
using torch::Value;

using Notes = ReaderNotes;

struct NamedShape {
  std::string fqn;
  Shape shape;
  bool operator==(const NamedShape&) const = default;
};
using ShapeGroups = std::vector<std::vector<NamedShape>>;

struct NamedView {
  std::string name;
  TensorView view;
};

using torch::open_window;

/// Returns a view of the first `count` elements of a raw file.
/// Throws: Corrupt when the file is shorter.
TensorView raw_view(const torch::Window& window, DType dtype, std::uint64_t count);

/// Returns `count` elements from number `first` on as numbers.
/// Pre: the view has these elements, and its dtype is of Kind::Float.
std::vector<double> floats(const TensorView& view, std::uint64_t first, std::uint64_t count);
/// Returns true when `wide`, rounded to `dtype`, gives `narrow`. NaN equals NaN.
bool rounds_to(const std::vector<double>& wide, DType dtype, const std::vector<double>& narrow);

/// Returns value.find(key) of a dict; nullopt for None, and when `holder` is no dict.
std::optional<Value> present(Value holder, std::string_view key);

/// Reads a torch.Size, tuple or list of numbers.
Shape shape_of(Value value);
/// Reads param_shapes: a list of dicts; one dict in very old files.
ShapeGroups shape_groups(Value value);
std::vector<NamedShape> named_shapes(Value dict);

/// Reads `step` of an optimizer.
/// Throws: Corrupt unless it is a count.
std::int64_t step_of(const TorchFile& file, Value value);

/// Reads a ZeroStageEnum in any of its encodings, or an int.
std::uint32_t zero_stage(Value value);

/// Returns file.tensor(value). Errors name the file and `what`.
TensorView tensor_of(const TorchFile& file, Value value, std::string_view what);

/// Returns the tensors of a dict by name, in its order. Values that are no dense tensors become
/// notes.
std::vector<NamedView> named_views(const TorchFile& file, Value dict, std::string_view what,
                                   Notes& notes);

enum class TorchTypes : std::uint8_t { Plain, Kept };

/// Returns a value as JSON, with tuples as arrays and tensors of one element as numbers; unless
/// torch's types are kept, dtypes are texts, and sizes arrays.
Json plain_json(const TorchFile& file, Value value, const std::string& path, Notes& notes,
                TorchTypes types = TorchTypes::Plain);
/// Returns a value as JSON without simplification (object_tree.hpp). Tensors and objects inside
/// become notes.
Json exact_json(Value value, const std::string& path, std::uint64_t pickle_bytes, Notes& notes);

}  // namespace unishard::converters::deepspeed
