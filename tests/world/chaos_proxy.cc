// SPDX-License-Identifier: Apache-2.0
#include "world/chaos_proxy.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "world/clock.h"

namespace inccl::test {
namespace {

constexpr double kNoTime = 1e300;
constexpr size_t kMostWaiting = 256 << 10;  // bytes; then the proxy reads no more

size_t Index(ChaosProxy::Way way) { return static_cast<size_t>(way); }

UniqueFd StreamSocket(const Endpoint& endpoint) {
  return UniqueFd(socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void NoDelay(int fd) {  // a write is a segment; unix sockets refuse the option, and need none
  const int one = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

void CloseWithReset(UniqueFd* fd) {
  const linger now{1, 0};
  if (fd->valid()) (void)setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  fd->Reset();
}

bool Await(const std::function<bool()>& done, double seconds) {
  const double limit = Seconds() + seconds;
  while (!done()) {
    if (Seconds() > limit) return false;
    usleep(500);
  }
  return true;
}

}  // namespace

ChaosProxy::ChaosProxy(const Endpoint& listen_at, const Endpoint& server)
    : server_(server),
      address_(listen_at),
      listener_(StreamSocket(listen_at)),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Listen(listener_.get(), &address_);
  thread_ = std::thread([this] { Run(); });
}

ChaosProxy::~ChaosProxy() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

void ChaosProxy::Wake() const { (void)eventfd_write(wakeup_.get(), 1); }

ChaosProxy::Connection& ChaosProxy::At(size_t connection) {
  while (connections_.size() <= connection) connections_.emplace_back().server = server_;
  return connections_[connection];
}

void ChaosProxy::SetFaults(size_t connection, Way way, const Faults& faults) {
  const std::lock_guard lock(mutex_);
  At(connection).directions[Index(way)].faults = faults;
  Wake();
}

void ChaosProxy::SetServer(size_t connection, const Endpoint& server) {
  const std::lock_guard lock(mutex_);
  At(connection).server = server;
}

void ChaosProxy::Splice(size_t a, size_t b) {
  const std::lock_guard lock(mutex_);
  std::swap(At(a).fds[Index(Way::kToServer)], At(b).fds[Index(Way::kToServer)]);
  Wake();
}

void ChaosProxy::Inject(size_t connection, Way way, const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  At(connection).directions[Index(way)].Add(0, bytes);
  Wake();
}

void ChaosProxy::Reset(size_t connection) {
  const std::lock_guard lock(mutex_);
  At(connection).reset = true;
  Wake();
}

std::string ChaosProxy::Recorded(size_t connection, Way way) const {
  const std::lock_guard lock(mutex_);
  return connection < accepted_ ? connections_[connection].directions[Index(way)].recorded : "";
}

size_t ChaosProxy::connections() const {
  const std::lock_guard lock(mutex_);
  return accepted_;
}

uint64_t ChaosProxy::sent(size_t connection, Way way) const {
  const std::lock_guard lock(mutex_);
  return connection < accepted_ ? connections_[connection].directions[Index(way)].sent : 0;
}

bool ChaosProxy::AwaitConnections(size_t count, double seconds) const {
  return Await([&] { return connections() >= count; }, seconds);
}

bool ChaosProxy::AwaitSent(size_t connection, Way way, uint64_t bytes, double seconds) const {
  return Await([&] { return sent(connection, way) >= bytes; }, seconds);
}

void ChaosProxy::Accept() {
  while (true) {
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) return;
    Connection& connection = At(accepted_++);
    UniqueFd server = StreamSocket(connection.server);
    // A failure that comes later is one of reading.
    if (connect(server.get(), connection.server.get(), connection.server.length) != 0 &&
        errno != EINPROGRESS) {
      CloseWithReset(&client);
      continue;
    }
    NoDelay(client.get());
    NoDelay(server.get());
    connection.fds[Index(Way::kToServer)] = std::move(server);
    connection.fds[Index(Way::kToClient)] = std::move(client);
  }
}

bool ChaosProxy::Direction::CanRead() const { return !end_read && waiting_bytes < kMostWaiting; }

void ChaosProxy::Direction::Add(double due, std::string bytes) {
  if (bytes.empty()) return;
  waiting_bytes += bytes.size();
  waiting.push_back({due, std::move(bytes)});
}

void ChaosProxy::Read(Connection* connection, size_t way) {
  Direction& direction = connection->directions[way];
  const int from = connection->fds[1 - way].get();
  char buffer[16 << 10];
  while (from >= 0 && direction.CanRead()) {
    const ssize_t got = recv(from, buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    direction.end_read = got <= 0;
    direction.reset_read = got < 0;
    if (got <= 0) return;
    const std::string bytes(buffer, static_cast<size_t>(got));
    direction.recorded += bytes;
    if (!direction.end_sent) direction.Add(Seconds() + direction.faults.delay_seconds, bytes);
  }
}

double ChaosProxy::Write(Connection* connection, size_t way) {
  Direction& direction = connection->directions[way];
  const Faults& faults = direction.faults;
  const int to = connection->fds[way].get();
  direction.blocked = false;
  while (to >= 0 && !direction.end_sent) {
    const bool stopped = direction.sent >= faults.stop_at;
    if (stopped && faults.stop == Stop::kHold) break;
    const bool end = direction.waiting.empty() && direction.end_read;
    if (stopped ? faults.stop == Stop::kReset : end && direction.reset_read) {
      connection->reset = true;
      break;
    }
    if (stopped || end) {
      shutdown(to, SHUT_WR);
      direction.end_sent = true;
      direction.waiting.clear();
      direction.waiting_bytes = 0;
    }
    if (direction.waiting.empty()) break;
    Waiting& first = direction.waiting.front();
    const double due = std::max(first.due, direction.next_write);
    if (due > Seconds()) return due;
    std::string bytes = first.bytes.substr(0, faults.piece == 0 ? kMostWaiting : faults.piece);
    if (bytes.size() > faults.stop_at - direction.sent)
      bytes.resize(faults.stop_at - direction.sent);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto flip = faults.flips.find(direction.sent + i);
      if (flip != faults.flips.end()) bytes[i] = static_cast<char>(bytes[i] ^ flip->second);
    }
    const ssize_t wrote = send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (wrote < 0) {
      direction.blocked = errno == EAGAIN;
      connection->reset = !direction.blocked && errno != EINTR;
      if (errno == EINTR) continue;
      break;
    }
    const auto done = static_cast<size_t>(wrote);
    direction.sent += done;
    direction.waiting_bytes -= done;
    direction.next_write = Seconds() + faults.gap_seconds;
    first.bytes.erase(0, done);
    if (first.bytes.empty()) direction.waiting.pop_front();
  }
  return kNoTime;
}

void ChaosProxy::Run() {
  while (true) {
    std::vector<pollfd> fds = {{wakeup_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    double next = kNoTime;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
      Accept();
      for (size_t i = 0; i < accepted_; ++i) {
        Connection& connection = connections_[i];
        for (const size_t way : {0, 1}) {
          Read(&connection, way);
          next = std::min(next, Write(&connection, way));
        }
        if (connection.reset) {
          for (UniqueFd& fd : connection.fds) CloseWithReset(&fd);
        } else if (connection.directions[0].end_sent && connection.directions[1].end_sent) {
          for (UniqueFd& fd : connection.fds) fd.Reset();
        }
        for (const size_t way : {0, 1}) {
          const Direction& direction = connection.directions[way];
          if (direction.CanRead()) fds.push_back({connection.fds[1 - way].get(), POLLIN, 0});
          if (direction.blocked) fds.push_back({connection.fds[way].get(), POLLOUT, 0});
        }
      }
    }
    const double seconds = std::clamp(next - Seconds(), 0.0, 1000.0);
    const timespec timeout{static_cast<time_t>(seconds),
                           static_cast<long>(std::fmod(seconds, 1.0) * 1e9)};
    (void)ppoll(fds.data(), fds.size(), next == kNoTime ? nullptr : &timeout, nullptr);
    eventfd_t wakeups = 0;
    (void)eventfd_read(wakeup_.get(), &wakeups);
  }
}

}  // namespace inccl::test
