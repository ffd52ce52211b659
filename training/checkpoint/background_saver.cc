#include "training/checkpoint/background_saver.h"

#include <absl/strings/str_format.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <utility>

#include "gpipe/base/threads.h"
#include "training/base/file_operations.h"

namespace gpipe::internal {
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

void remove_file(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  TORCH_CHECK(!error, path, " cannot be removed: ", error.message());
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
  thread_ = background_thread([this, &copy, keep, written = std::move(written),
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
  });
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
