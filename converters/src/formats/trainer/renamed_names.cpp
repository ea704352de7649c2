#include "formats/trainer/renamed_names.hpp"

#include "unishard/format/error.hpp"
#include "unishard/format/json.hpp"

#include "reading/model_type.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace unishard::converters::trainer {
namespace {

/// What tells names of the files from names of the module.
struct RenamedTypes {
  std::string_view
      parts;  ///< that follow each other in a name of the files; ^: that it begins with
  std::string_view types;  ///< values of `model_type`, separated by blanks
};

// The facts are those of transformers 5.23 (conversion_mapping.py), for the types whose names are
// not translated by FusedParameters. tests/interop/peers/renamed_models.py compares them with the
// library: a class of such a type writes a name with these parts, and no module has one.
constexpr std::array kRenamedTypes = {
    RenamedTypes{"language_model.model",
                 "aria audioflamingo3 aya_vision colpali fuyu gemma3 glmasr got_ocr2 "
                 "granite_speech granite_speech_plus internvl llava llava_next "
                 "llava_next_video llava_onevision mistral3 mllama musicflamingo paligemma "
                 "pi0 qwen2_audio shieldgemma2 video_llava vipllava voxtral "
                 "voxtral_realtime"},
    RenamedTypes{"encoder.layer",
                 "altclip audio-spectrogram-transformer beit deit gte ijepa pixio vit "
                 "vit_mae vit_msn vivit zoedepth"},
    RenamedTypes{"encoder.encoder",
                 "d_fine mask2former oneformer pp_doclayout_v2 pp_doclayout_v3 "
                 "pp_doclayout_v4 rf_detr rt_detr rt_detr_v2 vision-encoder-decoder"},
    RenamedTypes{"blocks",
                 "kimi_k25 molmo2 nemotron_h_omni radio sapiens2 tipsv2 tipsv2_dpt "
                 "tipsv2_vision_model unlimited_ocr"},
    RenamedTypes{"mlp.experts.0",
                 "axk1 axk2 dots3_note hy_v3 kolibri1 laguna mimo_v2_flash "
                 "qwen3_omni_moe_thinker"},
    RenamedTypes{"attention.attention",
                 "depth_anything depth_pro dinov2 dinov2_with_registers lw_detr "
                 "prompt_depth_anything vision-text-dual-encoder"},
    RenamedTypes{"encoder.layers", "jina_embeddings_v3 mimi_encoder nomic_bert qianfan_ocr"},
    RenamedTypes{"v_conv1d", "glm5_next glm5_next_text olmo_hybrid"},
    RenamedTypes{"model.embeddings", "grounding-dino mm-grounding-dino"},
    RenamedTypes{"model.norm", "qwen2_5_omni_thinker qwen2_5_vl"},
    RenamedTypes{"patchifier", "lfm3_vl lfm3_vl_vision"},
    RenamedTypes{"tracker_neck", "sam3_tracker sam3_tracker_video"},
    RenamedTypes{"wkv_b", "mistral_large4 mistral_large4_text"},
    RenamedTypes{"^layer", "dinov3_vit"},
    RenamedTypes{"^stages", "dinov3_convnext"},
    RenamedTypes{"^weight", "jev"},
    RenamedTypes{"backbone.layer", "chmv2"},
    RenamedTypes{"block", "segformer"},
    RenamedTypes{"c_proj", "tipsv2_text_model"},
    RenamedTypes{"conv1", "step3p7"},
    RenamedTypes{"decoder", "ultravbert"},
    RenamedTypes{"dense", "bailing_hybrid"},
    RenamedTypes{"embed_out", "gpt_neox"},
    RenamedTypes{"encoder.mid_position_embeddings", "yolos"},
    RenamedTypes{"encoder.norm", "t5gemma2"},
    RenamedTypes{"fc2", "aria_text"},
    RenamedTypes{"ff0", "timesfm2_5"},
    RenamedTypes{"ff_out", "molmo2_text"},
    RenamedTypes{"gqkv_proj", "hrm_text"},
    RenamedTypes{"hc_pre", "hy_v4"},
    RenamedTypes{"in_proj", "gradium_phonon_tts"},
    RenamedTypes{"k_conv1d", "kimi_linear"},
    RenamedTypes{"mlp_AR", "paddleocr_vl"},
    RenamedTypes{"norm_q", "cosmos3_omni"},
    RenamedTypes{"out_proj", "maskformer"},
    RenamedTypes{"pos_enc", "cohere_asr"},
    RenamedTypes{"q_bias", "videomae"},
    RenamedTypes{"softmax_offset", "flint"},
    RenamedTypes{"thinker.visual", "qwen2_5_omni"},
    RenamedTypes{"to_out", "cosmos3_edge"},
    RenamedTypes{"tracker_model.tracker_model", "sam3_video"},
    RenamedTypes{"ultrabert", "ultrabert"},
    RenamedTypes{"up_proj", "minimax_m3_vl"},
    RenamedTypes{"value", "swin"},
    RenamedTypes{"vision_projector", "hyperclovax_vision_v2"},
    RenamedTypes{"w_qkv", "nemo_speechlm"},
    RenamedTypes{"wgate", "deepseek_v4"},
    RenamedTypes{"wo_ud", "inkling2_text"},
    RenamedTypes{"wq_du", "inkling2"},
};

std::string text_of(const SortedJson& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// Versions before 5 have the names of the files in the module too.
bool is_version_5(std::string_view version) {
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major >= 5;
}

/// Whether a name of dotted parts has `parts`.
bool has_parts(std::string_view name, std::string_view parts) {
  if (parts.starts_with('^')) {
    parts.remove_prefix(1);
    return name.starts_with(parts) && (name.size() == parts.size() || name[parts.size()] == '.');
  }
  return fmt::format(".{}.", name).find(fmt::format(".{}.", parts)) != std::string::npos;
}

}  // namespace

std::optional<std::string> find_renamed(std::string_view config,
                                        std::span<const std::string> names) {
  try {
    const SortedJson json = parse_sorted_json(std::string(config), "config");
    if (!json.is_object() || !is_version_5(text_of(json, "transformers_version")))
      return std::nullopt;
    const std::string type = text_of(json, "model_type");
    for (const RenamedTypes& row : kRenamedTypes) {
      if (!is_listed(type, row.types)) continue;
      const auto found = std::ranges::find_if(
          names, [&](const std::string& name) { return has_parts(name, row.parts); });
      if (found != names.end()) return *found;
    }
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace unishard::converters::trainer
