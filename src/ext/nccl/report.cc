// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/report.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext/nccl/error.h"
#include "ext/nccl/log.h"

namespace inccl::nccl {
namespace {

constexpr int kRunning = -1;  // of `compressed`, which libinccl writes last
constexpr int kPlaces = 1024;

struct Account {
  uint64_t calls, bytes;
  uint64_t measured;   // calls whose places have been read
  double sent, saved;  // bytes of these
  double bound;        // the greatest
};

struct Place {
  ccl_compression_stats_t stats;
  Comm comm;  // NULL: the place is free
  int account;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Account accounts[kAccounts];
Place places[kPlaces];
int next_place = 0;

// Reads and frees the place of a call that has completed. The caller holds the mutex.
void Collect(Place* place) {
  if (place->comm == nullptr) return;
  if (__atomic_load_n(&place->stats.compressed, __ATOMIC_ACQUIRE) == kRunning) return;
  const ccl_compression_stats_t& stats = place->stats;
  Account& account = accounts[place->account];
  const auto payload = static_cast<double>(stats.payload_bytes);
  ++account.measured;
  account.sent += payload;
  account.saved += payload * (stats.ratio - 1);
  if (!(stats.error_bound <= account.bound)) account.bound = stats.error_bound;
  place->comm = nullptr;
}

}  // namespace

bool Logging() {
  const char* const value = secure_getenv("INCCL_NCCL_LOG");
  return value != nullptr && strcmp(value, "1") == 0;
}

void CountCall(int account, uint64_t bytes) {
  pthread_mutex_lock(&mutex);
  ++accounts[account].calls;
  accounts[account].bytes += bytes;
  pthread_mutex_unlock(&mutex);
}

ccl_compression_stats_t* TakeStats(int account, Comm comm) {
  if (comm == nullptr) return nullptr;
  ccl_compression_stats_t* stats = nullptr;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < kPlaces && stats == nullptr; ++i) {
    Place& place = places[next_place];
    next_place = (next_place + 1) % kPlaces;
    Collect(&place);
    if (place.comm != nullptr) continue;
    place.stats = CCL_COMPRESSION_STATS_INIT;
    place.stats.compressed = kRunning;
    place.comm = comm;
    place.account = account;
    stats = &place.stats;
  }
  pthread_mutex_unlock(&mutex);
  return stats;
}

void DropStats(ccl_compression_stats_t* stats) {
  if (stats == nullptr) return;
  pthread_mutex_lock(&mutex);
  reinterpret_cast<Place*>(stats)->comm = nullptr;  // the first member
  pthread_mutex_unlock(&mutex);
}

void DropStatsOf(Comm comm) {
  pthread_mutex_lock(&mutex);
  for (Place& place : places) {
    if (place.comm != comm) continue;
    Collect(&place);
    place.comm = nullptr;
  }
  pthread_mutex_unlock(&mutex);
}

void PrintAccount(int account, const char* title, bool always) {
  pthread_mutex_lock(&mutex);
  for (Place& place : places) {
    if (place.account == account) Collect(&place);
  }
  const Account sum = accounts[account];
  pthread_mutex_unlock(&mutex);
  if (sum.calls == 0 && !always) return;
  char text[768];
  const int length = snprintf(text, sizeof text, "%s: %llu calls of %llu bytes", title,
                              static_cast<unsigned long long>(sum.calls),
                              static_cast<unsigned long long>(sum.bytes));
  if (sum.measured > 0 && length > 0 && static_cast<size_t>(length) < sizeof text) {
    const auto left = sizeof text - static_cast<size_t>(length);
    char* const end = text + length;
    const int more = snprintf(end, left, "; sent %.0f bytes, saved %.0f, error at most %.3g",
                              sum.sent, sum.saved, sum.bound);
    if (sum.measured < sum.calls && more > 0 && static_cast<size_t>(more) < left) {
      snprintf(end + more, left - static_cast<size_t>(more), " (%llu calls)",
               static_cast<unsigned long long>(sum.measured));
    }
  }
  PrintLine("INFO", text);
}

}  // namespace inccl::nccl
