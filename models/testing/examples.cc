#include "models/testing/examples.h"

#include <ATen/Functions.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gpipe::testing {

namespace {

std::string cpu_name() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "";
}

double largest_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  return tensor.to(at::kDouble).abs().max().item<double>();
}

// `largest`: the largest absolute value of all tensors that are compared, to
// which `tolerance` relates: a gradient that is 0 in theory is the rounding of
// larger numbers.
bool is_close(const at::Tensor& a, const at::Tensor& b, double tolerance,
              double largest) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return false;
  }
  if (tolerance == 0) {
    return at::equal(a.nan_to_num(), b.nan_to_num()) &&
           at::equal(a.isnan(), b.isnan());
  }
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  if (x.numel() == 0) return true;
  return (x - y).abs().max().item<double>() <= tolerance * largest;
}

std::string difference(const std::string& what, const StateDict& a,
                       const StateDict& b, double tolerance) {
  double largest = 0;
  for (const auto& item : b) {
    largest = std::max(largest, largest_of(item.value()));
  }
  for (const auto& item : b) {
    const at::Tensor* found = a.find(item.key());
    if (!found) return what + " " + item.key() + " is missing";
    if (!is_close(*found, item.value(), tolerance, largest)) {
      return what + " " + item.key() + " differs by " +
             std::to_string(
                 (found->to(at::kDouble) - item.value().to(at::kDouble))
                     .abs()
                     .max()
                     .item<double>());
    }
  }
  return "";
}

}  // namespace

bool is_made_here(const SafetensorsMetadata& metadata) {
  return metadata.at("torch") == TORCH_VERSION &&
         metadata.at("capability") == at::get_cpu_capability() &&
         metadata.at("cpu") == cpu_name();
}

std::string example_file(const std::string& name) {
  const std::string folder = "models/exported/testdata/";
  for (const char* kind : {"details/", "versions/"}) {
    const std::string path = folder + kind + name;
    if (std::filesystem::exists(path)) return path;
  }
  return folder + name;
}

Example read_example(const std::string& name) {
  Example example;
  example.path = example_file(name + ".pt2");
  const Safetensors file =
      read_safetensors(example_file(name + ".safetensors"));
  const exported::Reference reference = exported::reference_of(file.tensors);
  example.inputs = reference.inputs;
  example.outputs = reference.step.outputs;
  example.weights = reference.weights;
  example.grads = reference.step.grads;
  example.buffers = reference.step.buffers;
  while (const auto* each = file.tensors.find(
             "eval." + std::to_string(example.evaluated.size()))) {
    example.evaluated.push_back(*each);
  }
  example.made_here = is_made_here(file.metadata);
  return example;
}

const std::vector<std::string>& example_names() {
  static const auto* const names =
      new std::vector<std::string>{"tiny",      "mlp",      "gpt",
                                   "masked",    "lstm",     "unet",
                                   "regions",   "photos",   "outlines",
                                   "letters",   "styles",   "tables",
                                   "stateless", "seen",     "resized",
                                   "deep",      "branches", "other_branches",
                                   "scanned",   "mapped",   "looped",
                                   "alone",     "experts"};
  return *names;
}

ExportedStep training_step(ExportedModel& model, const Example& example) {
  torch::manual_seed(7);
  const std::vector<at::Tensor> outputs = call(model.layers, example.inputs);
  loss_of(outputs, example.weights).backward();
  return step_of(model, outputs);
}

std::string difference(const ExportedStep& a, const ExportedStep& b,
                       double tolerance) {
  if (a.outputs.size() != b.outputs.size()) return "number of outputs";
  for (std::size_t k = 0; k < a.outputs.size(); ++k) {
    if (!is_close(a.outputs[k], b.outputs[k], tolerance,
                  largest_of(b.outputs[k]))) {
      return "output " + std::to_string(k);
    }
  }
  if (a.grads.size() != b.grads.size()) {
    return std::to_string(a.grads.size()) + " and " +
           std::to_string(b.grads.size()) + " gradients";
  }
  std::string text = difference("gradient", a.grads, b.grads, tolerance);
  if (text.empty()) {
    text = difference("buffer", a.buffers, b.buffers, tolerance);
  }
  return text;
}

void edit_archive(const std::string& from, const std::string& to,
                  const EditRecord& edit) {
  caffe2::serialize::PyTorchStreamReader reader(from);
  caffe2::serialize::PyTorchStreamWriter writer(to);
  for (const std::string& name : reader.getAllRecords()) {
    // The writer writes its own.
    if (name.rfind(".data/", 0) == 0 || name == "version") continue;
    const auto [data, size] = reader.getRecord(name);
    std::string content(static_cast<const char*>(data.get()), size);
    if (edit(name, content)) {
      writer.writeRecord(name, content.data(), content.size());
    }
  }
  writer.writeEndOfFile();
}

void edit_program(const std::string& from, const std::string& to,
                  const std::string& old_text, const std::string& new_text) {
  bool found = false;
  edit_archive(from, to, [&](const std::string& name, std::string& content) {
    if (name.rfind("models/", 0) != 0) return true;
    const auto at = content.find(old_text);
    found = at != std::string::npos;
    if (found) content.replace(at, old_text.size(), new_text);
    return true;
  });
  TORCH_CHECK(found, "the program does not contain ", old_text);
}

}  // namespace gpipe::testing
