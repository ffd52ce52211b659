#include "gpipe/distributed/world/stores.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <thread>

namespace gpipe::internal {
namespace {

// The first and the longest pause between two questions. Each is twice as long
// as the one before, so that many ranks that wait do not keep the store from
// answering.
constexpr std::chrono::milliseconds kPause{1}, kLongest{16};

}  // namespace

void InterruptibleStore::wait(const std::vector<std::string>& keys,
                              const std::chrono::milliseconds& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pause = kPause;
  while (!inner_->check(keys)) {
    if (*stopped_) throw std::runtime_error("it was aborted");
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::runtime_error("Timed out waiting for '" + keys.front() + "'");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(20);

// Keys: the number of the last start, the tokens of all ranks that have asked,
// how many bytes of them are answered, and the answer to a token.
constexpr char kNumber[] = "gpipe/start", kQuestions[] = "gpipe/questions",
               kAnswered[] = "gpipe/answered", kAnswer[] = "gpipe/answer/";

constexpr std::size_t kTokenBytes = 16;

std::string random_text() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::random_device random;
  std::string text;
  while (text.size() < kTokenBytes) text += kDigits[random() % 16];
  return text;
}

}  // namespace

Starts::Starts(c10::intrusive_ptr<c10d::Store> store, int rank)
    : store_(std::move(store)), rank_(rank) {
  if (rank_ != 0) return;
  const std::string answered = text_at(*store_, kAnswered);
  if (!answered.empty()) answered_ = std::stoull(answered);
}

std::optional<int64_t> Starts::number(Clock::time_point deadline) {
  if (number_) return number_;
  if (rank_ == 0) {
    number_ = store_->add(kNumber, 1);
    answer();
    return number_;
  }
  const std::string token = random_text();
  store_->append(kQuestions, {token.begin(), token.end()});
  while (true) {
    const std::string answer = text_at(*store_, kAnswer + token);
    if (!answer.empty()) return number_ = std::stoll(answer);
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(kLook);
  }
}

void Starts::answer(const std::function<void()>& check) {
  if (rank_ != 0 || !number_) return;
  const std::string questions = text_at(*store_, kQuestions);
  const std::size_t before = answered_;
  for (; answered_ + kTokenBytes <= questions.size();
       answered_ += kTokenBytes) {
    if (answered_ == before) check();
    store_->set(kAnswer + questions.substr(answered_, kTokenBytes),
                std::to_string(*number_));
  }
  if (answered_ != before) {
    store_->set(kAnswered, std::to_string(answered_));
  }
}

}  // namespace gpipe::internal
