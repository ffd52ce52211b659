// Tests of runs over several processes.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/utils.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/distributed/testing/ranks.h"
#include "models/exported/exported.h"
#include "models/testing/files.h"
#include "models/weights/hugging_face.h"
#include "models/weights/safetensors.h"
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

const RankProgramEntry kTrain("train", [] {
  Options options = options_of(argument("folder"));
  if (!argument("model").empty()) options.model = argument("model");
  set_launch_environment();
  options.distributed = true;
  options.devices = "cpu";
  options.timeout = 60;
  options.data_parallel = std::stoll(argument("copies"));
  options.chunks = std::stoll(argument("chunks"));
  const auto set = [](int64_t& option, const char* name) {
    if (!argument(name).empty()) option = std::stoll(argument(name));
  };
  set(options.batch, "batch");
  set(options.accumulate, "accumulate");
  set(options.bucket, "bucket");
  set(options.eval_every, "eval_every");
  set(options.sample, "sample");
  set(options.save_every, "save_every");
  if (!argument("lr").empty()) options.lr = std::stod(argument("lr"));
  if (argument("clip") == "0") options.clip = 0;
  options.train_score = argument("train_score") == "true";
  options.trace = argument("trace");
  options.trace_step = 2;
  options.shard_optimizer = argument("shard_optimizer") == "true";
  if (!argument("balance").empty()) options.balance = argument("balance");
  options.weights = argument("weights");
  options.save_weights = argument("save_weights");
  options.shard_size = 3000;
  options.data_dir = argument("data_dir");
  options.eval_model = argument("eval_model");
  if (argument("adapters") == "true") add_adapters(options);
  options.merge_lora = argument("merge_lora") == "true";
  const bool counts = argument("count_bytes") == "true";
  if (counts) {
    CountingAllocator::install();
    // The threads of the failure detector make messages at any time.
    CountingAllocator::ignore_other_threads();
  }
  options.save_in_background = !argument("save_every").empty();
  if (!argument("seed").empty()) {
    options.seed = std::stoull(argument("seed"));
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

// Runs kTrain in `count` processes and expects exit code `code`. `copies`: the
// number of replicas. `stop`: the step in which the run gets SIGTERM. `more`:
// other arguments of kTrain.
void train_in_processes(const std::string& folder, int count, int copies,
                        int64_t stop, int code,
                        int64_t chunks = options_of("").chunks,
                        const Ranks::Arguments& more = {}) {
  Ranks::Arguments arguments{{"folder", folder},
                             {"copies", std::to_string(copies)},
                             {"chunks", std::to_string(chunks)},
                             {"stop", std::to_string(stop)}};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Ranks ranks("train", count, arguments);
  for (const RankResult& each : ranks.wait()) {
    EXPECT_EQ(each.exit.code, code) << each.out << each.err;
  }
}

void expect_same_weights(const RunState& a, const RunState& b) {
  EXPECT_EQ(a.step, b.step);
  expect_equal(a.model, b.model);
}

TEST(ProcessesTest, TwoProcessesAreTwoPartitionsAndStopTogether) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  run_here(options_of(here));
  // Saves step 2 in the background, and step 3 because of the signal.
  train_in_processes(there, 2, 1, /*stop=*/3, kSignal + SIGTERM,
                     options_of("").chunks, {{"save_every", "2"}});
  EXPECT_EQ(RunFiles(there).steps(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(state_in(there).step, 3);
  train_in_processes(there, 2, 1, /*stop=*/100, kDone);
  expect_same_weights(state_in(there), state_in(here));
}

TEST(ProcessesTest, ALossThatIsNoNumberEndsAllAfterTheSaveInTheBackground) {
  const std::string folder = new_folder() + "run";
  train_in_processes(folder, 2, 1, /*stop=*/100, kNotFinite,
                     options_of("").chunks,
                     {{"save_every", "1"}, {"lr", "1e30"}});
  EXPECT_EQ(state_in(folder).step, 1);
}

TEST(ProcessesTest, TheTrainingScoreIsThatOfAllReplicas) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  Options one = options_of(here);
  one.train_score = true;
  run_here(one);
  train_in_processes(there, 4, 2, /*stop=*/100, kDone, /*chunks=*/1,
                     {{"train_score", "true"}});
  for (const int64_t step : {2, 4}) {
    EXPECT_NEAR(std::stod(logged(there, step, "train_perplexity")),
                std::stod(logged(here, step, "train_perplexity")), 1e-4);
  }
}

TEST(ProcessesTest, ProcessesAndReplicasWriteTheTextOfOneProcess) {
  const std::string folder = new_folder();
  Options one = options_of(folder + "here");
  one.sample = 20;
  const std::string text = run_here(one).line_with("the model writes: ");
  EXPECT_EQ(text.size(), std::string("the model writes: ").size() + 8 + 20);
  for (const std::string copies : {"1", "2"}) {
    Ranks ranks("train", 2 * std::stoi(copies),
                {{"folder", folder + copies},
                 {"copies", copies},
                 {"chunks", copies == "1" ? "2" : "1"},
                 {"stop", "100"},
                 {"sample", "20"}});
    const auto results = ranks.wait();
    EXPECT_NE(results[0].out.find(text + "\n"), std::string::npos)
        << results[0].out << results[0].err;
    EXPECT_EQ(results[1].out.find("the model writes"), std::string::npos);
  }
}

TEST(ProcessesTest, AnExportedProgramTrainsInTwoProcesses) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  Options one = options_of(here);
  one.model = kExported;
  EXPECT_EQ(run_here(one).code, kDone);
  train_in_processes(there, 2, 1, /*stop=*/3, kSignal + SIGTERM,
                     options_of("").chunks, {{"model", kExported}});
  EXPECT_EQ(state_in(there).step, 3);
  train_in_processes(there, 2, 1, /*stop=*/100, kDone, options_of("").chunks,
                     {{"model", kExported}});
  expect_same_weights(state_in(there), state_in(here));
}

TEST(ProcessesTest, AdaptersTrainInProcessesAsInOne) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  Options one = options_of(here);
  one.model = kExported;
  add_adapters(one);
  EXPECT_EQ(run_here(one).code, kDone);
  const Ranks::Arguments more{{"model", kExported}, {"adapters", "true"}};
  train_in_processes(there, 2, 1, /*stop=*/3, kSignal + SIGTERM,
                     options_of("").chunks, more);
  train_in_processes(there, 2, 1, /*stop=*/100, kDone, options_of("").chunks,
                     more);
  expect_same_weights(state_in(there), state_in(here));
  for (const auto& each : state_in(there).model) {
    EXPECT_NE(each.key().find(".lora."), std::string::npos)
        << each.key() << ": a run checkpoint has the base";
  }
  const std::string file = "/adapter/adapter_model.safetensors";
  const StateDict expected = read_safetensors(here + file).tensors;
  const StateDict found = read_safetensors(there + file).tensors;
  expect_equal(found, expected);
  // A process without adapters, which has the embeddings only.
  const std::string uneven = folder + "uneven";
  auto cut = more;
  cut.emplace_back("balance",
                   "1," + std::to_string(ExportedFile(kExported).size() - 1));
  train_in_processes(uneven, 2, 1, /*stop=*/3, kSignal + SIGTERM,
                     options_of("").chunks, cut);
  train_in_processes(uneven, 2, 1, /*stop=*/100, kDone, options_of("").chunks,
                     cut);
  expect_same_weights(state_in(uneven), state_in(here));
  // Replicas whose optimizers have shards of the adapters alone. The order of
  // their sums differs.
  const std::string sharded = folder + "sharded";
  auto shards = more;
  shards.emplace_back("shard_optimizer", "true");
  train_in_processes(sharded, 4, 2, /*stop=*/100, kDone, /*chunks=*/1, shards);
  EXPECT_EQ(read_safetensors(sharded + file).tensors.size(), expected.size());
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

TEST(ProcessesTest, EachProcessReadsItsOwnLayersOfAnExportedProgram) {
  const ExportedFile file(kExported);
  const std::string weights = new_folder() + "python.safetensors";
  write_safetensors(weights, load_exported(kExported).state_dict());
  const int64_t first = file.size() / 3;
  const std::string balance =
      std::to_string(first) + "," + std::to_string(file.size() - first);
  const std::vector<int64_t> expected{
      bytes_of_layers(file, 0, first),
      bytes_of_layers(file, first, file.size() - first)};
  EXPECT_EQ(expected[0] + expected[1], bytes_of_layers(file, 0, file.size()));
  for (const std::string& given : {std::string(), weights}) {
    Ranks ranks("train", 2,
                {{"folder", ""},
                 {"model", kExported},
                 {"weights", given},
                 {"copies", "1"},
                 {"chunks", "2"},
                 {"stop", "100"},
                 {"eval_every", "-1"},
                 {"balance", balance},
                 {"count_bytes", "true"}});
    const auto results = ranks.wait();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(results[rank].exit.code, kDone) << results[rank].err;
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

TEST(ProcessesTest, ProcessesShareTheBalanceThatTheFirstOneHasMeasured) {
  const std::string there = new_folder() + "there";
  for (const char* balance : {"time", "size"}) {
    train_in_processes(
        there + balance, 2, 1, /*stop=*/100, kDone, options_of("").chunks,
        {{"model", kExported}, {"eval_every", "-1"}, {"balance", balance}});
    EXPECT_EQ(state_in(there + balance).step, 4) << balance;
  }
}

TEST(ProcessesTest, AnExportedProgramStartsWithGivenWeightsInTwoProcesses) {
  const std::string folder = new_folder();
  const std::string python = folder + "python.safetensors";
  ExportedModel model = load_exported(kExported);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& each : model.layers->parameters()) each.mul_(1.5);
  }
  write_safetensors(python, model.state_dict());
  const std::string here = folder + "here", there = folder + "there";
  Options one = options_of(here);
  one.model = kExported;
  one.eval_every = -1;
  one.weights = python;
  EXPECT_EQ(run_here(one).code, kDone);
  train_in_processes(
      there, 2, 1, /*stop=*/100, kDone, options_of("").chunks,
      {{"model", kExported}, {"eval_every", "-1"}, {"weights", python}});
  expect_same_weights(state_in(there), state_in(here));
  // The weights of a run, by the names of a run checkpoint.
  const std::string again = folder + "again";
  const std::string trained = folder + "run.safetensors";
  write_safetensors(trained, state_in(here).model);
  one.weights = trained;
  one.run_dir = folder + "here again";
  EXPECT_EQ(run_here(one).code, kDone);
  train_in_processes(
      again, 2, 1, /*stop=*/100, kDone, options_of("").chunks,
      {{"model", kExported}, {"eval_every", "-1"}, {"weights", trained}});
  expect_same_weights(state_in(again), state_in(one.run_dir));
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

TEST(ProcessesTest, AFolderIsReadAndWrittenByAllProcesses) {
  const std::string folder = new_folder();
  ExportedModel model = load_exported(kExported);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& each : model.layers->parameters()) each.mul_(1.5);
  }
  save_hugging_face(folder + "given", model.state_dict(), 3000);
  Options one = options_of(folder + "here");
  one.model = kExported;
  one.eval_every = -1;
  one.weights = folder + "given";
  one.save_weights = folder + "saved here";
  EXPECT_EQ(run_here(one).code, kDone);
  const StateDict expected = saved_weights(one.save_weights, one.run_dir);
  for (const int copies : {1, 2}) {
    const std::string there = folder + "there" + std::to_string(copies);
    const std::string saved = folder + "saved" + std::to_string(copies);
    train_in_processes(there, 2, copies, /*stop=*/100, kDone,
                       options_of("").chunks / copies,
                       {{"model", kExported},
                        {"eval_every", "-1"},
                        {"weights", folder + "given"},
                        {"save_weights", saved}});
    const StateDict found = saved_weights(saved, there);
    if (copies == 1) expect_equal(found, expected);
  }
}

TEST(ProcessesTest, MergedWeightsOfPartsAreThoseOfOneProcess) {
  const std::string folder = new_folder();
  Options one = options_of(folder + "here");
  one.model = kExported;
  one.eval_every = -1;
  one.save_weights = folder + "saved here";
  one.merge_lora = true;
  add_adapters(one);
  EXPECT_EQ(run_here(one).code, kDone);
  const std::string saved = folder + "saved there";
  train_in_processes(folder + "there", 2, 1, /*stop=*/100, kDone, one.chunks,
                     {{"model", kExported},
                      {"eval_every", "-1"},
                      {"adapters", "true"},
                      {"merge_lora", "true"},
                      {"save_weights", saved}});
  expect_equal(read_hugging_face(saved), read_hugging_face(one.save_weights));
}

// The file has noise in training, which the second one has not.
TEST(ProcessesTest, ASecondFileEvaluatesInSeveralProcesses) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  StateDict rows;
  rows.insert("x", at::arange(160, at::kFloat).sin().view({40, 4}));
  rows.insert("target", at::arange(120, at::kFloat).cos().view({40, 3}));
  write_safetensors(folder + "rows.safetensors", rows);
  const Ranks::Arguments files{
      {"model", "models/exported/testdata/scattered.pt2"},
      {"eval_model", "models/exported/testdata/steady.pt2"},
      {"data_dir", folder + "rows.safetensors"}};
  Options one = options_of(here);
  one.model = "models/exported/testdata/scattered.pt2";
  one.eval_model = "models/exported/testdata/steady.pt2";
  one.data_dir = folder + "rows.safetensors";
  EXPECT_EQ(run_here(one).code, kDone);
  train_in_processes(there, 2, 1, /*stop=*/100, kDone, one.chunks, files);
  expect_same_weights(state_in(there), state_in(here));
  for (const int64_t step : {2, 4}) {
    EXPECT_EQ(logged(there, step, "test_loss"),
              logged(here, step, "test_loss"));
  }
  EXPECT_NE(logged(here, 2, "test_loss"), "");
  // Replicas with different running statistics: those of the first one count.
  const std::string copies = folder + "copies";
  train_in_processes(copies, 4, 2, /*stop=*/100, kDone, /*chunks=*/1, files);
  EXPECT_EQ(state_in(copies).step, 4);
  EXPECT_NE(logged(copies, 4, "test_loss"), "");
}

