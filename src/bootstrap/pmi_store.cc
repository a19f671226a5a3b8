// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/pmi_store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/escaped.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr size_t kMostLineBytes = 4096;
constexpr Time kFinalizeLimit = kSecond;

}  // namespace

Result<std::string> PmiStore::Exchange(const std::string& value, const Terms& terms) {
  if (pid_ != 0 && !IsStillOpen()) {
    return InvalidUsage("PMI: another library has closed PMI_FD (MPI_Finalize?)");
  }
  if (kvs_.empty()) {
    struct stat info {};
    if (fstat(fd_, &info) != 0) return SystemErrorErrno("PMI_FD", errno);
    pid_ = getpid();
    device_ = info.st_dev;
    inode_ = info.st_ino;
    if (begin_) {
      Result<Fields> begun =
          Request("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", terms);
      if (!begun.ok()) return begun.status();
    }
    Result<Fields> name = Request("cmd=get_my_kvsname", "my_kvsname", terms);
    if (!name.ok()) return name.status();
    kvs_ = (*name)["kvsname"];
  }
  const std::string key = "inccl-id";
  if (terms.rank == 0) {
    Result<Fields> put = Request(
        fmt::format("cmd=put kvsname={} key={} value={}", kvs_, key, value), "put_result", terms);
    if (!put.ok()) return put.status();
  }
  Result<Fields> barrier = Request("cmd=barrier_in", "barrier_out", terms);
  if (!barrier.ok()) return barrier.status();
  if (terms.rank == 0) return value;
  Result<Fields> got =
      Request(fmt::format("cmd=get kvsname={} key={}", kvs_, key), "get_result", terms);
  if (!got.ok()) return got.status();
  return (*got)["value"];
}

bool PmiStore::IsStillOpen() const {
  struct stat info {};
  return fstat(fd_, &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

void PmiStore::FinalizeAtExit() {
  static PmiStore* store = nullptr;
  store = this;
  (void)std::atexit([] { store->Finalize(); });
}

void PmiStore::Finalize() {
  if (pid_ != getpid() || !IsStillOpen()) return;
  Stop();
  (void)CatchOutOfMemory([&] {
    return Request("cmd=finalize", "finalize_ack",
                   {.deadline = SystemClock().Now() + kFinalizeLimit})
        .status();
  });
}

Result<PmiStore::Fields> PmiStore::Request(const std::string& line, std::string_view answer,
                                           const Terms& terms) {
  const std::string text = line + "\n";
  for (size_t written = 0; written < text.size();) {
    const char* const rest = text.data() + written;
    ssize_t bytes = send(fd_, rest, text.size() - written, MSG_NOSIGNAL);
    if (bytes < 0 && errno == ENOTSOCK) bytes = write(fd_, rest, text.size() - written);
    if (bytes < 0 && errno != EINTR) return SystemErrorErrno("PMI: write to the launcher", errno);
    written += static_cast<size_t>(std::max<ssize_t>(bytes, 0));
  }
  Result<std::string> reply = ReadLine(terms);
  if (!reply.ok()) return reply.status();
  Fields fields;
  std::istringstream words(*reply);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  if (fields["cmd"] == answer && (!fields.contains("rc") || fields["rc"] == "0")) return fields;
  return RemoteError(fmt::format("PMI: the launcher answers \"{}\" to \"{}\"",
                                 Escaped(reply->substr(0, reply->find(" value="))),
                                 line.substr(0, line.find(" value="))));
}

Result<std::string> PmiStore::ReadLine(const Terms& terms) {
  while (true) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (IsCancelled(terms)) return Cancelled();
    const Time now = SystemClock().Now();
    if (now >= terms.deadline) return TimedOut("a barrier of all ranks, or rank 0's value");
    if (!WaitFor(fd_, POLLIN, std::min(terms.deadline, now + kCancelLag))) continue;
    std::array<char, 1024> buffer;
    const ssize_t bytes = read(fd_, buffer.data(), buffer.size());
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (bytes <= 0 || unread_.size() > kMostLineBytes) {
      return RemoteError("PMI: the launcher closed the connection");
    }
    unread_.append(buffer.data(), static_cast<size_t>(bytes));
  }
}

}  // namespace inccl::bootstrap
