#include "training/run_files.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <utility>

#include "gpipe/text/host_name.h"
#include "training/damage.h"
#include "training/file_operations.h"
#include "training/manifest.h"
#include "training/step_folder.h"

namespace gpipe {
namespace {

constexpr char kStep[] = "step-";
constexpr char kTemporary[] = ".tmp-";
constexpr char kAside[] = ".old";  // appended to a temporary name

std::optional<int64_t> number_of(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end || number < 0) {
    return std::nullopt;
  }
  return number;
}

std::string step_name(int64_t step) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%012lld", static_cast<long long>(step));
  return std::string(kStep) + digits;
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const auto step = number_of(name.substr(sizeof kStep - 1));
  // Rejects "step-7", so that each step has only one name.
  if (!step || step_name(*step) != name) return std::nullopt;
  return step;
}

// ---- Temporary names: ".step-000000000123.tmp-host-4711"

std::string temporary_name(int64_t step) {
  return "." + step_name(step) + kTemporary + host_name() + "-" +
         std::to_string(getpid());
}

// Returns whether a temporary folder has no writer any more. For a process of
// this machine, asks the system. The state of another machine is unknown, but
// its folder is left over if it is for `step` or an earlier one.
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

// A temporary folder that the destructor removes unless release() was called.
class Temporary {
 public:
  Temporary() = default;
  ~Temporary() {
    if (path_.empty()) return;
    try {
      internal::remove_folder(path_);
    } catch (const c10::Error&) {
      // The next save tries again.
    }
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void make(const std::string& path) {
    internal::make_folder(path);
    path_ = path;
  }
  void release() { path_.clear(); }

 private:
  std::string path_;
};

}  // namespace

RunFiles::RunFiles(std::string folder, RunFilesOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  const RunShard& shard = options_.shard();
  TORCH_CHECK_VALUE(!folder_.empty(),
                    "the folder of a run is an empty text; give a path");
  TORCH_CHECK_VALUE(options_.keep() >= 1, "keep is ", options_.keep(),
                    ", should be at least 1");
  TORCH_CHECK_VALUE(
      0 <= shard.index && shard.index < shard.count,
      "the index of a shard must be at least 0 and below its count; it is ",
      shard.index, " of ", shard.count);
  TORCH_CHECK_VALUE(
      shard.count == 1 || shard.all_gather,
      "a RunShard of several processes needs an all_gather function");
}

void RunFiles::save(const RunState& state) {
  const RunShard& shard = options_.shard();
  const bool first = shard.index == 0;
  Temporary temporary;
  const std::string name = together([&] {
    TORCH_CHECK_VALUE(state.step >= 0, "step ", state.step,
                      " cannot be saved: it is negative");
    if (!first) return std::string();
    internal::make_folders(folder_);
    remove_leftovers(state.step);
    std::string name = temporary_name(state.step);
    temporary.make(folder_ + "/" + name);
    return name;
  })[0];
  const std::string path = folder_ + "/" + name;

  const std::vector<std::string> parts = together([&] {
    return internal::manifest_text(internal::write_part(path, state, shard));
  });

  together([&] {
    if (!first) return "";
    std::vector<internal::Manifest> manifests;
    for (const auto& each : parts)
      manifests.push_back(internal::parse_manifest(each));
    internal::write_manifest(path, internal::merge(std::move(manifests)));
    internal::sync_folder(path);
    // An earlier save of this step now has the temporary name.
    if (!internal::exchange_folder(path, folder_of(state.step),
                                   path + kAside)) {
      temporary.release();
    }
    return "";
  });
  if (first) remove_old_steps(state.step, path);
}

std::optional<RunState> RunFiles::load_latest(
    const std::optional<Names>& names) {
  std::vector<int64_t> steps = common_steps();
  for (; !steps.empty(); steps.pop_back()) {
    std::optional<RunState> state;
    const std::string damage = damage_of(steps.back(), names, state);
    if (damage.empty()) return state;
    report("step " + std::to_string(steps.back()) + " is damaged: " + damage +
           (steps.size() > 1
                ? "; trying step " + std::to_string(steps[steps.size() - 2])
                : "; there is none before it"));
  }
  return std::nullopt;
}

