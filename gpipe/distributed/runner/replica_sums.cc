#include "gpipe/distributed/runner/replica_sums.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cfenv>
#include <string>

#include "gpipe/base/crc32c.h"
#include "gpipe/base/threads.h"
#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/exchanges.h"
#include "gpipe/distributed/world/topology.h"
#include "gpipe/runtime/run/executor.h"

namespace gpipe::internal {
namespace {

std::string action() { return "adding up the gradients of the replicas"; }

// Returns the dtype of the gradients of `like`: its own, unless its owner has
// chosen another one (set_grad_dtype()).
at::ScalarType type_of_grad(const at::Tensor& like) {
  const at::ScalarType own = like.scalar_type();
  return like.is_leaf() ? like.grad_dtype().value_or(own) : own;
}

int64_t bytes_of_grad(const at::Tensor& like) {
  return like.numel() *
         static_cast<int64_t>(c10::elementSize(type_of_grad(like)));
}

constexpr char kCaptured[] = "a tensor that a layer has captured";

std::string name_of(const Summand& each) {
  return each.name.empty() ? kCaptured : "'" + each.name + "'";
}

// Describes the name, the dtype and the sizes. If they are equal, all members
// add up the same parameters and cut the same buckets, and each message has the
// length that its receiver expects.
std::string describe(const Summand& each) {
  const at::ScalarType type = type_of_grad(each.like);
  return c10::str(
      name_of(each), " (", each.like.scalar_type(), " ", each.like.sizes(),
      type == each.like.scalar_type() ? "" : c10::str(", gradients ", type),
      ")");
}

// Returns one number for each gradient, on the CPU: 1 if it is defined, else 0.
at::Tensor presence(const Summand* begin, const Summand* end) {
  const at::Tensor present =
      at::zeros({end - begin}, type_of_grad(begin->like));
  for (const Summand* each = begin; each != end; ++each) {
    if (each->grad.defined()) present[each - begin].fill_(1);
  }
  return present;
}

// Returns the elements of `tensors`, one tensor behind the other, as a tensor
// with `options`. All go to its device in one copy, because the host waits for
// each.
at::Tensor flatten(const std::vector<at::Tensor>& tensors,
                   const at::TensorOptions& options) {
  const c10::Device own =
      tensors.empty() ? options.device() : tensors.front().device();
  std::vector<at::Tensor> parts{at::empty({0}, options.device(own))};
  for (const at::Tensor& each : tensors) {
    parts.push_back(each.to(own).reshape({-1}));
  }
  return at::cat(parts).to(options.device());
}

// The reverse: writes the elements of `flat` into `tensors`.
void unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return;
  const at::Tensor there = flat.to(tensors.front().device());
  int64_t at = 0;
  for (const at::Tensor& each : tensors) {
    each.copy_(there.narrow(0, at, each.numel()).view(each.sizes()));
    at += each.numel();
  }
}

// Returns the part of `tensor` that has memory of its own: one entry of each
// dimension that expand() has made. A tensor whose elements share memory cannot
// be written to.
at::Tensor unexpanded(at::Tensor tensor) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) {
      tensor = tensor.narrow(d, 0, 1);
    }
  }
  return tensor;
}

bool all_equal(const std::vector<std::string>& texts) {
  return std::ranges::count(texts, texts.front()) ==
         static_cast<std::ptrdiff_t>(texts.size());
}

// Returns `flat` as real numbers, sharing its memory.
at::Tensor as_real(const at::Tensor& flat) {
  return flat.view(c10::toRealValueType(flat.scalar_type()));
}

}  // namespace

std::vector<std::size_t> cut_buckets(const std::vector<Summand>& all,
                                     int64_t bucket_bytes) {
  std::vector<std::size_t> ends;
  int64_t bytes = 0;
  for (std::size_t k = 0; k < all.size(); ++k) {
    const at::Tensor& like = all[k].like;
    if (k > 0 && (bytes >= bucket_bytes ||
                  type_of_grad(like) != type_of_grad(all[k - 1].like))) {
      ends.push_back(k);
      bytes = 0;
    }
    bytes += bytes_of_grad(like);
  }
  if (!all.empty()) ends.push_back(all.size());
  return ends;
}

