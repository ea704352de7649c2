#include "formats/dcp/optimizer_models.hpp"

#include <algorithm>
#include <array>
#include <cctype>

namespace unishard::converters::dcp {
namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_upper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Returns the words of a key in lower case: {"net", "g"} of "netG".
std::vector<std::string> words_of(std::string_view key) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < key.size(); ++i) {
    const char c = key[i];
    const bool begins_word = is_upper(c) && i > 0 && !is_upper(key[i - 1]);
    if (begins_word || (!is_letter(c) && !is_digit(c))) words.emplace_back();
    if (is_letter(c) || is_digit(c))
      words.back().push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  std::erase(words, "");
  return words;
}

/// Returns the words that tell models apart, joined.
std::string stem_of(std::string_view key) {
  constexpr std::array<std::string_view, 15> kCommon = {
      "opt",    "optim",  "optimizer", "optimizers", "state", "states",  "dict", "model",
      "models", "module", "net",       "nets",       "sd",    "network", "of"};
  std::string stem;
  for (const std::string& word : words_of(key)) {
    if (std::ranges::count(kCommon, word) == 0) stem += word;
  }
  return stem;
}

class Matcher {
 public:
  Matcher(const std::vector<std::string>& prefixes,
          const std::vector<std::vector<ModelOption>>& options)
      : prefixes_(prefixes), options_(options), chosen_(prefixes.size()) {}

  std::optional<std::vector<std::string>> run() {
    while (choose_one(false) || choose_one(true)) continue;
    std::vector<std::string> models;
    for (const ModelOption* chosen : chosen_) {
      if (chosen == nullptr) return std::nullopt;
      models.push_back(chosen->model);
    }
    return models;
  }

 private:
  /// Gives one more optimizer its model; returns false when none has a single one.
  bool choose_one(bool by_name) {
    for (std::size_t o = 0; o < chosen_.size(); ++o) {
      if (chosen_[o] != nullptr) continue;
      const ModelOption* const only = only_option(o, by_name);
      if (only == nullptr) continue;
      chosen_[o] = only;
      taken_.insert(only->parameters.begin(), only->parameters.end());
      return true;
    }
    return false;
  }

  const ModelOption* only_option(std::size_t optimizer, bool by_name) const {
    const ModelOption* only = nullptr;
    for (const ModelOption& option : options_[optimizer]) {
      const bool is_free = std::ranges::none_of(option.parameters,
                                                [&](const auto& p) { return taken_.contains(p); });
      if (!is_free || (by_name && !name_one_model(prefixes_[optimizer], option.model))) continue;
      if (only != nullptr) return nullptr;
      only = &option;
    }
    return only;
  }

  const std::vector<std::string>& prefixes_;
  const std::vector<std::vector<ModelOption>>& options_;
  std::vector<const ModelOption*> chosen_;
  std::set<std::string> taken_;
};

}  // namespace

bool name_one_model(std::string_view optimizer_prefix, std::string_view model_prefix) {
  const std::string optimizer = stem_of(optimizer_prefix), model = stem_of(model_prefix);
  if (optimizer.empty() || model.empty()) return false;
  return optimizer.starts_with(model) || model.starts_with(optimizer);
}

std::optional<std::vector<std::string>> match_models(
    const std::vector<std::string>& optimizer_prefixes,
    const std::vector<std::vector<ModelOption>>& options) {
  return Matcher(optimizer_prefixes, options).run();
}

}  // namespace unishard::converters::dcp
