// Writes DeepSpeed's universal checkpoint: one folder per parameter with one file per state, each a
// whole tensor. Every ZeRO stage can load it: the payloads are dicts, which stages 1 and 2 require
// and stage 3 accepts, and the model file has the names that either family of stages looks for.
#include "unishard/converters/sink.hpp"
#include "unishard/format/error.hpp"

#include "formats/deepspeed/cpu_states.hpp"
#include "formats/deepspeed/missing_moments.hpp"
#include "formats/deepspeed/universal_cut.hpp"
#include "formats/deepspeed/writer_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

namespace unishard::converters {
namespace deepspeed_sink {
namespace {

constexpr std::size_t kLongestName = 255;  // bytes of a file's name

class UniversalDraft {
 public:
  explicit UniversalDraft(const SavedRun& run) : run_(run) {
    try {
      cuts_ = deepspeed::UniversalCuts(run.catalog.client_state);
    } catch (const Error& error) {
      note_cut(error);
    }
  }

  OutputDraft make() {
    check();
    model_file("mp_rank_00_model_states.pt");
    metadata_file("zero_pp_rank_0_mp_rank_00_model_states.pt");
    optimizer_file();
    for (std::size_t g = 0; g < run_.model.groups.size(); ++g) {
      for (const std::size_t parameter : run_.model.groups[g].parameters) {
        parameter_folder(run_.model.groups[g], run_.model.parameters[parameter]);
      }
    }
    return std::move(draft_);
  }

 private:
  void check() const {
    for (const SinkParameter& parameter : run_.model.parameters) check_name(parameter.fqn);
    for (const SinkGroup& group : run_.model.groups) {
      if (group.states.empty()) {
        raise(ErrorCode::Unsupported,
              "the checkpoint has no optimizer state, without which DeepSpeed cannot load a "
              "universal checkpoint",
              "write an ordinary DeepSpeed checkpoint instead");
      }
      for (const std::string& name : group.states) check_name(name + ".pt");
      check_moments(group);
    }
  }

  static void check_moments(const SinkGroup& group) {
    std::set<std::string> states;
    for (const std::string& name : group.states)
      states.insert(deepspeed::cpu_state_name(group.settings, group.states, name));
    const auto missing = deepspeed::missing_moments(group.settings, states, true);
    if (missing.empty()) return;
    const bool is_number = std::ranges::count(group.scalars, missing.front()) > 0;
    raise(ErrorCode::Unsupported,
          fmt::format("{} of the optimizer {}, and a universal checkpoint needs it as a tensor of "
                      "each parameter's shape",
                      missing.front(),
                      is_number ? "is one number of each parameter" : "is not in the checkpoint"),
          "write an ordinary DeepSpeed checkpoint instead (--to deepspeed)");
  }

  /// A parameter's name becomes a folder's name.
  static void check_name(const std::string& name) {
    const bool is_path = name.find('/') != std::string::npos || name == "." || name == "..";
    if (!is_path && name.size() <= kLongestName) return;
    raise(ErrorCode::Unsupported,
          fmt::format("{} cannot be the name of a file ({}), as the universal checkpoint needs it",
                      quote(name), is_path ? "it is a path" : "it has more than 255 bytes"),
          "write an ordinary DeepSpeed checkpoint instead");
  }

  void model_file(const std::string& name) {
    ModelFile what;
    what.has_shapes = true;
    for (const SinkGroup& group : run_.model.groups) what.shapes.push_back(group.parameters);
    ArchiveDraft file = draft_.next(run_.catalog);
    write_model_file(file, run_, what);
    draft_.archives.push_back(file.finish(name));
  }

  /// Stage 3 requires a file of this name and reads only counters from it.
  void metadata_file(const std::string& name) {
    ArchiveDraft file = draft_.next(run_.catalog);
    file.pickle.begin_dict();
    write_progress(file.pickle, run_.facts);
    write_world(file.pickle, run_);
    write_origin(file.pickle, run_.facts);
    write_client_state(file, run_.facts);
    file.pickle.end_dict();
    draft_.archives.push_back(file.finish(name));
  }

  /// torch's optimizers require a tensor here, which nothing converts; DeepSpeed's own require a
  /// number.
  void step(ArchiveDraft& file, const SinkGroup& group) {
    if (group.counts_in_int()) return file.pickle.integer(run_.catalog.step);
    file.scalar(static_cast<float>(run_.catalog.step));
  }

  void groups(torch::PickleWriter& pickle) {
    pickle.str("param_groups");
    pickle.begin_list();
    for (std::size_t g = 0; g < run_.model.groups.size(); ++g) {
      const auto index = static_cast<std::int64_t>(g);
      write_group(pickle, run_.model.groups[g], {&index, 1});
    }
    pickle.end_list();
  }