std::pair<int64_t, int64_t> rows_of_member(at::IntArrayRef sizes,
                                           std::size_t members, std::size_t k) {
  const int64_t rows = sizes.empty() ? 1 : sizes[0];
  const auto count = static_cast<int64_t>(members);
  const auto member = static_cast<int64_t>(k);
  const int64_t begin = rows * member / count;
  return {begin, rows * (member + 1) / count - begin};
}

at::Tensor slice_of_member(const at::Tensor& tensor, std::size_t members,
                           std::size_t k) {
  if (!tensor.defined()) return {};
  const auto [begin, rows] = rows_of_member(tensor.sizes(), members, k);
  if (rows == 0 && (k > 0 || tensor.dim() == 0 || tensor.size(0) > 0)) {
    return {};
  }
  const at::Tensor with_rows = tensor.dim() == 0 ? tensor.view({1}) : tensor;
  return with_rows.narrow(0, begin, rows);
}

Reducer::Reducer(Communicator& world, Transport& transport,
                 std::vector<int> members, int tag, SumShare share,
                 SumMethod method)
    : world_(world),
      transport_(transport),
      members_(std::move(members)),
      tag_(tag),
      share_(share),
      method_(method) {
  const auto own = std::find(members_.begin(), members_.end(), world.rank());
  TORCH_INTERNAL_ASSERT(members_.size() > 1 && own != members_.end());
  own_ = own - members_.begin();
}

void Reducer::agree(const std::vector<Summand>& all) {
  agree(all, "gradients", action());
}

void Reducer::agree(const std::vector<Summand>& all, const std::string& what,
                    const std::string& action) {
  std::string mine;
  for (const Summand& each : all) put(mine, describe(each));
  const auto found = find_difference(world_, members_, tag_, mine, action);
  if (!found) return;
  meet(world_, members_, tag_, action);
  const std::vector<std::string> first = take_texts(found->first),
                                 theirs = take_texts(found->other);
  const auto [one, other] =
      std::mismatch(first.begin(), first.end(), theirs.begin(), theirs.end());
  const auto text = [&](auto at, const auto& list, int rank) {
    return at == list.end()
               ? c10::str("missing on rank ", rank, ", which has ", list.size())
               : c10::str(*at, " on rank ", rank);
  };
  // Beside a parameter that one replica has frozen, another one may have a
  // captured tensor.
  const auto no_parameter = [](auto at, const auto& list) {
    return at == list.end() || at->starts_with(kCaptured);
  };
  const bool captured = no_parameter(one, first) && no_parameter(other, theirs);
  TORCH_CHECK(false, "the replicas have different ", what, ": number ",
              one - first.begin(), " is ", text(one, first, members_.front()),
              ", but ", text(other, theirs, found->rank), "; ",
              captured ? "register it as a parameter of a layer, or detach it"
                       : "give all replicas the same layers, and freeze the "
                         "same parameters in all of them");
}

