// The slots of c10::ThreadLocalDebugInfo that gpipe uses, for every LibTorch
// version that gpipe accepts.
//
// LibTorch copies the slots of a thread to the threads that work for it, such
// as those of the autograd engine. Since LibTorch 2.13 a program can add slots
// of its own. For older versions gpipe takes two slots that LibTorch itself
// does not use.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/headeronly/version.h>

#include <string_view>

namespace gpipe::internal {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
inline constexpr auto kPhaseSlot = c10::DebugInfoKind::PRODUCER_INFO;
inline constexpr auto kLedgerSlot = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;
#else
inline constexpr std::string_view kPhaseSlotName = "gpipe::PhaseScope";
inline constexpr std::string_view kLedgerSlotName = "gpipe::MetaLedger";
inline constexpr c10::DebugInfoKind kPhaseSlot(&kPhaseSlotName);
inline constexpr c10::DebugInfoKind kLedgerSlot(&kLedgerSlotName);
#endif

}  // namespace gpipe::internal
