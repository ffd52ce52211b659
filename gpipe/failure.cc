#include "gpipe/failure.h"

#include <c10/util/Exception.h>

#include <exception>

namespace gpipe {

std::string Failure::place() const {
  const auto name = [](const char* what, const char* all, int64_t number) {
    return number == kAll ? std::string(all)
                          : std::string(what) + std::to_string(number);
  };
  std::string text = name("partition ", "all partitions", partition) + ", " +
                     name("micro-batch ", "all micro-batches", microbatch) +
                     ", " + gpipe::to_string(phase);
  if (!layer.empty()) text += ", layer '" + layer + "'";
  return text;
}

std::string Failure::to_string() const {
  return what.empty() ? place() : place() + ": " + what;
}

Failure at_partition(int64_t partition, Phase phase) {
  return {partition, Failure::kAll, phase, "", ""};
}

Failure caught_at(Failure place) {
  try {
    throw;
  } catch (c10::Error& error) {
    place.what = error.what_without_backtrace();
    error.add_context("in " + place.place());
  } catch (const std::exception& error) {
    place.what = error.what();
  } catch (...) {
  }
  return place;
}

}  // namespace gpipe