void Reducer::add_up(Summand* begin, Summand* end) {
  const c10::AutoGradMode no_graph(false);
  const bool whole = share_ == SumShare::kAll;
  // Returns the part of `tensor` of which `member` gets the sum.
  const auto part_of = [&](const at::Tensor& tensor, std::size_t member) {
    return whole ? tensor : slice_of_member(tensor, members_.size(), member);
  };
  const at::ScalarType type = type_of_grad(begin->like);
  const auto options = at::TensorOptions(type).device(device());
  for (Summand* each = begin; each != end; ++each) {
    at::Tensor& grad = each->grad;
    if (!grad.defined()) continue;
    if (grad.layout() != at::kStrided) grad = grad.to_dense();
    TORCH_CHECK_TYPE(grad.scalar_type() == type, "the gradient of ",
                     name_of(*each), " has dtype ", grad.scalar_type(),
                     ", but the replicas add up ", type,
                     "; name its dtype by set_grad_dtype() on all replicas");
  }
  // Returns the parts of all gradients, and behind them one number for each: 1
  // if it is defined here.
  const auto flat_part = [&](std::size_t member) {
    std::vector<at::Tensor> parts;
    for (Summand* each = begin; each != end; ++each) {
      parts.push_back(part_of(each->grad, member));
      if (parts.back().defined()) continue;
      const at::Tensor like = part_of(each->like, member);
      parts.back() = at::zeros({like.defined() ? like.numel() : 0},
                               options.device(each->like.device()));
    }
    parts.push_back(presence(begin, end));
    return flatten(parts, options);
  };
  const at::Tensor sum = whole ? flat_part(own_) : reduce_scatter(flat_part);
  if (whole) all_reduce(sum);
  const at::Tensor counts =
      sum.narrow(0, sum.numel() - (end - begin), end - begin).cpu();
  const at::Tensor sum_there = sum.to(begin->like.device());
  int64_t at = 0;
  for (Summand* each = begin; each != end; ++each) {
    // The whole sum has the strides of the gradient.
    const bool has_strides = whole && each->grad.defined();
    const at::Tensor like =
        part_of(has_strides ? each->grad : each->like.detach(), own_);
    each->grad = at::Tensor();
    if (!like.defined()) continue;
    if (counts[each - begin].is_nonzero()) {
      each->grad =
          at::empty_like(like, at::TensorOptions(type))
              .copy_(sum_there.narrow(0, at, like.numel()).view(like.sizes()));
    }
    at += like.numel();
  }
}

void Reducer::all_reduce(const at::Tensor& flat) {
  if (method_ == SumMethod::kCollective) {
    std::vector<at::Tensor> list{as_real(flat)};
    return transport_.collective(
        members_, [&](c10d::Backend& group) { return group.allreduce(list); },
        action);
  }
  const auto count = static_cast<int64_t>(members_.size());
  const int64_t part = (flat.numel() + count - 1) / count;
  const auto part_of = [&](std::size_t k) {
    const int64_t begin =
        std::min(flat.numel(), static_cast<int64_t>(k) * part);
    return flat.narrow(0, begin, std::min(part, flat.numel() - begin));
  };
  const at::Tensor sum = reduce_scatter(part_of);
  exchange([&](std::size_t) { return sum; }, part_of, action);
  if (own_ > 0) part_of(own_).copy_(sum);  // else the sum is there
}

at::Tensor Reducer::reduce_scatter(
    const std::function<at::Tensor(std::size_t)>& part) {
  at::Tensor sum;
  const at::Tensor mine = part(own_);
  if (method_ == SumMethod::kCollective) {
    // The operation needs parts of one size.
    std::vector<at::Tensor> parts;
    int64_t largest = 0;
    for (std::size_t k = 0; k < members_.size(); ++k) {
      parts.push_back(k == own_ ? mine : part(k));
      largest = std::max(largest, parts.back().numel());
    }
    for (at::Tensor& each : parts) {
      each = at::constant_pad_nd(each, {0, largest - each.numel()});
    }
    sum = at::empty({largest}, mine.options());
    at::Tensor out = as_real(sum), in = as_real(at::cat(parts));
    transport_.collective(
        members_,
        [&](c10d::Backend& group) {
          return group._reduce_scatter_base(out, in);
        },
        action);
    return sum.narrow(0, 0, mine.numel());
  }
  std::vector<at::Tensor> theirs(members_.size());
  for (std::size_t k = 0; k < members_.size(); ++k) {
    if (k != own_) theirs[k] = at::empty_like(mine);
  }
  exchange(
      part, [&](std::size_t k) { return theirs[k]; }, action);
  sum = own_ == 0 ? mine : theirs[0];
  for (std::size_t k = 1; k < members_.size(); ++k) {
    sum.add_(k == own_ ? mine : theirs[k]);
  }
  return sum;
}

