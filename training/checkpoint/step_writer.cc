#include "training/checkpoint/step_writer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "training/base/file_operations.h"
#include "training/checkpoint/manifest.h"
#include "training/checkpoint/step_folder.h"
#include "training/checkpoint/step_names.h"

namespace gpipe::internal {

StepWriter::StepWriter(std::string folder, int64_t step, RunShard shard)
    : folder_(std::move(folder)), step_(step), shard_(std::move(shard)) {}

StepWriter::~StepWriter() {
  if (!made_) return;
  try {
    remove_folder(path_);
  } catch (const c10::Error&) {
    // The next save tries again.
  }
}

std::string StepWriter::begin(const Report& report) {
  make_folders(folder_);
  for (const std::string& name : names_in_folder(folder_)) {
    if (!is_leftover(name, step_)) continue;
    try {
      remove_folder(folder_ + "/" + name);
    } catch (const c10::Error& error) {
      // If the folder prevents the save, the save throws an error.
      report(std::string("the files of a dead process cannot be removed: ") +
             error.what_without_backtrace());
    }
  }
  std::string name = temporary_name(step_);
  set_name(name);
  make_folder(path_);
  made_ = true;
  return name;
}

void StepWriter::set_name(const std::string& name) {
  path_ = folder_ + "/" + name;
}

std::string StepWriter::write_part(const RunState& state) {
  return manifest_text(internal::write_part(path_, state, shard_));
}

void StepWriter::complete(const std::vector<std::string>& parts) {
  std::vector<Manifest> manifests;
  for (const auto& each : parts) manifests.push_back(parse_manifest(each));
  write_manifest(path_, merge(std::move(manifests)));
  sync_folder(path_);
  // If the names are exchanged, an earlier save of this step has the temporary
  // name now.
  if (!exchange_folder(path_, folder_ + "/" + step_name(step_),
                       aside_name(path_))) {
    made_ = false;
  }
}

void StepWriter::remove_old_steps(int64_t keep, const Report& report) {
  const std::string aside = aside_name(path_);
  try {
    remove_folder(aside);  // exchange_folder() may have left it
    std::vector<int64_t> old = steps_in(folder_);
    old.erase(std::lower_bound(old.begin(), old.end(), step_), old.end());
    int64_t kept = 1;  // the step that was just saved
    for (auto step = old.rbegin(); step != old.rend(); ++step) {
      const std::string path = folder_ + "/" + step_name(*step);
      if (kept < keep) {
        if (has_all_files(path, *step)) ++kept;
        continue;
      }
      // Renames first, so that no process finds a half-removed step.
      move_path(path, aside);
      remove_folder(aside);
    }
  } catch (const c10::Error& error) {
    report(std::string("an old step cannot be removed: ") +
           error.what_without_backtrace());
  }
}

}  // namespace gpipe::internal
