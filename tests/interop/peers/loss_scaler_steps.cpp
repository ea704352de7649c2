// The trainer's loss scaler for loss_scaling.py. Reads a line of JSON for each run:
//   {"config": {"fp16": {...}}, "saved": Catalog::loss_scaler or null, "overflows": "0100...",
//    "restart_every": steps between resumes from its own state}
// and writes a line: {"states": state before the first and after each step, "stopped": true where
// the smallest scale overflowed, which ends the run}.
#include "unishard/format/error.hpp"
#include "unishard/trainer/config.hpp"

#include "precision/loss_scaler.hpp"

#include <iostream>
#include <string>

namespace {

using namespace unishard;
using trainer::detail::LossScaler;

LossScaler resumed(const trainer::Fp16& settings, const Json& saved) {
  std::vector<std::string> notes;
  LossScaler scaler(settings);
  scaler.restore(saved, notes);
  for (const std::string& note : notes) raise(ErrorCode::Mismatch, note);
  return scaler;
}

Json run(const Json& order) {
  const trainer::Config config = trainer::parse_config(order["config"]);
  if (config.compute != DType::Float16) raise(ErrorCode::InvalidArgument, "fp16 is not enabled");
  LossScaler scaler = resumed(config.fp16, order["saved"]);
  Json result = {{"states", {scaler.state()}}, {"stopped", false}};
  std::size_t step = 0;
  for (const char overflow : order["overflows"].get<std::string>()) {
    try {
      scaler.update(overflow == '1');
    } catch (const Error& error) {
      if (error.code() != ErrorCode::NotFinite) throw;
      result["stopped"] = true;
      break;
    }
    if (++step % order["restart_every"].get<std::size_t>() == 0)
      scaler = resumed(config.fp16, parse_json(scaler.state().dump(), "the state"));
    result["states"].push_back(scaler.state());
  }
  return result;
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);)
      std::cout << run(parse_json(line, "a line")) << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "loss_scaler_steps: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