void Reducer::copy_first(
    const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  const c10::AutoGradMode no_graph(false);
  std::vector<Summand> all;
  uint32_t checksum = 0;
  for (const auto& [name, each] : tensors) {
    if (each.is_meta()) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(
        each.layout() == at::kStrided && !each.is_quantized(), "'", name,
        "' has layout ", each.layout(), " and dtype ", each.scalar_type(),
        "; replicas can share dense tensors only: keep it out of the "
        "registered parameters and buffers, or make it dense");
    all.push_back({unexpanded(each.detach()), {}, name});
    const at::Tensor bytes = bytes_of(all.back().like).cpu();
    checksum = crc32c(bytes.const_data_ptr(), bytes.numel(), checksum);
  }
  const auto copying = [] { return "copying the weights of replica 0"; };
  agree(all, "weights", copying());
  const auto checksums =
      all_gather(world_, members_, tag_, std::to_string(checksum), copying());
  if (all_equal(checksums)) return;
  std::size_t begin = 0;
  for (const std::size_t end : cut_buckets(all)) {
    std::vector<at::Tensor> bucket;
    for (; begin < end; ++begin) bucket.push_back(all[begin].like);
    const at::Tensor flat =
        flatten(bucket, bucket[0].options().device(device()));
    const at::Tensor none = at::empty({0}, at::kByte);
    // Along a tree, so that the first member does not send to all others.
    const auto children = tree_children(own_, members_.size());
    const auto is_child = [&](std::size_t k) {
      return std::find(children.begin(), children.end(), k) != children.end();
    };
    const bool receives = own_ > 0;
    exchange([&](std::size_t) { return none; },
             [&](std::size_t k) {
               return receives && k == tree_parent(own_) ? flat : none;
             },
             copying);
    exchange([&](std::size_t k) { return is_child(k) ? flat : none; },
             [&](std::size_t) { return none; }, copying);
    if (receives) unflatten(flat, bucket);
  }
}

void Reducer::exchange(const std::function<at::Tensor(std::size_t)>& out,
                       const std::function<at::Tensor(std::size_t)>& in,
                       const Transport::Action& action) {
  std::vector<std::pair<int, Transport::Work>> works;  // with the peer
  const auto begin = [&](std::size_t from, std::size_t to) {
    const bool sends = from == own_;
    const at::Tensor bytes = bytes_of(sends ? out(to) : in(from));
    if (bytes.numel() == 0) return;
    const int peer = members_[sends ? to : from];
    works.emplace_back(peer,
                       sends ? transport_.send(bytes, peer, tag_, action)
                             : transport_.receive(bytes, peer, tag_, action));
  };
  // Every member uses this order, which Transport requires.
  for (std::size_t from = 0; from < members_.size(); ++from) {
    if (from != own_) {
      begin(from, own_);
      continue;
    }
    for (std::size_t to = 0; to < members_.size(); ++to) {
      if (to != own_) begin(own_, to);
    }
  }
  for (const auto& [peer, work] : works) world_.wait(work, peer, action);
}

void all_reduce(Communicator& world, Transport& transport,
                const std::vector<int>& members, int tag,
                std::vector<Summand>& all, int64_t bucket_bytes,
                SumMethod method) {
  if (members.size() == 1) return;
  Reducer reducer(world, transport, members, tag, SumShare::kAll, method);
  reducer.agree(all);
  std::size_t begin = 0;
  for (const std::size_t end : cut_buckets(all, bucket_bytes)) {
    reducer.add_up(all.data() + begin, all.data() + end);
    begin = end;
  }
}

ReplicaSums::ReplicaSums(Communicator& world, Transport& transport,
                         std::vector<int> members, int tag, SumShare share,
                         int64_t bucket_bytes, SumMethod method)
    : reducer_(world, transport, std::move(members), tag, share, method),
      bucket_bytes_(bucket_bytes),
      // One thread, because the workers of the partitions use the cores.
      worker_(new_worker([] {}, /*threads=*/1)) {}

ReplicaSums::~ReplicaSums() { stop(); }

