#include "gpipe/distributed/testing/comparison.h"

#include <torch/nn/utils/clip_grad.h>

#include <stdexcept>

#include "gpipe/testing/layers.h"

namespace gpipe::testing {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

bool same(const Tensor& mine, const Tensor& other) {
  return mine.cpu().equal(other);
}

// Returns the pipeline of processes, made of `layers` or of a builder of them.
DistributedPipeline distributed_pipeline(nn::Sequential layers,
                                         const std::vector<int64_t>& balance,
                                         const Setting& setting,
                                         const std::shared_ptr<World>& world) {
  const auto options = DistributedOptions(balance)
                           .checkpoint(setting.mode)
                           .deferred_batch_norm(setting.deferred)
                           .stages_per_rank(setting.stages_per_rank)
                           .placement(placement_of(setting.schedule))
                           .device(setting.device)
                           .transfers(setting.transfers)
                           .threads_per_partition(1);
  if (!setting.built) return DistributedPipeline(layers, options, world);
  const auto build = [&](int64_t first, int64_t count) {
    nn::Sequential part;
    for (int64_t k = first; k < first + count; ++k) {
      part->push_back(*(layers->begin() + k));
    }
    return part;
  };
  return DistributedPipeline(build, options, world);
}

}  // namespace

nn::Sequential make(const Subject& subject) {
  torch::manual_seed(3);
  return subject.make();
}

void train(const std::shared_ptr<World>& world, const Subject& subject,
           const Setting& setting, int steps, const std::string& where) {
  const int ranks = static_cast<int>(setting.schedule.ranks.size());
  nn::Sequential layers = make(subject);
  const auto balance = cut(layers->size(), ranks * setting.stages_per_rank);
  DistributedPipeline pipeline =
      distributed_pipeline(layers, balance, setting, world);
  check(setting.transfers == Transfers::kTested ||
            pipeline->transfers() == setting.transfers,
        where + ": transfers");
  GPipe reference(make(subject),
                  on_cpu(balance, ranks)
                      .checkpoint(setting.mode)
                      .deferred_batch_norm(setting.deferred)
                      .stages_per_rank(setting.stages_per_rank)
                      .placement(placement_of(setting.schedule)));
  auto optimizer = optimizer_of(pipeline);
  auto reference_optimizer = optimizer_of(reference);
  const auto step_options =
      TrainOptions().outputs(true).fixed_sum_order(setting.fixed_order);
  const int microbatches = num_microbatches(setting.schedule);
  for (int step = 0; step < steps; ++step) {
    // The sizes repeat for some steps, so that they are predicted, and then
    // change. Sometimes the last micro-batch is smaller.
    constexpr int64_t kRows[] = {2, 2, 2, 2, 3, 2, 2, 2, 2, 4,
                                 4, 4, 4, 2, 3, 3, 2, 2, 2, 4};
    const int64_t rows = microbatches * kRows[step % 20] - (step % 7 == 6);
    torch::manual_seed(100 + step);
    const Tensor input =
        torch::randn(with_rows(rows, subject.input), torch::kDouble);
    const Tensor target =
        torch::randn(with_rows(rows, subject.target), torch::kDouble);
    // Other ranks get nothing.
    const bool first = pipeline->layout().has_first();
    const bool last = pipeline->layout().has_last();
    at::Generator generator = at::globalContext().defaultGenerator(torch::kCPU);
    const Tensor before = generator.get_state();
    optimizer.zero_grad();
    Tensor mine = input.to(setting.device, input.scalar_type(),
                           /*non_blocking=*/false, /*copy=*/true);
    Tensor theirs = input.clone();
    mine.requires_grad_();
    theirs.requires_grad_();
    const StepResult result = pipeline->train_step(
        first ? mine : Tensor(), last ? target.to(setting.device) : Tensor(),
        mean_square, setting.schedule, step_options);
    const double norm = pipeline->clip_grad_norm_(0.5);
    optimizer.step();
    const Tensor after = generator.get_state();

    generator.set_state(before);
    reference_optimizer.zero_grad();
    const StepResult expected = reference->train_step(
        theirs, target, mean_square, setting.schedule, step_options);
    const double expected_norm =
        nn::utils::clip_grad_norm_(reference->parameters(), 0.5);
    reference_optimizer.step();

    const std::string place = where + ", step " + std::to_string(step);
    check(after.equal(generator.get_state()), place + ": the generator");
    check(same(result.loss, expected.loss), place + ": loss");
    check(result.losses.size() == expected.losses.size(), place + ": losses");
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      check(same(result.losses[i], expected.losses[i]), place + ": losses");
    }
    check(result.outputs.has_value() == last, place + ": outputs");
    if (last) {
      check(same(result.output(), expected.output()), place + ": outputs");
    }
    check(norm == expected_norm, place + ": norm");
    check(!first || same(mine.grad(), theirs.grad()),
          place + ": gradient of the input");
    check_same_state(*pipeline, *reference, place);
  }
}

void check_same_state(const nn::Module& part, const nn::Module& whole,
                      const std::string& where) {
  const auto parameters = whole.named_parameters();
  for (const auto& each : part.named_parameters()) {
    const Tensor& other = parameters[each.key()];
    check(same(each.value(), other), where + ": " + each.key());
    check(each.value().grad().defined() == other.grad().defined() &&
              (!other.grad().defined() ||
               same(each.value().grad(), other.grad())),
          where + ": gradient of " + each.key());
  }
  const auto buffers = whole.named_buffers();
  for (const auto& each : part.named_buffers()) {
    check(same(each.value(), buffers[each.key()]), where + ": " + each.key());
  }
}

std::vector<std::pair<std::string, Setting>> settings(
    int ranks, int most_stages, const std::vector<int>& all_microbatches) {
  std::vector<std::pair<std::string, Setting>> all;
  for (const std::string& name : schedule_names()) {
    if (name == "forward-only") continue;
    for (const int per_rank : {1, 2}) {
      const auto fixed = fixed_stages_per_rank(name);
      if (fixed && *fixed != per_rank) continue;
      if (ranks * per_rank > most_stages) continue;
      for (const int microbatches : all_microbatches) {
        Setting setting;
        setting.stages_per_rank = per_rank;
        try {
          setting.schedule =
              named_schedule(name, ranks, microbatches, per_rank);
        } catch (const std::invalid_argument&) {
          continue;  // a size that the schedule refuses
        }
        const bool offloads = all.size() % 2 == 1;
        if (offloads) {
          setting.mode = Checkpoint::kNever;
          setting.schedule =
              with_offload(setting.schedule, [](int, int) { return true; });
        }
        all.emplace_back(name + ", " + std::to_string(per_rank) +
                             " stages per rank, " +
                             std::to_string(microbatches) + " micro-batches" +
                             (offloads ? ", offload" : ""),
                         setting);
      }
    }
  }
  return all;
}

}  // namespace gpipe::testing