TEST(ProcessesTest, CopiesOfAnExportedProgramHaveTheBitsOfOneCopy) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  Options one = options_of(here);
  one.model = kExported;
  one.eval_every = -1;
  one.chunks = 2;
  EXPECT_EQ(run_here(one).code, kDone);
  const Ranks::Arguments model{{"model", kExported}, {"eval_every", "-1"}};
  // Two copies of two partitions, then two copies of one, which resume.
  train_in_processes(there, 4, 2, /*stop=*/2, kSignal + SIGTERM, /*chunks=*/1,
                     model);
  EXPECT_EQ(state_in(there).step, 3);  // a replica has one loss per step
  train_in_processes(there, 2, 2, /*stop=*/100, kDone, /*chunks=*/1, model);
  expect_same_weights(state_in(there), state_in(here));
}

TEST(ProcessesTest, OneTraceHasTheActionsOfAllProcesses) {
  const std::string folder = new_folder(), trace = folder + "trace.json";
  train_in_processes(folder + "run", 2, 1, /*stop=*/100, kDone,
                     options_of("").chunks, {{"trace", trace}});
  const std::string text = gpipe::testing::read_bytes(trace);
  for (const char* part :
       {"\"rank 0\"", "\"rank 1\"", "\"link 0 to 1\"", "\"link 1 to 0\"",
        "\"0F0\"", "\"1F1\"", "\"1B0\"", "\"0B1\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(text.find("remote ranks"), std::string::npos);
}

TEST(ProcessesTest, AFlagThatDiffersIsNamedByAll) {
  const Ranks::Arguments first{
      {"folder", ""}, {"copies", "1"}, {"chunks", "2"}, {"stop", "100"}};
  Ranks::Arguments second = first;
  second.emplace_back("seed", "7");
  Ranks ranks("train", {first, second});
  for (const RankResult& each : ranks.wait()) {
    EXPECT_EQ(each.exit.code, 1) << each.out;
    EXPECT_NE(each.err.find("--seed is '7' in process 1 and '0' in process 0. "
                            "Give all processes the same flags and data"),
              std::string::npos)
        << each.err;
  }
}

TEST(ProcessesTest, CopiesShareABatch) {
  const std::string there = new_folder() + "there";
  train_in_processes(there, 2, 2, /*stop=*/100, kDone);
  EXPECT_EQ(state_in(there).step, 4);
  // Resumes in one process, which has the same mini-batches.
  Options options = options_of(there);
  options.steps = 5;
  EXPECT_EQ(run_here(options).code, kDone);
}

// With more micro-batches per replica, sums would have another order.
TEST(ProcessesTest, CopiesWithAMicroBatchEachHaveTheBitsOfOneCopy) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  Options one = options_of(here);
  one.chunks = 2;
  EXPECT_EQ(run_here(one).code, kDone);
  train_in_processes(there, 2, 2, /*stop=*/100, kDone, /*chunks=*/1);
  expect_same_weights(state_in(there), state_in(here));
}

TEST(ProcessesTest, ASpreadOptimizerSavesAndResumesAsAWholeOne) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  Options one = options_of(here);
  one.chunks = 2;
  one.clip = 0;  // the norm of shards has other last bits
  EXPECT_EQ(run_here(one).code, kDone);
  // First the optimizer is spread until step 3 and whole afterwards, then the
  // other way round.
  for (const bool first : {true, false}) {
    const std::string run = there + (first ? "1" : "2");
    const auto spread = [](bool on) {
      return Ranks::Arguments{{"shard_optimizer", on ? "true" : "false"},
                              {"clip", "0"}};
    };
    train_in_processes(run, 2, 2, /*stop=*/2, kSignal + SIGTERM, /*chunks=*/1,
                       spread(first));
    const RunState half = state_in(run);
    EXPECT_EQ(half.step, 3);  // a replica has one loss per step
    for (const auto& [name, parameter] : half.optimizer->parameters) {
      for (const auto& [what, tensor] : parameter.tensors) {
        EXPECT_EQ(tensor.sizes(), half.model[name].sizes()) << what << name;
      }
    }
    train_in_processes(run, 2, 2, /*stop=*/100, kDone, /*chunks=*/1,
                       spread(!first));
    expect_same_weights(state_in(run), state_in(here));
  }
  // One process goes on from two replicas, and so do three.
  const Ranks::Arguments spread{{"shard_optimizer", "true"}, {"batch", "6"}};
  train_in_processes(there, 2, 2, /*stop=*/2, kSignal + SIGTERM, /*chunks=*/1,
                     spread);
  const std::string three = there + " of three";
  std::filesystem::copy(there, three, std::filesystem::copy_options::recursive);
  one.run_dir = there;
  one.batch = 6;
  one.chunks = 1;
  EXPECT_EQ(run_here(one).code, kDone);
  train_in_processes(three, 3, 3, /*stop=*/100, kDone, /*chunks=*/1, spread);
  EXPECT_EQ(state_in(three).step, state_in(there).step);
}

