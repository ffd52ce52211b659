#include "benchmarks/harness/ranks.h"

#include <gflags/gflags.h>

#include <optional>
#include <string>
#include <utility>

#include "gpipe/distributed/gather.h"
#include "gpipe/program/milliseconds.h"
#include "gpipe/text/lists.h"
#include "gpipe/text/refuse.h"

DEFINE_bool(
    distributed, false,
    "With --mode=measure: run every partition in a process of its own. Start "
    "as many processes as partitions with //tools:launch, torchrun, srun "
    "or mpirun, all with the same flags.");
DEFINE_double(timeout, 60,
              "With --distributed: seconds to wait for another process. It "
              "must be longer than the slowest step of a row, and longer than "
              "a row that rank 0 measures alone.");

namespace gpipe::benchmarks {

std::shared_ptr<Ranks> Ranks::connect() {
  if (!FLAGS_distributed) return nullptr;
  const auto timeout = milliseconds_of(FLAGS_timeout);
  if (timeout.count() <= 0) {
    internal::refuse("--timeout=", std::to_string(FLAGS_timeout),
                     ": expected a number of seconds above 0");
  }
  WorldOptions options = WorldOptions::from_environment();
  options.timeout = timeout;
  return std::make_shared<Ranks>(World::connect(options));
}

Ranks::Ranks(std::shared_ptr<World> world) : world_(std::move(world)) {}

std::vector<std::string> Ranks::exchange(const std::string& own) {
  return all_gather(*world_, own, "measuring a table");
}

void Ranks::meet() { exchange(""); }

void Ranks::fail(const std::string& what) {
  world_->fail({Fault::kFailed, rank(), rank(), "measuring a table", what});
}

std::vector<int64_t> Ranks::of_first(const std::vector<int64_t>& numbers) {
  return parse_numbers("", exchange(join(numbers)).front());
}

std::vector<DeviceMemory> Ranks::gather(const std::vector<DeviceMemory>& own) {
  std::vector<int64_t> numbers;
  for (const DeviceMemory& each : own) {
    numbers.insert(numbers.end(),
                   {each.parameters, each.gradients, each.optimizer_state,
                    each.buffers, each.peak, each.boundary,
                    each.transient.value_or(-1), each.reserved.value_or(-1)});
  }
  const auto known = [](int64_t value) {
    return value < 0 ? std::nullopt : std::make_optional(value);
  };
  std::vector<DeviceMemory> all;
  for (const std::string& theirs : exchange(join(numbers))) {
    const std::vector<int64_t> values = parse_numbers("", theirs);
    for (auto value = values.begin(); value != values.end();) {
      DeviceMemory& memory = all.emplace_back();
      for (int64_t* const into :
           {&memory.parameters, &memory.gradients, &memory.optimizer_state,
            &memory.buffers, &memory.peak, &memory.boundary}) {
        *into = *value++;
      }
      memory.transient = known(*value++);
      memory.reserved = known(*value++);
    }
  }
  return all;
}

}  // namespace gpipe::benchmarks
