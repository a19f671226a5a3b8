// SPDX-License-Identifier: Apache-2.0
//
// A proxy of stream sockets (TCP, unix) that stands between two ends of a test and does to their
// bytes what a bad network or an attacker does. Connections count from 0 as they are accepted.
// Offsets count the bytes that leave the proxy in one direction of a connection. The proxy runs in
// a thread of its own, in the network namespace of the thread that makes it.
#ifndef INCCL_TESTS_WORLD_CHAOS_PROXY_H_
#define INCCL_TESTS_WORLD_CHAOS_PROXY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "base/fd.h"
#include "world/endpoint.h"
#include "world/limits.h"

namespace inccl::test {

class ChaosProxy {
 public:
  enum class Way { kToServer, kToClient };
  // What happens to the bytes from `stop_at` on.
  enum class Stop {
    kHold,   // they wait, and so do an end or a reset that follow: a link that is silently cut
    kEnd,    // the receiver reads an end of file, and they are lost
    kReset,  // both ends get a reset, and they are lost
  };
  static constexpr uint64_t kNever = UINT64_MAX;
  struct Faults {
    uint64_t stop_at = kNever;
    Stop stop = Stop::kHold;
    size_t piece = 0;                     // of how many bytes a write is at most; 0: any number
    double gap_seconds = 0;               // at least, from one write to the next
    double delay_seconds = 0;             // at least, from reading a byte to writing it
    std::map<uint64_t, uint8_t> flips{};  // offset: the bits of this byte that are inverted
  };

  // Port 0: any; address() then has the port.
  ChaosProxy(const Endpoint& listen_at, const Endpoint& server);
  ~ChaosProxy();  // closes all connections
  ChaosProxy(const ChaosProxy&) = delete;
  ChaosProxy& operator=(const ChaosProxy&) = delete;

  const Endpoint& address() const { return address_; }

  // For a connection, also for one to come. Replaces the faults it had: {} ends a hold.
  void SetFaults(size_t connection, Way way, const Faults& faults);
  // The server of a connection to come, in the place of the constructor's.
  void SetServer(size_t connection, const Endpoint& server);
  // Each of two clients is joined with the other one's server while both are connected. Bytes that
  // wait for a server go to the new one; bytes that wait for a client stay its own.
  void Splice(size_t a, size_t b);
  // Sends bytes after those that wait already, such as Recorded() bytes of another connection.
  void Inject(size_t connection, Way way, const std::string& bytes);
  void Reset(size_t connection);  // at once

  // What the proxy has read in this direction.
  std::string Recorded(size_t connection, Way way) const;
  size_t connections() const;
  uint64_t sent(size_t connection, Way way) const;
  // Waits for them. Returns false if they do not come in time.
  bool AwaitConnections(size_t count, double seconds = 60.0 * kSlowness) const;
  bool AwaitSent(size_t connection, Way way, uint64_t bytes,
                 double seconds = 60.0 * kSlowness) const;

 private:
  struct Waiting {
    double due;
    std::string bytes;
  };
  struct Direction {
    Faults faults;
    std::deque<Waiting> waiting;
    std::string recorded;
    size_t waiting_bytes = 0;
    uint64_t sent = 0;
    double next_write = 0;
    bool end_read = false, reset_read = false, end_sent = false;
    bool blocked = false;  // the receiver's kernel takes no more

    bool CanRead() const;
    void Add(double due, std::string bytes);
  };
  struct Connection {
    Endpoint server;
    UniqueFd fds[2];  // of the server, of the client: where a Way leads to
    Direction directions[2];
    bool reset = false;  // to be done by the thread
  };

  Connection& At(size_t connection);  // makes it
  void Run();
  void Accept();
  static void Read(Connection* connection, size_t way);
  // Returns the time at which there is more to write.
  static double Write(Connection* connection, size_t way);
  void Wake() const;

  const Endpoint server_;
  Endpoint address_;
  UniqueFd listener_, wakeup_;
  mutable std::mutex mutex_;
  std::deque<Connection> connections_;
  size_t accepted_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_CHAOS_PROXY_H_
