#include "engine/count_memory.hpp"

namespace unishard::trainer::detail {

MemoryReport count_memory(const ModelState& model) {
  MemoryReport report;
  report.parameters = model.meter->current();
  report.parameters_peak = model.meter->peak();
  for (const UnitRecord& unit : model.units) {
    report.master += unit.flat->master_bytes();
    report.optimizer += unit.flat->state_bytes();
    report.gradients += unit.flat->gradient_bytes();
    report.frozen += unit.flat->frozen().shard_bytes();
    report.files += unit.flat->bytes_in_files();
  }
  for (const ParameterRecord& parameter : model.parameters) {
    const bool is_whole = parameter.is_frozen && !parameter.unit;
    if (is_whole)
      report.frozen +=
          parameter.tensor.numel() * static_cast<std::int64_t>(parameter.tensor.itemsize());
  }
  return report;
}

}  // namespace unishard::trainer::detail
