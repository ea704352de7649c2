#include "reading/fused_parameters.hpp"

#include "reading/model_type.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

namespace unishard::converters {
namespace {

// The facts are those of transformers 5.23 (conversion_mapping.py).
// tests/interop/peers/renamed_models.py compares each row with the library.
constexpr std::array kGatedExperts = {
    FusedRule{"mlp.experts.gate_up_proj", "mlp.experts.*.gate_proj.weight",
              "mlp.experts.*.up_proj.weight"},
    FusedRule{"mlp.experts.down_proj", "mlp.experts.*.down_proj.weight"}};
constexpr std::array kMixtral = {
    FusedRule{"mlp.experts.gate_up_proj", "block_sparse_moe.experts.*.w1.weight",
              "block_sparse_moe.experts.*.w3.weight"},
    FusedRule{"mlp.experts.down_proj", "block_sparse_moe.experts.*.w2.weight"},
    FusedRule{"mlp.gate.weight", "block_sparse_moe.gate.weight"},
    FusedRule{"mlp.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias"}};
constexpr std::array kErnie = {kGatedExperts[0], kGatedExperts[1],
                               FusedRule{"mlp.gate.moe_statics.e_score_correction_bias",
                                         "mlp.moe_statics.e_score_correction_bias"}};
constexpr std::array kExaone = {
    kGatedExperts[0], kGatedExperts[1],
    FusedRule{"mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias"}};
constexpr std::array kGranite = {
    FusedRule{"block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"},
    FusedRule{"block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight"},
    FusedRule{"block_sparse_moe.router.weight", "block_sparse_moe.router.layer.weight"}};
constexpr std::array kJamba = {
    FusedRule{"feed_forward.experts.gate_up_proj", "feed_forward.experts.*.gate_proj.weight",
              "feed_forward.experts.*.up_proj.weight"},
    FusedRule{"feed_forward.experts.down_proj", "feed_forward.experts.*.down_proj.weight"}};
constexpr std::array kLfm2 = {
    FusedRule{"feed_forward.experts.gate_up_proj", "feed_forward.experts.*.w1.weight",
              "feed_forward.experts.*.w3.weight"},
    FusedRule{"feed_forward.experts.down_proj", "feed_forward.experts.*.w2.weight"}};
constexpr std::array kMimo = {kGatedExperts[0], kGatedExperts[1],
                              FusedRule{"self_attn.sinks", "self_attn.attention_sink_bias"}};
constexpr std::array kHunyuan3 = {
    kGatedExperts[0],
    kGatedExperts[1],
    FusedRule{"mlp.gate.weight", "mlp.router.gate.weight"},
    FusedRule{"mlp.e_score_correction_bias", "mlp.expert_bias"},
    FusedRule{"mlp.shared_experts.gate_proj.weight", "mlp.shared_mlp.gate_proj.weight"},
    FusedRule{"mlp.shared_experts.up_proj.weight", "mlp.shared_mlp.up_proj.weight"},
    FusedRule{"mlp.shared_experts.down_proj.weight", "mlp.shared_mlp.down_proj.weight"}};
constexpr std::array kLaguna = {
    kGatedExperts[0],
    kGatedExperts[1],
    FusedRule{"mlp.gate.e_score_correction_bias", "mlp.experts.e_score_correction_bias"},
    FusedRule{"mlp.shared_experts.gate_proj.weight", "mlp.shared_expert.gate_proj.weight"},
    FusedRule{"mlp.shared_experts.up_proj.weight", "mlp.shared_expert.up_proj.weight"},
    FusedRule{"mlp.shared_experts.down_proj.weight", "mlp.shared_expert.down_proj.weight"}};
constexpr std::array kNemotron = {
    FusedRule{"mixer.experts.up_proj", "mixer.experts.*.up_proj.weight"},
    FusedRule{"mixer.experts.down_proj", "mixer.experts.*.down_proj.weight"}};
constexpr std::array kPhi = {kMixtral[0], kMixtral[1],
                             FusedRule{"mlp.router.weight", "block_sparse_moe.gate.weight"}};

struct FusedModel {
  std::string_view types;  ///< values of `model_type`, separated by blanks
  std::span<const FusedRule> rules;
  std::string_view module_start = {}, file_start = {};  ///< of all names
};
constexpr std::array<FusedModel, 12> kFusedModels = {{
    {"qwen2_moe qwen3_moe qwen3_next olmoe flex_olmo deepseek_v2 deepseek_v3 glm4_moe "
     "glm4_moe_lite solar_open qwen3_5_moe qwen3_5_moe_text afmoe dots1 cohere2_moe "
     "glm_moe_dsa mellum deepseek_v32 glm4v_moe longcat_flash dots3_note_text qwen4_exp "
     "qwen4_exp_text hunyuan_v1_moe",
     kGatedExperts},
    {"lfm2_moe", kLfm2},
    {"mimo_v2_flash", kMimo},
    {"hy_v3", kHunyuan3},
    {"laguna", kLaguna},
    {"exaone_moe", kExaone},
    {"mixtral minimax minimax_m2", kMixtral},
    {"phimoe", kPhi},
    {"ernie4_5_moe", kErnie},
    {"granitemoe granitemoeshared granitemoehybrid", kGranite},
    {"jamba", kJamba},
    {"nemotron_h", kNemotron, "model.", "backbone."},
}};

/// More experts in one layer are no model's.
constexpr std::uint64_t kMostExperts = 1 << 14;

struct Match {
  std::string_view prefix;  ///< what precedes the pattern
  std::uint32_t expert = 0;
};

/// Whether what precedes a pattern are whole parts of a name.
bool is_prefix(std::string_view text) { return text.empty() || text.ends_with('.'); }

std::optional<Match> match_end(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  const std::string_view tail = star == pattern.npos ? pattern : pattern.substr(star + 1);
  if (!name.ends_with(tail)) return std::nullopt;
  name.remove_suffix(tail.size());
  Match found;
  if (star != pattern.npos) {
    const std::string_view head = pattern.substr(0, star);
    const std::size_t begin = name.find_last_not_of("0123456789") + 1;
    const std::string_view number = name.substr(begin);
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), found.expert);
    if (error != std::errc() || (number.size() > 1 && number.front() == '0')) return std::nullopt;
    name = name.substr(0, begin);
    if (!name.ends_with(head)) return std::nullopt;
    name.remove_suffix(head.size());
  }
  if (!is_prefix(name)) return std::nullopt;
  found.prefix = name;
  return found;
}

