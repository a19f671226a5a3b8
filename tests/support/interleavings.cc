// SPDX-License-Identifier: Apache-2.0
#include "support/interleavings.h"

#include <fmt/format.h>

namespace inccl::test {
namespace {

bool Acquires(std::memory_order order) {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}
bool Releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

}  // namespace

Interleavings::Outcome Interleavings::Explore(const std::function<std::vector<Body>()>& make,
                                              const Body& check) {
  Interleavings all;
  current_ = &all;
  Outcome outcome;
  do {
    all.at_ = 0;
    all.index_.clear();
    all.words_.clear();
    all.plain_.clear();
    all.trace_.clear();
    all.threads_.clear();
    all.threads_.push_back(std::make_unique<Thread>());
    all.running_ = 0;
    all.Run(make());
    if (all.failure_.empty() && check) {
      for (const auto& thread : all.threads_) all.threads_[0]->known.Join(thread->known);
      all.running_ = 0;
      check();
    }
    if (++outcome.runs > kMostRuns) all.Fail("more runs than a test may take");
  } while (all.failure_.empty() && all.NextRun());
  outcome.failure = all.failure_;
  // Threads that wait for ever are left as they are.
  static auto* const kept = new std::vector<std::unique_ptr<char[]>>;
  for (auto& thread : all.threads_) {
    if (!thread->done) kept->push_back(std::move(thread->stack));
  }
  current_ = nullptr;
  return outcome;
}

bool Interleavings::NextRun() {
  while (!choices_.empty() && choices_.back().taken + 1 == choices_.back().of) choices_.pop_back();
  if (choices_.empty()) return false;
  ++choices_.back().taken;
  return true;
}

size_t Interleavings::Choose(size_t of) {
  if (of == 1) return 0;
  if (at_ == choices_.size()) choices_.push_back({0, of});
  return choices_[at_++].taken;
}

void Interleavings::Fail(const std::string& what) {
  if (!failure_.empty()) return;
  failure_ = what;
  for (const Taken& step : trace_) {
    failure_ += fmt::format("\n  thread {}: {} of word {}: {}{}", step.thread, step.name, step.word,
                            step.value, step.stale ? ", stale" : "");
  }
}

void Interleavings::Enter() {
  Interleavings& all = Get();
  Thread& self = *all.threads_[all.running_];
  self.body();
  self.done = true;
  swapcontext(&self.context, &all.scheduler_);
}

void Interleavings::Run(std::vector<Body> bodies) {
  for (Body& body : bodies) {
    auto thread = std::make_unique<Thread>();
    thread->body = std::move(body);
    thread->known = threads_[0]->known;
    thread->stack.reset(new char[kStackBytes]);
    getcontext(&thread->context);
    thread->context.uc_stack.ss_sp = thread->stack.get();
    thread->context.uc_stack.ss_size = kStackBytes;
    makecontext(&thread->context, &Interleavings::Enter, 0);
    threads_.push_back(std::move(thread));
  }
  const auto resume = [&](size_t i) {
    running_ = i;
    swapcontext(&scheduler_, &threads_[i]->context);
  };
  for (size_t i = 1; i < threads_.size(); ++i) resume(i);  // to its first step
  std::vector<bool> sleeps(threads_.size());  // what begins with its step has been tried
  redundant_ = false;
  for (uint64_t step = 0; failure_.empty(); ++step) {
    std::vector<size_t> can_run, to_try;
    bool all_done = true;
    for (size_t i = 1; i < threads_.size(); ++i) {
      all_done = all_done && threads_[i]->done;
      if (!CanRun(*threads_[i])) continue;
      can_run.push_back(i);
      if (!sleeps[i]) to_try.push_back(i);
    }
    if (all_done) return;
    if (can_run.empty()) return Fail("threads wait, and nothing wakes them");
    if (step > kMostSteps) return Fail("a run has no end");
    redundant_ = redundant_ || to_try.empty();  // from here on it only has to end
    const size_t taken = redundant_ ? 0 : Choose(to_try.size());
    const size_t next = redundant_ ? can_run.front() : to_try[taken];
    for (size_t i = 0; i < taken; ++i) sleeps[to_try[i]] = true;
    for (size_t i = 1; i < threads_.size(); ++i) {
      if (sleeps[i] && Depend(*threads_[i], *threads_[next])) sleeps[i] = false;
    }
    resume(next);
  }
}

// Ends when the scheduler lets this thread take the step.
void Interleavings::Step(size_t word, Kind kind, const char* name) {
  if (running_ == 0) return;  // alone
  Thread& self = *threads_[running_];
  self.word = word;
  self.kind = kind;
  self.name = name;
  swapcontext(&self.context, &scheduler_);
  ++Knowledge::At(&self.known.steps, running_);
  trace_.push_back({running_, word, name, 0, false});
}

size_t Interleavings::Find(const void* word, uint64_t initial) {
  const auto [found, is_new] = index_.emplace(word, words_.size());
  if (is_new) words_.push_back({{{.value = initial, .released = false, .handed_on = {}}}});
  return found->second;
}

uint64_t Interleavings::Load(const void* word, std::memory_order order, uint64_t initial) {
  const size_t index = Find(word, initial);
  Step(index, Kind::kRead, "load");
  Thread& self = *threads_[running_];
  const Word& read = words_[index];
  size_t& known = Knowledge::At(&self.known.stores, index);
  size_t oldest = known;
  if (order == std::memory_order_seq_cst) oldest = std::max(oldest, read.consistent);
  const size_t newest = read.stores.size() - 1;
  const size_t choices = running_ == 0 || redundant_ ? 1 : newest - oldest + 1;
  known = newest - Choose(choices);
  const StoreRecord& store = read.stores[known];
  const uint64_t value = store.value;
  Note(value, known < newest);
  if (Acquires(order) && store.released) self.known.Join(Knowledge(store.handed_on));
  return value;
}

void Interleavings::Write(size_t word, uint64_t value, bool release, bool consistent,
                          bool keeps_chain) {
  Thread& self = *threads_[running_];
  Word& written = words_[word];
  Knowledge::At(&self.known.stores, word) = written.stores.size();
  StoreRecord store;
  store.value = value;
  if (keeps_chain && written.stores.back().released) {
    store.released = true;
    store.handed_on = written.stores.back().handed_on;
  }
  if (release) {
    store.released = true;
    store.handed_on.Join(self.known);
  }
  written.stores.push_back(std::move(store));
  if (consistent) written.consistent = written.stores.size() - 1;
}

void Interleavings::Store(const void* word, std::memory_order order, uint64_t initial,
                          uint64_t value) {
  const size_t index = Find(word, initial);
  Step(index, Kind::kWrite, "store");
  Note(value);
  Write(index, value, Releases(order), order == std::memory_order_seq_cst, false);
}

uint64_t Interleavings::Change(const void* word, std::memory_order order, uint64_t initial,
                               const std::function<uint64_t(uint64_t)>& change) {
  const size_t index = Find(word, initial);
  Step(index, Kind::kWrite, "change");
  const StoreRecord old = words_[index].stores.back();
  if (Acquires(order) && old.released) threads_[running_]->known.Join(old.handed_on);
  const uint64_t value = change(old.value);
  Note(value);
  Write(index, value, Releases(order), order == std::memory_order_seq_cst, true);
  return old.value;
}

void Interleavings::FutexWait(const void* word, uint64_t initial, uint64_t token) {
  const size_t index = Find(word, initial);
  Step(index, Kind::kWrite, "futex wait");
  if (words_[index].stores.back().value != token) return;
  Thread& self = *threads_[running_];
  self.asleep = true;
  swapcontext(&self.context, &scheduler_);
}

void Interleavings::FutexWake(const void* word) {
  const size_t index = Find(word, 0);
  Step(index, Kind::kWrite, "futex wake");
  for (const auto& thread : threads_) {
    if (thread->word == index) thread->asleep = false;
  }
}

void Interleavings::EventFdWrite(int fd) {
  const size_t index = FindFd(fd);
  Step(index, Kind::kWrite, "write to the eventfd");
  Write(index, words_[index].stores.back().value + 1, false, false, false);
}

bool Interleavings::EventFdRead(int fd) {
  const size_t index = FindFd(fd);
  Step(index, Kind::kWrite, "read of the eventfd");
  const bool readable = words_[index].stores.back().value != 0;
  Write(index, 0, false, false, false);
  return readable;
}

void Interleavings::EventFdPoll(int fd) { Step(FindFd(fd), Kind::kPoll, "poll of the eventfd"); }

void Interleavings::Access(const void* memory, bool writes) {
  if (running_ == 0) return;  // before all threads, or after them
  const std::vector<size_t>& known = threads_[running_]->known.steps;
  Plain& plain = plain_[memory];
  const auto check = [&](const std::vector<size_t>& others, const char* what) {
    for (size_t thread = 0; thread < others.size(); ++thread) {
      if (thread == running_ || others[thread] == 0) continue;
      if (thread >= known.size() || known[thread] < others[thread]) {
        Fail(fmt::format("a race: nothing orders thread {}'s {} of memory before thread {}'s {}",
                         thread, what, running_, writes ? "write" : "read"));
      }
    }
  };
  check(plain.writes, "write");
  if (writes) check(plain.reads, "read");
  // It counts as a part of the thread's next step, which must be handed on with it.
  const size_t now = Knowledge::At(&threads_[running_]->known.steps, running_) + 1;
  Knowledge::At(writes ? &plain.writes : &plain.reads, running_) = now;
}

}  // namespace inccl::test
