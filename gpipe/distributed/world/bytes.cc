#include "gpipe/distributed/world/bytes.h"

#include <c10/util/Exception.h>

namespace gpipe::internal {

std::string reason_of(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text =
      torch_error ? torch_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  const std::size_t close = text.find("] ");
  const bool has_place = text[0] == '[' && close != std::string::npos;
  return has_place ? text.substr(close + 2) : text;
}

std::string cause_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

std::string encode_failure(const RankFailure& failure) {
  constexpr std::size_t kTextBytes = 1500;
  return pack(static_cast<int32_t>(failure.fault), failure.rank,
              failure.reporter, failure.action.substr(0, kTextBytes),
              failure.what.substr(0, kTextBytes));
}

RankFailure decode_failure(const std::string& bytes) {
  RankFailure failure;
  std::size_t at = 0;
  int32_t fault = 0;
  unpack(bytes, at, fault, failure.rank, failure.reporter, failure.action,
         failure.what);
  const bool known =
      0 <= fault && fault <= static_cast<int32_t>(Fault::kRefused);
  if (known) failure.fault = static_cast<Fault>(fault);
  return failure;
}

void throw_peer_error(const RankFailure& failure, int rank) {
  throw PeerError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, failure,
      failure.to_string() + " (this is rank " + std::to_string(rank) + ")");
}

}  // namespace gpipe::internal
