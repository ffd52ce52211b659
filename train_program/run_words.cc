#include "train_program/run_words.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <sstream>

namespace gpipe::trainer {
namespace {

template <typename T>
std::string text_of(const T& value) {
  std::ostringstream text;
  text.precision(17);
  text << std::boolalpha << value;
  return text.str();
}

}  // namespace

FlagValues fixed_flags(const Options& options, const Task& task) {
  const TaskOptions& of_task = options.task;
  FlagValues words{
      {"--model", of_task.model},
      {"--batch", text_of(of_task.batch)},
      {"--seed", text_of(of_task.seed)},
      {"--accumulate", text_of(options.loop.accumulate)},
      {"--precision", options.loop.precision},
      {"--optimizer", options.optimizer.name},
      {"--momentum", text_of(options.optimizer.momentum)},
      {"--weight_decay", text_of(options.optimizer.weight_decay)},
      {"--decay_norms", text_of(options.optimizer.decay_norms)},
      // The description of the data, not its path, since data may be moved.
      {"--data_dir", task.data()},
  };
  if (of_task.model == "amoebanetd") {
    words["--amoebanet_layers"] = text_of(of_task.amoebanet_layers);
    words["--amoebanet_filters"] = text_of(of_task.amoebanet_filters);
  }
  if (of_task.model == "unet") {
    words["--unet_depth"] = text_of(of_task.unet_depth);
    words["--unet_convs"] = text_of(of_task.unet_convs);
    words["--unet_channels"] = text_of(of_task.unet_channels);
  }
  if (of_task.model == "transformer") {
    words["--transformer_layers"] = text_of(of_task.transformer_layers);
    words["--transformer_width"] = text_of(of_task.transformer_width);
    words["--transformer_heads"] = text_of(of_task.transformer_heads);
    words["--transformer_dropout"] = text_of(of_task.transformer_dropout);
    words["--length"] = text_of(of_task.length);
  } else {
    words["--crop"] = of_task.crop;
    words["--flip"] = text_of(of_task.flip);
  }
  return words;
}

FlagValues changeable_flags(const Options& options) {
  return {
      {"--lr", text_of(options.optimizer.lr)},
      {"--lr_schedule", options.loop.lr_schedule},
      {"--clip", text_of(options.loop.clip)},
      {"--chunks", text_of(options.engine.chunks)},
      {"--schedule", options.engine.schedule},
      {"--deferred_batch_norm", text_of(options.engine.deferred_batch_norm)},
  };
}

FlagValues shared_flags(const Options& options, const Task& task) {
  const LoopOptions& loop = options.loop;
  const auto given = [](const std::string& path) {
    return path.empty() ? "" : "given";
  };
  FlagValues words{
      {"--held_out", text_of(options.task.held_out)},
      {"--skip_broken", text_of(options.task.skip_broken)},
      {"--stages_per_rank", text_of(options.engine.stages_per_rank)},
      {"--data_parallel", text_of(options.engine.data_parallel)},
      {"--epochs", text_of(loop.epochs)},
      {"--steps", text_of(loop.steps)},
      {"--deterministic", text_of(loop.deterministic)},
      {"--eval_every", text_of(loop.eval_every)},
      {"--run_dir", given(loop.run_dir)},
      {"--resume", loop.resume},
      {"--save_every", text_of(loop.save_every)},
      {"--weights", given(loop.weights)},
      {"--weights_skip", loop.weights_skip},
  };
  words.merge(fixed_flags(options, task));
  words.merge(changeable_flags(options));
  words["--data_dir"] += ", checksum " + text_of(task.checksum());
  return words;
}

std::string bytes_of(const FlagValues& words) {
  std::string bytes;
  for (const auto& [flag, value] : words) {
    bytes += flag + '\0' + value + '\0';
  }
  return bytes;
}

FlagValues parse_flag_values(const std::string& bytes) {
  FlagValues words;
  std::istringstream stream(bytes);
  for (std::string flag, value;
       std::getline(stream, flag, '\0') && std::getline(stream, value, '\0');) {
    words[flag] = value;
  }
  return words;
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

}  // namespace gpipe::trainer