void ReplicaSums::begin(std::vector<Summand> parameters, int64_t stages) {
  stop();
  summands_ = std::move(parameters);
  states_.assign(summands_.size(), {});
  for (std::size_t k = 0; k < summands_.size(); ++k) {
    numbers_.emplace(summands_[k].like.unsafeGetTensorImpl(), k);
  }
  ends_ = cut_buckets(summands_, bucket_bytes_);
  open_ = stages;
  done_ = 0;
  times_.clear();
  stopped_ = false;
  error_ = nullptr;
  running_ = true;
  // Of the caller: how sums are rounded, and what becomes of denormal numbers.
  std::fenv_t floating_point;
  std::fegetenv(&floating_point);
  worker_->post([this, floating_point] {
    std::fesetenv(&floating_point);
    c10::OptionalDeviceGuard on_device;  // see record_event()
    try {
      if (!summands_.empty()) {
        on_device.reset_device(summands_.front().like.device());
      }
      add_up();
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void ReplicaSums::add_up() {
  reducer_.agree(summands_);
  std::size_t begin = 0;
  for (const std::size_t end : ends_) {
    {
      const WaitScope waiting;
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] {
        return stopped_ ||
               std::all_of(states_.begin() + begin, states_.begin() + end,
                           [](const State& s) { return s.there; });
      });
      if (stopped_) return;
    }
    // From here on, only this thread uses these summands.
    BucketTime& time = times_.emplace_back();
    time.start = std::chrono::steady_clock::now();
    for (std::size_t k = begin; k < end; ++k) {
      time.bytes += bytes_of_grad(summands_[k].like);
      use(k);
    }
    reducer_.add_up(summands_.data() + begin, summands_.data() + end);
    for (std::size_t k = begin; k < end; ++k) {
      if (!summands_[k].grad.defined()) continue;
      states_[k].made = Event::record(summands_[k].grad.device());
    }
    begin = end;
    time.end = std::chrono::steady_clock::now();
    std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
  }
}

void ReplicaSums::use(std::size_t k) {
  const at::Tensor& grad = summands_[k].grad;
  if (!grad.defined()) return;
  states_[k].made.wait(grad.device());
  record_stream(grad, grad.device());
}

bool ReplicaSums::give(const at::Tensor& parameter, at::Tensor& grad,
                       const Event& made) {
  const auto found = numbers_.find(parameter.unsafeGetTensorImpl());
  if (found == numbers_.end()) return false;
  const std::size_t k = found->second;
  std::lock_guard<std::mutex> lock(mutex_);
  // The first one may be in an exchange already.
  TORCH_CHECK(!states_[k].there, "the gradient of parameter ", k, " of ",
              states_.size(), " of this step comes a second time");
  summands_[k].grad = std::move(grad);
  states_[k].made = made;
  states_[k].there = true;
  changed_.notify_all();
  return true;
}

void ReplicaSums::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--open_ > 0) return;
  for (State& each : states_) each.there = true;
  changed_.notify_all();
}

std::size_t ReplicaSums::done() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

std::size_t ReplicaSums::buckets() const { return ends_.size(); }

std::vector<Summand> ReplicaSums::finish() {
  join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  for (std::size_t k = 0; k < summands_.size(); ++k) use(k);
  return std::move(summands_);
}

void ReplicaSums::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  join();
  summands_.clear();
  numbers_.clear();
}

void ReplicaSums::join() {
  if (running_) worker_->flush();
  running_ = false;
}

ParameterShards::ParameterShards(const std::vector<at::Tensor>& parameters,
                                 std::size_t members, std::size_t own)
    : members_(members), own_(own) {
  for (const at::Tensor& each : parameters) add(each);
}

void ParameterShards::add(const at::Tensor& parameter,
                          const std::string& name) {
  const auto [entry, is_new] =
      all_.try_emplace(parameter.unsafeGetTensorImpl());
  Sharded& added = entry->second;
  if (is_new) {
    added.parameter = parameter;
    added.name = name;
    follow(added);
  }
  if (!std::exchange(added.is_present, true)) present_.push_back(&added);
  if (parameter.requires_grad()) added.has_trained = true;
}

