#include "unishard/trainer/save_handle.hpp"

#include "checkpoint/save_outcome.hpp"

namespace unishard::trainer {

bool SaveHandle::durable() const { return outcome_->durable(); }
bool SaveHandle::finished() const { return outcome_->finished(); }
const SaveReport& SaveHandle::wait() const { return outcome_->wait(); }

}  // namespace unishard::trainer
