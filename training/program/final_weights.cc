#include "training/program/final_weights.h"

#include <cstddef>
#include <filesystem>

#include "models/weights/hugging_face.h"
#include "models/weights/names.h"
#include "models/weights/run_shard.h"
#include "models/weights/state_dict.h"

namespace gpipe::train_program {
namespace {

// Returns the tensors of `dict`, which a pipeline of an exported program has,
// under Python's names: without the name of their layer, and without buffers
// that are not persistent.
StateDict with_pythons_names(const StateDict& dict, const StateDict& python) {
  StateDict result;
  for (const auto& item : dict) {
    const std::size_t dot = item.key().find('.');
    const std::string name = item.key().substr(dot + 1);
    // A constant buffer may be in several layers.
    if (python.contains(name) && !result.contains(name)) {
      result.insert(name, item.value());
    }
  }
  return result;
}

}  // namespace

std::string save_weights(const Options& options, Engine& engine,
                         ModelSource& source) {
  StateDict tensors;
  if (engine.replica() == 0) {
    tensors = state_dict(engine.module());
    if (ExportedModel* const exported = source.exported()) {
      tensors = with_pythons_names(tensors, exported->state_dict());
      if (std::filesystem::is_directory(options.weights)) {
        tensors =
            rename(tensors, hugging_face_names(options.weights, *exported));
      }
    }
  }
  RunShard shard;
  shard.index = engine.rank();
  shard.count = engine.ranks();
  shard.all_gather = [&engine](const std::string& mine) {
    return engine.all_gather(mine);
  };
  save_hugging_face(options.save_weights, tensors, options.shard_size, shard);
  return "weights saved in " + options.save_weights;
}

}  // namespace gpipe::train_program
