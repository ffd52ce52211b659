#include "training/files/step_writer.h"

#include <absl/strings/str_format.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "gpipe/base/threads.h"
#include "models/weights/files.h"
#include "training/files/file_operations.h"
#include "training/files/manifest.h"
#include "training/files/parameter_rows.h"
#include "training/files/step_folder.h"

namespace gpipe::internal {

// ---- One step

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
  const Manifest manifest = merge(std::move(manifests));
  write_text(path_ + "/" + kManifestName, manifest_text(manifest));
  sync_folder(path_);
  const std::string final_path = folder_ + "/" + step_name(step_);
  // Last of all, since another process may be about to complete the same step.
  check_replaceable(final_path, manifest);
  // If the names are exchanged, an earlier save of this step has the temporary
  // name now.
  if (!exchange_folder(path_, final_path, aside_name(path_))) made_ = false;
}

void StepWriter::remove_old_steps(int64_t keep, const Report& report) {
  const std::string aside = aside_name(path_);
  try {
    remove_folder(aside);  // exchange_folder() may have left it
    std::vector<int64_t> old = steps_in(folder_);
    const std::string later = later_step(folder_, old, step_);
    if (!later.empty()) report(later);
    old.erase(std::lower_bound(old.begin(), old.end(), step_), old.end());
    if (std::ssize(old) < keep) return;  // opens no file: all are kept
    int64_t kept = 1;                    // the step that was just saved
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

// ---- A copy of the state

const RunState& StateCopy::update(const RunState& state) {
  const c10::NoGradGuard no_grad;
  next_memory_.clear();
  RunState copy;
  copy.step = state.step;
  copy.metadata = state.metadata;
  for (const auto& item : state.model) {
    copy.model.insert(item.key(), copied("model " + item.key(), item.value()));
  }
  if (state.optimizer) {
    copy.optimizer = *state.optimizer;
    for (auto& [name, parameter] : copy.optimizer->parameters) {
      for (auto& [what, tensor] : parameter.tensors) {
        tensor = copied("optimizer " + what + " " + name, tensor);
      }
    }
  }
  for (const auto& [device, bytes] : state.generators) {
    copy.generators[device] = copied("generator " + device, bytes);
  }
  memory_ = std::move(next_memory_);
  state_ = std::move(copy);
  return state_;
}

at::Tensor StateCopy::copied(const std::string& name,
                             const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return tensor;
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return tensor.detach().to(tensor.options().device(at::kCPU),
                              /*non_blocking=*/false, /*copy=*/true);
  }
  at::Tensor& own = next_memory_[name];
  const auto before = memory_.find(name);
  if (before != memory_.end()) own = before->second;
  if (!own.defined() || own.sizes() != tensor.sizes() ||
      own.scalar_type() != tensor.scalar_type()) {
    own = host_memory_for(tensor);
  }
  own.copy_(tensor);
  return own;
}

// ---- A thread that writes

namespace {

// How often the first process looks for the parts of the others.
constexpr std::chrono::milliseconds kPoll(10);

std::string part_name(int index) {
  return absl::StrFormat("part-%05d.json", index);
}

// Writes a file that others see only when it is whole.
void write_whole(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".new";
  write_text(unfinished, text);
  move_path(unfinished, path);
}

}  // namespace

BackgroundSaver::~BackgroundSaver() { finish(); }

void BackgroundSaver::start(std::unique_ptr<StepWriter> writer,
                            const RunState& state, int64_t keep) {
  const RunState& copy = copy_.update(state);
  writer_ = std::move(writer);
  given_up_ = false;
  std::promise<void> written, complete;
  written_ = written.get_future();
  complete_ = complete.get_future();
  auto write = [this, &copy, keep, written = std::move(written),
                complete = std::move(complete)]() mutable {
    bool is_written = false;
    try {
      const std::string mine = writer_->write_part(copy);
      const RunShard& shard = writer_->shard();
      if (shard.index > 0) {
        write_whole(writer_->path() + "/" + part_name(shard.index), mine);
      }
      is_written = true;
      written.set_value();
      if (shard.index == 0) complete_step(mine, keep);
      complete.set_value();
    } catch (...) {
      (is_written ? complete : written).set_exception(std::current_exception());
    }
    // Removes what is not complete.
    writer_.reset();
  };
  try {
    thread_ = background_thread(std::move(write));
  } catch (const std::system_error& error) {
    writer_.reset();
    TORCH_CHECK(false,
                "no thread can be started to save a step: ", error.what());
  }
}

void BackgroundSaver::complete_step(const std::string& mine, int64_t keep) {
  writer_->complete(parts_of_all(mine));
  writer_->remove_old_steps(
      keep, [this](const std::string& line) { lines_.push_back(line); });
}

std::vector<std::string> BackgroundSaver::finish() {
  if (!thread_.joinable()) return {};
  given_up_ = true;
  thread_.join();
  return std::exchange(lines_, {});
}

std::vector<std::string> BackgroundSaver::parts_of_all(
    const std::string& mine) {
  std::vector<std::string> parts = {mine};
  for (int k = 1; k < writer_->shard().count; ++k) {
    const std::string path = writer_->path() + "/" + part_name(k);
    while (!std::filesystem::exists(path)) {
      TORCH_CHECK(!given_up_, "process ", k, " of ", writer_->shard().count,
                  " has not written its part of the step");
      std::this_thread::sleep_for(kPoll);
    }
    parts.push_back(read_text(path));
    remove_file(path);
  }
  return parts;
}

}  // namespace gpipe::internal
