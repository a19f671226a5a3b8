// SPDX-License-Identifier: Apache-2.0
#include "fakes/warp_emulation.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace inccl::test {
namespace {

constexpr uint32_t kLanes = 32;
constexpr size_t kStack = size_t{64} << 10;

[[noreturn]] void Diverged(uint32_t lane, const char* how) {
  std::fprintf(stderr, "emulated warp: lane %u %s\n", lane, how);
  std::abort();
}

}  // namespace

// Lanes take turns in a ring, each runs up to its next meeting. What is given at a meeting lies in
// one of two rows in turn, so that no lane overwrites what others still have to read.
struct WarpEmulator::Lanes {
  ucontext_t main;
  ucontext_t contexts[kLanes];
  std::vector<std::byte> stacks = std::vector<std::byte>(kLanes * kStack);
  const std::function<void(const EmulatedWarp&)>* body = nullptr;
  WarpEmulator* warp = nullptr;
  uint32_t given[2][kLanes];
  uint64_t met[kLanes];  // meetings of this run
  bool ended[kLanes];
  uint64_t meetings = 0;

  static void Lane(uint32_t upper, uint32_t lower, uint32_t lane) {
    // makecontext hands on nothing but int.  NOLINTNEXTLINE(performance-no-int-to-ptr)
    auto* self = reinterpret_cast<Lanes*>(uint64_t{upper} << 32 | lower);
    (*self->body)(EmulatedWarp(self->warp, lane));
    self->ended[lane] = true;
    for (uint32_t other = 0; other < lane; ++other) {
      if (!self->ended[other]) Diverged(lane, "ends before lanes in front of it");
    }
    swapcontext(&self->contexts[lane], lane + 1 < kLanes ? &self->contexts[lane + 1] : &self->main);
    Diverged(lane, "is met after its end");
  }

  // The row of this meeting, in which all lanes have put what they give.
  const uint32_t* Meet(uint32_t lane, uint32_t value) {
    uint32_t* row = given[met[lane] % 2];
    row[lane] = value;
    ++met[lane];
    const uint32_t next = (lane + 1) % kLanes;
    if (ended[next]) Diverged(lane, "meets no lane");
    swapcontext(&contexts[lane], &contexts[next]);
    // Those in front are at their next meeting, or at their end; those behind still wait.
    for (uint32_t other = 0; other < kLanes; ++other) {
      const uint64_t due = met[lane] + (other < lane && !ended[other] ? 1 : 0);
      if (met[other] != due) Diverged(other, "is not where the others are");
    }
    return row;
  }
};

WarpEmulator::WarpEmulator() : lanes_(std::make_unique<Lanes>()) { lanes_->warp = this; }
WarpEmulator::~WarpEmulator() = default;

uint64_t WarpEmulator::meetings() const { return lanes_->meetings; }

void WarpEmulator::Run(const std::function<void(const EmulatedWarp&)>& body) {
  Lanes& lanes = *lanes_;
  lanes.body = &body;
  const auto self = reinterpret_cast<uint64_t>(&lanes);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    lanes.met[lane] = 0;
    lanes.ended[lane] = false;
    ucontext_t& context = lanes.contexts[lane];
    getcontext(&context);
    context.uc_stack = {};
    context.uc_stack.ss_sp = lanes.stacks.data() + lane * kStack;
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    makecontext(&context, reinterpret_cast<void (*)()>(Lanes::Lane), 3,
                static_cast<uint32_t>(self >> 32), static_cast<uint32_t>(self), lane);
  }
  swapcontext(&lanes.main, &lanes.contexts[0]);
  lanes.meetings += lanes.met[0];
}

uint32_t EmulatedWarp::Get(uint32_t value, uint32_t lane) const {
  return warp_->lanes_->Meet(lane_, value)[lane % kLanes];
}

bool EmulatedWarp::Any(bool condition) const {
  const uint32_t* all = warp_->lanes_->Meet(lane_, condition ? 1 : 0);
  uint32_t any = 0;
  for (uint32_t lane = 0; lane < kLanes; ++lane) any |= all[lane];
  return any != 0;
}

}  // namespace inccl::test
