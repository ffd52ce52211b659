// The models that --model and --eval_model name.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/exported/exported.h"
#include "models/named.h"
#include "training/program/options.h"

namespace gpipe::train_program {

// ---- --model

// Returns Python's name of a tensor of an exported program, whose name in a
// Sequential begins with its layer: "fc.weight" for "fc_2.fc.weight".
std::string python_name(const std::string& name);

// Returns dtype and sizes of a tensor for messages: "Float [2, 3]".
std::string shape_text(const at::Tensor& tensor);

// Returns how to read a file with these options. Throws c10::ValueError with
// the value if Options::max_crossing or Options::output is out of its range.
ExportedOptions exported_options(const Options& options);

// What a file is used for.
enum class FileUse {
  kAnyData,       // training; the kind of data follows from the file
  kNamedTensors,  // training on DataKind::kTensors, which any file with one
                  // output fits
  kGeneration,    // as kNamedTensors, but the rows may be fixed
};

// A model of models/, or a file of Python's torch.export.save. Not thread-safe.
class ModelSource {
 public:
  // `model`: Options::model. If it ends in ".pt2", it is the path of a file, of
  // which this reads inputs and outputs, but no weights. `options`: how such a
  // file is read.
  //
  // Throws c10::ValueError if there is no such model, if the file cannot run as
  // a pipeline (models/exported/exported.h), or if its inputs and outputs fit
  // no kind of data. The text then has inputs, outputs and the forms that fit.
  explicit ModelSource(std::string model, ExportedOptions options = {},
                       FileUse use = FileUse::kAnyData);

  // For a file, the kind of data is kTensors, or with FileUse::kAnyData follows
  // from inputs and outputs:
  //   kText    int64 [rows, tokens] -> [rows, tokens, vocabulary]
  //   kImages  float32 [rows, 3, height, width] -> [rows, classes]
  //   kMasks   float32 [rows, 3, height, width] -> [rows, 1, height, width]
  models::DataKind kind() const { return kind_; }

  bool is_file() const { return file_.has_value(); }
  // Returns the file. Null if the model is one of models/.
  const ExportedFile* file() const { return file_ ? &*file_ : nullptr; }

  // Returns the model's name. For a file, returns its name without the folder,
  // and the checksum of its program, since files may be moved.
  std::string description() const;

  // Returns `options` with Options::size from a file that fixes height and
  // width, if the size is 0.
  //
  // Throws c10::ValueError with both numbers if the size, or the length of a
  // text, differs from that of the file, and if Options::precision converts the
  // weights of a file.
  Options fitted(Options options) const;

  // Throws c10::ValueError with both numbers if a file has a fixed number of
  // outputs per row or token, and fewer than `needed`. `items`: what they are:
  // "classes".
  void check_outputs(int64_t needed, const std::string& items) const;

  // Returns the model: of models/ with these options, and with weights drawn
  // from LibTorch's default generator, or of the file with the weights there.
  // Under a MetaGuard the tensors have no values, and no weights are read.
  torch::nn::Sequential make(const models::ModelOptions& options);

  // Returns the table from the names of the model's tensors to those in
  // torchvision's model, which is empty if torchvision does not have the model.
  NameTable torchvision_names() const;

  // Returns the model that make() read from a file. Null if there is no file,
  // or before make().
  ExportedModel* exported() { return exported_ ? &*exported_ : nullptr; }

 private:
  void check_images(int64_t size) const;
  void check_text(const Options& options) const;

  const std::string model_;
  const ExportedOptions options_;
  std::optional<ExportedFile> file_;
  models::DataKind kind_;
  std::optional<ExportedModel> exported_;
};

// ---- --eval_model

// Throws c10::ValueError if the run evaluates, and eval() of the model would
// throw: with the nodes that are in the way, and with the flags that help.
void check_evaluation(const Options& options, const ModelSource& source);

// Returns the file of Options::eval_model, which replaces the model of `source`
// in evaluations, cut into layers as small as possible.
//
// Throws c10::ValueError if `source` is no file, if the file cannot be read or
// cannot run in eval mode, and if its inputs or outputs are not those of
// `source`.
ExportedFile eval_file(const Options& options, const ModelSource& source);

// Returns the layers per stage of `evaluated`, so that each stage has the
// parameters and buffers that it has in `trained`, which is cut by `balance`.
// Both are Sequentials of exported programs, and may be on the meta device.
//
// Throws c10::ValueError if a parameter is not in `trained`, if a tensor has
// another shape or dtype there, and if there is no such balance: the text has
// the layer and the tensors.
std::vector<int64_t> eval_balance(const torch::nn::Sequential& trained,
                                  const std::vector<int64_t>& balance,
                                  const torch::nn::Sequential& evaluated);

// Lets the tensors of `evaluated` be those of `trained` with the same Python
// names, without copies. Both are pipelines on the same devices. A buffer that
// `trained` does not have keeps its value. Not thread-safe.
void share_tensors(const torch::nn::Module& trained,
                   torch::nn::Module& evaluated);

}  // namespace gpipe::train_program
