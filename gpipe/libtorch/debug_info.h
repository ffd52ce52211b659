// The slots of c10::ThreadLocalDebugInfo that gpipe uses, in every LibTorch
// that it accepts.
//
// LibTorch copies the slots of a thread to the threads that work for it, such
// as those of the autograd engine. Programs can add slots since 2.13. Before,
// gpipe takes two that LibTorch itself has no use for.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/headeronly/version.h>

#include <string_view>

namespace gpipe {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
inline constexpr auto kPhaseSlot = c10::DebugInfoKind::PRODUCER_INFO;
inline constexpr auto kLedgerSlot = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;
#else
inline constexpr std::string_view kPhaseSlotName = "gpipe::PhaseScope";
inline constexpr std::string_view kLedgerSlotName = "gpipe::MetaLedger";
inline constexpr c10::DebugInfoKind kPhaseSlot(&kPhaseSlotName);
inline constexpr c10::DebugInfoKind kLedgerSlot(&kLedgerSlotName);
#endif

}  // namespace gpipe