RunState RunFiles::load(int64_t step, const std::optional<Names>& names) {
  const std::vector<int64_t> steps = common_steps();
  TORCH_CHECK_VALUE(std::find(steps.begin(), steps.end(), step) != steps.end(),
                    folder_, " has no step ", step, "; its steps are ",
                    c10::IntArrayRef(steps));
  std::optional<RunState> state;
  const std::string damage = damage_of(step, names, state);
  TORCH_CHECK_VALUE(damage.empty(), "step ", step, " is damaged: ", damage,
                    "; the steps in ", folder_, " are ",
                    c10::IntArrayRef(steps));
  return std::move(*state);
}

std::optional<RunState> RunFiles::resume(const std::string& how,
                                         const std::optional<Names>& names) {
  if (how.empty() || how == "none") return std::nullopt;
  if (how == "auto") return load_latest(names);
  const auto step = number_of(how);
  TORCH_CHECK_VALUE(step, "resume is '", how,
                    "', should be auto, none or the number of a step");
  return load(*step, names);
}

std::vector<int64_t> RunFiles::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : internal::names_in_folder(folder_)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string RunFiles::folder_of(int64_t step) const {
  return folder_ + "/" + step_name(step);
}

std::vector<std::string> RunFiles::together(
    const std::function<std::string()>& body) {
  const RunShard& shard = options_.shard();
  if (shard.count == 1) return {body()};
  // The first character tells a result (+) from an error (-).
  std::string word;
  try {
    word = "+" + body();
  } catch (const c10::Error& error) {
    word = std::string("-") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    word = std::string("-") + error.what();
  }
  std::vector<std::string> all = shard.all_gather(word);
  TORCH_CHECK(all.size() == static_cast<std::size_t>(shard.count),
              "all_gather returned ", all.size(), " texts for ", shard.count,
              " processes");
  for (std::size_t k = 0; k < all.size(); ++k) {
    TORCH_CHECK(all[k].starts_with("+"), "process ", k, " of ", shard.count,
                ": ", all[k].substr(std::min<std::size_t>(all[k].size(), 1)));
    all[k].erase(0, 1);
  }
  return all;
}

void RunFiles::report(const std::string& line) const {
  if (options_.report()) options_.report()(line);
}

// Returns the steps that the first process sees. In a network file system,
// other processes may see an older list.
std::vector<int64_t> RunFiles::common_steps() {
  const std::string text = together([&] {
    std::string text;
    if (options_.shard().index > 0) return text;
    for (const int64_t step : steps()) text += std::to_string(step) + "\n";
    return text;
  })[0];
  std::vector<int64_t> steps;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    steps.push_back(number_of(text.substr(begin, end - begin)).value());
  }
  return steps;
}

// Returns "" if all processes could read what they asked for.
std::string RunFiles::damage_of(int64_t step, const std::optional<Names>& names,
                                std::optional<RunState>& state) {
  const RunShard& shard = options_.shard();
  const auto words = together([&]() -> std::string {
    try {
      state = internal::read_state(folder_of(step), step, names, shard);
      return "";
    } catch (const internal::Damage& damage) {
      return damage.what();
    }
  });
  for (const std::string& each : words) {
    if (!each.empty()) return each;
  }
  return "";
}

void RunFiles::remove_old_steps(int64_t saved, const std::string& temporary) {
  const std::string aside = temporary + kAside;
  try {
    internal::remove_folder(aside);  // exchange_folder() may have left it
    std::vector<int64_t> old = steps();
    old.erase(std::lower_bound(old.begin(), old.end(), saved), old.end());
    int64_t kept = 1;  // the step that was just saved
    for (auto step = old.rbegin(); step != old.rend(); ++step) {
      const std::string path = folder_of(*step);
      if (kept < options_.keep()) {
        if (internal::has_all_files(path, *step)) ++kept;
        continue;
      }
      // Renames first, so that no process finds a half-removed step.
      internal::move_folder(path, aside);
      internal::remove_folder(aside);
    }
  } catch (const c10::Error& error) {
    report(std::string("an old step cannot be removed: ") +
           error.what_without_backtrace());
  }
}

void RunFiles::remove_leftovers(int64_t step) {
  for (const std::string& name : internal::names_in_folder(folder_)) {
    if (!is_leftover(name, step)) continue;
    try {
      internal::remove_folder(folder_ + "/" + name);
    } catch (const c10::Error& error) {
      // If the folder prevents the save, the save throws an error.
      report(std::string("the files of a dead process cannot be removed: ") +
             error.what_without_backtrace());
    }
  }
}

}  // namespace gpipe
