// Tests of runs over several processes.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/utils.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/distributed/testing/ranks.h"
#include "models/exported/exported.h"
#include "models/testing/files.h"
#include "models/weights/hugging_face.h"
#include "models/weights/safetensors.h"
#include "training/program/options.h"
#include "training/program/run.h"
#include "training/program/task.h"
#include "training/run_files.h"
#include "training/testing/run_states.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using gpipe::instruments::CountingAllocator;
using gpipe::testing::argument;
using gpipe::testing::bit_equal;
using gpipe::testing::expect_equal;
using gpipe::testing::new_folder;
using gpipe::testing::RankProgramEntry;
using gpipe::testing::RankResult;
using gpipe::testing::Ranks;
using gpipe::testing::set_launch_environment;

constexpr char kExported[] = "models/exported/testdata/gpt.pt2";

Options options_of(const std::string& folder) {
  Options options = small_options("transformer");
  options.transformer_dropout = 0.2;
  options.checkpoint = "never";  // computes each loss only once
  options.steps = 4;
  options.clip = 0.5;
  options.eval_every = 2;
  options.run_dir = folder;
  return options;
}

// Of the exported program, without evaluation.
Options exported_options(const std::string& folder) {
  Options options = options_of(folder);
  options.model = kExported;
  options.eval_every = -1;
  return options;
}

// Returns weights of the exported program that are not those of the file.
StateDict other_weights() {
  ExportedModel model = load_exported(kExported);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& each : model.layers->parameters()) each.mul_(1.5);
  return model.state_dict();
}

void add_adapters(Options& options) {
  options.lora_rank = 2;
  options.lora_targets = "qkv,up";
  options.lora_dropout = 0.25;
}

// Adds a BatchNorm with momentum 1, whose statistics are those of the last
// micro-batch of a replica.
torch::nn::Sequential with_batch_norm(const torch::nn::Sequential& model) {
  torch::nn::Sequential with;
  const auto names = model->named_children().keys();
  for (std::size_t k = 0; k < names.size(); ++k) {
    if (k == 3) {
      with->push_back(
          "statistics",
          torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(12).momentum(1)));
    }
    with->push_back(names[k], *(model->begin() + static_cast<int64_t>(k)));
  }
  return with;
}

// Makes the gradient of the last parameter infinite in the second step, on the
// rank that has this parameter alone.
torch::nn::Sequential with_infinite_gradient(torch::nn::Sequential model) {
  const auto steps = std::make_shared<int>(0);
  model->parameters().back().register_hook([steps](const at::Tensor& grad) {
    return ++*steps == 2 ? grad * std::numeric_limits<double>::infinity()
                         : grad;
  });
  return model;
}

// Sets the options that are arguments of this rank.
void set_options(Options& options) {
  for (const OptionRow& row : option_rows()) {
    const std::string text = argument(row.name);
    if (text.empty()) continue;
    std::visit(
        [&](auto* value) {
          if constexpr (std::is_same_v<decltype(value), std::string*>) {
            *value = text;
          } else {
            std::istringstream(text) >> std::boolalpha >> *value;
          }
        },
        row.value(options));
  }
}

const RankProgramEntry kTrain("train", [] {
  Options options = options_of("");
  set_options(options);
  set_launch_environment();
  options.distributed = true;
  options.devices = "cpu";
  options.timeout = 60;
  options.trace_step = 2;
  options.shard_size = 3000;
  const bool counts = argument("count_bytes") == "true";
  if (counts) {
    CountingAllocator::install();
    // The threads of the failure detector make messages at any time.
    CountingAllocator::ignore_other_threads();
  }
  const auto task = make_task(options);
  const int64_t stop = std::stoll(argument("stop"));
  int64_t bytes_before = 0;
  // Only the process that computes losses gets the signal.
  TaskWith stopped(
      *task,
      [&, losses = std::make_shared<int64_t>(0)](const at::Tensor& output) {
        if (++*losses == 2 * (stop - 1) + 1) raise(SIGTERM);
        return output;
      },
      // Before the first batch there are no activations, gradients and states.
      [&](int64_t index) {
        if (!counts || index > 0) return;
        std::cout << "\nbytes "
                  << CountingAllocator::live_bytes() - bytes_before << " "
                  << CountingAllocator::peak_bytes() - bytes_before
                  << std::endl;
      });
  if (argument("batch_norm") == "true") stopped.change_model = with_batch_norm;
  if (argument("infinite") == "true") {
    stopped.change_model = with_infinite_gradient;
  }
  if (counts) {
    stopped.change_model = [&](torch::nn::Sequential model) {
      bytes_before = CountingAllocator::live_bytes();
      CountingAllocator::reset_peak();
      return model;
    };
  }
  return run(options, stopped,
             [](const std::string& line) { std::cout << line << std::endl; });
});

