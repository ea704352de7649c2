#pragma once
// The expected state of a DeepSpeed fixture (expected.safetensors and case.json) as a Source. It
// does not read the checkpoint itself.
#include "unishard/converters/source.hpp"
#include "unishard/format/storage.hpp"

#include <map>
#include <memory>

namespace unishard::test {

inline Catalog catalog_of_case(const Json& facts, const Catalog& expected,
                               std::vector<std::size_t>& tensors) {
  Catalog catalog;
  const bool is_16_bit = facts["dtype"] != "fp32";
  std::map<std::string, std::int32_t> group_of;
  catalog.groups = facts["param_groups"];
  for (std::size_t g = 0; g < catalog.groups.size(); ++g) {
    for (const Json& name : catalog.groups[g]["params"]) group_of[name] = static_cast<int>(g);
  }
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    TensorInfo tensor = expected.tensors[i];
    const std::size_t bar = tensor.fqn.rfind('|');
    tensor.state = tensor.fqn.substr(bar + 1);
    tensor.fqn.resize(bar);
    const auto group = group_of.find(tensor.fqn);
    const bool trained = group != group_of.end();
    if (tensor.state == "weights" && trained && !is_16_bit) continue;  // the same bits as fp32
    tensor.frozen = tensor.state == "weights" && !trained;
    tensor.group = trained ? group->second : -1;
    tensors.push_back(i);
    catalog.tensors.push_back(std::move(tensor));
  }
  for (const auto& [alias, target] : facts["tied"].items())
    catalog.aliases.push_back({alias, target});
  return catalog;
}

class CaseSource final : public converters::Source {
 public:
  explicit CaseSource(const Path& folder)
      : facts_(parse_json(read_text(posix_storage(), folder / "case.json", 1u << 20), "case.json")),
        expected_(converters::open_source(posix_storage(), folder / "expected.safetensors")) {
    catalog_ = catalog_of_case(facts_, expected_->catalog(), tensors_);
    catalog_.step = static_cast<std::int64_t>(facts_["optimizer_step"].get<double>());
    catalog_.world_size = facts_["world_size"];
    catalog_.stage = facts_["stage"];
    catalog_.scheduler = facts_["scheduler_state"];
    catalog_.loss_scaler = facts_["loss_scaler"];
    catalog_.client_state = facts_["client_state"];
    catalog_.config = facts_["ds_config"];
    for (const char* key : {"global_steps", "skipped_steps", "global_samples"}) {
      catalog_.data_position[key] = facts_[key];
    }
  }

  std::string format() const override { return "case"; }
  const Catalog& catalog() const override { return catalog_; }
  const Json& facts() const { return facts_; }
  void read_range(std::size_t tensor, ElementRange range, std::span<std::byte> out) const override {
    expected_->read(tensors_.at(tensor), range, out);
  }

 private:
  const Json facts_;
  const std::unique_ptr<converters::Source> expected_;
  Catalog catalog_;
  std::vector<std::size_t> tensors_;
};

}  // namespace unishard::test
