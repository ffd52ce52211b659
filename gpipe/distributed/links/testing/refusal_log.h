// What the tests of secured connections share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/refusals.h"

namespace gpipe::internal {

inline constexpr char kAddress[] = "127.0.0.1";
inline constexpr char kSecret[] = "a secret that is long enough";

inline std::shared_ptr<const Credentials> with_secret(
    const std::string& secret) {
  return std::make_shared<Credentials>(Identity{secret, "", "", ""});
}

// Returns the text of the exception that `part` throws.
template <typename Part>
std::string text_of_error(Part part) {
  try {
    part();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no exception";
}

// The refusals of a greeter.
struct Log {
  std::string text() {
    std::lock_guard<std::mutex> lock(mutex);
    std::string all;
    for (const std::string& line : lines) all += line + "\n";
    return all;
  }
  // Returns whether a line or the last refusal has `part`. has() waits for it.
  bool has_now(const std::string& part) {
    return (text() + refusals->summary()).find(part) != std::string::npos;
  }
  bool has(const std::string& part) {
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!has_now(part)) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "only: " << text() << refusals->summary();
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  std::mutex mutex;
  std::vector<std::string> lines;
  const std::shared_ptr<Refusals> refusals =
      std::make_shared<Refusals>([this](const std::string& line) {
        std::lock_guard<std::mutex> lock(mutex);
        lines.push_back(line);
      });
};

}  // namespace gpipe::internal