// The processes of a run, and how the run ends.
struct Processes {
  int count = 2;
  int copies = 1;     // replicas, which share the micro-batches of a step
  int64_t stop = 0;   // the step in which the run gets SIGTERM; 0: none
  int code = kDone;   // the exit code without SIGTERM
  int64_t saved = 0;  // the step that is saved then; 0: any
  Ranks::Arguments more = {};  // of kTrain, besides options
};

// Returns the arguments of kTrain: its options that differ from options_of(),
// and how the run ends.
Ranks::Arguments arguments_of(Options options, const Processes& processes) {
  options.data_parallel = processes.copies;
  options.chunks /= processes.copies;
  Ranks::Arguments arguments = processes.more;
  arguments.emplace_back("stop", std::to_string(processes.stop));
  for (const OptionRow& row : option_rows()) {
    const std::string text = value_of(row, options);
    if (text != value_of(row, options_of(""))) {
      arguments.emplace_back(row.name, text);
    }
  }
  return arguments;
}

// Runs kTrain in processes and expects their exit code.
std::vector<RankResult> train_in_processes(const Options& options,
                                           const Processes& processes = {}) {
  const std::vector<RankResult> results =
      Ranks("train", processes.count, arguments_of(options, processes)).wait();
  const int code = processes.stop > 0 ? kSignal + SIGTERM : processes.code;
  for (const RankResult& each : results) {
    EXPECT_EQ(each.exit.code, code) << each.out << each.err;
  }
  return results;
}

void expect_same_weights(const RunState& a, const RunState& b) {
  EXPECT_EQ(a.step, b.step);
  expect_equal(a.model, b.model);
}

class ProcessesTest : public ::testing::Test {
 protected:
  const std::string folder_ = new_folder();
  // Of runs in this process, and in several processes.
  const std::string here_ = folder_ + "here", there_ = folder_ + "there";

  // Expects that `runs`, which resume each other, have the bits of one process.
  void expect_bits_of_one(Options options, const std::vector<Processes>& runs) {
    options.run_dir = here_;
    EXPECT_EQ(run_here(options).code, kDone);
    options.run_dir = there_;
    for (const Processes& each : runs) {
      train_in_processes(options, each);
      if (each.saved > 0) {
        EXPECT_EQ(state_in(there_).step, each.saved);
      }
    }
    expect_same_weights(state_in(there_), state_in(here_));
  }
};