TEST(ProcessesTest, AccumulatedMiniBatchesOfCopiesHaveTheBitsOfOneLargeOne) {
  for (const char* bucket : {"0", "4"}) {
    const std::string folder = new_folder();
    const std::string large = folder + "large", small = folder + "small";
    train_in_processes(
        large, 2, 2, /*stop=*/100, kDone, /*chunks=*/6,
        {{"batch", "18"}, {"bucket", bucket}, {"eval_every", "-1"}});
    train_in_processes(small, 2, 2, /*stop=*/100, kDone, /*chunks=*/2,
                       {{"batch", "6"},
                        {"accumulate", "3"},
                        {"bucket", bucket},
                        {"eval_every", "-1"}});
    expect_same_weights(state_in(small), state_in(large));
  }
}

// Both runs have two micro-batches per step, of which each copy takes one.
TEST(ProcessesTest, CopiesShareTheMicroBatchesOfSequences) {
  const std::string folder = new_folder();
  const std::string here = folder + "here", there = folder + "there";
  Options one = options_of(here);
  one.bucket = 4;
  one.batch = 6;
  one.chunks = 2;
  one.eval_every = -1;
  EXPECT_EQ(run_here(one).code, kDone);
  train_in_processes(there, 4, 2, /*stop=*/100, kDone, /*chunks=*/1,
                     {{"batch", "6"}, {"bucket", "4"}, {"eval_every", "-1"}});
  expect_same_weights(state_in(there), state_in(here));
}

TEST(ProcessesTest, WithBatchNormTheTestIsOfTheCopyThatIsSaved) {
  const std::string there = new_folder() + "there";
  train_in_processes(there, 4, 2, /*stop=*/100, kDone, options_of("").chunks,
                     {{"batch_norm", "true"}});
  const auto task = make_task(options_of(there));
  const Score score = plain_score(there, *task, with_batch_norm(task->model()));
  // The run sums over micro-batches, which may round differently.
  EXPECT_NEAR(std::stod(logged(there, 4, "test_loss")),
              score.loss / score.items, 1e-6);
}

}  // namespace
}  // namespace gpipe::train_program
