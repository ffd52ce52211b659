// Decodes any bytes as the messages of a store's stream.
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/distributed/links/store_wire.h"
#include "gpipe/testing/fuzz/check.h"

namespace gpipe::internal {
namespace {

// Returns the messages in front of `stream`; throws what take_message() throws.
std::vector<std::string> messages_in(std::string stream) {
  std::vector<std::string> messages;
  while (auto message = take_message(stream)) {
    messages.push_back(std::move(*message));
  }
  return messages;
}

template <typename Message, typename Decode>
void check_decoder(const std::string& bytes, const Decode& decode) {
  testing::FuzzLimits limits;
  testing::fuzz_parser<std::invalid_argument>(
      bytes.size(), limits,
      [&] {
        auto message = decode(bytes);
        if (!message) throw std::invalid_argument("no message");
        return *message;
      },
      [&](const Message& message) {
        testing::fuzz_check(encode(message) == bytes,
                            "a message that is read is written alike");
      });
}

}  // namespace
}  // namespace gpipe::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace gpipe::internal;  // NOLINT: parser and checks
  const std::string stream(gpipe::testing::fuzz_text(data, size));
  std::vector<std::string> messages;
  gpipe::testing::fuzz_parser<std::length_error>(
      size, {}, [&] { return messages_in(stream); },
      [&](const std::vector<std::string>& found) { messages = found; });
  // Also the bytes as one message, so that not every input needs a length.
  messages.push_back(stream);
  for (const std::string& message : messages) {
    check_decoder<StoreRequest>(message, decode_request);
    check_decoder<StoreReply>(message, decode_reply);
  }
  return 0;
}
