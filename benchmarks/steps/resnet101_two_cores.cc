// Measures how well a pipeline uses two cores. It compares three ways to do the
// same work, in turns within one run: one thread; two independent threads with
// half of the work each, which is the best that two cores can reach; and a
// pipeline of two partitions.

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gflags/gflags.h>
#include <glog/logging.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/harness/balancer.h"
#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/progress.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/throughput.h"
#include "gpipe/gpipe.h"
#include "gpipe/text/format.h"
#include "gpipe/text/lists.h"
#include "gpipe/text/refuse.h"
#include "models/resnet.h"

DEFINE_int64(rounds, 7,
             "Number of rounds. Each runs one step of each kind; the table "
             "shows medians.");
DEFINE_int64(image_size, 64, "Height and width of the images.");

namespace gpipe::benchmarks {
namespace {

constexpr int64_t kPartitions = 2;
constexpr int64_t kClasses = 1000;

// A thread with one intra-op thread, for tasks one after the other. It lives as
// long as the run, since LibTorch and oneDNN keep caches per thread.
class Lane {
 public:
  Lane() : thread_([this] { work(); }) {}
  ~Lane() {
    start(nullptr);
    thread_.join();
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Starts `task` on the thread and returns. Null ends the thread.
  void start(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    task_ = std::move(task);
    busy_ = true;
    changed_.notify_all();
  }
  // Blocks until the task has ended.
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
  }

 private:
  void work() {
    at::set_num_threads(1);
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return busy_; });
      if (!task_) return;
      lock.unlock();
      task_();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false;
  std::function<void()> task_;
  std::thread thread_;  // the last member, since it uses the others
};

// The data of a step.
struct Problem {
  std::vector<at::Tensor> inputs;  // one per micro-batch
  std::vector<at::Tensor> targets;
  at::Tensor input;  // the mini-batch
  at::Tensor target;
};

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

torch::nn::Sequential make_model(uint64_t seed) {
  torch::manual_seed(seed);
  return models::resnet101(kClasses);
}

// Runs forward and backward of the micro-batches `first`, `first` + `stride`,
// ... one after the other.
void accumulate(torch::nn::Sequential model, const Problem& problem,
                size_t first, size_t stride) {
  const auto count = static_cast<double>(problem.inputs.size());
  for (size_t i = first; i < problem.inputs.size(); i += stride) {
    const at::Tensor output = model->forward(problem.inputs[i]);
    (loss_of(output, problem.targets[i]) / count).backward();
  }
}

// Returns the largest difference between the gradients of two models, relative
// to the largest gradient.
double difference(const std::vector<at::Tensor>& left,
                  const std::vector<at::Tensor>& right) {
  double difference = 0;
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const at::Tensor expected = left[i].grad();
    difference = std::max(
        difference, (expected - right[i].grad()).abs().max().item<double>());
    largest = std::max(largest, expected.abs().max().item<double>());
  }
  return difference / largest;
}

Problem make_problem(int64_t batch_size, int64_t chunks) {
  Problem problem;
  problem.input = at::rand({batch_size, 3, FLAGS_image_size, FLAGS_image_size});
  problem.target = at::randint(kClasses, {batch_size}, at::kLong);
  problem.inputs = problem.input.chunk(chunks);
  problem.targets = problem.target.chunk(chunks);
  return problem;
}

using Times = std::vector<std::vector<Duration>>;

// Returns the times of one thread, of two halves and of a pipeline.
Times run_rounds(const Problem& problem, uint64_t seed,
                 const std::vector<int64_t>& balance,
                 double* gradient_difference) {
  auto alone = make_model(seed);
  torch::nn::Sequential halves[2] = {make_model(seed), make_model(seed)};
  GPipe pipeline(make_model(seed),
                 GPipeOptions(balance)
                     .devices({at::kCPU, at::kCPU})
                     .chunks(static_cast<int64_t>(problem.inputs.size()))
                     .checkpoint(Checkpoint::kNever)
                     .threads_per_partition(1));
  Lane lanes[2];
  const auto on_one_thread = [&] {
    alone->zero_grad();
    return time_of([&] {
      lanes[0].start([&] { accumulate(alone, problem, 0, 1); });
      lanes[0].wait();
    });
  };
  const auto on_two_threads = [&] {
    for (auto& half : halves) half->zero_grad();
    return time_of([&] {
      for (size_t i = 0; i < 2; ++i) {
        lanes[i].start([&, i] { accumulate(halves[i], problem, i, 2); });
      }
      for (auto& lane : lanes) lane.wait();
    });
  };
  const auto by_pipeline = [&] {
    pipeline->zero_grad();
    return time_of([&] {
      loss_of(pipeline->forward(problem.input), problem.target).backward();
    });
  };
  // Warms up, and compares the gradients.
  on_one_thread();
  on_two_threads();
  by_pipeline();
  *gradient_difference =
      difference(alone->parameters(), pipeline->parameters());

  Progress progress("resnet101_two_cores", FLAGS_rounds);
  int64_t round = 0;
  const auto rows = static_cast<double>(problem.input.size(0));
  const auto with_progress = [&] {
    const Duration time = by_pipeline();
    progress.update(++round, 1, rows / time.wall_seconds);
    return time;
  };
  return interleaved_rounds<Duration>(
      {FLAGS_rounds, /*warm_up=*/0},
      {on_one_thread, on_two_threads, with_progress});
}

