// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_client.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace inccl::bootstrap {
namespace {

// Extra time after the deadline, in which the root reports which ranks were missing.
constexpr Time kAnswerGrace = kSecond;

// Of a frame of the root: a record and a blob of each rank, at least that of an error.
uint32_t MostBody(int nranks) {
  constexpr uint32_t kMostOfRank = 2 * kMaxBlob;
  return kMaxErrorText + kMostOfRank * static_cast<uint32_t>(nranks);
}

}  // namespace

bool RendezvousClient::WaitFor(int fd, short events, Time until, const ClientOptions& options) {
  while (options.cancelled != nullptr && !options.cancelled->load()) {
    const Time next = std::min(until, SystemClock().Now() + kCancelLag);
    if (bootstrap::WaitFor(fd, events, next)) return true;
    if (next == until) return false;
  }
  return options.cancelled == nullptr && bootstrap::WaitFor(fd, events, until);
}

Status RendezvousClient::NamedBy(const ClientOptions& options, const Status& status) {
  const std::string name = fmt::format("rank {}/{}: init: ", options.rank, options.nranks);
  if (status.message().starts_with(name)) return status;
  return {status.code(), name + status.message()};
}

Status RendezvousClient::CancelledBy(const ClientOptions& options) {
  if (options.cancelled == nullptr || !options.cancelled->load()) return Status::Ok();
  return NamedBy(options, RemoteError("this rank ended the creation of the communicator"));
}

RendezvousClient::RendezvousClient(UniqueFd fd, StreamCipher cipher, std::string root_name,
                                   const ClientOptions& options)
    : fd_(std::move(fd)),
      root_name_(std::move(root_name)),
      options_(options),
      seal_(std::move(cipher.seal)),
      in_(MostBody(options.nranks)) {
  in_.Protect(std::move(cipher.open));
}

Status RendezvousClient::Named(const Status& status) const { return NamedBy(options_, status); }

Status RendezvousClient::Send(MessageKind kind, Bytes body) {
  std::vector<std::byte> frame;
  if (!AppendFrame(static_cast<uint8_t>(kind), body, &frame, &seal_)) {
    return Named(SystemError("libcrypto cannot seal a message"));
  }
  Bytes rest = frame;
  while (!rest.empty()) {
    const IoResult sent = WriteSome(fd_.get(), rest);
    rest = rest.subspan(sent.bytes);
    if (sent.error == EAGAIN) {
      if (WaitFor(fd_.get(), POLLOUT, options_.deadline, options_)) continue;
      if (Status status = CheckCancelled(); !status.ok()) return status;
      return Named(TimeoutError(fmt::format("the rendezvous at {} takes nothing", root_name_)));
    }
    if (sent.error != 0) break;  // Await reports the error
  }
  return Status::Ok();
}

Result<std::optional<FrameParser::Frame>> RendezvousClient::Receive() {
  std::array<std::byte, 16384> buffer;
  while (true) {
    FrameParser::Frame frame;
    const FrameParser::Next next = in_.Pop(&frame);
    if (next == FrameParser::Next::kFrame) {
      if (frame.kind == static_cast<uint8_t>(MessageKind::kFailed)) {
        verdict_ = Named(DecodeError(frame.body));
        return verdict_;
      }
      return std::optional(frame);
    }
    if (next == FrameParser::Next::kMalformed) {
      return Named(InternalError(fmt::format("malformed message from {}", root_name_)));
    }
    const IoResult got = ReadSome(fd_.get(), buffer);
    if (got.error == EAGAIN) return std::optional<FrameParser::Frame>();
    if (got.error != 0 || got.closed) {
      return Named(RemoteError(fmt::format(
          "the rendezvous at {} closed the connection (did the process that runs it end?){}",
          root_name_, got.error != 0 ? ": " + SocketErrorText(got.error) : "")));
    }
    in_.Append(std::span(buffer).first(got.bytes));
  }
}

Result<std::vector<std::byte>> RendezvousClient::Await(MessageKind kind) {
  const Time until =
      options_.deadline > kNever - kAnswerGrace ? kNever : options_.deadline + kAnswerGrace;
  while (true) {
    Result<std::optional<FrameParser::Frame>> frame = Receive();
    if (!frame.ok()) return frame.status();
    if (frame->has_value()) {
      if ((*frame)->kind != static_cast<uint8_t>(kind)) {
        return Named(InternalError(
            fmt::format("unexpected message of kind {} from {}", (*frame)->kind, root_name_)));
      }
      return std::vector<std::byte>((*frame)->body.begin(), (*frame)->body.end());
    }
    if (Status status = CheckCancelled(); !status.ok()) return status;
    const Time now = SystemClock().Now();
    const Time next = options_.cancelled == nullptr ? until : std::min(until, now + kCancelLag);
    if (!bootstrap::WaitFor(fd_.get(), POLLIN, next) && next == until) {
      return Named(TimeoutError(fmt::format("the rendezvous at {} did not answer within {} ms",
                                            root_name_, options_.timeout_ms)));
    }
  }
}

Result<Blobs> RendezvousClient::Exchange(Bytes mine) {
  if (mine.size() > kMaxBlob) {
    return Named(
        InvalidArgument(fmt::format("blob of {} bytes, at most {}", mine.size(), kMaxBlob)));
  }
  if (Status status = Send(MessageKind::kBlob, mine); !status.ok()) return status;
  const Result<std::vector<std::byte>> body = Await(MessageKind::kBlobs);
  if (!body.ok()) return body.status();
  Result<Blobs> blobs = DecodeBlobs(*body, static_cast<uint32_t>(options_.nranks));
  return blobs.ok() ? std::move(blobs) : Result<Blobs>(Named(blobs.status()));
}

Status RendezvousClient::Check() {
  if (Status status = CheckCancelled(); !status.ok()) return status;
  Result<std::optional<FrameParser::Frame>> frame = Receive();
  if (!frame.ok()) return frame.status();
  if (frame->has_value()) {
    return Named(InternalError(
        fmt::format("unexpected message of kind {} from {}", (*frame)->kind, root_name_)));
  }
  return Status::Ok();
}

}  // namespace inccl::bootstrap
