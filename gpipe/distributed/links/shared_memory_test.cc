// Two ends of a link share memory only if it is theirs.
#include "gpipe/distributed/links/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "gpipe/distributed/links/frame.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {
namespace {

constexpr uint64_t kToken = 17;

TEST(SharedMemoryTest, EachEndReadsWhatTheOtherOneWrites) {
  const auto one = SharedMemory::make(kToken);
  ASSERT_TRUE(one);
  const auto other = SharedMemory::open(one->place(), kToken);
  ASSERT_TRUE(other);
  one->close_file();
  const std::string there(1000, 'a'), back(1000, 'b');
  // Across the end of the ring.
  const uint64_t at = 3 * SharedMemory::kRing - 400;
  one->write(at, there.data(), there.size());
  other->write(at, back.data(), back.size());
  std::string got(1000, ' ');
  other->read(at, got.data(), got.size());
  EXPECT_EQ(got, there);
  one->read(at, got.data(), got.size());
  EXPECT_EQ(got, back);
}

TEST(SharedMemoryTest, NoticesAreTakenInTheirOrder) {
  const auto one = SharedMemory::make(kToken);
  ASSERT_TRUE(one);
  const auto other = SharedMemory::open(one->place(), kToken);
  ASSERT_TRUE(other);
  Frame notice;
  EXPECT_FALSE(other->take(notice));
  // Several times around the box.
  for (uint64_t k = 0; k < 3 * SharedMemory::kNotices; ++k) {
    ASSERT_TRUE(one->put({Frame::kTaken, 2, k}));
    ASSERT_TRUE(one->put({Frame::kReady, 3, k}));
    ASSERT_TRUE(other->put({Frame::kReady, 4, k}));
    for (const uint32_t kind : {Frame::kTaken, Frame::kReady}) {
      ASSERT_TRUE(other->take(notice));
      EXPECT_EQ(notice.kind, kind);
      EXPECT_EQ(notice.bytes, k);
    }
    ASSERT_FALSE(other->take(notice));
    ASSERT_TRUE(one->take(notice));
    EXPECT_EQ(notice.tag, 4);
    EXPECT_EQ(notice.bytes, k);
  }
}

TEST(SharedMemoryTest, ABoxTakesNoMoreNoticesThanItHolds) {
  const auto one = SharedMemory::make(kToken);
  ASSERT_TRUE(one);
  const auto other = SharedMemory::open(one->place(), kToken);
  ASSERT_TRUE(other);
  for (uint64_t k = 0; k < SharedMemory::kNotices; ++k) {
    ASSERT_TRUE(one->put({Frame::kReady, 0, k}));
  }
  EXPECT_FALSE(one->put({Frame::kReady}));
  Frame notice;
  EXPECT_TRUE(other->take(notice));
  EXPECT_EQ(notice.bytes, 0u);
  EXPECT_TRUE(one->put({Frame::kReady}));
  EXPECT_FALSE(one->put({Frame::kReady}));
}

TEST(SharedMemoryTest, ABoxThatClaimsToHoldMoreThanItCanHasNoNotices) {
  const auto one = SharedMemory::make(kToken);
  ASSERT_TRUE(one);
  const auto other = SharedMemory::open(one->place(), kToken);
  ASSERT_TRUE(other);
  for (int k = 0; k < 3; ++k) ASSERT_TRUE(one->put({Frame::kReady}));
  // The number of notices is the first word behind the token that is 3.
  const int file = one->place().file;
  off_t at = 0;
  for (uint64_t word = 0; word != 3;) {
    at += sizeof word;
    ASSERT_EQ(::pread(file, &word, sizeof word, at),
              static_cast<ssize_t>(sizeof word));
  }
  const uint64_t many = 3 + SharedMemory::kNotices;
  ASSERT_EQ(::pwrite(file, &many, sizeof many, at),
            static_cast<ssize_t>(sizeof many));
  Frame notice;
  ASSERT_TRUE(other->take(notice));
  EXPECT_EQ(notice.kind, 0u);
}

TEST(SharedMemoryTest, ARequestIsFoundOnceAndCanBeTakenBack) {
  const auto one = SharedMemory::make(kToken);
  ASSERT_TRUE(one);
  const auto other = SharedMemory::open(one->place(), kToken);
  ASSERT_TRUE(other);
  EXPECT_FALSE(one->take_request());
  other->request(true);
  EXPECT_FALSE(other->take_request());  // its own
  EXPECT_TRUE(one->take_request());
  EXPECT_FALSE(one->take_request());
  other->request(true);
  other->request(false);
  EXPECT_FALSE(one->take_request());
}

TEST(SharedMemoryTest, OpensOnlyMemoryThatWasMadeWithTheToken) {
  const auto memory = SharedMemory::make(kToken);
  ASSERT_TRUE(memory);
  const SharedMemory::Place place = memory->place();
  EXPECT_FALSE(SharedMemory::open(place, kToken + 1));
  EXPECT_FALSE(SharedMemory::open({place.process, place.file + 1000}, kToken));
  EXPECT_FALSE(SharedMemory::open({0, place.file}, kToken));
  EXPECT_FALSE(SharedMemory::open({place.process, -1}, kToken));
  memory->close_file();
  EXPECT_FALSE(SharedMemory::open(place, kToken));
}

TEST(SharedMemoryTest, OpensNoOtherFiles) {
  const int process = ::getpid();
  std::FILE* const file = std::tmpfile();
  EXPECT_FALSE(SharedMemory::open({process, ::fileno(file)}, kToken));
  std::fclose(file);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(SharedMemory::open({process, ends[0]}, kToken));
  for (const int end : ends) ::close(end);
  // Memory that could be made smaller.
  const Descriptor loose(::memfd_create("loose", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(loose.get(), 4 << 20), 0);
  EXPECT_FALSE(SharedMemory::open({process, loose.get()}, kToken));
}

}  // namespace
}  // namespace gpipe::internal
