// The options of a training run, which are the rows of options.inc, and their
// command-line flags.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "models/named.h"

namespace gpipe::train_program {

// Returns the options of each model, with its ModelSize::small.
std::map<std::string, models::ModelOptions> small_sizes();

// All options of a run. `sizes`: options of each model, by its name.
struct Options {
#define GROUP(title)
#define OPTION(type, name, initial, scope, help) type name = initial;
#define MODEL_SIZES(name) \
  std::map<std::string, models::ModelOptions> name = small_sizes();
#include "training/program/options.inc"
};

// Returns the sizes of Options::model; those of no model if it is a file.
models::ModelOptions sizes_of(const Options& options);

// Which processes must agree about an option, and whether it may change when a
// run resumes. A run checkpoint contains the options that are kChangeable or
// kFixed.
enum class OptionScope {
  kProcess,         // may differ between processes
  kGiven,           // must be empty in all processes, or in none
  kRun,             // must be equal in all processes
  kChangeable,      // equal in all processes; a changed value is printed
  kFixed,           // equal in all processes; may not change
  kFixedForImages,  // kFixed if the model is for images, else kProcess
  kFixedForText,    // kFixed if the model is for a text, else kProcess
};

// The place of an option's value in an Options object.
using OptionValue =
    std::variant<bool*, int64_t*, uint64_t*, double*, std::string*>;

// A row of the table. Its flag is --`name`.
struct OptionRow {
  std::string group;  // in the help
  std::string name;
  OptionScope scope;
  std::string help;
  std::function<OptionValue(Options&)> value;
  std::string model;  // the only model with this option; "": all models
};

// Returns the value of an option as the command line takes it. Takes the
// options by value, since OptionRow::value returns a pointer that can write.
std::string value_of(const OptionRow& row, Options options);

// Returns the rows in the order of the help.
const std::vector<OptionRow>& option_rows();

// ---- Flags

// Returns the values of the flags. Call it after they have been parsed.
Options options_of_flags();

// Throws c10::ValueError if the command line sets a flag of a training run that
// is not in `names`. For programs that use some of these flags.
void check_flags(const std::vector<std::string>& names);

// Prints the flags in `names` with their defaults.
void print_flags(std::ostream& out, const std::vector<std::string>& names);

// Prints examples for each kind of data, then all flags in groups, with their
// defaults.
void print_help(std::ostream& out);

// A function that prints a line.
using Print = std::function<void(const std::string& line)>;

// Throws c10::ValueError with both numbers if the value of --`flag` is below
// `least`.
void check_at_least(const char* flag, int64_t value, int64_t least);

// ---- Numbers as text, for other processes and for run checkpoints

// Converts numbers to text and back, bit by bit, NaN and infinities included.
// parse_exact() throws c10::ValueError if a part of the text is no number.
std::string exact_text(const std::vector<double>& numbers);
std::vector<double> parse_exact(const std::string& text);

}  // namespace gpipe::train_program
