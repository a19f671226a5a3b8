// SPDX-License-Identifier: Apache-2.0
#include "control/status_server.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/mutex.h"
#include "bootstrap/socket.h"
#include "control/loop.h"
#include "control/status_socket.h"

namespace inccl {
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
    static auto* const server = new StatusServer;
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
