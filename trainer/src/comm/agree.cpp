#include "unishard/trainer/agree.hpp"

#include "unishard/format/error.hpp"

#include <exception>

namespace unishard::trainer {

void agree(Communicator& communicator, const std::string& what, const std::function<void()>& body) {
  std::exception_ptr failure;
  std::string message;
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::PeerFailed) throw;
    failure = std::current_exception();
    message = error.what();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    message = error.what();
  }
  if (failure && message.empty()) message = "unknown";
  const std::vector<std::string> outcomes = gather_text(communicator, message);
  if (failure) std::rethrow_exception(failure);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (!outcomes[rank].empty()) {
      raise(ErrorCode::PeerFailed,
            what + " failed on rank " + std::to_string(rank) + ": " + outcomes[rank]);
    }
  }
}

}  // namespace unishard::trainer
