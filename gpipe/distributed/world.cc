#include "gpipe/distributed/world.h"

#include <c10/util/Exception.h>

#include <utility>

#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/exchanges.h"

namespace gpipe {

std::shared_ptr<World> World::connect(const WorldOptions& options) {
  return std::shared_ptr<World>(
      new World(internal::Communicator::connect(options)));
}

World::World(std::shared_ptr<internal::Communicator> communicator)
    : communicator_(std::move(communicator)) {}
World::~World() = default;

int World::rank() const { return communicator_->rank(); }
int World::size() const { return communicator_->size(); }
int World::local_rank() const { return communicator_->options().local_rank; }
std::chrono::milliseconds World::timeout() const {
  return communicator_->options().timeout;
}
std::string World::backend() const { return communicator_->options().backend; }
std::optional<RankFailure> World::failure() const {
  return communicator_->failure();
}
void World::check() const { communicator_->check(); }
void World::fail(const std::string& action, const std::string& what) {
  communicator_->fail({Fault::kFailed, rank(), rank(), action, what});
}

std::shared_ptr<internal::Communicator> internal::communicator_of(
    const World& world) {
  return world.communicator_;
}

std::shared_ptr<internal::Communicator> internal::communicator_of(
    const std::shared_ptr<World>& world) {
  TORCH_CHECK_VALUE(world,
                    "the world is null; give what World::connect() returned");
  return communicator_of(*world);
}

namespace {

template <typename Exchange>
std::vector<std::string> exchange(World& world, const std::string& action,
                                  const Exchange& run) {
  const auto communicator = internal::communicator_of(world);
  communicator->check();
  return communicator->reporting_failure(
      action, [&] { return run(*communicator, internal::Tags(0).words); });
}

}  // namespace

std::vector<std::string> all_gather(World& world, const std::string& mine,
                                    const std::string& action) {
  return exchange(world, action, [&](auto& communicator, int tag) {
    const auto ranks = communicator.all_ranks();
    auto all = internal::all_gather(communicator, ranks, tag, mine, action);
    internal::meet(communicator, ranks, tag, action);
    return all;
  });
}

std::vector<std::string> gather(World& world, const std::string& mine,
                                const std::string& action) {
  return exchange(world, action, [&](auto& communicator, int tag) {
    return internal::gather(communicator, tag, mine, action);
  });
}

}  // namespace gpipe
