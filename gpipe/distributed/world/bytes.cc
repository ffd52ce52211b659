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
  std::string bytes;
  put(bytes, static_cast<int32_t>(failure.fault));
  put(bytes, static_cast<int32_t>(failure.rank));
  put(bytes, static_cast<int32_t>(failure.reporter));
  put_text(bytes, failure.action.substr(0, kTextBytes));
  put_text(bytes, failure.what.substr(0, kTextBytes));
  return bytes;
}

RankFailure decode_failure(const std::string& bytes) {
  RankFailure failure;
  std::size_t at = 0;
  const auto fault = take<int32_t>(bytes, at);
  const bool known =
      0 <= fault && fault <= static_cast<int32_t>(Fault::kRefused);
  if (known) failure.fault = static_cast<Fault>(fault);
  failure.rank = take<int32_t>(bytes, at);
  failure.reporter = take<int32_t>(bytes, at);
  failure.action = take_text(bytes, at);
  failure.what = take_text(bytes, at);
  return failure;
}

void throw_peer_error(const RankFailure& failure, int rank) {
  throw PeerError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, failure,
      failure.to_string() + " (this is rank " + std::to_string(rank) + ")");
}

}  // namespace gpipe::internal
