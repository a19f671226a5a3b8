// SPDX-License-Identifier: Apache-2.0
//
// Regions: who reaches what when, references in slices, and what a peer says that cannot be.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memory/host_allocator.h"
#include "memory/memfd.h"
#include "support/transport_world.h"
#include "transport/shm/shm_transport.h"

namespace inccl {
namespace {

constexpr size_t kBytes = 64 * 1024;

struct File {
  explicit File(uint64_t generation, bool writable = true)
      : memory(*shm::CreateMemfd("test", kBytes, false)) {
    region = {generation, memory.mapping.data(), kBytes, memory.fd.get()};
    region.writable = writable;
  }
  shm::Memfd memory;
  Region region;
};

constexpr int kRanks = 3;
constexpr uint32_t kMostFound = shm::OwnRegions::kMostFound;

// Three ranks, and a lane from rank 0 to rank 1.
class ShmRegionsTest : public ::testing::Test {
 protected:
  ShmRegionsTest() {
    for (int rank = 0; rank < kRanks; ++rank) ends_.push_back(*ShmTransport::Create(rank, kRanks));
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer != rank) Attach(rank, peer);
      }
    }
    LaneSpec spec;
    spec.producer = 0;
    spec.consumers = {1};
    spec.slot_bytes = kBytes;
    spec.depth = 4;
    send_ = *end(0).OpenSend(spec);
    recv_ = *end(1).OpenRecv(spec);
  }
  void Attach(int rank, int peer) {
    std::vector<UniqueFd> fds;
    for (const int fd : end(peer).fds_to_share()) {
      fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    }
    EXPECT_TRUE(end(rank)
                    .Attach(peer, std::move(fds[0]), std::move(fds[1]), std::move(fds[2]),
                            std::move(fds[3]))
                    .ok());
  }
  ShmTransport& end(int rank) { return *ends_[static_cast<size_t>(rank)]; }
  // The region's id; 0 if the transport cannot.
  uint32_t Export(int rank, const Region& region) {
    const Result<uint32_t> id = end(rank).ExportRegion(region);
    EXPECT_TRUE(id.ok() || !id.status().message().empty());
    return id.ok() ? *id : 0;
  }
  // The peer at what is offered, the owner at the answers.
  void Look() {
    for (int rank : {2, 1, 0}) EXPECT_TRUE(end(rank).Progress(0).ok());
  }
  bool ReachableFrom(uint32_t region) const { return send_->ReachableFrom(region); }

  Status Publish(const SliceHeader& header) {
    Result<Span> slot = send_->TryAcquire();
    EXPECT_TRUE(slot.ok() && slot->data != nullptr);
    return send_->Publish(header);
  }
  std::string PeekError() {
    RecvLane::Incoming incoming;
    const Result<bool> there = recv_->TryPeek(&incoming);
    return there.ok() ? "" : there.status().message();
  }

  std::vector<std::unique_ptr<ShmTransport>> ends_;
  std::unique_ptr<SendLane> send_;
  std::unique_ptr<RecvLane> recv_;
};

TEST_F(ShmRegionsTest, ReachedWhenThePeerHasLooked) {
  const File file(7);
  const uint32_t id = Export(0, file.region);
  ASSERT_NE(id, 0u);
  EXPECT_FALSE(ReachableFrom(id));
  Look();
  EXPECT_TRUE(ReachableFrom(id));
  EXPECT_EQ(Export(0, file.region), id);
  EXPECT_FALSE(ReachableFrom(id == 1 ? 2 : 1));
  EXPECT_FALSE(ReachableFrom(0));
}

