// SPDX-License-Identifier: Apache-2.0
#include "control/status_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "bootstrap/crypto.h"
#include "bootstrap/socket.h"
#include "control/loop.h"

namespace inccl::control {
namespace {

constexpr int kBacklog = 16;
constexpr time_t kHalfMade = 60;  // seconds until a socket that was never finished counts as stale

bool AddressOf(const std::string& path, sockaddr_un* address) {
  if (path.size() >= sizeof address->sun_path) return false;
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, path.c_str(), path.size() + 1);
  return true;
}

Status TooLong(const std::string& path) {
  return SystemError(fmt::format("{}: too long for the name of a unix socket", path));
}

Result<UniqueFd> MakeSocket() {
  UniqueFd fd =
      OpenOwnFd([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd.valid()) return SystemErrorErrno("socket", errno);
  return fd;
}

}  // namespace

Status IsOwnDirectory(const std::string& directory) {
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return SystemErrorErrno(directory, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return SystemErrorErrno(directory, errno);
  if (info.st_uid == geteuid() && (info.st_mode & 0077) == 0) return Status::Ok();
  return SystemError(
      fmt::format("{}: belongs to uid {} with mode {:04o}; it must be this user's, with mode 0700",
                  directory, info.st_uid, info.st_mode & 07777));
}

// The socket gets its name only when it listens: one that does not yet refuses connections as a
// stale one does.
Result<UniqueFd> ListenForStatus(const std::string& directory, std::string* path) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return SystemErrorErrno(directory, errno);
  }
  if (Status status = IsOwnDirectory(directory); !status.ok()) return status;
  uint32_t random = 0;
  Status status = bootstrap::FillRandom(std::as_writable_bytes(std::span(&random, 1)));
  if (!status.ok()) return status;
  const std::string name = fmt::format("{}-{:08x}", getpid(), random);
  const std::string half_made = directory + "/." + name;
  sockaddr_un address{};
  if (!AddressOf(half_made, &address)) return TooLong(half_made);
  Result<UniqueFd> fd = MakeSocket();
  if (!fd.ok()) return fd;
  if (bind(fd->get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return SystemErrorErrno(fmt::format("bind {}", half_made), errno);
  }
  *path = directory + "/" + name;
  if (listen(fd->get(), kBacklog) == 0 && rename(half_made.c_str(), path->c_str()) == 0) return fd;
  status = SystemErrorErrno(*path, errno);
  unlink(half_made.c_str());
  return status;
}

Result<UniqueFd> ConnectToStatus(const std::string& path, int* error) {
  *error = 0;
  sockaddr_un address{};
  if (!AddressOf(path, &address)) return TooLong(path);
  Result<UniqueFd> fd = MakeSocket();
  if (!fd.ok()) return fd;
  if (connect(fd->get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    *error = errno;
  }
  return fd;
}

bool IsStatusSocket(const std::string& path) {
  unsigned pid = 0, random = 0;
  const std::string name = path.substr(path.rfind('/') + 1);
  const bool named = std::sscanf(name.c_str(), "%u-%8x", &pid, &random) == 2 &&
                     name == fmt::format("{}-{:08x}", pid, random);
  struct stat info {};
  return named && lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

bool RemoveIfStale(const std::string& path) {
  int error = 0;
  const Result<UniqueFd> fd = ConnectToStatus(path, &error);
  if (!fd.ok()) return false;
  if (error == ENOENT) return true;
  return error == ECONNREFUSED && unlink(path.c_str()) == 0;
}

void RemoveStaleIn(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), &closedir);
  if (dir == nullptr) return;
  while (const dirent* const entry = readdir(dir.get())) {
    const bool half_made = entry->d_name[0] == '.';
    const char* const number = entry->d_name + (half_made ? 1 : 0);
    const pid_t pid = std::atoi(number);
    if (pid <= 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
    const std::string path = directory + "/" + entry->d_name;
    struct stat info {};
    if (!IsStatusSocket(directory + "/" + number) && !half_made) continue;
    if (half_made && (lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode) ||
                      time(nullptr) - info.st_mtime < kHalfMade)) {
      continue;
    }
    (void)RemoveIfStale(path);
  }
}

}  // namespace inccl::control