TEST_F(ProcessesTest, TwoProcessesAreTwoPartitionsAndStopTogether) {
  run_here(options_of(here_));
  // Saves step 2 in the background, and step 3 because of the signal.
  Options options = options_of(there_);
  options.save_every = 2;
  options.save_in_background = true;
  train_in_processes(options, {.stop = 3});
  EXPECT_EQ(RunFiles(there_).steps(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(state_in(there_).step, 3);
  train_in_processes(options_of(there_));
  expect_same_weights(state_in(there_), state_in(here_));
}

TEST_F(ProcessesTest, AnInfiniteGradientOfOneRankLeavesTheStepOutOnAll) {
  Options options = options_of(here_);
  options.precision = "amp-float16";
  const auto task = make_task(options);
  TaskWith infinite(*task, nullptr);
  infinite.change_model = with_infinite_gradient;
  EXPECT_EQ(run_here(options, infinite).code, kDone);
  EXPECT_EQ(std::stod(logged(here_, 3, "scale")), 32768);
  options.run_dir = there_;
  train_in_processes(options, {.more = {{"infinite", "true"}}});
  EXPECT_EQ(logged(there_, 3, "scale"), logged(here_, 3, "scale"));
  expect_same_weights(state_in(there_), state_in(here_));
}

TEST_F(ProcessesTest, ALossThatIsNoNumberEndsAllAfterTheSaveInTheBackground) {
  Options options = options_of(there_);
  options.save_every = 1;
  options.save_in_background = true;
  options.lr = 1e30;
  train_in_processes(options, {.code = kNotFinite});
  EXPECT_EQ(state_in(there_).step, 1);
}

TEST_F(ProcessesTest, TheTrainingScoreIsThatOfAllReplicas) {
  Options one = options_of(here_);
  one.train_score = true;
  run_here(one);
  one.run_dir = there_;
  train_in_processes(one, {.count = 4, .copies = 2});
  for (const int64_t step : {2, 4}) {
    EXPECT_NEAR(std::stod(logged(there_, step, "train_perplexity")),
                std::stod(logged(here_, step, "train_perplexity")), 1e-4);
  }
}

TEST_F(ProcessesTest, ProcessesAndReplicasWriteTheTextOfOneProcess) {
  Options one = options_of(here_);
  one.sample = 20;
  const std::string text = run_here(one).line_with("the model writes: ");
  EXPECT_EQ(text.size(), std::string("the model writes: ").size() + 8 + 20);
  for (const int copies : {1, 2}) {
    one.run_dir = there_ + std::to_string(copies);
    const auto results =
        train_in_processes(one, {.count = 2 * copies, .copies = copies});
    EXPECT_NE(results[0].out.find(text + "\n"), std::string::npos)
        << results[0].out << results[0].err;
    EXPECT_EQ(results[1].out.find("the model writes"), std::string::npos);
  }
}

TEST_F(ProcessesTest, AnExportedProgramTrainsInTwoProcesses) {
  Options one = options_of(here_);
  one.model = kExported;
  expect_bits_of_one(one, {{.stop = 3, .saved = 3}, {}});
}

TEST_F(ProcessesTest, AdaptersTrainInProcessesAsInOne) {
  Options one = options_of(here_);
  one.model = kExported;
  add_adapters(one);
  expect_bits_of_one(one, {{.stop = 3}, {}});
  for (const auto& each : state_in(there_).model) {
    EXPECT_NE(each.key().find(".lora."), std::string::npos)
        << each.key() << ": a run checkpoint has the base";
  }
  const std::string file = "/adapter/adapter_model.safetensors";
  const StateDict expected = read_safetensors(here_ + file).tensors;
  const StateDict found = read_safetensors(there_ + file).tensors;
  expect_equal(found, expected);
  // A process without adapters, which has the embeddings only.
  Options uneven = one;
  uneven.run_dir = folder_ + "uneven";
  uneven.balance = "1," + std::to_string(ExportedFile(kExported).size() - 1);
  train_in_processes(uneven, {.stop = 3});
  train_in_processes(uneven);
  expect_same_weights(state_in(uneven.run_dir), state_in(here_));
  // Replicas whose optimizers have shards of the adapters alone. The order of
  // their sums differs.
  one.run_dir = folder_ + "sharded";
  one.shard_optimizer = true;
  train_in_processes(one, {.count = 4, .copies = 2});
  EXPECT_EQ(read_safetensors(one.run_dir + file).tensors.size(),
            expected.size());
}

// Returns the bytes of `count` layers from layer `first` on.
int64_t bytes_of_layers(const ExportedFile& file, int64_t first,
                        int64_t count) {
  const ExportedModel part = file.read(first, count);
  int64_t bytes = 0;
  for (const auto& tensors :
       {part.layers->parameters(), part.layers->buffers()}) {
    for (const at::Tensor& each : tensors) {
      bytes += static_cast<int64_t>(each.nbytes());
    }
  }
  return bytes;
}

TEST_F(ProcessesTest, EachProcessReadsItsOwnLayersOfAnExportedProgram) {
  const ExportedFile file(kExported);
  const std::string weights = folder_ + "python.safetensors";
  write_safetensors(weights, load_exported(kExported).state_dict());
  const int64_t first = file.size() / 3;
  const std::vector<int64_t> expected{
      bytes_of_layers(file, 0, first),
      bytes_of_layers(file, first, file.size() - first)};
  EXPECT_EQ(expected[0] + expected[1], bytes_of_layers(file, 0, file.size()));
  Options options = exported_options("");
  options.balance =
      std::to_string(first) + "," + std::to_string(file.size() - first);
  for (const std::string& given : {std::string(), weights}) {
    options.weights = given;
    const auto results =
        train_in_processes(options, {.more = {{"count_bytes", "true"}}});
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto at = results[rank].out.find("\nbytes ");
      ASSERT_NE(at, std::string::npos) << results[rank].out;
      std::istringstream numbers(results[rank].out.substr(at + 7));
      int64_t live = 0, peak = 0;
      numbers >> live >> peak;
      EXPECT_EQ(live, expected[rank]) << rank;
      // Tensors of --weights are copied. The messages of the processes about
      // their layers are tensors, too.
      EXPECT_LT(peak, live * (given.empty() ? 1 : 2) + 4096) << rank;
    }
  }
}

TEST_F(ProcessesTest, ProcessesShareTheBalanceThatTheFirstOneHasMeasured) {
  for (const char* balance : {"time", "size"}) {
    Options options = exported_options(there_ + balance);
    options.balance = balance;
    train_in_processes(options);
    EXPECT_EQ(state_in(options.run_dir).step, 4) << balance;
  }
}

TEST_F(ProcessesTest, AnExportedProgramStartsWithGivenWeightsInTwoProcesses) {
  Options one = exported_options(here_);
  one.weights = folder_ + "python.safetensors";
  write_safetensors(one.weights, other_weights());
  expect_bits_of_one(one, {{}});
  // The weights of a run, by the names of a run checkpoint.
  one.weights = folder_ + "run.safetensors";
  write_safetensors(one.weights, state_in(here_).model);
  one.run_dir = here_ + " again";
  EXPECT_EQ(run_here(one).code, kDone);
  one.run_dir = there_ + " again";
  train_in_processes(one);
  expect_same_weights(state_in(one.run_dir), state_in(here_ + " again"));
}

// Returns the tensors of a folder of transformers, and expects it to be that of
// a run.
StateDict saved_weights(const std::string& folder, const std::string& run) {
  const StateDict saved = read_hugging_face(folder);
  EXPECT_FALSE(saved.contains("head.weight"));  // tied
  EXPECT_TRUE(saved.contains("token.weight"));
  const StateDict model = state_in(run).model;
  EXPECT_EQ(saved.size(), model.size());
  for (const auto& item : model) {
    const std::string name = item.key().substr(item.key().find('.') + 1);
    EXPECT_TRUE(bit_equal(saved[name], item.value())) << name;
  }
  return saved;
}

TEST_F(ProcessesTest, AFolderIsReadAndWrittenByAllProcesses) {
  save_hugging_face(folder_ + "given", other_weights(), 3000);
  Options one = exported_options(here_);
  one.weights = folder_ + "given";
  one.save_weights = folder_ + "saved here";
  EXPECT_EQ(run_here(one).code, kDone);
  const StateDict expected = saved_weights(one.save_weights, one.run_dir);
  for (const int copies : {1, 2}) {
    one.run_dir = there_ + std::to_string(copies);
    one.save_weights = folder_ + "saved" + std::to_string(copies);
    train_in_processes(one, {.copies = copies});
    const StateDict found = saved_weights(one.save_weights, one.run_dir);
    if (copies == 1) expect_equal(found, expected);
  }
}

TEST_F(ProcessesTest, FoldersForWeightsThatDifferAreRefusedBeforeTheRun) {
  std::vector<Ranks::Arguments> arguments;
  for (const char* rank : {"0", "1"}) {
    Options options = exported_options("");
    options.save_weights = folder_ + "saved" + rank;
    arguments.push_back(arguments_of(options, {}));
  }
  Ranks ranks("train", arguments);
  for (const RankResult& each : ranks.wait()) {
    EXPECT_EQ(each.exit.code, 1) << each.out;
    EXPECT_EQ(each.out.find("step 1"), std::string::npos) << each.out;
    EXPECT_NE(each.err.find("process 1 of 2 has another folder, " + folder_ +
                            "saved1, than process 0"),
              std::string::npos)
        << each.err;
  }
}

TEST_F(ProcessesTest, MergedWeightsOfPartsAreThoseOfOneProcess) {
  Options one = exported_options(here_);
  one.save_weights = folder_ + "saved here";
  one.merge_lora = true;
  add_adapters(one);
  EXPECT_EQ(run_here(one).code, kDone);
  one.run_dir = there_;
  one.save_weights = folder_ + "saved there";
  train_in_processes(one);
  expect_equal(read_hugging_face(one.save_weights),
               read_hugging_face(folder_ + "saved here"));
}

// The file has noise in training, which the second one has not.
TEST_F(ProcessesTest, ASecondFileEvaluatesInSeveralProcesses) {
  StateDict rows;
  rows.insert("x", at::arange(160, at::kFloat).sin().view({40, 4}));
  rows.insert("target", at::arange(120, at::kFloat).cos().view({40, 3}));
  write_safetensors(folder_ + "rows.safetensors", rows);
  Options one = options_of(here_);
  one.model = "models/exported/testdata/scattered.pt2";
  one.eval_model = "models/exported/testdata/steady.pt2";
  one.data_dir = folder_ + "rows.safetensors";
  expect_bits_of_one(one, {{}});
  for (const int64_t step : {2, 4}) {
    EXPECT_EQ(logged(there_, step, "test_loss"),
              logged(here_, step, "test_loss"));
  }
  EXPECT_NE(logged(here_, 2, "test_loss"), "");
  // Replicas with different running statistics: those of the first one count.
  one.run_dir = folder_ + "copies";
  train_in_processes(one, {.count = 4, .copies = 2});
  EXPECT_EQ(state_in(one.run_dir).step, 4);
  EXPECT_NE(logged(one.run_dir, 4, "test_loss"), "");
}

TEST_F(ProcessesTest, CopiesOfAnExportedProgramHaveTheBitsOfOneCopy) {
  Options one = exported_options(here_);
  one.chunks = 2;
  // Two copies of two partitions, then two copies of one, which resume. A
  // replica has one loss per step.
  expect_bits_of_one(
      one, {{.count = 4, .copies = 2, .stop = 2, .saved = 3}, {.copies = 2}});
}

TEST_F(ProcessesTest, OneTraceHasTheActionsOfAllProcesses) {
  Options options = options_of(there_);
  options.trace = folder_ + "trace.json";
  train_in_processes(options);
  const std::string text = gpipe::testing::read_bytes(options.trace);
  for (const char* part :
       {"\"rank 0\"", "\"rank 1\"", "\"link 0 to 1\"", "\"link 1 to 0\"",
        "\"0F0\"", "\"1F1\"", "\"1B0\"", "\"0B1\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(text.find("remote ranks"), std::string::npos);
}

TEST_F(ProcessesTest, AFlagThatDiffersIsNamedByAll) {
  Options other = options_of("");
  other.seed = 7;
  Ranks ranks("train",
              {arguments_of(options_of(""), {}), arguments_of(other, {})});
  for (const RankResult& each : ranks.wait()) {
    EXPECT_EQ(each.exit.code, 1) << each.out;
    EXPECT_NE(each.err.find("--seed is '7' in process 1 and '0' in process 0. "
                            "Give all processes the same flags and data"),
              std::string::npos)
        << each.err;
  }
}

TEST_F(ProcessesTest, ATraceOfOperatorsThatWouldReplaceTheTimelineIsRefused) {
  for (const std::string rank : {"0", "1"}) {
    Options options = options_of("");
    options.trace = folder_ + "t-" + rank + ".json";
    options.kineto = folder_ + "t.json";
    for (const RankResult& each : train_in_processes(options, {.code = 1})) {
      EXPECT_NE(each.err.find("--trace and --kineto name the same file, " +
                              options.trace),
                std::string::npos)
          << each.err;
    }
  }
}

TEST_F(ProcessesTest, CopiesShareABatch) {
  Options options = options_of(there_);
  options.chunks = 4;  // two of each copy
  train_in_processes(options, {.copies = 2});
  EXPECT_EQ(state_in(there_).step, 4);
  // Resumes in one process, which has the same mini-batches.
  options.chunks = 2;
  options.steps = 5;
  EXPECT_EQ(run_here(options).code, kDone);
}

// With more micro-batches per replica, sums would have another order.
TEST_F(ProcessesTest, CopiesWithAMicroBatchEachHaveTheBitsOfOneCopy) {
  Options one = options_of(here_);
  one.chunks = 2;
  expect_bits_of_one(one, {{.copies = 2}});
}

TEST_F(ProcessesTest, ASpreadOptimizerSavesAndResumesAsAWholeOne) {
  Options one = options_of(here_);
  one.chunks = 2;
  one.clip = 0;  // the norm of shards has other last bits
  EXPECT_EQ(run_here(one).code, kDone);
  // First the optimizer is spread until step 3 and whole afterwards, then the
  // other way round.
  for (const bool first : {true, false}) {
    one.run_dir = there_ + (first ? "1" : "2");
    one.shard_optimizer = first;
    train_in_processes(one, {.copies = 2, .stop = 2});
    const RunState half = state_in(one.run_dir);
    EXPECT_EQ(half.step, 3);  // a replica has one loss per step
    for (const auto& [name, parameter] : half.optimizer->parameters) {
      for (const auto& [what, tensor] : parameter.tensors) {
        EXPECT_EQ(tensor.sizes(), half.model[name].sizes()) << what << name;
      }
    }
    one.shard_optimizer = !first;
    train_in_processes(one, {.copies = 2});
    expect_same_weights(state_in(one.run_dir), state_in(here_));
  }
  // One process goes on from two replicas, and so do three.
  Options spread = options_of(there_);
  spread.shard_optimizer = true;
  spread.batch = 6;
  train_in_processes(spread, {.copies = 2, .stop = 2});
  spread.run_dir = there_ + " of three";
  std::filesystem::copy(there_, spread.run_dir,
                        std::filesystem::copy_options::recursive);
  one.run_dir = there_;
  one.shard_optimizer = false;
  one.batch = 6;
  one.chunks = 1;
  EXPECT_EQ(run_here(one).code, kDone);
  spread.chunks = 3;
  train_in_processes(spread, {.count = 3, .copies = 3});
  EXPECT_EQ(state_in(spread.run_dir).step, state_in(there_).step);
}

TEST_F(ProcessesTest, AccumulatedMiniBatchesOfCopiesHaveTheBitsOfOneLargeOne) {
  for (const int64_t bucket : {0, 4}) {
    Options large = options_of(folder_ + "large" + std::to_string(bucket));
    large.bucket = bucket;
    large.eval_every = -1;
    Options small = large;
    large.batch = 18;
    large.chunks = 12;
    train_in_processes(large, {.copies = 2});
    small.run_dir = folder_ + "small" + std::to_string(bucket);
    small.batch = 6;
    small.chunks = 4;
    small.accumulate = 3;
    train_in_processes(small, {.copies = 2});
    expect_same_weights(state_in(small.run_dir), state_in(large.run_dir));
  }
}

// Both runs have two micro-batches per step, of which each copy takes one.
TEST_F(ProcessesTest, CopiesShareTheMicroBatchesOfSequences) {
  Options one = options_of(here_);
  one.bucket = 4;
  one.batch = 6;
  one.chunks = 2;
  one.eval_every = -1;
  expect_bits_of_one(one, {{.count = 4, .copies = 2}});
}

TEST_F(ProcessesTest, WithBatchNormTheTestIsOfTheCopyThatIsSaved) {
  Options options = options_of(there_);
  options.chunks = 4;  // two of each copy
  train_in_processes(
      options, {.count = 4, .copies = 2, .more = {{"batch_norm", "true"}}});
  const auto task = make_task(options_of(there_));
  const Score score =
      plain_score(there_, *task, with_batch_norm(task->model()));
  // The run sums over micro-batches, which may round differently.
  EXPECT_NEAR(std::stod(logged(there_, 4, "test_loss")),
              score.loss / score.items, 1e-6);
}

}  // namespace
}  // namespace gpipe::train_program
