// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/rendezvous_session.h"

#include <sys/socket.h>

#include <cerrno>

#include "bootstrap/socket.h"

namespace inccl::bootstrap {
namespace {

constexpr Time kClosingLimit = kSecond;  // to flush an answer and see the other end close

}  // namespace

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