TEST_F(ShmRegionsTest, ASliceCanLieInARegionAndNameATarget) {
  const File file(7);
  const uint32_t id = Export(0, file.region);
  Look();
  std::memcpy(file.region.data + 4096, "source", 7);
  ASSERT_TRUE(Publish({.bytes = 7, .source = {id, 4096}, .target = {id, 8192}}).ok());
  EXPECT_FALSE(*send_->Drained());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_STREQ(reinterpret_cast<const char*>(incoming.payload), "source");
  EXPECT_NE(incoming.payload, file.region.data + 4096) << "not the peer's own mapping";
  ASSERT_NE(incoming.target, nullptr);
  std::memcpy(incoming.target, "target", 7);
  EXPECT_STREQ(reinterpret_cast<const char*>(file.region.data + 8192), "target");
  ASSERT_TRUE(recv_->Release().ok());
  EXPECT_TRUE(*send_->Drained());
  // The next one says nothing of the sort, and has nothing of it.
  ASSERT_TRUE(Publish({.bytes = 7}).ok());
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_EQ(incoming.target, nullptr);
  EXPECT_EQ(incoming.header.source.region, 0u);
}

// What is wrong with a slice, and whether it is its source, else its target.
using WrongRef = std::pair<RemoteAddress, bool>;
class ShmWrongRefTest : public ShmRegionsTest, public ::testing::WithParamInterface<WrongRef> {};

TEST_P(ShmWrongRefTest, IsAnErrorThatNamesThePeer) {
  const File file(7);
  const uint32_t id = Export(0, file.region);
  ASSERT_EQ(id, 1u);
  Look();
  const auto& [ref, is_source] = GetParam();
  SliceHeader header{.bytes = 7};
  (is_source ? header.source : header.target) = ref;
  ASSERT_TRUE(Publish(header).ok());
  EXPECT_NE(PeekError().find("peer rank 0"), std::string::npos) << PeekError();
}
INSTANTIATE_TEST_SUITE_P(Refs, ShmWrongRefTest,
                         ::testing::Values(WrongRef{{1, kBytes - 6}, true},
                                           WrongRef{{1, kBytes - 6}, false},
                                           WrongRef{{1, kBytes + 1}, true},
                                           WrongRef{{1, UINT64_MAX}, false}, WrongRef{{2, 0}, true},
                                           WrongRef{{33, 0}, false},
                                           WrongRef{{UINT32_MAX, 0}, true}));

TEST_F(ShmRegionsTest, TheRegionUsedLongestAgoMakesRoom) {
  std::vector<std::unique_ptr<File>> files;
  std::vector<uint32_t> ids;
  for (uint64_t generation = 1; generation <= kMostFound + 1; ++generation) {
    files.push_back(std::make_unique<File>(generation));
    ids.push_back(Export(0, files.back()->region));
    ASSERT_NE(ids.back(), 0u);
    if (generation == 2) {
      EXPECT_EQ(Export(0, files[0]->region), ids[0]);
    }
    if (generation == kMostFound) {
      Look();
      for (const uint32_t id : ids) EXPECT_TRUE(ReachableFrom(id));
    }
  }
  EXPECT_EQ(ids.back(), ids[1]);
  EXPECT_FALSE(ReachableFrom(ids.back())) << "the peer has the old one";
  Look();
  EXPECT_TRUE(ReachableFrom(ids.back()));
  files.back()->region.data[0] = std::byte{42};
  ASSERT_TRUE(Publish({.bytes = 1, .source = {ids.back(), 0}}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_EQ(incoming.payload[0], std::byte{42});
}

TEST_F(ShmRegionsTest, FilesThatAreNotWhatWasSaidAreNotMapped) {
  // Not sealed at all.
  UniqueFd plain(memfd_create("plain", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(plain.get(), kBytes), 0);
  const uint32_t first = Export(0, {1, nullptr, kBytes, plain.get()});
  // A size that could change.
  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kBytes), 0);
  const uint32_t second = Export(0, {3, nullptr, kBytes, unsealed.get()});
  // A wrong size.
  const File small(4);
  const uint32_t third = Export(0, {4, small.region.data, 2 * kBytes, small.region.fd});
  // No file at all.
  const uint32_t fourth = Export(0, {5, nullptr, kBytes, -1});
  EXPECT_EQ(fourth, 0u);
  Look();
  for (const uint32_t id : {first, second, third}) {
    EXPECT_NE(id, 0u);
    EXPECT_FALSE(ReachableFrom(id));
  }
}

// As the kernel shows the mapping that `address` lies in: "r--s", "rw-s".
std::string AccessTo(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char access[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) != 3) continue;
    if (at >= begin && at < end) return access;
  }
  return "nothing";
}

