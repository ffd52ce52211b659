// Direct transfers from accelerator to accelerator.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <utility>

#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world/communicator.h"

namespace gpipe::internal {

// Returns kHost or kDirect for `asked`, and why, with the same text on all
// ranks. All ranks call this with the same `asked`.
// kAuto means kTested if the world's backend names one for direct transfers. If
// it is kDirect or kTested, blocks until all ranks have called. If it is
// kTested and all ranks can transfer directly, each rank runs the self-test
// with the next one; that takes at most half of the world's
// timeout and some seconds.
// `device`: the device of this rank.
//
// Throws c10::ValueError on all ranks if `asked` is kDirect and one of them
// cannot transfer directly; it names the rank and the reason. Throws PeerError
// if the world has failed.
std::pair<Transfers, std::string> agree_on_transfers(Communicator& world,
                                                     int tag,
                                                     const c10::Device& device,
                                                     Transfers asked);

// Returns a transport for this rank's `device`.
// `transfers`: the choice of agree_on_transfers().
// `name`: a name for this transport, the same on all ranks and different from
// those of other transports in the world.
std::shared_ptr<Transport> make_transport(
    const std::shared_ptr<Communicator>& world, const c10::Device& device,
    Transfers transfers, const std::string& name);

}  // namespace gpipe::internal
