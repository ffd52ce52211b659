#include "exported/testing/examples.h"

#include <ATen/Functions.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <cstdlib>
#include <fstream>

#include "weights/safetensors.h"

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

bool is_close(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return false;
  }
  if (tolerance == 0) return at::equal(a.nan_to_num(), b.nan_to_num());
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  if (x.numel() == 0) return true;
  const double scale = y.abs().max().item<double>() + 1e-6;
  return (x - y).abs().max().item<double>() <= tolerance * scale;
}

std::string difference(const std::string& what, const StateDict& a,
                       const StateDict& b, double tolerance) {
  for (const auto& item : b) {
    const at::Tensor* found = a.find(item.key());
    if (!found) return what + " " + item.key() + " is missing";
    if (!is_close(*found, item.value(), tolerance)) {
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

std::string example_file(const std::string& name) {
  return "exported/testdata/" + name;
}

Example read_example(const std::string& name) {
  Example example;
  example.path = example_file(name + ".pt2");
  const Safetensors file =
      read_safetensors(example_file(name + ".safetensors"));
  const auto all = [&](const std::string& prefix) {
    std::vector<at::Tensor> tensors;
    while (const auto* each =
               file.tensors.find(prefix + std::to_string(tensors.size()))) {
      tensors.push_back(*each);
    }
    return tensors;
  };
  example.inputs = all("input.");
  example.outputs = all("output.");
  example.weights = all("weight.");
  example.evaluated = all("eval.");
  for (const auto& item : file.tensors) {
    if (item.key().rfind("grad.", 0) == 0) {
      example.grads.insert(item.key().substr(5), item.value());
    } else if (item.key().rfind("buffer.", 0) == 0) {
      example.buffers.insert(item.key().substr(7), item.value());
    }
  }
  example.made_here =
      file.metadata.at("torch") == TORCH_VERSION &&
      file.metadata.at("capability") == at::get_cpu_capability() &&
      file.metadata.at("cpu") == cpu_name();
  return example;
}

const std::vector<std::string>& example_names() {
  static const auto* const names = new std::vector<std::string>{
      "tiny", "mlp",     "gpt",    "masked",   "lstm",
      "unet", "regions", "photos", "outlines", "letters"};
  return *names;
}

ExportedStep step_of(const ExportedModel& model,
                     const std::vector<at::Tensor>& outputs) {
  ExportedStep step;
  for (const at::Tensor& each : outputs) step.outputs.push_back(each.detach());
  const auto python_name = [](const std::string& name) {
    return name.substr(name.find('.') + 1);
  };
  for (const auto& item : model.layers->named_parameters()) {
    if (item.value().grad().defined()) {
      step.grads.insert(python_name(item.key()), item.value().grad().clone());
    }
  }
  for (const auto& item : model.layers->named_buffers()) {
    const std::string name = python_name(item.key());
    if (!step.buffers.contains(name)) {
      step.buffers.insert(name, item.value().clone());
    }
  }
  return step;
}

at::Tensor loss_of(const std::vector<at::Tensor>& outputs,
                   const std::vector<at::Tensor>& weights) {
  at::Tensor loss;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const at::Tensor part = (outputs[k] * weights[k]).sum();
    loss = loss.defined() ? loss + part : part;
  }
  return loss;
}

std::string difference(const ExportedStep& a, const ExportedStep& b,
                       double tolerance) {
  if (a.outputs.size() != b.outputs.size()) return "number of outputs";
  for (std::size_t k = 0; k < a.outputs.size(); ++k) {
    if (!is_close(a.outputs[k], b.outputs[k], tolerance)) {
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

}  // namespace gpipe::testing
