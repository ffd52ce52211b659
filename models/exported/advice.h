// What to do about operators that cannot run.
#pragma once

#include <string>

namespace gpipe::exported {

// Returns whether `target` is a node of a function transform: torch.vmap or
// torch.func.jvp. A call of a transform has several nodes.
bool is_transform(const std::string& target);

// Returns what is wrong with `target`, a node that cannot run, and what to do:
// "is control flow, which is not supported; ...".
std::string advice_on(const std::string& target);

}  // namespace gpipe::exported
