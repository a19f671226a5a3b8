// SPDX-License-Identifier: Apache-2.0
//
// One authenticated connection of the rendezvous: frames that arrive, and what is still to be sent.
#ifndef INCCL_BOOTSTRAP_RENDEZVOUS_SESSION_H_
#define INCCL_BOOTSTRAP_RENDEZVOUS_SESSION_H_

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "bootstrap/frame.h"
#include "bootstrap/messages.h"

namespace inccl::bootstrap {

// A connection that has proven that it knows the secret.
struct Session {
  static constexpr uint32_t kMaxFromRank = 128 * 1024;  // body of a frame that a rank sends

  enum class State : uint8_t { kRegistering, kJoined, kDone, kClosing };

  UniqueFd fd;
  State state = State::kRegistering;
  Time deadline = 0;  // while registering or closing
  uint32_t rank = 0;  // from the handshake
  uint32_t pid = 0;   // from the registration
  FrameParser in{kMaxFromRank};
  std::optional<Aead> seal;
  std::vector<std::byte> out;
  std::optional<std::vector<std::byte>> blob;  // that waits for those of other ranks
  bool shut = false;

  // Reads what has arrived and passes the frames on until the session is closing. Returns false if
  // the other end has gone, or has sent what is no frame.
  bool Read(const std::function<void(const FrameParser::Frame&)>& on_frame);
  // Sends what the socket takes now; the rest stays in `out`.
  void Flush();
  void Send(MessageKind kind, Bytes body);
  // Sends the last message, then closes when the other end has closed.
  void Dismiss(MessageKind kind, Bytes body);
  void Close();
  bool member() const { return state == State::kJoined || state == State::kDone; }
  bool own() const { return pid == static_cast<uint32_t>(getpid()); }  // of this process
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_RENDEZVOUS_SESSION_H_
