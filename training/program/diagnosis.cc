#include "training/program/diagnosis.h"

#include <c10/util/Exception.h>

#include <cstddef>
#include <vector>

#include "gpipe/distributed/error.h"
#include "training/non_finite.h"

namespace gpipe::train_program {
namespace {

std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t kLongest = 10;
  if (names.empty()) return "none";
  std::string text;
  for (std::size_t k = 0; k < names.size() && k < kLongest; ++k) {
    text += (k == 0 ? "" : ", ") + names[k];
  }
  if (names.size() > kLongest) {
    text += ", ... (" + std::to_string(names.size()) + " in all)";
  }
  return text;
}

std::string parameters_text(Engine& engine) {
  return "Parameters that are not finite: " +
         list(non_finite_names(engine.module().named_parameters()));
}

std::string gradients_text(Engine& engine) {
  return "Parameters whose gradients are not finite: " +
         list(non_finite_gradients(engine.module().named_parameters()));
}

std::string place_text(const Failure& failure, const LayerNames& names) {
  const auto found = names.find(failure.layer);
  const std::string layer =
      found != names.end()    ? found->second
      : failure.layer.empty() ? "partition " + std::to_string(failure.partition)
                              : "'" + failure.layer + "'";
  return "The first layer that returned such numbers is " + layer +
         " in micro-batch " + std::to_string(failure.microbatch) + ", " +
         to_string(failure.phase);
}

}  // namespace

std::string find_non_finite(
    Engine& engine, const LayerNames& names, const GeneratorStates& generators,
    const std::function<void(const TrainOptions&)>& again) {
  set_generator_states(generators);
  for (at::Tensor& parameter : engine.module().parameters()) {
    parameter.mutable_grad().reset();
  }
  try {
    again(TrainOptions().check_finite(true));
  } catch (const NonFiniteError& error) {
    const auto failure = engine.module().last_failure();
    const std::string place = failure ? place_text(*failure, names) + ": " : "";
    return place + error.what_without_backtrace() + ". " +
           parameters_text(engine) + ".";
  } catch (const PeerError& error) {
    return std::string("Found in another process: ") +
           error.what_without_backtrace();
  }
  return "When the step was repeated, all layers returned finite numbers. " +
         gradients_text(engine) + ". " + parameters_text(engine) + ".";
}

}  // namespace gpipe::train_program
