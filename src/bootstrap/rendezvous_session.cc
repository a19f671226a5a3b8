// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_session.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr Time kClosingLimit = kSecond;  // to flush an answer and see the other end close

}  // namespace

bool Session::Read(const std::function<void(const FrameParser::Frame&)>& on_frame) {
  std::array<std::byte, 4096> buffer;
  while (fd.valid()) {
    const IoResult got = ReadSome(fd.get(), buffer);
    if (got.error == EAGAIN) return true;
    if (got.error != 0 || got.closed) return false;
    if (state == State::kClosing) continue;
    in.Append(std::span(buffer).first(got.bytes));
    while (state != State::kClosing) {
      FrameParser::Frame frame;
      const FrameParser::Next next = in.Pop(&frame);
      if (next == FrameParser::Next::kNeedMore) break;
      if (next == FrameParser::Next::kMalformed) return false;
      on_frame(frame);
    }
  }
  return true;
}

void Session::Send(MessageKind kind, Bytes body) {
  if (!AppendFrame(static_cast<uint8_t>(kind), body, &out, seal ? &*seal : nullptr)) {
    shutdown(fd.get(), SHUT_RDWR);  // both ends then read that the session has ended
  }
  Flush();
}

void Session::Dismiss(MessageKind kind, Bytes body) {
  state = Session::State::kClosing;
  deadline = SystemClock().Now() + kClosingLimit;
  Send(kind, body);
}

void Session::Close() {
  fd.Reset();
  state = State::kClosing;
}

void Session::Flush() {
  while (fd.valid() && !out.empty()) {
    const IoResult sent = WriteSome(fd.get(), out);
    if (sent.error == EAGAIN) return;
    if (sent.error != 0) return;  // reading reports the error
    out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(sent.bytes));
  }
  if (state == Session::State::kClosing && fd.valid() && !shut) {
    shut = true;  // close after the other end has read everything and closed
    shutdown(fd.get(), SHUT_WR);
  }
}

}  // namespace inccl::bootstrap