// The owner may have closed the descriptor, and its number be another file's, when the peer looks.
TEST_F(ShmRegionsTest, TheFileTravelsWithTheOffer) {
  auto file = std::make_unique<File>(1);
  file->region.data[7] = std::byte{42};
  const uint32_t id = Export(0, file->region);
  const int fd = file->region.fd;
  file.reset();
  const File other(2);
  EXPECT_EQ(dup2(other.region.fd, fd), fd);
  Look();
  EXPECT_TRUE(ReachableFrom(id));
  ASSERT_TRUE(Publish({.bytes = 1, .source = {id, 7}}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_EQ(incoming.payload[0], std::byte{42});
  if (fd != other.region.fd) close(fd);
}

TEST_F(ShmRegionsTest, WhatIsOnlyReadIsMappedForReading) {
  const File input(1, /*writable=*/false), output(2, /*writable=*/true);
  const uint32_t in = Export(0, input.region), out = Export(0, output.region);
  Look();
  ASSERT_TRUE(ReachableFrom(in) && ReachableFrom(out));
  ASSERT_TRUE(Publish({.bytes = 7, .source = {in, 0}, .target = {out, 0}}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_EQ(AccessTo(incoming.payload), "r--s");
  EXPECT_EQ(AccessTo(incoming.target), "rw-s");
  ASSERT_TRUE(recv_->Release().ok());
  ASSERT_TRUE(Publish({.bytes = 7, .target = {in, 0}}).ok());
  EXPECT_NE(PeekError().find("peer rank 0 names 7 bytes at 0 of its region 1, which is not mapped "
                             "to be written"),
            std::string::npos)
      << PeekError();
}

TEST_F(ShmRegionsTest, AnInputThatBecomesAnOutputIsMappedAgain) {
  File file(1, /*writable=*/false);
  const uint32_t id = Export(0, file.region);
  Look();
  ASSERT_TRUE(Publish({.bytes = 7, .source = {id, 0}}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  ASSERT_TRUE(recv_->Release().ok());
  file.region.writable = true;
  ASSERT_EQ(Export(0, file.region), id);
  EXPECT_FALSE(ReachableFrom(id)) << "the peer has not looked again";
  Look();
  ASSERT_TRUE(ReachableFrom(id));
  file.region.writable = false;
  ASSERT_EQ(Export(0, file.region), id);
  EXPECT_TRUE(ReachableFrom(id)) << "a peer that may write may read";
  ASSERT_TRUE(Publish({.bytes = 7, .source = {id, 0}, .target = {id, 4096}}).ok());
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  std::memcpy(incoming.target, "target", 7);
  EXPECT_STREQ(reinterpret_cast<const char*>(file.region.data + 4096), "target");
}

// Rank 2 puts a file of its own into rank 1's inbox as if it were rank 0's.
TEST_F(ShmRegionsTest, AFileThatAnotherRankSentIsNotTaken) {
  const File file(1), other(2);
  const int fds_before = test::CountFds();
  const uint32_t id = Export(0, file.region);
  ASSERT_EQ(id, 1u);
  EXPECT_EQ(shm::SendRegionFile(end(1).fds_to_share()[2], {0, 1, 1}, other.region.fd),
            shm::Sent::kYes);
  Look();
  EXPECT_FALSE(ReachableFrom(id));
  EXPECT_EQ(test::CountFds(), fds_before) << "files that are not mapped are closed";
}

TEST_F(ShmRegionsTest, AFullInboxIsTriedAgain) {
  std::vector<uint32_t> ids;
  std::unique_ptr<File> file;
  // The peer does not look: more files than the kernel queues (a few hundred).
  for (uint64_t generation = 1; generation <= 4000; ++generation) {
    file = std::make_unique<File>(generation);
    ASSERT_NE(Export(0, file->region), 0u);
  }
  const uint32_t id = Export(0, file->region);
  Look();
  ASSERT_FALSE(ReachableFrom(id)) << "the kernel queues more than this test thinks";
  ASSERT_EQ(Export(0, file->region), id);
  Look();
  EXPECT_TRUE(ReachableFrom(id));
}

TEST_F(ShmRegionsTest, WhatIsNoFileForARegionIsDropped) {
  const File file(7);
  const int inbox = end(1).fds_to_share()[2];
  const int fds_before = test::CountFds();
  EXPECT_EQ(send(inbox, "garbage", 7, MSG_DONTWAIT), 7);
  EXPECT_EQ(send(inbox, std::string(4096, 'x').data(), 4096, MSG_DONTWAIT), 4096);
  EXPECT_EQ(send(inbox, "", 0, MSG_DONTWAIT), 0);
  for (const auto& [rank, region] :
       {std::pair(-1, 1u), std::pair(3, 1u), std::pair(0, 0u), std::pair(0, mapped::kRegions + 1),
        std::pair(0, UINT32_MAX)}) {
    EXPECT_EQ(shm::SendRegionFile(inbox, {rank, region, 1}, file.region.fd), shm::Sent::kYes);
  }
  const uint32_t id = Export(0, file.region);
  Look();
  EXPECT_TRUE(ReachableFrom(id));
  // Rank 2's own copy is mapped by the same Look; all descriptors that came are closed.
  EXPECT_EQ(test::CountFds(), fds_before);
}

// Memory of a "device": the handle has its address, which is another one where it is opened.
class Opener final : public RegionImporter {
 public:
  std::byte* Open(const Region::Handle& handle, size_t bytes) override {
    std::byte* memory = nullptr;
    std::memcpy(&memory, handle.data(), sizeof memory);
    if (memory == nullptr) return nullptr;
    EXPECT_EQ(handle.back(), std::byte{0xAB});
    EXPECT_EQ(bytes, kBytes);
    opened.push_back(memory + kDistance);
    return opened.back();
  }
  void Close(std::byte* data) override {
    const auto found = std::find(opened.begin(), opened.end(), data);
    ASSERT_NE(found, opened.end());
    opened.erase(found);
  }

  static constexpr size_t kDistance = 64;
  std::vector<std::byte*> opened;
};

Region OfDevice(uint64_t generation, std::byte* memory) {
  Region region{.generation = generation,
                .data = memory,
                .bytes = kBytes,
                .fd = -1,
                .on_device = true,
                .handle = {}};
  std::memcpy(region.handle.data(), &memory, sizeof memory);
  region.handle.back() = std::byte{0xAB};
  return region;
}

TEST_F(ShmRegionsTest, MemoryOfADeviceIsOpenedByWhoCan) {
  std::vector<std::byte> memory(kBytes + Opener::kDistance);
  const uint32_t id = Export(0, OfDevice(7, memory.data()));
  ASSERT_NE(id, 0u);
  Look();
  EXPECT_FALSE(ReachableFrom(id)) << "the peer has no device";
  Opener opener;
  end(1).exports()->SetImporter(&opener);
  Look();
  EXPECT_TRUE(ReachableFrom(id)) << "it was offered before the peer had one";
  const uint32_t refused = Export(0, OfDevice(8, nullptr));
  Look();
  EXPECT_FALSE(ReachableFrom(refused));
  ASSERT_TRUE(Publish({.bytes = 7, .source = {id, 4096}}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_EQ(incoming.payload, memory.data() + Opener::kDistance + 4096);
  EXPECT_TRUE(recv_->Release().ok());
  EXPECT_TRUE(*send_->Drained());
  end(1).exports()->SetImporter(nullptr);
  EXPECT_TRUE(opener.opened.empty());
  EXPECT_FALSE(ReachableFrom(id));
}

TEST_F(ShmRegionsTest, MemoryOfADeviceMakesRoom) {
  Opener opener;
  end(1).exports()->SetImporter(&opener);
  std::vector<std::byte> memory(4096 * (kMostFound + 9));
  for (uint64_t generation = 1; generation <= kMostFound + 8; ++generation) {
    const uint32_t id = Export(0, OfDevice(generation, &memory[4096 * generation]));
    Look();
    EXPECT_TRUE(ReachableFrom(id));
  }
  EXPECT_EQ(opener.opened.size(), kMostFound);
  end(1).exports()->SetImporter(nullptr);
  EXPECT_TRUE(opener.opened.empty());
}

// What has been read there may be anything by then.
TEST_F(ShmRegionsTest, SlicesInAWithdrawnRegionDoNotCount) {
  Opener opener;
  end(1).exports()->SetImporter(&opener);
  std::vector<std::byte> memory(kBytes + Opener::kDistance);
  const uint32_t kept = Export(0, OfDevice(7, memory.data()));
  const uint32_t withdrawn = Export(0, OfDevice(8, memory.data()));
  Look();
  ASSERT_TRUE(Publish({.bytes = 1, .source = {kept, 0}}).ok());
  ASSERT_TRUE(Publish({.bytes = 1, .source = {withdrawn, 0}}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_TRUE(
      end(0).exports()->RevokeAccess({.region = withdrawn, .on_device = true, .memory = 8}).ok());
  EXPECT_TRUE(recv_->Release().ok());
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  const Status status = recv_->Release();
  EXPECT_EQ(status.code(), Code::kRemoteError);
  EXPECT_NE(status.message().find("peer rank 0 has failed"), std::string::npos) << status.message();
  EXPECT_FALSE(*send_->Drained());
  EXPECT_FALSE(ReachableFrom(withdrawn));
  end(1).exports()->SetImporter(nullptr);
}

// Where a slice refers to the region that its owner replaces too early.
enum class Refers { kSource, kTarget, kBoth };
class ShmRegionInUseTest : public ShmRegionsTest, public ::testing::WithParamInterface<Refers> {
 protected:
  // Rank 0 offers so many others that the first makes room; rank 2 does, too, which is in order.
  void ReplaceTheFirst() {
    for (uint64_t generation = 2; generation <= kMostFound + 1; ++generation) {
      files_.push_back(std::make_unique<File>(generation));
      EXPECT_NE(Export(0, files_.back()->region), 0u);
      EXPECT_NE(Export(2, files_.back()->region), 0u);
    }
  }
  void ExpectErrorOfRank0() {
    const Result<int> progress = end(1).Progress(0);
    ASSERT_FALSE(progress.ok()) << "a region in use was replaced";
    EXPECT_EQ(progress.status().code(), Code::kInternalError);
    const std::string& text = progress.status().message();
    EXPECT_NE(text.find("rank 1: peer rank 0 replaced its region 1,"), std::string::npos) << text;
  }

  std::vector<std::unique_ptr<File>> files_;
};

TEST_P(ShmRegionInUseTest, ItsReplacementIsThePeersError) {
  const File file(1);
  ASSERT_EQ(Export(0, file.region), 1u);
  Look();
  std::memcpy(file.region.data + 4096, "source", 7);
  SliceHeader header{.bytes = 7};
  if (GetParam() != Refers::kTarget) header.source = {1, 4096};
  if (GetParam() != Refers::kSource) header.target = {1, 8192};
  ASSERT_TRUE(Publish(header).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  ReplaceTheFirst();
  ExpectErrorOfRank0();
  // A consumer that peeked at the slice may still be at work: that reads and writes what it was
  // told of.
  if (header.source.region != 0) {
    EXPECT_STREQ(reinterpret_cast<const char*>(incoming.payload), "source");
  }
  if (header.target.region != 0) {
    std::memcpy(incoming.target, "target", 7);
    EXPECT_STREQ(reinterpret_cast<const char*>(file.region.data + 8192), "target");
  }
  // A source that does not count any more is no slice that can be released.
  EXPECT_EQ(recv_->Release().ok(), GetParam() == Refers::kTarget);
  if (GetParam() != Refers::kTarget) ExpectErrorOfRank0();
  recv_.reset();  // lanes go first when a transport ends
  EXPECT_TRUE(end(1).Progress(0).ok());
}
INSTANTIATE_TEST_SUITE_P(Refs, ShmRegionInUseTest,
                         ::testing::Values(Refers::kSource, Refers::kTarget, Refers::kBoth));

TEST_F(ShmRegionInUseTest, ADeviceMayStillCopyOutOfIt) {
  Opener opener;
  end(1).exports()->SetImporter(&opener);
  std::vector<std::byte> memory(kBytes + Opener::kDistance, std::byte{42});
  ASSERT_EQ(Export(0, OfDevice(1, memory.data())), 1u);
  Look();
  ASSERT_TRUE(Publish({.bytes = 7, .source = {1, 0}}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  std::byte copied{};
  const std::function<void()> pending_copy = [&] { copied = *incoming.payload; };
  ReplaceTheFirst();
  ExpectErrorOfRank0();
  EXPECT_EQ(opener.opened.size(), 1u) << "closed while a copy out of it was pending";
  pending_copy();
  EXPECT_EQ(copied, std::byte{42});
  EXPECT_EQ(recv_->Release().code(), Code::kRemoteError);
  // The end: the opener goes before the lane.
  end(1).exports()->SetImporter(nullptr);
  EXPECT_TRUE(opener.opened.empty());
  recv_.reset();
}

// More regions than one block of the table has, each with its own file.
TEST_F(ShmRegionsTest, AsManyRegionsAsAreKept) {
  const int fds_before = test::CountFds();
  std::vector<std::unique_ptr<File>> files;
  std::vector<uint32_t> ids;
  for (uint64_t generation = 1; generation <= 100; ++generation) {
    files.push_back(std::make_unique<File>(generation));
    files.back()->region.data[9] = static_cast<std::byte>(generation);
    const Result<uint32_t> id = end(0).ExportRegion(files.back()->region, /*keep=*/true);
    ASSERT_TRUE(id.ok()) << id.status().message();
    ids.push_back(*id);
    if (generation == 1) Look();  // later blocks of answers are found, too
  }
  Look();
  RecvLane::Incoming incoming;
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(ReachableFrom(ids[i])) << i;
    ASSERT_TRUE(Publish({.bytes = 1, .source = {ids[i], 9}}).ok());
    ASSERT_TRUE(*recv_->TryPeek(&incoming));
    EXPECT_EQ(incoming.payload[0], files[i]->region.data[9]);
    ASSERT_TRUE(recv_->Release().ok());
  }
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size());
  EXPECT_EQ(test::CountFds(), fds_before + 100) << "peers close what they have mapped";
}

TEST_F(ShmRegionsTest, KeptRegionsMakeNoRoom) {
  const File kept(1), other(2);
  const uint32_t id = *end(0).ExportRegion(kept.region, /*keep=*/true);
  EXPECT_EQ(*end(0).ExportRegion(kept.region, /*keep=*/true), id);
  std::memcpy(kept.region.data, "kept", 5);
  Look();
  for (uint64_t generation = 10; generation < 10 + 3 * kMostFound; ++generation) {
    Region region = other.region;
    region.generation = generation;
    EXPECT_NE(Export(0, region), id);
  }
  Look();
  EXPECT_TRUE(ReachableFrom(id));
  ASSERT_TRUE(Publish({.bytes = 5, .source = {id, 0}}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_STREQ(reinterpret_cast<const char*>(incoming.payload), "kept");
  ASSERT_TRUE(recv_->Release().ok());
  // Each registration has to end before the region makes room.
  for (const bool last : {false, true}) {
    end(0).exports()->Deregister({.region = id, .memory = 1});
    bool replaced = false;
    for (uint64_t generation = 200; generation < 200 + 2 * kMostFound; ++generation) {
      Region region = other.region;
      region.generation = generation + (last ? 1000 : 0);
      replaced = Export(0, region) == id || replaced;
    }
    EXPECT_EQ(replaced, last);
  }
}

// Memory of ccl_mem_alloc that peers can map.
class Piece {
 public:
  explicit Piece(size_t size = size_t{1} << 20)
      : data(static_cast<std::byte*>(*HostAllocator::Instance().Allocate(size))), bytes(size) {}
  ~Piece() { Free(); }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;
  void Free() {
    if (data == nullptr) return;
    EXPECT_TRUE(HostAllocator::Instance().Free(data).ok());
    data = nullptr;
  }

  std::byte* data;
  const size_t bytes;
};

constexpr Registration kKept = {.access = Access::kReadWrite, .on_device = false, .keep = true};

TEST_F(ShmRegionsTest, ThereIsAReasonWhenTooManyAreKept) {
  std::vector<std::unique_ptr<Piece>> pieces;
  std::vector<MemoryHandle> kept;
  const auto next = [&] {
    pieces.push_back(std::make_unique<Piece>());
    Result<MemoryHandle> memory = end(0).exports()->Register(pieces.back()->data, 1 << 20, kKept);
    if (memory.ok()) kept.push_back(*memory);
    return memory.ok() ? "" : memory.status().message();
  };
  while (kept.size() < shm::OwnRegions::kMostKept) {
    const std::string reason = next();
    if (reason.find("not memory of ccl_mem_alloc") != std::string::npos) {
      GTEST_SKIP() << "this process may not have so many files";
    }
    ASSERT_EQ(reason, "");
  }
  EXPECT_EQ(next(),
            "1024 regions are registered, the most that a rank exports; ccl_comm_deregister makes "
            "room");
  const Result<MemoryHandle> found = end(0).exports()->Register(pieces.back()->data, 1 << 20, {});
  EXPECT_TRUE(found.ok()) << "calls still find theirs";
  // A second registration of memory that is kept takes no place.
  EXPECT_TRUE(end(0).exports()->Register(pieces[3]->data, 1 << 20, kKept).ok());
  pieces[7]->Free();
  EXPECT_EQ(next(), "") << "that of memory that was freed has ended";
  EXPECT_NE(next(), "");
  end(0).exports()->Deregister(kept[11]);
  EXPECT_EQ(next(), "");
  EXPECT_NE(next(), "");
  end(0).exports()->Deregister(kept[7]);  // has ended already
  EXPECT_NE(next(), "");
}

TEST_F(ShmRegionsTest, DeregisteredWhileAPeerReads) {
  auto piece = std::make_unique<Piece>();
  const Result<MemoryHandle> memory = end(0).exports()->Register(piece->data, piece->bytes, kKept);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  Look();
  ASSERT_TRUE(ReachableFrom(memory->region));
  std::memcpy(piece->data + 4096, "source", 7);
  ASSERT_TRUE(Publish({.bytes = 7, .source = memory->At(piece->data + 4096, 7)}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  end(0).exports()->Deregister(*memory);
  Look();
  EXPECT_STREQ(reinterpret_cast<const char*>(incoming.payload), "source");
  EXPECT_TRUE(recv_->Release().ok());
  EXPECT_TRUE(*send_->Drained());
  // Then others may take its place, and its caller may free it, in any order.
  piece->Free();
  const File other(1);
  bool replaced = false;
  for (uint64_t generation = 1000; generation < 1000 + 2 * kMostFound; ++generation) {
    Region region = other.region;
    region.generation = generation;
    replaced = Export(0, region) == memory->region || replaced;
  }
  EXPECT_TRUE(replaced);
  Look();
}

TEST_F(ShmRegionsTest, AHandleHasTheWholePagesOfItsBuffer) {
  const Piece piece;
  const Result<MemoryHandle> memory = end(0).exports()->Register(piece.data + 100, 3 * 4096, {});
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->begin, piece.data + 4096);
  EXPECT_EQ(memory->end, piece.data + 3 * 4096);
  EXPECT_EQ(memory->At(piece.data + 4096, 2 * 4096).offset, 4096u);
  EXPECT_EQ(memory->At(piece.data + 4096, 2 * 4096).region, memory->region);
  EXPECT_EQ(memory->At(piece.data + 4096, 2 * 4096 + 1).region, 0u);
  EXPECT_EQ(memory->At(piece.data + 4095, 1).region, 0u);
}

TEST_F(ShmRegionsTest, WhyMemoryCannotBeRegistered) {
  const auto expect = [&](const void* data, size_t bytes, bool on_device, const char* reason) {
    const Status status = end(0).exports()->CanRegister(data, bytes, on_device);
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
    const Result<MemoryHandle> memory =
        end(0).exports()->Register(data, bytes, {.on_device = on_device});
    EXPECT_FALSE(memory.ok());
    EXPECT_FALSE(memory.status().message().empty());
  };
  const std::vector<std::byte> other(size_t{2} << 20);
  const Piece small(1000);
  expect(other.data(), other.size(), false, "not memory of ccl_mem_alloc");
  expect(other.data(), other.size(), true, "not memory of ccl_mem_alloc_device");
  expect(small.data, 1000, false, "memory of ccl_mem_alloc of less than 1048576 bytes");
  Piece piece;
  EXPECT_TRUE(end(0).exports()->CanRegister(piece.data, piece.bytes, false).ok());
  expect(piece.data, piece.bytes + 1, false, "not memory of ccl_mem_alloc");
  expect(piece.data + 1, 8190, false, "without a whole page");
  expect(other.data(), other.size(), false, "not memory of ccl_mem_alloc");
  const Result<MemoryHandle> memory = end(0).exports()->Register(piece.data, piece.bytes, {});
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(end(0).exports()->RevokeAccess(*memory).ok());
  expect(piece.data, piece.bytes, false, "a call on this memory of ccl_mem_alloc has failed");
}

// What a failed call has read stays its caller's, and what it has written is lost.
TEST_F(ShmRegionsTest, RevokedMemory) {
  const Piece input, output;
  std::memset(input.data, 1, input.bytes);
  std::memset(output.data, 2, output.bytes);
  const MemoryHandle in = *end(0).exports()->Register(input.data, input.bytes, {});
  const MemoryHandle out = *end(0).exports()->Register(output.data, output.bytes, kKept);
  Look();
  ASSERT_TRUE(
      Publish({.bytes = 7, .source = in.At(input.data, 7), .target = out.At(output.data, 7)}).ok());
  RecvLane::Incoming incoming;
  ASSERT_TRUE(*recv_->TryPeek(&incoming));
  EXPECT_TRUE(end(0).exports()->RevokeAccess({}).ok());
  EXPECT_TRUE(end(0).exports()->RevokeAccess(out).ok());
  EXPECT_TRUE(end(0).exports()->RevokeAccess(in).ok());
  EXPECT_EQ(input.data[6], std::byte{1});
  EXPECT_EQ(output.data[6], std::byte{0});
  std::memset(incoming.target, 3, 7);
  EXPECT_EQ(output.data[6], std::byte{0}) << "a late peer has written into it";
  input.data[6] = std::byte{4};
  EXPECT_EQ(incoming.payload[6], std::byte{1}) << "a late peer sees what its owner does now";
}

}  // namespace
}  // namespace inccl
