// Models that Python's torch.export.save wrote, as pipelines.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/weights/state_dict.h"

namespace gpipe {

namespace internal {
class ExportedWeights;
}  // namespace internal

// The options of load_exported(). Each setter returns the options.
struct ExportedOptions {
  // The largest number of tensors that may cross a cut between two layers.
  // Tensors that live over a long part of the model, such as masks, do not
  // count: they become skip tensors. A larger number gives more and smaller
  // layers. 0 gives a single layer.
  TORCH_ARG(int64_t, max_crossing) = 4;

  // The outputs to compute, by their place in the exported signature, counted
  // from 0. Nodes for other outputs are left out. Empty: all tensors.
  TORCH_ARG(std::vector<int64_t>, outputs) = {};

  // Whether to read parameters and persistent buffers from the file. Otherwise
  // they are NaN (0 if they are integers) until load_hugging_face() or
  // load_state_dict() gives them values, and the file needs none: the model may
  // have been exported on the meta device.
  TORCH_ARG(bool, weights) = true;

  // Whether each output must have the rows of the inputs in dimension 0, so
  // that those of micro-batches can be concatenated. Not needed for inputs that
  // are Microbatches (gpipe/gpipe.h).
  TORCH_ARG(bool, concatenates) = true;

  // What precedes the names of the layers' skip tensors. Programs in one
  // pipeline need different names. Empty: the name of the file, without its
  // folder.
  TORCH_ARG(std::string, name) = {};
};

// An input or an output of an exported program.
struct ExportedTensor {
  std::string name;  // in the exported graph: "input_ids", "linear_2"
  // nullopt if the file does not say.
  std::optional<c10::ScalarType> dtype;
  // nullopt for a size that varies, such as the rows in dimension 0.
  std::vector<std::optional<int64_t>> sizes;
  // Dtype and sizes as text: "Float [s77, 3, 224, 224]". Sizes that vary have a
  // symbol, and equal symbols are equal sizes.
  std::string shape;
  // The largest size of each dimension for which the program was exported.
  std::vector<int64_t> largest = {};
  // Of a buffer that a call changes: whether it changes some elements only, as
  // a cache of keys and values, and not all, as the state of a recurrence.
  bool changed_in_part = false;
};

// The tensors that go in and come out, and which program it is.
struct ExportedSignature {
  // In the order of the exported signature. `outputs`: only those that
  // ExportedOptions::outputs chooses, in its order.
  std::vector<ExportedTensor> inputs, outputs;
  // The buffers that a call reads and changes, except running statistics: for
  // example the keys and values of a static cache. See
  // ExportedModel::use_buffer_sets().
  std::vector<ExportedTensor> state;
  // The CRC-32C of the program without its weights. Copies of a file have the
  // same one.
  uint32_t checksum = 0;
  // Why there is only one layer: what is in the way at most places, with its
  // nodes, or how many tensors cross. "" if there are several layers.
  std::string uncut_reason;
  // Why eval() throws: a line for each node that is random or changes a buffer,
  // and that no flag of an operator switches, with its Python module and source
  // line. Then Python's model in eval mode is another program: export it as a
  // second file. Empty if eval() works.
  std::vector<std::string> eval_problems;
};

// A model from a file.
struct ExportedModel : ExportedSignature {
  // The layers, in order, each named after the Python module of its nodes
  // ("layers_3_mlp" for "layers.3.mlp"). Layers take and return a
  // torch::Tensor where one tensor passes, else a std::vector<torch::Tensor>.
  // So a model of one tensor input takes that tensor, and a model of several
  // takes a vector in the order of the exported signature.
  //
  // In train mode (the default) values, gradients and buffers have the bits of
  // Python's exported.module(). eval() switches dropout, norms and stochastic
  // depth as in Python, and throws if there are eval_problems.
  torch::nn::Sequential layers;

  // Returns parameters and persistent buffers by Python's names, in Python's
  // order, with both names of tied weights. The tensors are detached and share
  // the layers' memory. See models/weights/state_dict.h. Of a constant buffer
  // that several layers read, each has its own copy, and this returns that of
  // the first one: load_state_dict() below sets all copies.
  StateDict state_dict() const;

