// Programs with operators of a library that is loaded while the process runs.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "gpipe/base/program.h"
#include "models/exported/exported.h"
#include "models/testing/examples.h"
#include "models/testing/files.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using testing::edit_program;
using testing::example_file;
using ::testing::HasSubstr;
using testing::new_folder;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using testing::value_error_of;

// Returns a copy of tiny.pt2, with `target` as its last operator.
std::string tiny_with(const std::string& target) {
  const std::string path = new_folder() + "edited.pt2";
  edit_program(example_file("tiny.pt2"), path, "torch.ops.aten.dropout.default",
               target);
  return path;
}

// Returns the model in eval mode. Then tiny.pt2's own last operator passes
// values on.
ExportedModel evaluated(const std::string& path) {
  ExportedModel model = load_exported(path);
  model.layers->eval();
  return model;
}

TEST(OperatorsTest, OperatorsOfALibraryRun) {
  const std::string path = tiny_with("torch.ops.gpipe_test.scale.default");
  EXPECT_THAT(value_error_of([&] { load_exported(path); }),
              HasSubstr("load the library that registers it (programs: "
                        "--operators=LIBRARY.so)"));

  load_operators(std::getenv("OPERATORS"));
  ExportedModel model = evaluated(path);
  ExportedModel plain = evaluated(example_file("tiny.pt2"));
  const at::Tensor input = at::arange(8, at::kFloat).view({4, 2});
  const at::Tensor found = model.layers->forward(input);
  const at::Tensor expected = plain.layers->forward(input);
  EXPECT_TRUE(at::equal(found, expected * 0.5));
  found.sum().backward();
  expected.sum().backward();
  const auto grad_of = [](const ExportedModel& of) {
    return of.layers->parameters().at(0).grad();
  };
  EXPECT_TRUE(at::equal(grad_of(model), grad_of(plain) * 0.5));
}

// LibTorch warns in the backward, and leaves the gradients out.
TEST(OperatorsTest, AnOperatorWithoutGradientIsAnErrorInTraining) {
  load_operators(std::getenv("OPERATORS"));
  ExportedModel model =
      evaluated(tiny_with("torch.ops.gpipe_test.opaque_scale.default"));
  ExportedModel plain = evaluated(example_file("tiny.pt2"));
  const at::Tensor input = at::arange(8, at::kFloat).view({4, 2});
  const std::string error =
      value_error_of([&] { model.layers->forward(input); });
  EXPECT_EQ(error.substr(0, error.find(" (in node")),
            "this operator has no gradient in C++: the library that registers "
            "it has none (one of Python's torch.library.register_autograd is "
            "not in the library). Register one in C++, or call the operator "
            "under torch.no_grad()");
  EXPECT_THAT(error,
              HasSubstr("in node 'dropout' (torch.ops.gpipe_test.opaque_scale."
                        "default) of module '2'"));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(model.layers->forward(input),
                        plain.layers->forward(input) * 0.5));
}

TEST(OperatorsTest, ALibraryThatCannotBeLoadedIsNamed) {
  load_operators("");
  EXPECT_THAT([] { load_operators("no_such_library.so"); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(StartsWith("--operators=no_such_library.so: "),
                        HasSubstr("No such file"))));
}

}  // namespace
}  // namespace gpipe
