#include "gpipe/distributed/world/error.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/throw.h"

namespace gpipe {

const char* to_string(Fault fault) {
  switch (fault) {
    case Fault::kFailed:
      return "has failed";
    case Fault::kDied:
      return "has died";
    case Fault::kFrozen:
      return "is frozen";
    case Fault::kTimeout:
      return "has not answered in time";
    case Fault::kDisagree:
      return "disagrees";
    case Fault::kLeft:
      return "has left";
  }
  return "?";
}

std::string RankFailure::to_string() const {
  std::string text = c10::str("rank ", rank, " ", gpipe::to_string(fault));
  if (!what.empty()) text += ": " + what;
  if (reporter != rank) text += c10::str(" [noticed by rank ", reporter);
  if (!action.empty()) {
    text += reporter != rank ? " in " + action + "]" : " [in " + action + "]";
  } else if (reporter != rank) {
    text += "]";
  }
  return text;
}

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
  internal::put(bytes, static_cast<int32_t>(failure.fault));
  internal::put(bytes, static_cast<int32_t>(failure.rank));
  internal::put(bytes, static_cast<int32_t>(failure.reporter));
  internal::put_text(bytes, failure.action.substr(0, kTextBytes));
  internal::put_text(bytes, failure.what.substr(0, kTextBytes));
  return bytes;
}

RankFailure decode_failure(const std::string& bytes) {
  RankFailure failure;
  std::size_t at = 0;
  const auto fault = internal::take<int32_t>(bytes, at);
  const bool known = 0 <= fault && fault <= static_cast<int32_t>(Fault::kLeft);
  if (known) failure.fault = static_cast<Fault>(fault);
  failure.rank = internal::take<int32_t>(bytes, at);
  failure.reporter = internal::take<int32_t>(bytes, at);
  failure.action = internal::take_text(bytes, at);
  failure.what = internal::take_text(bytes, at);
  return failure;
}

void throw_peer_error(const RankFailure& failure, int rank) {
  throw PeerError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, failure,
      failure.to_string() + " (this is rank " + std::to_string(rank) + ")");
}

}  // namespace gpipe
