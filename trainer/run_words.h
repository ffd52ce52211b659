// What a run says of itself in its saved steps, so that it does not go on as
// another one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trainer/options.h"
#include "trainer/task.h"

namespace gpipe::trainer {

using Words = std::map<std::string, std::string>;

// The flags that a run must keep, and those that it may change ("--lr"), with
// their values.
Words fixed_words(const Options& options, const Task& task);
Words changeable_words(const Options& options);

// What all processes of a run must have been given alike, whatever they may
// change from run to run: those, those that steer the loop, and a checksum of
// the data. Of paths, which may be others on other machines, whether there is
// one.
Words shared_words(const Options& options, const Task& task);

// As a text without its own meaning, for all_gather(), and back.
std::string bytes_of(const Words& words);
Words words_of(const std::string& bytes);

// `all`: of each process. c10::ValueError that names each flag of which one has
// another value than the first, with both.
void check_same_words(const std::vector<Words>& all);

// c10::ValueError that names each flag of which a saved step (`saved`, in
// `folder`) has another value than `now`, with both.
void check_fixed_words(const Words& saved, const Words& now,
                       const std::string& folder);

// A line for each flag that has been changed.
std::vector<std::string> changes(const Words& saved, const Words& now);

}  // namespace gpipe::trainer
