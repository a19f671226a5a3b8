// SPDX-License-Identifier: Apache-2.0
//
// Memory that the application registers reaches the transport between calls, and only as long as it
// is registered.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

#include "base/rng.h"
#include "communicator/recording_transport.h"
#include "communicator/zero_copy.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

TEST(RegistrationsTest, ChangesReachTheTransportBetweenCalls) {
  RecordingTransport transport;
  Registrations registrations("rank 0/2", &transport);
  std::array<char, 100> memory{};
  void* const host = registrations.Add(memory.data(), 40, false);
  void* const device = registrations.Add(memory.data() + 50, 20, true);
  ASSERT_NE(host, nullptr);
  ASSERT_NE(device, nullptr);
  EXPECT_TRUE(transport.registered.empty()) << "a call may be in progress";
  registrations.Apply();
  registrations.Apply();
  ASSERT_EQ(transport.registered.size(), 2u);
  const auto& first = transport.registered[0];
  EXPECT_EQ(first.data, memory.data());
  EXPECT_EQ(first.bytes, 40u);
  EXPECT_FALSE(first.how.on_device);
  EXPECT_TRUE(first.how.keep);
  EXPECT_EQ(first.how.access, Access::kReadWrite) << "the application may receive into it";
  const auto& second = transport.registered[1];
  EXPECT_EQ(second.data, memory.data() + 50);
  EXPECT_EQ(second.bytes, 20u);
  EXPECT_TRUE(second.how.on_device);
  EXPECT_TRUE(second.how.keep);
  EXPECT_EQ(second.how.access, Access::kRead) << "peers only read device memory";

  EXPECT_TRUE(registrations.Remove(host));
  EXPECT_EQ(transport.exported.size(), 2u);
  registrations.Apply();
  EXPECT_EQ(transport.exported, std::set<uint32_t>{2});
  EXPECT_FALSE(registrations.Remove(host)) << "it is gone";
  EXPECT_FALSE(registrations.Remove(nullptr));
  EXPECT_NE(registrations.Add(memory.data(), 40, false), host) << "handles are not used again";
}

// What is gone before the next call was never there: its memory may have been freed since.
TEST(RegistrationsTest, MemoryThatIsGoneBeforeTheNextCallIsNotExported) {
  RecordingTransport transport;
  Registrations registrations("rank 0/2", &transport);
  std::array<char, 3> memory{};
  std::array<void*, 3> handles{};
  for (size_t i = 0; i < 3; ++i) handles[i] = registrations.Add(&memory[i], 1, false);
  EXPECT_TRUE(registrations.Remove(handles[1]));
  registrations.Apply();
  ASSERT_EQ(transport.registered.size(), 2u);
  EXPECT_EQ(transport.registered[0].data, &memory[0]);
  EXPECT_EQ(transport.registered[1].data, &memory[2]);
  EXPECT_EQ(transport.unknown, 0) << "and nothing of it is taken back";
}

TEST(RegistrationsTest, RandomChangesLeaveExactlyWhatIsRegistered) {
  RecordingTransport transport;
  Registrations registrations("rank 0/2", &transport);
  Rng rng(TestSeed());
  std::vector<char> memory(2000);
  std::map<void*, const void*> live;
  size_t next = 0;
  for (int i = 0; i < 3000; ++i) {
    const uint64_t what = rng.Below(5);
    if (what < 2 && next < memory.size()) {
      const void* const data = &memory[next++];
      live[registrations.Add(data, 1, false)] = data;
    } else if (what < 4 && !live.empty()) {
      const auto gone = std::next(live.begin(), static_cast<ptrdiff_t>(rng.Below(live.size())));
      ASSERT_TRUE(registrations.Remove(gone->first));
      live.erase(gone);
    } else {
      registrations.Apply();
      ASSERT_EQ(transport.exported.size(), live.size());
      std::set<const void*> exported, expected;
      for (const uint32_t region : transport.exported) {
        exported.insert(transport.registered[region - 1].data);
      }
      for (const auto& [handle, data] : live) expected.insert(data);
      ASSERT_EQ(exported, expected);
    }
  }
  EXPECT_EQ(transport.unknown, 0);
}

// The calls that use such memory go through slots; the handle is good for Remove all the same.
TEST(RegistrationsTest, ARefusalIsNoError) {
  RecordingTransport transport;
  Registrations registrations("rank 0/2", &transport);
  char memory = 0;
  transport.can_register = false;
  EXPECT_EQ(registrations.Add(&memory, 1, false), nullptr);
  transport.can_register = true;
  transport.refuses_register = "no place";
  void* const refused = registrations.Add(&memory, 1, false);
  ASSERT_NE(refused, nullptr);
  registrations.Apply();
  transport.refuses_register.clear();
  registrations.Apply();
  EXPECT_TRUE(transport.registered.empty()) << "it asks once";
  EXPECT_TRUE(registrations.Remove(refused));
  registrations.Apply();
  EXPECT_EQ(transport.unknown, 0) << "nothing was exported";
}

}  // namespace
}  // namespace inccl::test
