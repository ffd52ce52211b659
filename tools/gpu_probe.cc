// One check of the first hour on a GPU (docs/first_gpu.md).
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "gpipe/base/devices.h"
#include "gpipe/base/program.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "tools/gpu_checks.h"

DEFINE_string(
    check, "devices",
    "The check: devices (lists them), memory, lstm, order, near-full, "
    "or ranks (start it with the launcher).");
DEFINE_int64(partitions, 0,
             "Number of partitions of 'memory', 'order' and 'near-full', which "
             "are distributed over all accelerators. 0: as many as "
             "accelerators, and at least 2.");
DEFINE_int64(rows, 2048, "Rows of a micro-batch of 'memory' and 'near-full'.");
DEFINE_int64(width, 2048, "Width of the layers of 'memory' and 'near-full'.");
DEFINE_int64(rounds, 20, "Number of steps per schedule of 'order'.");
DEFINE_string(transfers, "host",
              "The transport between the ranks of 'ranks': host, direct or "
              "tested.");
DEFINE_string(die_at, "",
              "Where the last rank of 'ranks' kills itself: connected, built, "
              "forward. '': nowhere.");
DEFINE_string(at_end, "",
              "A shell command that rank 0 of 'ranks' runs while all processes "
              "still use their devices.");
DEFINE_double(timeout, 60,
              "Seconds that a rank of 'ranks' waits for another one.");

namespace gpipe::tools {
namespace {

constexpr char kUsage[] =
    R"(checks a pipeline on the accelerators of this machine.

  gpu_probe --check=order
  launch --nproc=2 -- gpu_probe --check=ranks --transfers=direct

Prints the figures, and in the last line why the check has this outcome.
Without accelerators, partitions are on the CPU.

Exit codes: 0 if the check passed, 1 if it failed, 77 if it is not possible on
these devices. See docs/first_gpu.md.)";

std::vector<c10::Device> devices_of_partitions(int64_t partitions) {
  const std::vector<c10::Device> all = all_devices();
  const auto count = static_cast<int64_t>(all.size());
  if (partitions == 0) partitions = std::max<int64_t>(2, count);
  std::vector<c10::Device> devices;
  for (int64_t j = 0; j < partitions; ++j) devices.push_back(all[j % count]);
  return devices;
}

CheckResult list_devices() {
  const int count = at::accelerator::deviceCount();
  return {CheckOutcome::kPassed, "accelerators: " + std::to_string(count)};
}

CheckResult run_check() {
  TORCH_CHECK_VALUE(FLAGS_partitions == 0 || FLAGS_partitions >= 2,
                    "--partitions=", FLAGS_partitions,
                    ": must be at least 2, or 0 for the default");
  TORCH_CHECK_VALUE(FLAGS_rows >= 8 && FLAGS_width > 0 && FLAGS_rounds > 0,
                    "--rows=", FLAGS_rows,
                    " must be at least 8, --width=", FLAGS_width,
                    " and --rounds=", FLAGS_rounds, " at least 1");
  const auto devices = [] { return devices_of_partitions(FLAGS_partitions); };
  if (FLAGS_check == "devices") return list_devices();
  if (FLAGS_check == "memory") {
    return check_memory(devices(), FLAGS_rows, FLAGS_width);
  }
  if (FLAGS_check == "lstm") return check_lstm(devices_of_partitions(2));
  if (FLAGS_check == "order") return check_order(devices(), FLAGS_rounds);
  if (FLAGS_check == "near-full") {
    return check_near_full(devices(), FLAGS_rows, FLAGS_width);
  }
  TORCH_CHECK_VALUE(FLAGS_check == "ranks", "there is no check '", FLAGS_check,
                    "': use devices, memory, lstm, order, near-full or ranks");
  auto world = WorldOptions::from_environment();
  world.timeout = milliseconds_of(FLAGS_timeout);
  return check_ranks(
      world, {parse_transfers(FLAGS_transfers), FLAGS_die_at, FLAGS_at_end});
}

int exit_code(CheckOutcome outcome) {
  switch (outcome) {
    case CheckOutcome::kPassed:
      return 0;
    case CheckOutcome::kFailed:
      return 1;
    case CheckOutcome::kNotPossible:
      return 77;
  }
  return 1;
}

}  // namespace
}  // namespace gpipe::tools

int main(int argc, char** argv) {
  if (!gpipe::read_flags(&argc, &argv, gpipe::tools::kUsage,
                         "tools/gpu_probe")) {
    return 0;
  }
  try {
    TORCH_CHECK_VALUE(argc == 1, argv[1], ": options are --name=value");
    const auto result = gpipe::tools::run_check();
    std::cout << result.text << std::endl;
    return gpipe::tools::exit_code(result.outcome);
  } catch (const c10::Error& error) {  // also gpipe::PeerError
    std::cerr << "gpu_probe: " << error.what_without_backtrace() << std::endl;
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "gpu_probe: " << error.what() << std::endl;
    return 1;
  }
}
