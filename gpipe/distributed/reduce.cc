#include "gpipe/distributed/reduce.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "gpipe/distributed/gather.h"

namespace gpipe {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::string action() { return "adding up the gradients of the replicas"; }

class Reduction {
 public:
  Reduction(World& world, const std::vector<int>& members, int tag)
      : world_(world), members_(members), tag_(tag) {
    for (std::size_t k = 0; k < members.size(); ++k) {
      if (members[k] == world.rank()) own_ = k;
    }
  }

  // `flat`: of one dimension, on the CPU.
  void reduce(const at::Tensor& flat) {
    const auto count = static_cast<int64_t>(members_.size());
    const int64_t part = (flat.numel() + count - 1) / count;
    const auto part_of = [&](std::size_t k) {
      const int64_t begin =
          std::min(flat.numel(), static_cast<int64_t>(k) * part);
      return flat.narrow(0, begin, std::min(part, flat.numel() - begin));
    };
    // Everyone's own part, from all others.
    const at::Tensor mine = part_of(own_);
    std::vector<at::Tensor> theirs(members_.size());
    for (std::size_t k = 0; k < members_.size(); ++k) {
      if (k == own_) continue;
      theirs[k] = at::empty_like(mine);
      post(k, part_of(k), theirs[k]);
    }
    wait();
    at::Tensor sum;
    for (std::size_t k = 0; k < members_.size(); ++k) {
      const at::Tensor& each = k == own_ ? mine : theirs[k];
      sum = sum.defined() ? sum.add_(each) : each.clone();
    }
    // And its sum, to all others.
    for (std::size_t k = 0; k < members_.size(); ++k) {
      if (k != own_) post(k, sum, part_of(k));
    }
    wait();
    part_of(own_).copy_(sum);
  }

 private:
  void post(std::size_t member, const at::Tensor& out, const at::Tensor& in) {
    const int peer = members_[member];
    if (in.numel() > 0) {
      works_.emplace_back(peer, world_.receive(in, peer, tag_, action));
    }
    if (out.numel() > 0) {
      works_.emplace_back(peer, world_.send(out, peer, tag_, action));
    }
  }
  void wait() {
    for (const auto& [peer, work] : works_) {
      world_.wait(*work, peer, action);
    }
    works_.clear();
  }

  World& world_;
  const std::vector<int>& members_;
  const int tag_;
  std::size_t own_ = 0;
  std::vector<std::pair<int, WorkPtr>> works_;
};

// What a member has, so that all cut the same buckets; and what it is, so that
// no message is of another length than its receiver waits for.
std::string describe(const std::vector<at::Tensor*>& tensors) {
  std::string bytes;
  for (const at::Tensor* const each : tensors) {
    put(bytes, static_cast<uint8_t>(each->defined()));
    if (!each->defined()) continue;
    put(bytes, static_cast<int8_t>(each->scalar_type()));
    put(bytes, static_cast<int64_t>(each->dim()));
    for (const int64_t size : each->sizes()) put(bytes, size);
  }
  return bytes;
}

struct Outline {
  bool defined = false;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;

  friend bool operator!=(const Outline& a, const Outline& b) {
    return a.type != b.type || a.sizes != b.sizes;
  }
};

std::vector<Outline> read_outlines(const std::string& bytes) {
  std::vector<Outline> outlines;
  for (std::size_t at = 0; at < bytes.size();) {
    Outline& outline = outlines.emplace_back();
    outline.defined = take<uint8_t>(bytes, at) != 0;
    if (!outline.defined) continue;
    outline.type = static_cast<at::ScalarType>(take<int8_t>(bytes, at));
    const auto dims = take<int64_t>(bytes, at);
    for (int64_t d = 0; d < dims && at < bytes.size(); ++d) {
      outline.sizes.push_back(take<int64_t>(bytes, at));
    }
  }
  return outlines;
}

// Of those that any member has.
std::vector<Outline> agree_on(const std::vector<std::string>& all,
                              const std::vector<int>& members) {
  std::vector<Outline> result = read_outlines(all.front());
  for (std::size_t k = 1; k < all.size(); ++k) {
    const std::vector<Outline> theirs = read_outlines(all[k]);
    TORCH_CHECK(theirs.size() == result.size(), "rank ", members[k], " has ",
                theirs.size(), " gradients, but rank ", members.front(), " ",
                result.size());
    for (std::size_t n = 0; n < result.size(); ++n) {
      if (!theirs[n].defined) continue;
      TORCH_CHECK(!result[n].defined || !(theirs[n] != result[n]), "gradient ",
                  n, " is of other sizes or of another type on rank ",
                  members[k], " than on rank ", members.front());
      result[n] = theirs[n];
    }
  }
  return result;
}

}  // namespace

void all_reduce(World& world, const std::vector<int>& members, int tag,
                std::vector<at::Tensor*> tensors, int64_t bucket_bytes) {
  if (members.size() == 1) return;
  const c10::AutoGradMode no_graph(false);
  const std::vector<Outline> outlines = agree_on(
      all_gather(world, members, tag, describe(tensors), action()), members);
  Reduction reduction(world, members, tag);
  for (std::size_t begin = 0; begin < tensors.size();) {
    if (!outlines[begin].defined) {
      ++begin;
      continue;
    }
    std::vector<at::Tensor> parts;
    std::vector<std::size_t> taken;
    int64_t bytes = 0;
    std::size_t end = begin;
    for (; end < tensors.size() && bytes < bucket_bytes; ++end) {
      const Outline& outline = outlines[end];
      if (!outline.defined) continue;
      if (outline.type != outlines[begin].type) break;
      const at::Tensor& tensor = *tensors[end];
      parts.push_back(tensor.defined()
                          ? tensor.cpu().reshape({-1})
                          : at::zeros(outline.sizes, outline.type).view({-1}));
      taken.push_back(end);
      bytes += parts.back().numel() *
               static_cast<int64_t>(parts.back().element_size());
    }
    const at::Tensor flat = at::cat(parts);
    reduction.reduce(flat);
    int64_t at = 0;
    for (std::size_t n = 0; n < taken.size(); ++n) {
      const int64_t count = parts[n].numel();
      const at::Tensor sum =
          flat.narrow(0, at, count).view(outlines[taken[n]].sizes);
      at += count;
      // A new one: the old one may be somebody else's too.
      at::Tensor& tensor = *tensors[taken[n]];
      tensor =
          tensor.defined() ? at::empty_like(tensor).copy_(sum) : sum.clone();
    }
    begin = end;
  }
}

}  // namespace gpipe
