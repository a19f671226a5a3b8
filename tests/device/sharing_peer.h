// SPDX-License-Identifier: Apache-2.0
//
// A second process with the fake of CUDA's driver, which does what it is told.
#ifndef INCCL_TESTS_DEVICE_SHARING_PEER_H_
#define INCCL_TESTS_DEVICE_SHARING_PEER_H_

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "build_paths.h"
#include "device/device.h"

namespace inccl::test {

#define FAKE_TEXT(x) #x
#define FAKE_SYMBOL(name) FAKE_TEXT(name)
// A function of the fake, by the name that cuda.h has for it.
#define DRIVER(name) (reinterpret_cast<decltype(&(name))>(Symbol(FAKE_SYMBOL(name))))

// Tests for a process without CUDA: forked children lack its threads, as with a real driver.
inline constexpr const char* kNeedsOwnProcess =
    "the tests of another file have started CUDA in this process: run each file in a process of "
    "its own (--source=FILE)";
inline bool CudaHasStarted() {
  return dlopen(INCCL_BINARY_DIR "/tests/fake_driver/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) !=
         nullptr;
}

inline void* Symbol(const char* name) {
  static void* const driver =
      dlopen(INCCL_BINARY_DIR "/tests/fake_driver/libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  return driver == nullptr ? nullptr : dlsym(driver, name);
}

template <typename... Arguments>
int Fake(const char* name, Arguments... arguments) {
  return reinterpret_cast<int (*)(Arguments...)>(Symbol(name))(arguments...);
}

inline Device* CudaDevice() {
  static Device* const device = []() -> Device* {
    (void)Symbol("cuInit");  // the process has loaded the driver
    void* const library = dlopen(INCCL_BINARY_DIR "/src/libinccl_cuda.so.0", RTLD_NOW);
    if (library == nullptr) return nullptr;
    std::array<char, 256> why{};
    const auto entry = reinterpret_cast<DeviceEntry>(dlsym(library, kDeviceEntry));
    bool later = false;
    return entry(Device::kVersion, true, &later, why.data(), why.size());
  }();
  return device;
}

// Runs `held` in a thread, whose next call of this function of the driver waits while `runs` runs.
template <typename Held, typename Runs>
void WhileHeld(const char* call, const Held& held, const Runs& runs) {
  Fake("fake_cuda_hold", call);
  std::thread first(held);
  while (Fake("fake_cuda_holds") == 0) std::this_thread::yield();
  std::atomic<bool> ran{false};
  std::thread second([&] {
    runs();
    ran = true;
  });
  for (int i = 0; i < 10'000 && !ran; ++i) usleep(1000);
  EXPECT_TRUE(ran) << "it waits for a thread that is in " << call;
  EXPECT_EQ(Fake("fake_cuda_hold", static_cast<const char*>(nullptr)), 1);
  first.join();
  second.join();
}

// What the other process is to do, and what came of it.
struct Order {
  enum class What : uint8_t { kShare, kOpen, kClose, kFill, kFirst, kFree, kTouch, kOpened };
  What what;
  int device = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  int value = 0;
  DeviceShare::Handle handle{};
};
struct Answer {
  Code code = Code::kOk;
  char message[400] = {};
  std::byte* memory = nullptr;
  int value = 0;
  DeviceShare share;
};

inline Answer Obey(Device* device, const Order& order) {
  Answer answer;
  const auto take = [&](const Status& status) {
    answer.code = status.code();
    std::snprintf(answer.message, sizeof answer.message, "%s", status.message().c_str());
  };
  switch (order.what) {
    case Order::What::kShare: {
      const Result<std::byte*> made = device->AllocateOn(order.device, order.bytes);
      if (!made.ok()) return take(made.status()), answer;
      const Result<DeviceShare> share = device->Share(*made, order.bytes);
      take(share.status());
      if (share.ok()) answer.share = *share;
      break;
    }
    case Order::What::kOpen: {
      const Result<std::byte*> opened = device->Open(order.device, order.handle);
      take(opened.status());
      if (opened.ok()) answer.memory = *opened;
      if (opened.ok()) answer.value = device->DeviceOf(*opened);
      break;
    }
    case Order::What::kClose: device->Close(order.device, order.memory); break;
    case Order::What::kFill: {
      const std::vector<char> bytes(order.bytes, static_cast<char>(order.value));
      take(device->Copy(order.memory, bytes.data(), order.bytes));
      break;
    }
    case Order::What::kFirst: {
      unsigned char first = 0;
      take(device->Copy(&first, order.memory, 1));
      answer.value = first;
      break;
    }
    case Order::What::kFree: device->FreeOn(order.device, order.memory); break;
    case Order::What::kTouch: {  // by the kernel, as the processor would die of it
      int ends[2] = {};
      if (pipe(ends) != 0) std::abort();
      answer.value = write(ends[1], order.memory, 1) < 0 ? errno : 0;
      for (int end : ends) close(end);
      break;
    }
    case Order::What::kOpened: answer.value = Fake("fake_cuda_opened"); break;
  }
  return answer;
}

// The other process.
class Peer {
 public:
  // Before CUDA starts in this one.
  Peer() {
    int ends[2] = {};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    process_ = fork();
    if (process_ == 0) {
      close(ends[0]);
      Order order;
      while (recv(ends[1], &order, sizeof order, 0) == sizeof order) {
        const Answer answer = Obey(CudaDevice(), order);
        if (send(ends[1], &answer, sizeof answer, 0) != sizeof answer) break;
      }
      _exit(0);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~Peer() {
    close(socket_);
    waitpid(process_, nullptr, 0);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Answer Do(const Order& order) const {
    Answer answer;
    EXPECT_EQ(send(socket_, &order, sizeof order, MSG_NOSIGNAL), ssize_t{sizeof order});
    EXPECT_EQ(recv(socket_, &answer, sizeof answer, 0), ssize_t{sizeof answer});
    return answer;
  }
  Answer Open(int device, const DeviceShare::Handle& handle) const {
    Order order{.what = Order::What::kOpen, .device = device};
    order.handle = handle;
    return Do(order);
  }
  void Close(int device, std::byte* memory) const {
    Do({.what = Order::What::kClose, .device = device, .memory = memory});
  }
  int First(std::byte* memory) const {
    return Do({.what = Order::What::kFirst, .memory = memory}).value;
  }
  int Opened() const { return Do({.what = Order::What::kOpened}).value; }

 private:
  pid_t process_ = -1;
  int socket_ = -1;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_DEVICE_SHARING_PEER_H_
