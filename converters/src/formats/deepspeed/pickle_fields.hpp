#pragma once
// What DeepSpeed's files hold besides tensors, taken out of their pickles.
#include "unishard/format/json.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/torch_file.hpp"
#include "core/file_pool.hpp"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unishard::converters::deepspeed {

using torch::NodeKind;
using torch::TensorView;
using torch::TorchFile;
using torch::Value;

/// Lines of Source::notes(), each once.
class Notes {
 public:
  void add(std::string line) {
    if (seen_.insert(line).second) lines_.push_back(std::move(line));
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> lines_;
};

struct NamedShape {
  std::string fqn;
  Shape shape;
};
using ShapeGroups = std::vector<std::vector<NamedShape>>;

struct NamedView {
  std::string name;
  TensorView view;
};

using torch::open_window;

/// A view of `count` elements that lie in a raw file from its first byte on. Throws Corrupt when
/// the file is shorter.
TensorView raw_view(const torch::Window& window, DType dtype, std::uint64_t count);

/// `count` elements from `first` on as numbers. Pre: they are there, and the dtype is of
/// Kind::Float.
std::vector<double> floats(const TensorView& view, std::uint64_t first, std::uint64_t count);
/// True when `wide`, rounded to `dtype`, gives `narrow`; NaN equals NaN.
bool rounds_to(const std::vector<double>& wide, DType dtype, const std::vector<double>& narrow);

/// value.find(key) of a dict, where None means that it is not there. `holder` need not be a dict.
std::optional<Value> present(Value holder, std::string_view key);

/// torch.Size, tuple or list of numbers.
Shape shape_of(Value value);
/// param_shapes: a list of dicts; very old files have one dict.
ShapeGroups shape_groups(Value value);
std::vector<NamedShape> named_shapes(Value dict);

/// The number that a Python number or a tensor of one element holds; nullopt for other values.
std::optional<double> number_of(const TorchFile& file, Value value);
/// `step` of an optimizer. Throws Corrupt unless it counts something.
std::int64_t step_of(const TorchFile& file, Value value);

/// ZeroStageEnum in any of its encodings, or an int.
std::uint32_t zero_stage(Value value);

/// file.tensor(value); errors name the file and `what`.
TensorView tensor_of(const TorchFile& file, Value value, std::string_view what);

/// The tensors of a dict by name, in its order. What is no dense tensor becomes a note.
std::vector<NamedView> named_views(const TorchFile& file, Value dict, std::string_view what,
                                   Notes& notes);

/// As JSON, with tuples as arrays, dtypes as texts and tensors of one element as numbers.
Json plain_json(const TorchFile& file, Value value, const std::string& path, Notes& notes);
/// As JSON with nothing simplified (object_tree.hpp). Tensors and objects inside become notes.
Json exact_json(Value value, const std::string& path, std::uint64_t pickle_bytes, Notes& notes);

}  // namespace unishard::converters::deepspeed