  // Copies values into the parameters and buffers, in place. Throws one
  // c10::ValueError with all problems if names are missing or unexpected, or if
  // shapes or dtypes differ; nothing is changed then. As in Python, the last
  // one of tied names counts.
  void load_state_dict(const StateDict& dict);

  // Lets micro-batch k of each later forward use set `sets[k]` of the buffers
  // that a call changes, instead of the registered ones: the caches of
  // sequences that are generated beside each other. A set that is used for the
  // first time, or again after it was deleted, is a copy of the registered
  // buffers. A set that is missing in `sets` is deleted; the next forward frees
  // its memory. In eval mode nodes that change buffers run then, and do not
  // throw. An empty list ends it.
  //
  // Applies to all layers that were read from the same ExportedFile. A forward
  // outside a pipeline is micro-batch 0. With fewer sets than micro-batches
  // forward throws c10::ValueError. So does a backward that computes a layer
  // with such buffers again: use Checkpoint::kNever. Threads: not during a
  // forward.
  void use_buffer_sets(std::vector<int64_t> sets);

  // Private: the weights by name.
  std::shared_ptr<internal::ExportedWeights> weights;
};

// Reads a program that Python's torch.export.save wrote (PyTorch 2.11 to 2.15),
// in train mode, and cuts it into layers for a pipeline:
//
//   batch = torch.export.Dim("batch")
//   program = torch.export.export(model.train(), (x,),
//                                 dynamic_shapes=({0: batch},), strict=False)
//   torch.export.save(program, "model.pt2")
//
// The file contains data only: nothing in it is executed but LibTorch's
// operators, and nothing is unpickled. All tensors are on the CPU. Tied weights
// are one parameter, which belongs to the first layer that uses it and goes to
// the others as a skip tensor.
//
// Throws c10::ValueError with the path if the file cannot be read, is damaged,
// or has another version, and if the program cannot run or cannot be cut into
// micro-batches. The text then names up to 20 nodes, with their Python modules
// and source lines, and says what to change. Forward throws c10::ValueError if
// the sizes of an input are not those of the export.
//
// Under a MetaGuard (gpipe/meta.h) no weights are read, and all tensors are on
// the meta device. A model that was exported on the meta device has no weights
// in its file, and throws c10::ValueError without a MetaGuard. Its weights are
// tied if nodes of a module read the weight of another module instead of
// theirs.
//
// Threads: may be called from any thread.
ExportedModel load_exported(const std::string& path,
                            const ExportedOptions& options = {});

// Reads only the weights of the layers `first`, ..., `first` + `count` - 1, and
// returns only these layers. For gpipe/distributed, where each rank needs its
// own layers:
//
//   gpipe::DistributedPipeline pipeline(
//       [&](int64_t first, int64_t count) {
//         return gpipe::load_exported(path, first, count, options).layers;
//       }, ...);
//
// state_dict() has the weights of these layers. Also throws c10::IndexError if
// there are no such layers.
ExportedModel load_exported(const std::string& path, int64_t first,
                            int64_t count, const ExportedOptions& options = {});

// An open file, from which layers are read one part after the other. The
// program is read and cut once. The layers of all parts may be connected to one
// model. The file must not change. Copies share the file.
//
// Throws what load_exported() throws. Threads: one at a time.
class ExportedFile {
 public:
  explicit ExportedFile(const std::string& path,
                        const ExportedOptions& options = {});

  // Returns the inputs and outputs of the program.
  const ExportedSignature& signature() const;
  // Returns the number of layers.
  int64_t size() const;

  // Reads the weights of `count` layers from layer `first` on, and returns
  // these layers; see load_exported(). Each call reads the weights again.
  // `weights`: see ExportedOptions.
  ExportedModel read(int64_t first, int64_t count, bool weights = true) const;

  // Returns the CRC-32C of the names, sizes and CRC-32s of the weights, which
  // the directory of the file has. Copies of a file have the same one. Reads no
  // weights.
  uint32_t weights_checksum() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

// Returns inputs, outputs and checksum of a file. Reads no weights. Throws what
// load_exported() throws.
ExportedSignature exported_signature(const std::string& path,
                                     const ExportedOptions& options = {});

}  // namespace gpipe