void ParameterShards::clear() {
  for (Sharded* const each : std::exchange(present_, {})) {
    each->is_present = false;
  }
  std::erase_if(all_, [](const auto& each) {
    return each.second.parameter.use_count() == 1;
  });
}

void ParameterShards::follow(Sharded& of) const {
  const at::Tensor view =
      slice_of_member(of.parameter.detach(), members_, own_);
  if (!view.defined()) return;
  at::Tensor& shard = of.shard;
  if (!shard.defined()) {
    // A tensor of its own, because views cannot become leaves again.
    shard = view.alias().detach();
  } else {
    shard.set_data(view);
  }
  shard.requires_grad_(of.parameter.requires_grad());
  const at::ScalarType type = type_of_grad(of.parameter);
  if (shard.grad().defined() && shard.grad().scalar_type() != type) {
    shard.mutable_grad() = shard.grad().to(type);
  }
  shard.set_grad_dtype(type);
}

std::vector<at::Tensor> ParameterShards::own() {
  std::vector<at::Tensor> result;
  for (const Sharded* const each : present_) {
    if (!each->parameter.requires_grad()) continue;
    at::Tensor shard = shard_of(each->parameter);
    if (shard.defined()) result.push_back(std::move(shard));
  }
  return result;
}

at::Tensor ParameterShards::shard_of(const at::Tensor& parameter) {
  Sharded& of = all_.at(parameter.unsafeGetTensorImpl());
  const at::Tensor& shard = of.shard;
  if (shard.defined() && (!shard.is_alias_of(parameter) ||
                          shard.requires_grad() != parameter.requires_grad() ||
                          type_of_grad(shard) != type_of_grad(parameter))) {
    follow(of);
  }
  return shard;
}

void ParameterShards::zero_grad(bool set_to_none) {
  for (const Sharded* const each : present_) {
    if (!each->shard.defined() || !each->shard.grad().defined()) continue;
    at::Tensor& grad = each->shard.mutable_grad();
    grad = set_to_none ? at::Tensor() : grad.detach().zero_();
  }
}

void ParameterShards::spread(Reducer& reducer) {
  const c10::AutoGradMode no_graph(false);
  std::vector<at::Tensor> trained;
  std::vector<Summand> all;
  for (const Sharded* const each : present_) {
    if (!each->has_trained) continue;
    const bool is_frozen = !each->parameter.requires_grad();
    trained.push_back(each->parameter);
    all.push_back({each->parameter.detach(),
                   {},
                   each->name + (is_frozen ? " (frozen)" : "")});
  }
  const std::string action = "sharing the parameters of the replicas";
  // A message of another length than its receiver expects would end it.
  reducer.agree(all, "parameters", action);
  std::size_t begin = 0;
  for (const std::size_t end : cut_buckets(all)) {
    const auto options = trained[begin].options().device(reducer.device());
    // Returns the shards that `member` owns of this bucket.
    const auto shards_of = [&](std::size_t member) {
      std::vector<at::Tensor> shards;
      for (std::size_t k = begin; k < end; ++k) {
        const at::Tensor shard =
            slice_of_member(trained[k].detach(), members_, member);
        if (shard.defined()) shards.push_back(shard);
      }
      return shards;
    };
    const at::Tensor mine = flatten(shards_of(own_), options);
    std::vector<at::Tensor> theirs(members_);
    for (std::size_t member = 0; member < members_; ++member) {
      int64_t numel = 0;
      for (const at::Tensor& each : shards_of(member)) numel += each.numel();
      if (member != own_) theirs[member] = at::empty({numel}, options);
    }
    reducer.exchange([&](std::size_t) { return mine; },
                     [&](std::size_t k) { return theirs[k]; },
                     [&] { return action; });
    for (std::size_t member = 0; member < members_; ++member) {
      if (member != own_) unflatten(theirs[member], shards_of(member));
    }
    begin = end;
  }
}

}  // namespace gpipe::internal
