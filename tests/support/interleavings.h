// SPDX-License-Identifier: Apache-2.0
//
// A model checker for a few threads that share atomic words: runs them in every interleaving, with
// every value that a load may read. Code under test uses ModelAtomic in the place of std::atomic,
// and ModelFutexWait and the like in the place of the kernel's calls.
//
// The model, a part of C++20's:
// - Each word has its stores in one order, that in which they run. A thread has, for each word, the
//   newest store that it knows of; it never reads an older one. A load may read that or any newer.
// - A store with release hands on all that its thread knows; a load with acquire that reads it gets
//   to know it. A read-modify-write reads the newest store, and hands on what that handed on.
// - Sequentially consistent accesses are release and acquire, and such a load never reads an older
//   store than the last sequentially consistent one to its word.
// Not in the model: loads that read a store that runs later, and fences. So an access to other
// memory that a processor may move beyond a relaxed store is not seen to move; ModelRead and
// ModelWrite report it, because nothing orders it before what another thread then does.
//
// Two steps of different threads are tried in both orders if they use the same word and one writes;
// of the others one order stands for all (sleep sets).
#ifndef INCCL_TESTS_SUPPORT_INTERLEAVINGS_H_
#define INCCL_TESTS_SUPPORT_INTERLEAVINGS_H_

#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace inccl::test {

class Interleavings {
 public:
  using Body = std::function<void()>;
  struct Outcome {
    std::string failure;  // the first one, with the steps that lead to it; "": none
    uint64_t runs = 0;
  };

  // `make` builds the world of one run and returns the bodies of its threads, which see all that it
  // has done. `check` runs after them, and sees all that they have done. Threads that wait for each
  // other or for ever are a failure.
  static Outcome Explore(const std::function<std::vector<Body>()>& make, const Body& check = {});
  // The exploration in progress.
  static Interleavings& Get() { return *current_; }

  // Ends the exploration with this failure.
  void Fail(const std::string& what);
  uint64_t Load(const void* word, std::memory_order order, uint64_t initial);
  void Store(const void* word, std::memory_order order, uint64_t initial, uint64_t value);
  uint64_t Change(const void* word, std::memory_order order, uint64_t initial,
                  const std::function<uint64_t(uint64_t)>& change);
  // As the kernel's: a wait compares and falls asleep in one step, and nothing else ends it but a
  // wake. An eventfd is any number.
  void FutexWait(const void* word, uint64_t initial, uint64_t token);
  void FutexWake(const void* word);
  void EventFdWrite(int fd);
  bool EventFdRead(int fd);
  void EventFdPoll(int fd);
  // Accesses to memory that no two threads may use at a time, unless they read.
  void Access(const void* memory, bool writes);

 private:
  static constexpr size_t kStackBytes = 64 * 1024;
  static constexpr uint64_t kMostRuns = 20'000'000, kMostSteps = 5000;

  // What a thread knows: by word, the newest store; by thread, its steps.
  struct Knowledge {
    std::vector<size_t> stores, steps;
    void Join(const Knowledge& other) {
      Join(other.stores, &stores);
      Join(other.steps, &steps);
    }
    static void Join(const std::vector<size_t>& from, std::vector<size_t>* to) {
      if (to->size() < from.size()) to->resize(from.size());
      for (size_t i = 0; i < from.size(); ++i) (*to)[i] = std::max((*to)[i], from[i]);
    }
    static size_t& At(std::vector<size_t>* of, size_t i) {
      if (of->size() <= i) of->resize(i + 1);
      return (*of)[i];
    }
  };
  struct StoreRecord {
    uint64_t value = 0;
    bool released = false;
    Knowledge handed_on;
  };
  struct Word {
    std::vector<StoreRecord> stores;
    size_t consistent = 0;  // the last sequentially consistent one
  };
  struct Plain {  // by thread: the step of its last access
    std::vector<size_t> reads, writes;
  };
  enum class Kind : uint8_t { kRead, kWrite, kPoll };
  struct Thread {
    Body body;
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    bool done = false, asleep = false;  // asleep: in a futex wait on `word`
    size_t word = 0;                    // of the pending step
    Kind kind = Kind::kRead;
    const char* name = "";
    Knowledge known;
  };
  struct Choice {
    size_t taken, of;
  };

  size_t Find(const void* word, uint64_t initial);
  size_t Choose(size_t of);
  void Step(size_t word, Kind kind, const char* name);
  size_t FindFd(int fd) { return Find(reinterpret_cast<const void*>(intptr_t{fd} + 1), 0); }
  bool CanRun(const Thread& thread) const {
    return !thread.done && !thread.asleep &&
           !(thread.kind == Kind::kPoll && words_[thread.word].stores.back().value == 0);
  }
  static bool Depend(const Thread& a, const Thread& b) {
    return a.word == b.word && (a.kind == Kind::kWrite || b.kind == Kind::kWrite);
  }
  void Write(size_t word, uint64_t value, bool release, bool consistent, bool keeps_chain);
  void Note(uint64_t value, bool stale = false) {
    if (running_ != 0) trace_.back().value = value, trace_.back().stale = stale;
  }
  void Run(std::vector<Body> bodies);
  static void Enter();
  bool NextRun();

  static inline Interleavings* current_ = nullptr;

  std::vector<Choice> choices_;
  size_t at_ = 0;  // in choices_
  std::unordered_map<const void*, size_t> index_;
  std::vector<Word> words_;
  std::map<const void*, Plain> plain_;
  std::vector<std::unique_ptr<Thread>> threads_;  // 0: the one that explores
  size_t running_ = 0;
  ucontext_t scheduler_{};
  bool redundant_ = false;  // the rest of the run has been tried in another order
  struct Taken {
    size_t thread, word;
    const char* name;
    uint64_t value;
    bool stale;
  };
  std::vector<Taken> trace_;
  std::string failure_;
};

template <typename T>
class ModelAtomic {
 public:
  static constexpr bool is_always_lock_free = true;
  constexpr ModelAtomic() = default;
  ModelAtomic(const ModelAtomic&) = delete;
  ModelAtomic& operator=(const ModelAtomic&) = delete;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    return static_cast<T>(Interleavings::Get().Load(this, order, initial()));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    Interleavings::Get().Store(this, order, initial(), static_cast<uint64_t>(value));
  }
  T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
    return Change(order, [value](uint64_t) { return static_cast<uint64_t>(value); });
  }
  T fetch_add(T more, std::memory_order order = std::memory_order_seq_cst) {
    return Change(order, [more](uint64_t old) {
      return static_cast<uint64_t>(static_cast<T>(static_cast<T>(old) + more));
    });
  }
  uint64_t initial() const { return static_cast<uint64_t>(value_); }

 private:
  T Change(std::memory_order order, const std::function<uint64_t(uint64_t)>& change) {
    return static_cast<T>(Interleavings::Get().Change(this, order, initial(), change));
  }
  T value_{};  // before the first store
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_INTERLEAVINGS_H_
