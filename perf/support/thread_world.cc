// SPDX-License-Identifier: Apache-2.0
#include "perf/support/thread_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <thread>

#include "perf/support/output.h"
#include "perf/support/shared_barrier.h"

namespace inccl::perf {
namespace {

// What all ranks see: where the others' bytes are.
struct Board {
  explicit Board(int ranks) : bytes(static_cast<size_t>(ranks)) {}
  SharedBarrier barrier{};
  std::vector<std::span<const std::byte>> bytes;
};

class ThreadWorld : public World {
 public:
  ThreadWorld(int rank, int size, Board* board) : rank_(rank), size_(size), board_(board) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status Barrier() override {
    if (board_->barrier.Wait(static_cast<uint32_t>(size_))) return {};
    return RemoteError(fmt::format("rank {}: another rank gave up", rank_));
  }

  Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (mine.empty()) return {};
    return Exchange(mine, [&] {
      for (size_t rank = 0; rank < board_->bytes.size(); ++rank) {
        std::memcpy(all.data() + rank * mine.size(), board_->bytes[rank].data(), mine.size());
      }
    });
  }

  Status Broadcast(std::span<std::byte> bytes) override {
    if (bytes.empty()) return {};
    return Exchange(bytes, [&] {
      if (rank_ != 0) std::memcpy(bytes.data(), board_->bytes[0].data(), bytes.size());
    });
  }

 private:
  template <typename Read>
  Status Exchange(std::span<const std::byte> mine, Read&& read) {
    board_->bytes[static_cast<size_t>(rank_)] = mine;
    if (Status s = Barrier(); !s.ok()) return s;
    read();
    return Barrier();
  }

  const int rank_, size_;
  Board* const board_;
};

}  // namespace

int RunThreads(const std::string& program, int ranks, const std::function<int(World&)>& body) {
  Board board(ranks);
  std::vector<int> codes(static_cast<size_t>(ranks), kExitOk);
  std::vector<std::thread> threads;
  const auto run = [&](int rank) {
    ThreadWorld world(rank, ranks, &board);
    const int code = body(world);
    codes[static_cast<size_t>(rank)] = code;
    if (EndsTheRun(code)) board.barrier.Abort();
  };
  int code = kExitOk;
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back(run, rank);
    } catch (const std::system_error& error) {
      PrintError("{}: thread of rank {}: {}\n", program, rank, error.what());
      board.barrier.Abort();
      code = kExitFailed;
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  return std::max(code, *std::max_element(codes.begin(), codes.end()));
}

}  // namespace inccl::perf