std::string with_expert(std::string_view prefix, std::string_view pattern, std::uint64_t expert) {
  std::string name(prefix);
  const std::size_t star = pattern.find('*');
  if (star == pattern.npos) return name.append(pattern);
  return name.append(pattern.substr(0, star))
      .append(std::to_string(expert))
      .append(pattern.substr(star + 1));
}

/// Returns the name with another start, where it has the first one.
std::string restarted(std::string name, std::string_view start, std::string_view other) {
  if (!start.empty() && name.starts_with(start)) name.replace(0, start.size(), other);
  return name;
}

bool stacks_experts(const FusedRule& rule) { return rule.file.find('*') != rule.file.npos; }
std::uint64_t files_per_expert(const FusedRule& rule) { return rule.second_file.empty() ? 1 : 2; }

std::vector<FilePart> parts_of_experts(const FusedRule& rule, std::string_view prefix,
                                       const Shape& shape) {
  const std::uint64_t count = files_per_expert(rule);
  const std::uint64_t elements = element_count(shape);
  if (shape.size() < 2 || elements == 0 || shape[0] > kMostExperts || shape[1] % count != 0)
    return {};
  Shape part(shape.begin() + 1, shape.end());
  part[0] /= count;
  const std::uint64_t size = element_count(part);
  std::vector<FilePart> parts;
  for (std::uint64_t at = 0; at < elements; at += size) {
    const std::uint64_t number = at / size;
    const std::string_view file = number % count == 0 ? rule.file : rule.second_file;
    parts.push_back({with_expert(prefix, file, number / count), part, {at, at + size}});
  }
  return parts;
}

/// One of the files' tensors that make a parameter.
struct Member {
  std::size_t tensor = 0;
  std::uint64_t number = 0;  ///< in the order of the parameter's elements
};
using Members = std::vector<Member>;

