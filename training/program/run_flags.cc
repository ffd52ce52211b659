#include "training/program/run_flags.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <sstream>
#include <variant>

#include "models/named.h"

namespace gpipe::train_program {
namespace {

// Returns how a run of `model`, which is trained on `kind`, treats an option.
OptionScope scope_of(const OptionRow& row, const std::string& model,
                     models::DataKind kind) {
  const auto fixed_if = [](bool has) {
    return has ? OptionScope::kFixed : OptionScope::kProcess;
  };
  if (!row.model.empty()) return fixed_if(row.model == model);
  using models::DataKind;
  if (row.scope == OptionScope::kFixedForText) {
    return fixed_if(kind == DataKind::kText);
  }
  if (row.scope == OptionScope::kFixedForImages) {
    return fixed_if(kind == DataKind::kImages || kind == DataKind::kMasks);
  }
  return row.scope;
}

// Returns the flags of a scope. Copies the options, since OptionRow::value
// returns a pointer that can write.
FlagValues flags_of(OptionScope scope, Options options, const Task& task) {
  FlagValues flags;
  const models::DataKind kind = task.source().kind();
  for (const OptionRow& row : option_rows()) {
    if (scope_of(row, options.model, kind) != scope) continue;
    std::ostringstream text;
    text.precision(17);
    std::visit([&](const auto* value) { text << std::boolalpha << *value; },
               row.value(options));
    flags["--" + row.name] = text.str();
  }
  return flags;
}

}  // namespace

FlagValues fixed_flags(const Options& options, const Task& task) {
  FlagValues flags = flags_of(OptionScope::kFixed, options, task);
  flags["--model"] = task.source().description();
  // The description of the data, not its path, since data may be moved.
  flags["--data_dir"] = task.data();
  return flags;
}

FlagValues changeable_flags(const Options& options, const Task& task) {
  return flags_of(OptionScope::kChangeable, options, task);
}

FlagValues shared_flags(const Options& options, const Task& task) {
  FlagValues flags = flags_of(OptionScope::kGiven, options, task);
  for (auto& [flag, value] : flags) value = value.empty() ? "" : "given";
  flags.merge(flags_of(OptionScope::kRun, options, task));
  flags.merge(fixed_flags(options, task));
  flags.merge(changeable_flags(options, task));
  flags["--data_dir"] += ", checksum " + std::to_string(task.checksum());
  return flags;
}

std::string bytes_of(const FlagValues& flags) {
  std::string bytes;
  for (const auto& [flag, value] : flags) {
    bytes += flag + '\0' + value + '\0';
  }
  return bytes;
}

FlagValues parse_flag_values(const std::string& bytes) {
  FlagValues flags;
  std::istringstream stream(bytes);
  for (std::string flag, value;
       std::getline(stream, flag, '\0') && std::getline(stream, value, '\0');) {
    flags[flag] = value;
  }
  return flags;
}

void check_same_flags(const std::vector<FlagValues>& all) {
  std::string wrong;
  for (const auto& [flag, value] : all.front()) {
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const auto found = all[rank].find(flag);
      if (found == all[rank].end() || found->second == value) continue;
      wrong += (wrong.empty() ? "" : "; ") + flag + " is '" + found->second +
               "' in process " + std::to_string(rank) + " and '" + value +
               "' in process 0";
      break;
    }
  }
  TORCH_CHECK_VALUE(wrong.empty(), wrong,
                    ". Give all processes the same flags and data");
}

void check_fixed_flags(const FlagValues& saved, const FlagValues& now,
                       const std::string& folder) {
  std::string wrong;
  for (const auto& [flag, value] : now) {
    const auto found = saved.find(flag);
    if (found == saved.end() || found->second == value) continue;
    wrong += (wrong.empty() ? "" : "; ") + flag + " was '" + found->second +
             "' and is '" + value + "'";
  }
  TORCH_CHECK_VALUE(wrong.empty(), folder,
                    " contains a run with other flags: ", wrong,
                    ". Use the flags of that run, or another --run_dir");
}

std::vector<std::string> changes(const FlagValues& saved,
                                 const FlagValues& now) {
  std::vector<std::string> lines;
  for (const auto& [flag, value] : now) {
    const auto found = saved.find(flag);
    if (found == saved.end() || found->second == value) continue;
    lines.push_back("from here on " + flag + " is '" + value + "'; it was '" +
                    found->second + "'");
  }
  return lines;
}

}  // namespace gpipe::train_program