namespace inccl {
namespace {

constexpr size_t kMostBytes = 64 << 20;  // of an answer

Status NoAnswer(const std::string& path, Time limit) {
  return TimeoutError(fmt::format("{}: no answer for {} ms", path, limit / kMillisecond));
}

}  // namespace

std::vector<std::string> FindStatusSockets(const std::string& directory) {
  std::vector<std::string> paths;
  if (!control::IsOwnDirectory(directory).ok()) return paths;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), &closedir);
  if (dir == nullptr) return paths;
  while (const dirent* const entry = readdir(dir.get())) {
    if (entry->d_name[0] == '.') continue;
    const std::string path = directory + "/" + entry->d_name;
    if (control::IsStatusSocket(path) && !control::RemoveIfStale(path)) paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<std::string> AskForStatus(const std::string& path, const std::string& request, Time limit) {
  const Time deadline = SystemClock().Now() + limit;
  int error = 0;
  Result<UniqueFd> fd = control::ConnectToStatus(path, &error);
  if (!fd.ok()) return fd.status();
  if (error == EAGAIN) return NoAnswer(path, limit);  // more clients wait than the kernel keeps
  if (error != 0) return SystemErrorErrno(path, error);
  const std::string line = request + "\n";
  if (!bootstrap::WriteAll(fd->get(), bootstrap::AsBytes(line))) {
    return SystemError(fmt::format("{}: the process has ended", path));
  }
  std::string answer;
  std::array<std::byte, 16384> buffer;
  while (true) {
    if (!bootstrap::WaitFor(fd->get(), POLLIN, deadline)) return NoAnswer(path, limit);
    const bootstrap::IoResult got = bootstrap::ReadSome(fd->get(), buffer);
    if (got.error == EAGAIN) continue;
    if (got.closed && !answer.empty()) return answer;
    if (got.closed || got.error != 0 || answer.size() > kMostBytes) {
      return SystemError(fmt::format("{}: the process ended before it answered", path));
    }
    answer.append(reinterpret_cast<const char*>(buffer.data()), got.bytes);
  }
}

namespace control {
namespace {

constexpr uint32_t kListenerTag = 0;  // clients count from 1
constexpr size_t kMostClients = 8;
constexpr size_t kMostRequestBytes = 16;
constexpr Time kClientLimit = 30 * kSecond;          // for a request, an answer and its delivery
constexpr Time kPeersLimit = kSecond + kSecond / 2;  // longer than a rank takes to be silent
constexpr Time kAcceptPause = 100 * kMillisecond;
constexpr Time kLookInterval = 5 * kMillisecond;  // whether the peers have answered

class StatusMember final : public Member {
 public:
  StatusMember(UniqueFd listener, std::string path)
      : listener_(std::move(listener)), path_(std::move(path)) {}

  Status Start(uint64_t id) {
    const MutexLock lock(&mutex_);
    id_ = id;
    return Loop::Get().Watch(id_, kListenerTag, listener_.get(), EPOLLIN);
  }
  // Afterwards no callback runs or will run, and the socket is gone.
  void Silence();
  void Add(StatusSource* source) {
    const MutexLock lock(&mutex_);
    sources_.push_back(source);
  }
  bool empty() {
    const MutexLock lock(&mutex_);
    return sources_.empty();
  }
  // Returns the number of sources that remain, or -1 if this one was not there.
  int Remove(StatusSource* source) {
    const MutexLock lock(&mutex_);
    if (std::erase(sources_, source) == 0) return -1;
    return static_cast<int>(sources_.size());
  }

  void OnEvents(uint32_t tag, uint32_t events) override;
  void OnWake() override {}
  Time OnTime(Time now, Time late) override;

 private:
  enum class State : uint8_t { kReading, kAwaitingPeers, kWriting };
  struct Client {
    UniqueFd fd;
    State state = State::kReading;
    Time deadline = 0;
    Time asked = 0;
    std::string in, out;
    size_t written = 0;
  };

  void Accept() INCCL_REQUIRES(mutex_);
  // These return false if the client is done with.
  bool Read(Client* client) INCCL_REQUIRES(mutex_);
  bool Reply(uint32_t tag, Client* client) INCCL_REQUIRES(mutex_);
  bool Write(Client* client) INCCL_REQUIRES(mutex_);
  void Drop(uint32_t tag) INCCL_REQUIRES(mutex_);

  // Held during callbacks, so that sources outlive them.
  Mutex mutex_;
  UniqueFd listener_ INCCL_GUARDED_BY(mutex_);
  const std::string path_;
  uint64_t id_ INCCL_GUARDED_BY(mutex_) = 0;
  bool silenced_ INCCL_GUARDED_BY(mutex_) = false;
  bool paused_ INCCL_GUARDED_BY(mutex_) = false;  // does not listen, until OnTime
  std::vector<StatusSource*> sources_ INCCL_GUARDED_BY(mutex_);
  std::map<uint32_t, Client> clients_ INCCL_GUARDED_BY(mutex_);
  uint32_t next_tag_ INCCL_GUARDED_BY(mutex_) = kListenerTag + 1;
};

void StatusMember::Silence() {
  const MutexLock lock(&mutex_);
  silenced_ = true;
  while (!clients_.empty()) Drop(clients_.begin()->first);
  Loop::Get().Unwatch(listener_.get());
  listener_.Reset();
  unlink(path_.c_str());
}

void StatusMember::Drop(uint32_t tag) {
  Loop::Get().Unwatch(clients_[tag].fd.get());
  clients_.erase(tag);
}

void StatusMember::OnEvents(uint32_t tag, uint32_t /*events*/) {
  const MutexLock lock(&mutex_);
  if (silenced_) return;
  if (tag == kListenerTag) return Accept();
  const auto found = clients_.find(tag);
  if (found == clients_.end()) return;
  Client& client = found->second;
  bool stays = true;
  if (client.state == State::kReading) {
    stays = Read(&client) && (client.state != State::kWriting || Reply(tag, &client));
  } else if (client.state == State::kWriting) {
    stays = Write(&client);
  } else {
    stays = false;  // it has closed the connection, or sent more
  }
  if (!stays) Drop(tag);
}

void StatusMember::Accept() {
  bootstrap::SocketAddress address;
  int error = 0;
  UniqueFd fd = bootstrap::Accept(listener_.get(), &address, &error);
  if (error == EAGAIN) return;
  if (error != 0) {  // no descriptor is left; epoll would report the connection at once again
    Loop::Get().ChangeEvents(id_, kListenerTag, listener_.get(), 0);
    paused_ = true;
    return Loop::Get().CallAt(id_, SystemClock().Now() + kAcceptPause);
  }
  const Result<bootstrap::PeerCredentials> peer = bootstrap::GetPeerCredentials(fd.get());
  if (!peer.ok() || peer->uid != geteuid() || clients_.size() >= kMostClients) return;
  const uint32_t tag = next_tag_++;
  if (!Loop::Get().Watch(id_, tag, fd.get(), EPOLLIN).ok()) return;
  Client& client = clients_[tag];
  client.fd = std::move(fd);
  client.deadline = SystemClock().Now() + kClientLimit;
  Loop::Get().CallAt(id_, SystemClock().Now());
}

bool StatusMember::Read(Client* client) {
  std::array<std::byte, kMostRequestBytes> buffer;
  const bootstrap::IoResult got = bootstrap::ReadSome(client->fd.get(), buffer);
  if (got.error == EAGAIN) return true;
  if (got.error != 0 || got.closed) return false;
  client->in.append(reinterpret_cast<const char*>(buffer.data()), got.bytes);
  if (client->in == "local\n") {
    client->state = State::kWriting;
  } else if (client->in == "all\n") {
    client->state = State::kAwaitingPeers;
    client->asked = SystemClock().Now();
    for (StatusSource* const source : sources_) source->AskPeers();
    Loop::Get().CallAt(id_, client->asked + kLookInterval);
  }
  return client->in.size() < kMostRequestBytes;
}

bool StatusMember::Reply(uint32_t tag, Client* client) {
  client->state = State::kWriting;
  std::string list;
  for (StatusSource* const source : sources_) {
    if (!list.empty()) list += ',';
    list += source->StatusJson();
  }
  client->out = fmt::format("{{\"pid\":{},\"communicators\":[{}]}}\n", getpid(), list);
  Loop::Get().ChangeEvents(id_, tag, client->fd.get(), EPOLLOUT);
  return Write(client);
}

bool StatusMember::Write(Client* client) {
  while (client->written < client->out.size()) {
    const bootstrap::IoResult sent = bootstrap::WriteSome(
        client->fd.get(), bootstrap::AsBytes(client->out).subspan(client->written));
    if (sent.error == EAGAIN) return true;
    if (sent.error != 0) return false;
    client->written += sent.bytes;
  }
  return false;
}

Time StatusMember::OnTime(Time now, Time /*late*/) {
  const MutexLock lock(&mutex_);
  if (silenced_) return kNever;
  if (std::exchange(paused_, false)) {
    Loop::Get().ChangeEvents(id_, kListenerTag, listener_.get(), EPOLLIN);
  }
  const bool answered = std::all_of(sources_.begin(), sources_.end(), [](StatusSource* source) {
    return source->PeersHaveAnswered();
  });
  Time next = kNever;
  for (auto i = clients_.begin(); i != clients_.end();) {
    const uint32_t tag = i->first;
    Client& client = (i++)->second;
    bool stays = now < client.deadline;
    if (stays && client.state == State::kAwaitingPeers) {
      if (answered || now >= client.asked + kPeersLimit) {
        stays = Reply(tag, &client);
      } else {
        next = std::min(next, now + kLookInterval);
      }
    }
    if (stays) {
      next = std::min(next, client.deadline);
    } else {
      Drop(tag);
    }
  }
  return next;
}

class StatusServer {
 public:
  // Never destroyed, because threads may still use it while the process exits.
  static StatusServer& Get() {
    static NoDestructor<StatusServer> server;
    return *server;
  }

  Status Publish(const std::string& directory, StatusSource* source) {
    const MutexLock lock(&lifecycle_mutex_);
    if (member_ == nullptr) {
      Status begun = CatchOutOfMemory([&] {
        lifecycle_mutex_.AssertHeld();
        return Begin(directory);
      });
      if (!begun.ok()) {
        if (member_ != nullptr) End();
        return begun;
      }
    }
    Status added = CatchOutOfMemory([&] {
      lifecycle_mutex_.AssertHeld();
      member_->Add(source);
      return Status::Ok();
    });
    if (!added.ok() && member_->empty()) End();
    return added;
  }
  void Withdraw(StatusSource* source) {
    const MutexLock lock(&lifecycle_mutex_);
    if (member_ != nullptr && member_->Remove(source) == 0) End();
  }

 private:
  // After an error or an exception there may be a member, which End removes.
  Status Begin(const std::string& directory) INCCL_REQUIRES(lifecycle_mutex_);
  void End() INCCL_REQUIRES(lifecycle_mutex_);

  Mutex lifecycle_mutex_;  // never taken by the control thread
  std::shared_ptr<StatusMember> member_ INCCL_GUARDED_BY(lifecycle_mutex_);
  uint64_t id_ INCCL_GUARDED_BY(lifecycle_mutex_) = 0;
};

Status StatusServer::Begin(const std::string& directory) {
  RemoveStaleIn(directory);
  std::string path;
  Result<UniqueFd> listener = ListenForStatus(directory, &path);
  if (!listener.ok()) return listener.status();
  auto made = std::make_shared<StatusMember>(*std::move(listener), path);
  Result<uint64_t> id = Loop::Get().Join(made);
  if (!id.ok()) {
    unlink(path.c_str());
    return id.status();
  }
  member_ = std::move(made);
  id_ = *id;
  return member_->Start(id_);
}

void StatusServer::End() {
  member_->Silence();
  Loop::Get().Leave(id_);
  member_.reset();
}

}  // namespace
}  // namespace control

std::string StatusDirectory(const char* runtime_dir) {
  struct stat info {};
  if (runtime_dir != nullptr && runtime_dir[0] == '/' && stat(runtime_dir, &info) == 0 &&
      S_ISDIR(info.st_mode) && info.st_uid == geteuid()) {
    return std::string(runtime_dir) + "/inccl";
  }
  return fmt::format("/tmp/inccl-{}", geteuid());
}

Status PublishStatus(const std::string& directory, StatusSource* source) {
  return CatchOutOfMemory([&] { return control::StatusServer::Get().Publish(directory, source); });
}

void WithdrawStatus(StatusSource* source) {
  // In a child of fork() the file is the parent's.
  if (control::Loop::Get().InOwnProcess()) control::StatusServer::Get().Withdraw(source);
}

}  // namespace inccl