/// Returns the shape of the parameter; nullopt unless all its parts are there, with one shape.
std::optional<Shape> fused_shape(const FusedRule& rule, const Members& members,
                                 std::span<const ShapedName> files) {
  const Shape& part = files[members.front().tensor].shape;
  if (!stacks_experts(rule)) return part;
  const std::uint64_t count = files_per_expert(rule);
  std::uint64_t last = 0;
  for (const Member& member : members) {
    if (files[member.tensor].shape != part) return std::nullopt;
    last = std::max(last, member.number);
  }
  // Names differ, so as many members as numbers are all of them.
  if (last + 1 != members.size() || (last + 1) % count != 0) return std::nullopt;
  if ((last + 1) / count > kMostExperts) return std::nullopt;
  if (part.empty() || element_count(part) == 0) return std::nullopt;
  if (part.front() > std::numeric_limits<std::uint64_t>::max() / count) return std::nullopt;
  Shape shape = {(last + 1) / count};
  shape.insert(shape.end(), part.begin(), part.end());
  shape[1] *= count;
  return shape;
}

Box fused_box(const FusedRule& rule, std::uint64_t number, const Shape& part, const Shape& whole) {
  Box box{Shape(whole.size(), 0), whole};
  if (!stacks_experts(rule)) return box;
  const std::uint64_t count = files_per_expert(rule);
  box.sizes[0] = 1;
  box.sizes[1] = part[0];
  box.offsets[0] = number / count;
  box.offsets[1] = number % count * part[0];
  return box;
}

}  // namespace

std::optional<FusedParameters> FusedParameters::of(std::string_view model_type) {
  for (const FusedModel& model : kFusedModels) {
    if (is_listed(model_type, model.types))
      return FusedParameters(model.rules, model.module_start, model.file_start);
  }
  return std::nullopt;
}

bool FusedParameters::are_experts(std::string_view parameter) const {
  return std::ranges::any_of(rules_, [&](const FusedRule& rule) {
    return rule.module.find("experts.") != rule.module.npos && match_end(rule.module, parameter);
  });
}

std::vector<FilePart> FusedParameters::parts(std::string_view parameter, const Shape& shape) const {
  for (const FusedRule& rule : rules_) {
    const auto found = match_end(rule.module, parameter);
    if (!found) continue;
    const std::string prefix = restarted(std::string(found->prefix), module_start_, file_start_);
    if (stacks_experts(rule)) return parts_of_experts(rule, prefix, shape);
    return {{with_expert(prefix, rule.file, 0), shape, {0, element_count(shape)}}};
  }
  if (module_start_.empty() || !parameter.starts_with(module_start_)) return {};
  return {{restarted(std::string(parameter), module_start_, file_start_),
           shape,
           {0, element_count(shape)}}};
}

bool FusedParameters::is_of_rule(std::string_view file) const {
  return std::ranges::any_of(rules_, [&](const FusedRule& rule) {
    return match_end(rule.file, file) ||
           (!rule.second_file.empty() && match_end(rule.second_file, file));
  });
}

std::vector<std::optional<ModulePlace>> FusedParameters::places(
    std::span<const ShapedName> files) const {
  std::map<std::pair<std::string_view, const FusedRule*>, Members> groups;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const FusedRule& rule : rules_) {
      const std::uint64_t count = files_per_expert(rule);
      if (const auto found = match_end(rule.file, files[i].name))
        groups[{found->prefix, &rule}].push_back({i, found->expert * count});
      if (rule.second_file.empty()) continue;
      if (const auto found = match_end(rule.second_file, files[i].name))
        groups[{found->prefix, &rule}].push_back({i, found->expert * count + 1});
    }
  }
  std::vector<std::optional<ModulePlace>> places(files.size());
  for (const auto& [key, members] : groups) {
    const auto& [prefix, rule] = key;
    const std::optional<Shape> shape = fused_shape(*rule, members, files);
    if (!shape) continue;
    for (const Member& member : members)
      places[member.tensor] = ModulePlace{
          restarted(std::string(prefix), file_start_, module_start_) + std::string(rule->module),
          *shape, fused_box(*rule, member.number, files[member.tensor].shape, *shape)};
  }
  for (std::size_t i = 0; i < files.size() && !file_start_.empty(); ++i) {
    const auto& [name, shape] = files[i];
    if (places[i] || !name.starts_with(file_start_) || is_of_rule(name)) continue;
    places[i] = ModulePlace{
        restarted(name, file_start_, module_start_), shape, {Shape(shape.size(), 0), shape}};
  }
  return places;
}

}  // namespace unishard::converters
