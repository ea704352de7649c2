#include "state/attachment.hpp"

#include "unishard/format/error.hpp"

#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace unishard::trainer::detail {
namespace {

/// What engines share: the parameters that they have, and the root units of models without an
/// engine. A unit keeps parameters alive but not the module, so a module that is gone shows.
struct Registry {
  std::mutex mutex;
  std::unordered_set<const c10::TensorImpl*> claimed;
  std::map<std::weak_ptr<torch::nn::Module>, std::unique_ptr<FlatUnit>, std::owner_less<>> roots;

  void forget_dead_modules() {
    std::erase_if(roots, [](const auto& each) { return each.first.expired(); });
  }
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

ModelClaim::ModelClaim(const torch::nn::Module& model) {
  Registry& shared = registry();
  const std::lock_guard lock(shared.mutex);
  for (const auto& parameter : model.named_parameters()) {
    if (shared.claimed.contains(parameter.value().unsafeGetTensorImpl())) {
      raise(ErrorCode::InvalidArgument,
            "parameter " + quote(parameter.key()) + " belongs to another engine",
            "a model has one engine at a time: destroy the other one first");
    }
  }
  parameters_ = model.parameters();
  for (const at::Tensor& each : parameters_) shared.claimed.insert(each.unsafeGetTensorImpl());
}

ModelClaim::~ModelClaim() {
  Registry& shared = registry();
  const std::lock_guard lock(shared.mutex);
  for (const at::Tensor& each : parameters_) shared.claimed.erase(each.unsafeGetTensorImpl());
}

std::unique_ptr<FlatUnit> take_left_root(const std::shared_ptr<torch::nn::Module>& model) {
  Registry& shared = registry();
  const std::lock_guard lock(shared.mutex);
  shared.forget_dead_modules();
  const auto found = shared.roots.find(model);
  return found == shared.roots.end() ? nullptr : std::move(shared.roots.extract(found).mapped());
}

Attachment::Attachment(std::weak_ptr<torch::nn::Module> module, ModelState& model,
                       StepContext& context, UnitLink link, const AttachmentOptions& options)
    : module_(std::move(module)), model_(model) {
  try {
    for (const UnitRecord& unit : model_.units) {
      unit.flat->attach(unit.name, link,
                        {.reduction = options.reduction,
                         .states = options.states,
                         .persistent = unit.flat->placement().stage == 3 &&
                                       unit.flat->elements() <= options.persistent});
    }
    for (std::size_t i = 0; i < model_.modules.size(); ++i)
      UnitAccess::attach(*model_.modules[i], &context, i + 1);
  } catch (...) {
    detach();
    throw;
  }
}

Attachment::~Attachment() { detach(); }

void Attachment::detach() noexcept {
  for (UnitBase* module : model_.modules) UnitAccess::attach(*module, nullptr, 0);
  for (const UnitRecord& unit : model_.units) unit.flat->detach();
  if (!model_.root) return;
  Registry& shared = registry();
  const std::lock_guard lock(shared.mutex);
  shared.forget_dead_modules();
  shared.roots[module_] = std::move(model_.root);
}

}  // namespace unishard::trainer::detail
