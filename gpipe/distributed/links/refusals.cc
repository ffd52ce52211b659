#include "gpipe/distributed/links/refusals.h"

#include <cstddef>
#include <utility>

namespace gpipe::internal {
namespace {

// Further addresses are counted as one.
constexpr std::size_t kAddresses = 1000;

bool is_power_of_ten(int64_t number) {
  while (number >= 10 && number % 10 == 0) number /= 10;
  return number == 1;
}

}  // namespace

Refusals::Refusals(std::function<void(const std::string&)> report)
    : report_(std::move(report)) {}

void Refusals::add(const std::string& peer, const std::string& why) {
  std::string line;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    last_ = why;
    std::string address = peer.substr(0, peer.rfind(':'));
    if (by_address_.size() >= kAddresses && !by_address_.count(address)) {
      address = "other addresses";
    }
    const int64_t count = ++by_address_[address];
    if (!is_power_of_ten(count)) return;
    line = "a connection from " + peer + " was refused: " + why;
    if (count > 1) {
      line += " (" + std::to_string(count) + " from " + address + " so far)";
    }
  }
  if (report_) report_(line);
}

std::string Refusals::summary() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (count_ == 0) return "";
  return std::to_string(count_) +
         (count_ == 1 ? " connection was" : " connections were") +
         " refused, the last one because: " + last_;
}

}  // namespace gpipe::internal
