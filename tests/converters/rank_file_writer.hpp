#pragma once
// Writes torch.save files as ranks write them: state dicts of DTensors and of plain vectors.
#include "unishard/format/storage.hpp"
#include "unishard/format/tensor_info.hpp"

#include "containers/pickle_writer.hpp"
#include "containers/torch_output.hpp"

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unishard::converters {

/// One torch.save file, built call by call.
class RankFileWriter {
 public:
  /// Appends a plain float32 tensor.
  void plain(const Shape& shape, const std::vector<float>& values) {
    if (shares_last) {
      pickle.tensor(DType::Float32, shape, std::to_string(storages_.size() - 1), values.size());
      return;
    }
    pickle.tensor(DType::Float32, shape, std::to_string(storages_.size()), values.size());
    storages_.push_back(values);
  }

  struct Placed {
    std::string_view name = "Shard";  ///< of the class
    std::int64_t dim = 0, factor = 1;
  };
  /// Appends a DTensor of torch 2.10 and later.
  void dtensor(const Shape& whole, const Shape& local, const std::vector<float>& values,
               const Shape& mesh, const Shape& coordinate, const std::vector<Placed>& placements) {
    pickle.global("torch._tensor", "_rebuild_from_type_v2");
    pickle.begin_tuple();
    pickle.global("torch._utils", "_rebuild_wrapper_subclass");
    pickle.global("torch.distributed.tensor", "DTensor");
    pickle.begin_tuple();
    pickle.global("torch.distributed.tensor", "DTensor");
    pickle.dtype(DType::Float32);
    numbers(whole);
    pickle.end_tuple();
    pickle.begin_dict();
    pickle.str("_local_tensor");
    plain(local, values);
    pickle.str("_spec");
    spec(mesh, coordinate, placements);
    pickle.end_dict();
    pickle.end_tuple();
    pickle.reduce();
  }

  /// Appends the key "param_groups" with one group, of parameters 0, 1, ...
  void one_group(std::size_t parameters) {
    pickle.str("param_groups");
    pickle.begin_list();
    pickle.begin_dict();
    pickle.str("params");
    pickle.begin_list();
    for (std::size_t i = 0; i < parameters; ++i) pickle.integer(static_cast<std::int64_t>(i));
    pickle.end_list();
    pickle.end_dict();
    pickle.end_list();
  }

  void write(const Path& file) {
    torch::ArchivePlan plan{file.filename(), "archive", pickle.finish(), {}};
    for (const auto& values : storages_)
      plan.storage_bytes.push_back(values.size() * sizeof(float));
    torch::TorchOutput output(posix_storage(), file.parent_path());
    const std::size_t archive = output.add(std::move(plan));
    for (std::size_t i = 0; i < storages_.size(); ++i)
      output.write(archive, i, 0, std::as_bytes(std::span(storages_[i])));
    output.finish();
  }

  torch::PickleWriter pickle;
  bool shares_last = false;  ///< the next tensors have the storage of the last one

 private:
  void numbers(const Shape& values) {
    pickle.begin_tuple();
    for (const std::uint64_t value : values) pickle.integer(static_cast<std::int64_t>(value));
    pickle.end_tuple();
  }

  void object(std::string_view module, std::string_view name, const std::function<void()>& fields) {
    pickle.global(module, name);
    pickle.new_object();
    pickle.begin_dict();
    fields();
    pickle.end_dict();
    pickle.build();
  }

  void spec(const Shape& mesh, const Shape& coordinate, const std::vector<Placed>& placements) {
    object("torch.distributed.tensor._dtensor_spec", "DTensorSpec", [&] {
      pickle.str("mesh");
      object("torch.distributed.device_mesh", "DeviceMesh", [&] {
        pickle.str("_layout");
        object("torch.distributed._mesh_layout", "_MeshLayout", [&] {
          pickle.str("axes");
          pickle.begin_tuple();
          for (const std::uint64_t size : mesh) {
            object("torch.distributed._mesh_layout", "_FlatLayout", [&] {
              pickle.str("shape");
              numbers({size});
            });
          }
          pickle.end_tuple();
        });
        pickle.str("_coordinate_on_dim");
        numbers(coordinate);
      });
      pickle.str("placements");
      pickle.begin_tuple();
      for (const Placed& each : placements) {
        object("torch.distributed.tensor.placement_types", each.name, [&] {
          if (each.name == "Replicate") return;
          pickle.str("dim");
          pickle.integer(each.dim);
          if (each.name != "_StridedShard") return;
          pickle.str("split_factor");
          pickle.integer(each.factor);
        });
      }
      pickle.end_tuple();
    });
  }

  std::vector<std::vector<float>> storages_;
};

}  // namespace unishard::converters