  void optimizer_file() {
    ArchiveDraft file = draft_.next(run_.catalog);
    torch::PickleWriter& pickle = file.pickle;
    pickle.begin_dict();
    if (run_.facts.has_loss_scaler) write_scaling(pickle, run_.facts);
    pickle.str("ds_version");
    pickle.str(kDeepSpeedVersion);
    groups(pickle);
    pickle.str("optimizer_state_dict");  // from here to the end: for stage 3
    pickle.begin_dict();
    pickle.str("state");
    pickle.begin_dict();
    pickle.integer(0);
    pickle.begin_dict();
    pickle.str("step");
    step(file, run_.model.groups.front());
    pickle.end_dict();
    pickle.end_dict();
    groups(pickle);
    pickle.end_dict();
    pickle.end_dict();
    draft_.archives.push_back(file.finish("zero/optimizer_state.pt"));
  }

  void note_cut(const Error& error) {
    draft_.plan.notes.push_back(
        fmt::format("how tensor-parallel ranks cut the tensors, so that DeepSpeed loads them with "
                    "one such rank "
                    "only: {}",
                    error.what()));
  }

  deepspeed::UniversalCut cut_of(const SinkParameter& parameter) {
    try {
      return cuts_.cut_of(parameter.fqn);
    } catch (const Error& error) {
      note_cut(error);
      return {};
    }
  }

  void parameter_folder(const SinkGroup& group, const SinkParameter& parameter) {
    const deepspeed::UniversalCut cut = cut_of(parameter);
    payload(parameter, std::string(state::kFp32), parameter.master, cut);
    for (const std::string& name : group.states)
      payload(parameter, deepspeed::cpu_state_name(group.settings, group.states, name),
              parameter.state(name), cut);
    ArchiveDraft file = draft_.next(run_.catalog);
    step(file, group);
    draft_.archives.push_back(file.finish(fmt::format("zero/{}/step.pt", parameter.fqn)));
  }

  void payload(const SinkParameter& parameter, const std::string& name,
               std::optional<TensorIndex> tensor, const deepspeed::UniversalCut& cut) {
    ArchiveDraft file = draft_.next(run_.catalog);
    file.pickle.begin_dict();
    file.pickle.str("param");
    if (!tensor) {
      file.shaped(DType::Float32, parameter.shape, {});
    } else {
      check_shape(run_.catalog, parameter, *tensor);
      file.tensor(*tensor, flat_dtype(run_.catalog, {*tensor}));
    }
    deepspeed::write_cut(file.pickle, cut);
    file.pickle.end_dict();
    draft_.archives.push_back(file.finish(fmt::format("zero/{}/{}.pt", parameter.fqn, name)));
  }

  const SavedRun& run_;
  deepspeed::UniversalCuts cuts_{Json()};
  OutputDraft draft_;
};

/// Notes what DeepSpeed's loader does with such a folder and not with its ordinary checkpoint.
void add_loader_notes(const SavedRun& run, std::vector<std::string>& notes) {
  for (const auto& [kind, what] : {std::pair{ModuleEntry::Kind::Frozen, "frozen parameters"},
                                   std::pair{ModuleEntry::Kind::Buffer, "buffers"}}) {
    for (const ModuleEntry& entry : run.model.module) {
      if (entry.kind != kind) continue;
      notes.emplace_back(
          fmt::format("{} in a way that DeepSpeed's universal loader restores; they are in "
                      "the files ({} first)",
                      what, entry.fqn));
      break;
    }
  }
  if (has_experts(run)) {
    notes.emplace_back(
        "experts for DeepSpeed's ep_size above 1, where its universal loader takes each rank's "
        "experts by numbers that count from 0 on every rank: resume with ep_size 1");
  }
  if (run.model.groups.size() > 1) {
    notes.emplace_back(
        "parameter groups: at stage 3 DeepSpeed's universal loader gives all of them "
        "the settings of the first");
  }
  const auto is_adam = [](const SinkGroup& group) {
    return std::ranges::count(group.states, state::kExpAvg) == 1 &&
           std::ranges::count(group.states, state::kExpAvgSq) == 1;
  };
  if (run.catalog.stage == 3 && !std::ranges::all_of(run.model.groups, is_adam)) {
    notes.emplace_back(
        "optimizer states in a way that DeepSpeed loads at stage 3, where its universal loader "
        "asks for exp_avg and exp_avg_sq of each parameter");
  }
}

}  // namespace
}  // namespace deepspeed_sink

std::unique_ptr<Sink> make_deepspeed_universal_sink(Storage& storage, const Path& folder,
                                                    const std::string& tag, Catalog catalog,
                                                    const WorkSplit& share, SideFiles side_files,
                                                    bool moves_latest) {
  const deepspeed_sink::SavedRun run(catalog);
  deepspeed_sink::OutputDraft draft = deepspeed_sink::UniversalDraft(run).make();
  deepspeed_sink::add_notes(run, draft, true);
  deepspeed_sink::add_loader_notes(run, draft.plan.notes);
  return deepspeed_sink::make_folder_sink(
      storage, folder, tag, moves_latest ? "latest_universal" : "", std::move(catalog),
      std::move(draft), share, std::move(side_files));
}

}  // namespace unishard::converters