// Returns the median of the ratios within each round.
double median_ratio(const std::vector<Duration>& above,
                    const std::vector<Duration>& below) {
  std::vector<double> ratios;
  for (size_t i = 0; i < above.size(); ++i) {
    ratios.push_back(above[i].wall_seconds / below[i].wall_seconds);
  }
  return median(ratios);
}

Row make_row(const std::string& name, const std::vector<Duration>& durations,
             const Times& times, double bubble) {
  const auto all = wall_seconds(durations);
  return {
      name,
      {Cell(median(all), 4), Cell(*std::min_element(all.begin(), all.end()), 4),
       Cell(median_ratio(durations, times[0]), 3),
       Cell(median_ratio(durations, times[1]) / bubble, 3)},
      durations,
      ""};
}

int measure() {
  check_format();
  const Settings settings = parse_settings();
  const int64_t batch_size = settings.batch_size.value_or(32);
  const int64_t chunks = settings.chunks.value_or(4);
  if (FLAGS_rounds <= 0 || FLAGS_image_size <= 0) {
    throw std::invalid_argument("--rounds and --image_size must be above 0");
  }
  if (chunks % 2 != 0 || batch_size % chunks != 0) {
    internal::refuse(
        "--chunks must be even, for two halves, and must divide --batch_size; "
        "got ",
        chunks, " and ", batch_size);
  }
  const Environment environment = describe_environment();
  at::set_num_threads(1);
  torch::manual_seed(settings.seed);
  const Problem problem = make_problem(batch_size, chunks);
  std::vector<int64_t> balance = settings.balance;
  if (balance.empty()) {
    balance = Balancer().balance(kPartitions, make_model(settings.seed),
                                 problem.inputs[0], /*threads=*/1);
  }
  LOG(INFO) << "batch size: " << batch_size << ", chunks: " << chunks
            << ", balance: [" << join(balance) << "]";
  double gradient_difference = 0;
  const Times times =
      run_rounds(problem, settings.seed, balance, &gradient_difference);

  // A pipeline of two partitions takes M + 1 slots for M micro-batches.
  const double bubble =
      static_cast<double>(chunks + 1) / static_cast<double>(chunks);
  Table table;
  table.title = "ResNet-101 on two cores, a training step in turns";
  table.name_column = "step";
  table.columns = {"median s", "fastest s", "ratio to A",
                   "ratio to C x (M+1)/M"};
  table.rows = {
      make_row("A: one thread", times[0], times, bubble),
      make_row("C: two threads, half of A each", times[1], times, bubble),
      make_row("ours: two partitions", times[2], times, bubble)};
  table.notes = {
      format("Batch %ld of %ldx%ld, M = %ld micro-batches, balance [%s], "
             "checkpoint never; %ld rounds.",
             batch_size, FLAGS_image_size, FLAGS_image_size, chunks,
             join(balance).c_str(), FLAGS_rounds),
      "Forward, loss and backward, with one intra-op thread each. Ratios are "
      "medians over the rounds.",
      "Goals for ours: below 0.8 of A, at most 1.10 of C x (M+1)/M.",
      format("Gradients of ours and A differ by %.1e of the largest.",
             gradient_difference)};
  if (const auto warning = environment.warning(); !warning.empty()) {
    table.notes.push_back(warning);
  }
  print_table(table, "resnet101_two_cores", environment);
  return kOk;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const gpipe::benchmarks::Program program{
      "resnet101_two_cores",
      "seconds of a training step on one thread (A), as two\nindependent "
      "halves on two threads (C) and as a pipeline of two partitions, in "
      "turns.",
      {"", "--batch_size=16 --image_size=48 --rounds=15"}};
  return gpipe::benchmarks::run_program(argc, argv, program,
                                        gpipe::benchmarks::measure);
}
