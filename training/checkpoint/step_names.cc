#include "training/checkpoint/step_names.h"

#include <absl/strings/str_format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <system_error>

#include "gpipe/base/text.h"
#include "training/base/file_operations.h"

namespace gpipe::internal {
namespace {

constexpr char kStep[] = "step-";
constexpr char kTemporary[] = ".tmp-";
constexpr char kAside[] = ".old";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const auto step = number_of(name.substr(sizeof kStep - 1));
  // Rejects "step-7", so that each step has only one name.
  if (!step || step_name(*step) != name) return std::nullopt;
  return step;
}

}  // namespace

std::optional<int64_t> number_of(std::string_view text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end || number < 0) {
    return std::nullopt;
  }
  return number;
}

std::string step_name(int64_t step) {
  return kStep + absl::StrFormat("%012ld", step);
}

std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in_folder(folder)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string temporary_name(int64_t step) {
  return "." + step_name(step) + kTemporary + host_name() + "-" +
         std::to_string(getpid());
}

std::string aside_name(const std::string& temporary) {
  return temporary + kAside;
}

bool is_leftover(const std::string& name, int64_t step) {
  const std::size_t at = name.find(kTemporary);
  if (!name.starts_with(std::string(".") + kStep) || at == std::string::npos) {
    return false;
  }
  const auto its_step = step_of(name.substr(1, at - 1));
  std::string owner = name.substr(at + sizeof kTemporary - 1);
  const std::size_t aside = owner.rfind(kAside);
  if (aside != std::string::npos) owner.resize(aside);
  const std::size_t dash = owner.rfind('-');
  if (!its_step || dash == std::string::npos) return false;
  const auto process = number_of(owner.substr(dash + 1));
  if (!process) return false;
  if (owner.substr(0, dash) != host_name()) return *its_step <= step;
  if (*process == getpid()) return true;
  return kill(static_cast<pid_t>(*process), 0) != 0 && errno == ESRCH;
}

}  // namespace gpipe::internal
