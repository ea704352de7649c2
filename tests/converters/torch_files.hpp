#pragma once
// Writes small torch.save files, for tests of what the real libraries do not write.
#include "unishard/format/json.hpp"
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/pickle_json.hpp"
#include "containers/pickle_writer.hpp"
#include "containers/torch_output.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace unishard::converters {

struct Made {
  DType dtype;
  Shape shape;
  std::vector<float> values;  ///< of Float32; other types are all zero
  /// "module.Class": an object of that class in the tensor's place.
  std::string object = {};
};

/// Writes an object that is made without arguments.
inline void write_object(torch::PickleWriter& pickle, const std::string& name) {
  const std::size_t dot = name.rfind('.');
  pickle.global(name.substr(0, dot), name.substr(dot + 1));
  pickle.begin_tuple();
  pickle.end_tuple();
  pickle.reduce();
}

/// torch.save of `object`, whose {"$tensor": name} are `tensors`, into an archive of that name.
inline void save_torch(const Path& file, const Json& object,
                       const std::map<std::string, Made>& tensors,
                       const std::string& archive_name = "archive") {
  torch::PickleWriter pickle;
  std::vector<std::string> order;
  torch::write_json(pickle, object, [&](torch::PickleWriter& writer, const std::string& name) {
    if (!tensors.at(name).object.empty()) return write_object(writer, tensors.at(name).object);
    const auto known = std::ranges::find(order, name);
    const auto key = static_cast<std::size_t>(known - order.begin());
    if (known == order.end()) order.push_back(name);
    const Made& made = tensors.at(name);
    writer.tensor(made.dtype, made.shape, std::to_string(key), element_count(made.shape));
  });
  torch::ArchivePlan plan{file.filename(), archive_name, pickle.finish(), {}};
  std::vector<std::vector<std::byte>> bytes;
  for (const std::string& name : order) {
    const Made& made = tensors.at(name);
    bytes.emplace_back(element_count(made.shape) * size_of(made.dtype));
    if (made.dtype == DType::Float32)
      std::ranges::copy(std::as_bytes(std::span(made.values)), bytes.back().begin());
    plan.storage_bytes.push_back(bytes.back().size());
  }
  torch::TorchOutput output(posix_storage(), file.parent_path());
  const std::size_t archive = output.add(std::move(plan));
  for (std::size_t i = 0; i < bytes.size(); ++i) output.write(archive, i, 0, bytes[i]);
  output.finish();
}

inline Json tensor(const std::string& name) { return {{"$tensor", name}}; }
inline Json with_number_keys(Json value) {
  return {{"$type", "builtins.dict"}, {"pairs", Json::array({Json::array({0, std::move(value)})})}};
}

}  // namespace unishard::converters
