// Tests what placement does to modules: parameters, undoing, texts and errors.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "gpipe/placement/nets_testing.h"
#include "gpipe/placement/place.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe {
namespace {

using placement::kPlacementKey;
using testing::device;
using testing::error_of;
using testing::expect_equal;
using testing::forward_on_one;
using testing::is_marked;
using testing::make;
using testing::Mlp;
using testing::MlpImpl;
using testing::reference_device;
using testing::Residual;
using testing::train;
using testing::train_on_one;
using torch::Tensor;
using torch::nn::Linear;

// --- Parameters stay the same objects ---------------------------------------

TEST(Placement, ParametersAreTheSameObjectsAfterwards) {
  Mlp net(2);
  net->up->bias.requires_grad_(false);
  net(torch::ones({1, 2})).sum().backward();
  const Tensor gradient = net->down->weight.grad().clone();
  std::vector<c10::TensorImpl*> before, after;
  for (const Tensor& each : net->parameters()) {
    before.push_back(each.unsafeGetTensorImpl());
  }
  parallelize_pipeline(net, {{"up", device(0)}, {"down", device(1)}});
  for (const Tensor& each : net->parameters()) {
    after.push_back(each.unsafeGetTensorImpl());
    EXPECT_TRUE(each.is_leaf());
  }
  EXPECT_EQ(before, after);
  EXPECT_FALSE(net->up->bias.requires_grad());
  EXPECT_TRUE(net->down->bias.requires_grad());
  EXPECT_EQ(net->down->weight.grad().device(), device(1));
  EXPECT_TRUE(torch::equal(net->down->weight.grad().cpu(), gradient));
}

TEST(Placement, TypeAndValuesMayChangeAfterwards) {
  const Tensor x = torch::randn({4, 6});
  Residual saved = make<Residual>();
  std::stringstream file;
  torch::save(saved, file);

  torch::manual_seed(99);
  Residual net;
  parallelize_pipeline(net, {{"", device(0)}, {"first", device(1)}});
  torch::load(net, file);
  // torch::load() puts tensors on the devices where they were saved.
  const Tensor y = placed_forward(net, x);
  EXPECT_EQ(net->first->norm->weight.device(), device(1)) << "back again";
  expect_equal({y, net(x)},
               {forward_on_one(saved, x), forward_on_one(saved, x)});

  net->to(torch::kDouble);
  saved->to(torch::kDouble);
  const Tensor wide = x.to(torch::kDouble);
  expect_equal({net(wide)}, {forward_on_one(saved, wide)});
}

TEST(Placement, TensorsWithAMarkPrintAndSave) {
  Linear linear(2, 2);
  const Tensor y = linear(torch::ones({1, 2})).detach();
  std::ostringstream before, after;
  before << y;
  parallelize_module(linear, device(1));
  const Tensor marked = linear(torch::ones({1, 2})).detach();
  EXPECT_TRUE(is_marked(marked));
  after << marked.cpu();
  EXPECT_EQ(before.str(), after.str());
  std::stringstream file;
  torch::save(marked.cpu(), file);
  Tensor loaded;
  torch::load(loaded, file);
  EXPECT_TRUE(torch::equal(loaded, y));
}

TEST(Placement, OtherTensorsAreNotTouched) {
  Linear parallelized(2, 2), other(2, 2);
  parallelize_module(parallelized, device(1));
  parallelized(torch::ones({1, 2})).sum().backward();

  // gpipe's kernel runs only if an argument or the thread has its dispatch key.
  // Here neither has.
  const Tensor x = torch::ones({1, 2});
  const Tensor y = other(x);
  y.sum().backward();
  for (const Tensor& each : {x, y, other->weight, other->weight.grad()}) {
    EXPECT_FALSE(is_marked(each));
    EXPECT_EQ(each.unsafeGetTensorImpl()->get_backend_meta(), nullptr);
  }
  EXPECT_FALSE(
      c10::impl::tls_local_dispatch_key_set().included_.has(kPlacementKey));
}

// --- Undoing ----------------------------------------------------------------

TEST(Placement, UndoingLeavesNoTrace) {
  const Tensor x = torch::randn({4, 6});
  Residual net = make<Residual>();
  const auto expected = train_on_one<Residual>(x);
  std::ostringstream before, during, after;
  before << net;
  std::vector<c10::DispatchKeySet> keys, keys_after;
  for (const Tensor& each : net->parameters()) keys.push_back(each.key_set());

  parallelize_pipeline(net, {{"", device(0)},
                             {"first", device(1)},
                             {"head", {device(2), device(0)}}});
  net(x).sum().backward();
  during << net;
  EXPECT_NE(during.str().find("(first): gpipe::testing::BlockImpl "
                              "[processing_device=" +
                              device(1).str() + "](\n"),
            std::string::npos);
  unparallelize_pipeline(net, "cpu");
  net->zero_grad();

  after << net;
  EXPECT_EQ(after.str(), before.str());
  EXPECT_NE(during.str(), before.str());
  for (const Tensor& each : net->parameters()) {
    keys_after.push_back(each.key_set());
    EXPECT_EQ(each.unsafeGetTensorImpl()->get_backend_meta(), nullptr);
  }
  EXPECT_EQ(keys, keys_after);
  EXPECT_FALSE(is_marked(net(x)));
  net->to(reference_device());
  expect_equal(train(net, x.to(reference_device())), expected);
}

TEST(Placement, UndoingWithoutADeviceMovesNothing) {
  Mlp net(2);
  parallelize_pipeline(net, {{"up", device(0)}, {"down", device(1)}});
  unparallelize_pipeline(net);
  EXPECT_EQ(net->up->weight.device(), device(0));
  EXPECT_EQ(net->down->weight.device(), device(1));
  EXPECT_FALSE(is_marked(net->up->weight));
  unparallelize_module(net, torch::Device("cpu"));
  EXPECT_EQ(net->down->weight.device(), torch::Device("cpu"));
}

TEST(Placement, ModulesOneByOneInAnyOrder) {
  Residual net;
  parallelize_module(net->second->mlp, device(2));
  parallelize_module(net, device(0));
  parallelize_module(net->second, device(1));
  EXPECT_EQ(net->scale.device(), device(0));
  EXPECT_EQ(net->second->norm->weight.device(), device(1));
  EXPECT_EQ(net->second->mlp->up->weight.device(), device(2));
  unparallelize_module(net->second, device(3));
  EXPECT_EQ(net->second->norm->weight.device(), device(3));
  EXPECT_EQ(net->second->mlp->up->weight.device(), device(2)) << "stays";
  EXPECT_EQ(net(torch::ones({1, 6})).device(), device(0));
  unparallelize_module(net->second->mlp);
  unparallelize_module(net);
  EXPECT_FALSE(is_marked(net->scale));
  EXPECT_FALSE(is_marked(net->second->norm->weight));
}

TEST(Placement, ReturnsWhatItWasGiven) {
  Mlp net = parallelize_module(Mlp(2), device(0));
  MlpImpl& same = unparallelize_module(*net, "cpu");
  EXPECT_EQ(&same, net.get());
  std::shared_ptr<MlpImpl> pointer =
      parallelize_pipeline(net.ptr(), {{"up", device(0)}});
  EXPECT_EQ(pointer, net.ptr());
  MlpImpl on_the_stack(2);
  parallelize_module(on_the_stack, device(1));
  EXPECT_EQ(on_the_stack.up->weight.device(), device(1));
  const std::map<std::string, ModuleDevices> map = {{"up", device(0)}};
  EXPECT_EQ(parallelize_pipeline(Mlp(2), map)->up->weight.device(), device(0));
}

TEST(Placement, AModuleAtTheSameAddressIsAnotherOne) {
  for (int k = 0; k < 3; ++k) {
    MlpImpl net(2);
    parallelize_module(net, device(0));  // never unparallelized
  }
}

TEST(Placement, AModuleMayEndBeforeItsLayers) {
  Linear shared(2, 2);
  const auto use = [&](torch::nn::Module& net) {
    net.register_module("shared", shared);
    parallelize_module(net, device(0));  // never unparallelized
  };
  for (int k = 0; k < 3; ++k) {
    torch::nn::Module net;
    use(net);
    use(*std::make_unique<torch::nn::Module>());
    use(*std::make_shared<torch::nn::Module>());
  }
  Linear other(2, 2);
  parallelize_module(other, device(1));  // searches for modules around it
  EXPECT_EQ(other->weight.device(), device(1));
  unparallelize_module(shared, "cpu");
  EXPECT_FALSE(is_marked(shared->weight)) << "nothing is around it";
}

TEST(Placement, AModuleMayEndBeforeItsParameters) {
  std::vector<Tensor> kept;
  for (int k = 0; k < 3; ++k) {
    torch::nn::LinearImpl net(2, 2);
    kept.push_back(net.weight);
    parallelize_module(net, device(0));  // never unparallelized
    EXPECT_EQ(net.weight.device(), device(0));
  }
}

TEST(Placement, AModuleMayParallelizeItselfInItsConstructor) {
  struct NetImpl : MlpImpl {
    NetImpl() : MlpImpl(2) {
      parallelize_pipeline(*this, {{"", {device(0), device(3)}},
                                   {"up", device(1)},
                                   {"down", device(2)}});
    }
  };
  for (int k = 0; k < 2; ++k) {
    // The module gets its first owner after its constructor. The next call
    // removes the entries of destroyed modules.
    const auto net = std::make_shared<NetImpl>();
    parallelize_module(Linear(2, 2), device(0));
    EXPECT_EQ(placed_forward(net, torch::ones({1, 2})).device(), device(3));
    EXPECT_NE(error_of([&] { parallelize_module(net, device(1)); })
                  .find("is parallelized already (" + device(0).str() + " -> " +
                        device(3).str() + ")"),
              std::string::npos);
  }
}

// --- Text -------------------------------------------------------------------

TEST(Placement, PrintsDevices) {
  torch::nn::Sequential net(torch::nn::ReLU(), Mlp(2));
  parallelize_pipeline(net, {{"", "cpu"}, {"1.down", {"cpu", "cpu"}}});
  const std::string expected =
      "torch::nn::Sequential [processing_device=cpu](\n"
      "  (0): torch::nn::ReLU()\n"
      "  (1): gpipe::testing::MlpImpl(\n"
      "    (up): torch::nn::Linear(in_features=2, out_features=4, bias=true)\n"
      "    (down): torch::nn::Linear(in_features=4, out_features=2, bias=true) "
      "[processing_device=cpu, output_device=cpu]\n"
      "  )\n"
      ")";
  std::ostringstream holder, object, base;
  holder << net;
  object << *net;
  torch::nn::Module& module = *net;
  base << module;
  EXPECT_EQ(holder.str(), expected);
  EXPECT_EQ(object.str(), expected);
  EXPECT_EQ(base.str(), expected);
}

TEST(Placement, UnknownNamesAreAnsweredWithTheNearest) {
  Residual net;
  EXPECT_EQ(
      error_of([&] {
        parallelize_pipeline(net, {{"", "cpu"}, {"second.mpl.up", "cpu"}});
      }),
      "c10::ValueError: 'gpipe::testing::ResidualImpl' has no "
      "module 'second.mpl.up'; the nearest are 'second.mlp.up', "
      "'second.mlp' and 'second.norm' ('' is the root)");
  EXPECT_FALSE(is_marked(net->scale)) << "nothing is done";
  EXPECT_EQ(error_of([&] { parallelize_module(net, "cuba:0"); })
                .rfind("c10::ValueError: unknown type of device 'cuba' in "
                       "'cuba:0'; the nearest that LibTorch knows are 'cuda', "
                       "'cpu' and 'fpga'; ",
                       0),
            0u);
}

TEST(Placement, TwiceIsAnError) {
  Residual net;
  parallelize_module(net->first, "cpu", "cpu");
  EXPECT_EQ(error_of([&] { parallelize_module(net->first, "cpu"); }),
            "c10::ValueError: the module 'gpipe::testing::"
            "BlockImpl' is parallelized already (cpu -> cpu); call "
            "unparallelize_module() first");
  EXPECT_EQ(error_of([&] {
              parallelize_pipeline(net, {{"head", "cpu"}});
            }),
            "c10::ValueError: the module 'first' (gpipe::testing"
            "::BlockImpl) of 'gpipe::testing::ResidualImpl' is "
            "parallelized already (cpu -> cpu); call unparallelize_pipeline() "
            "first");
  unparallelize_pipeline(net);
  EXPECT_EQ(error_of([&] {
              parallelize_pipeline(net, {{"head", "cpu"}, {"head", "cpu"}});
            }),
            "c10::ValueError: the modules 'head' and 'head' of "
            "'gpipe::testing::ResidualImpl' are the same one; "
            "give it devices once");
  EXPECT_EQ(error_of([&] { parallelize_module(Residual(nullptr), "cpu"); }),
            "c10::ValueError: there is no module in the holder");
}

struct WithPipelineImpl : torch::nn::Module {
  WithPipelineImpl()
      : pipeline(register_module(
            "pipeline",
            GPipe(torch::nn::Sequential(Linear(2, 2), Linear(2, 2)),
                  GPipeOptions({1, 1}).devices({device(0), device(1)})))),
        head(register_module("head", Linear(2, 2))) {}
  Tensor forward(const Tensor& x) {
    return head(pipeline->forward(x).to(device(2)));
  }
  GPipe pipeline;
  Linear head;
};
TORCH_MODULE(WithPipeline);

TEST(Placement, APipelineKeepsItsDevices) {
  WithPipeline net;
  const Tensor x = torch::ones({4, 2}).to(device());
  const auto& layers = net->pipeline->parameters();
  const auto text = [](const std::string& name, const std::string& type) {
    return "c10::ValueError: the module '" + name + "' (gpipe::GPipe) of '" +
           type +
           "' is a pipeline, which chooses the devices of its "
           "parameters itself; name only modules that neither contain it nor "
           "are part of it, and choose its devices when you construct it";
  };
  const std::string type = "gpipe::(anonymous namespace)::WithPipelineImpl";
  EXPECT_EQ(error_of([&] {
              parallelize_pipeline(net, {{"", "cpu"}});
            }),
            text("pipeline", type));
  EXPECT_EQ(error_of([&] {
              parallelize_pipeline(net, {{"pipeline.1", "cpu"}});
            }),
            text("pipeline", type));
  EXPECT_EQ(error_of([&] { parallelize_module(net, "cpu"); }),
            text("pipeline", type));
  EXPECT_EQ(error_of([&] { parallelize_module(net->pipeline, "cpu"); }),
            text("", "gpipe::GPipe"));
  EXPECT_EQ(error_of([&] { unparallelize_pipeline(net, "cpu"); }),
            text("pipeline", type));
  for (const Tensor& each : net->parameters()) EXPECT_FALSE(is_marked(each));
  EXPECT_EQ(layers.front().device(), device(0));
  EXPECT_EQ(layers.back().device(), device(1));

  // Modules beside the pipeline may be parallelized.
  parallelize_pipeline(net, {{"head", device(2)}});
  const Tensor y = net->forward(x);
  y.sum().backward();
  EXPECT_TRUE(layers.front().grad().defined());
  EXPECT_EQ(y.device(), device(2));
  unparallelize_pipeline(net);
  for (const Tensor& each : net->parameters()) EXPECT_FALSE(is_marked(each));
}

TEST(Placement, MetaIsADeviceToo) {
  Residual net;
  parallelize_pipeline(net, {{"", "meta"}, {"second", "meta"}});
  EXPECT_EQ(net->second->mlp->up->weight.device(), torch::Device("meta"));
  EXPECT_EQ(net->head->weight.device(), torch::Device("meta"));
  const Tensor y = net->head(torch::ones({5, 6}));
  EXPECT_EQ(y.device(), torch::Device("meta"));
  EXPECT_EQ(y.sizes(), torch::IntArrayRef({5, 3}));
  EXPECT_NE(error_of([&] {
              unparallelize_pipeline(net, "cpu");
            }).find("Cannot copy out of meta tensor"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe
