// SPDX-License-Identifier: Apache-2.0
//
// ccl_comm_register: peers have the memory before the first call on it, and it keeps its place; for
// memory that peers cannot map, the call succeeds and says why.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/fault_point.h"
#include "world/process_world.h"
#include "world/world.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 2;
constexpr size_t kSlice = 8192;
constexpr size_t kCount = 65 * kSlice;  // floats, whole slices for every rank
// The slices of an input that its peer sums: all of one half.
constexpr uint64_t kSlices = kCount * sizeof(float) / kRanks / kSlice;

std::string Content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Slices that this process has published without a copy since the last Count().
uint64_t InPlace() { return fault::Hits(fault::IndexOf("zero_copy.after_publish")); }
void Count() { fault::Arm({}); }

// Memory of ccl_mem_alloc.
class Buffer {
 public:
  explicit Buffer(size_t bytes = kCount * sizeof(float)) {
    EXPECT_EQ(ccl_mem_alloc(&data_, bytes), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  }
  ~Buffer() { Free(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void Free() {
    EXPECT_EQ(ccl_mem_free(data_), CCL_SUCCESS);
    data_ = nullptr;
  }
  void* data() const { return data_; }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
};

void* Register(ccl_comm_t comm, void* data, size_t bytes = kCount * sizeof(float)) {
  void* handle = &handle;
  EXPECT_EQ(ccl_comm_register(comm, data, bytes, &handle), CCL_SUCCESS) << ccl_get_last_error(comm);
  return handle;
}

// Every rank has looked at what its peers had exported before, and knows that they have.
void Meet(ccl_comm_t comm) {
  for (int i = 0; i < 2; ++i) {
    float one = 1.0f;
    EXPECT_EQ(ccl_allreduce(&one, &one, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS)
        << ccl_get_last_error(comm);
    EXPECT_EQ(one, static_cast<float>(kRanks));
  }
}

// Sums in place and checks the result.
void Sum(float* data, int rank, int round, ccl_comm_t comm) {
  const auto value = [round](int of, size_t i) {
    return static_cast<float>(i % 1000 + static_cast<size_t>(7 * round + of));
  };
  for (size_t i = 0; i < kCount; ++i) data[i] = value(rank, i);
  ASSERT_EQ(ccl_allreduce(data, data, kCount, CCL_FLOAT32, CCL_SUM, comm, nullptr), CCL_SUCCESS)
      << ccl_get_last_error(comm);
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; ++i) wrong += data[i] != value(0, i) + value(1, i);
  EXPECT_EQ(wrong, 0u) << "rank " << rank << " round " << round;
}

class RegistrationTest : public ::testing::Test {
 protected:
  static void InProcesses(const std::function<void(const Side&, ccl_comm_t)>& body,
                          bool baseline = true) {
    ProcessWorld world(
        {.nranks = kRanks, .deadline_seconds = 100.0 * kSlowness, .baseline = baseline},
        [&](const Side& side) {
          ccl_comm_t comm = nullptr;
          if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
          body(side, comm);
          fault::Disarm();
          return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
        });
    world.ExpectAllExited();
  }

 private:
  const ScopedEnv env_{{{"INCCL_TRANSPORT", "shm"},
                        {"INCCL_SLICE_BYTES", std::to_string(kSlice).c_str()},
                        {"INCCL_ALGO", "allreduce:direct_two_shot,direct_one_shot"}}};
};

TEST_F(RegistrationTest, TheFirstCallCopiesNothing) {
  InProcesses([](const Side& side, ccl_comm_t comm) {
    const Buffer buffer;
    void* const handle = Register(comm, buffer.data());
    EXPECT_NE(handle, nullptr);
    Meet(comm);
    Count();
    Sum(buffer.floats(), side.rank(), 0, comm);
    EXPECT_EQ(InPlace(), kSlices);
    EXPECT_EQ(ccl_comm_deregister(comm, handle), CCL_SUCCESS);
    EXPECT_EQ(ccl_comm_deregister(comm, handle), CCL_INVALID_ARGUMENT);
    Sum(buffer.floats(), side.rank(), 1, comm);
  });
}

// As many as a model has gradients, used in turn: more than calls find and keep by themselves.
TEST_F(RegistrationTest, ManyBuffersKeepTheirPlaces) {
  InProcesses([](const Side& side, ccl_comm_t comm) {
    std::vector<std::unique_ptr<Buffer>> buffers;
    for (int i = 0; i < 40; ++i) {
      buffers.push_back(std::make_unique<Buffer>());
      EXPECT_NE(Register(comm, buffers.back()->data()), nullptr);
    }
    Meet(comm);
    for (int round = 0; round < 2; ++round) {
      for (const auto& buffer : buffers) {
        Count();
        Sum(buffer->floats(), side.rank(), round, comm);
        ASSERT_EQ(InPlace(), kSlices) << "round " << round;
      }
    }
  });
}

TEST_F(RegistrationTest, FreedWhileRegistered) {
  InProcesses([](const Side& side, ccl_comm_t comm) {
    for (int round = 0; round < 20; ++round) {
      Buffer buffer;
      void* const handle = Register(comm, buffer.data());
      Sum(buffer.floats(), side.rank(), round, comm);
      buffer.Free();
      const Buffer other;  // often at the same address
      Sum(other.floats(), side.rank(), round + 1, comm);
      if (round % 2 == 0) {
        EXPECT_EQ(ccl_comm_deregister(comm, handle), CCL_SUCCESS);
      }
    }
  });
}

// One thread registers while another one is in a call that cannot end yet.
TEST_F(RegistrationTest, BesideACallInProgress) {
  InProcesses([](const Side& side, ccl_comm_t comm) {
    const Buffer used, registered, gone;
    float* const data = used.floats();
    for (size_t i = 0; i < kCount; ++i) data[i] = 1.0f;
    if (side.rank() == 0) {
      ccl_stream_t stream = nullptr;
      ASSERT_EQ(ccl_stream_create(&stream), CCL_SUCCESS);
      ASSERT_EQ(ccl_allreduce(data, data, kCount, CCL_FLOAT32, CCL_SUM, comm, stream), CCL_SUCCESS);
      void* const handle = Register(comm, gone.data());
      EXPECT_NE(handle, nullptr);
      EXPECT_NE(Register(comm, registered.data()), nullptr);
      EXPECT_EQ(ccl_comm_deregister(comm, handle), CCL_SUCCESS);
      EXPECT_EQ(ccl_stream_query(stream), CCL_IN_PROGRESS);
      side.mine().stage = 1;  // now the peer begins the call, too
      EXPECT_EQ(ccl_stream_synchronize(stream), CCL_SUCCESS) << ccl_get_last_error(comm);
      EXPECT_EQ(ccl_stream_destroy(stream), CCL_SUCCESS);
    } else {
      EXPECT_NE(Register(comm, registered.data()), nullptr);
      EXPECT_TRUE(side.Await(0, 1));
      ASSERT_EQ(ccl_allreduce(data, data, kCount, CCL_FLOAT32, CCL_SUM, comm, nullptr),
                CCL_SUCCESS);
    }
    EXPECT_EQ(std::count(data, data + kCount, 2.0f), static_cast<ptrdiff_t>(kCount));
    Meet(comm);
    Count();
    Sum(registered.floats(), side.rank(), 0, comm);
    EXPECT_EQ(InPlace(), kSlices);
  });
}

// One thread calls, another one registers: no call finds the communicator in use.
TEST_F(RegistrationTest, CallsWhileAnotherThreadRegisters) {
  InProcesses([](const Side&, ccl_comm_t comm) {
    const Buffer buffer;
    std::atomic<bool> stop{false};
    std::thread registering([&] {
      for (int i = 0; !stop.load() || i < 100; ++i) {
        EXPECT_EQ(ccl_comm_deregister(comm, Register(comm, buffer.data())), CCL_SUCCESS);
      }
    });
    for (int i = 0; i < (kSanitized ? 50 : 300); ++i) Meet(comm);
    stop.store(true);
    registering.join();
  });
}

TEST_F(RegistrationTest, MemoryThatPeersCannotMap) {
  const std::string log = ::testing::TempDir() + "registration_test." + std::to_string(getpid());
  {
    const ScopedEnv env({{"INCCL_DEBUG", "INFO"},
                         {"INCCL_DEBUG_SUBSYS", "TRANSPORT"},
                         {"INCCL_DEBUG_FILE", (log + ".%p").c_str()}});
    InProcesses(
        [&log](const Side& side, ccl_comm_t comm) {
          std::vector<float> ordinary(kCount);
          EXPECT_EQ(Register(comm, ordinary.data()), nullptr);
          const Buffer small(1000);
          EXPECT_EQ(Register(comm, small.data(), 1000), nullptr);
          EXPECT_EQ(ccl_comm_deregister(comm, nullptr), CCL_SUCCESS);
          EXPECT_EQ(ccl_comm_deregister(comm, &ordinary), CCL_INVALID_ARGUMENT);
          Sum(ordinary.data(), side.rank(), 0, comm);
          const std::string file = log + "." + std::to_string(getpid()), text = Content(file);
          const auto expect = [&](const std::string& line) {
            EXPECT_NE(text.find(line), std::string::npos) << text;
          };
          expect(
              fmt::format("rank {}/2: {} bytes of the host at {} are not registered: not memory of "
                          "ccl_mem_alloc",
                          side.rank(), kCount * sizeof(float),
                          fmt::ptr(static_cast<const void*>(ordinary.data()))));
          expect(fmt::format(
              "1000 bytes of the host at {} are not registered: memory of ccl_mem_alloc "
              "of less than 1048576 bytes",
              fmt::ptr(small.data())));
          std::remove(file.c_str());
        },
        /*baseline=*/false);  // the log's file stays open
  }
}

}  // namespace
}  // namespace inccl::test
