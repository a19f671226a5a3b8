// SPDX-License-Identifier: Apache-2.0
//
// One data connection: a queue of frames that go out, and the frame that is coming in. Frames can
// be queued before the connection is made. No call blocks. One thread at a time.
#ifndef INCCL_TRANSPORT_TCP_TCP_CONNECTION_H_
#define INCCL_TRANSPORT_TCP_TCP_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/tcp/tcp_frame.h"

namespace inccl::tcp {

// A frame that goes out. Its memory may change when *in_flight is false again.
struct OutFrame {
  FrameHeader* first() { return header != nullptr ? header : &own_header; }
  size_t bytes() { return sizeof(FrameHeader) + first()->bytes; }
  bool of_caller() const {
    return payload != nullptr && payload != reinterpret_cast<const std::byte*>(header + 1);
  }

  FrameHeader* header = nullptr;  // nullptr: `own_header`
  const std::byte* payload = nullptr;
  bool* in_flight = nullptr;
  bool sealed = false;
  FrameHeader own_header;
};

// A queue of frames, in a ring that grows.
class FrameQueue {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  OutFrame& at(size_t i) { return ring_[(front_ + i) % ring_.size()]; }
  const OutFrame& at(size_t i) const { return ring_[(front_ + i) % ring_.size()]; }
  // An empty frame at the end.
  OutFrame* Append();
  void RemoveLast() { --size_; }
  // The first one is sent, or never will be.
  void Pop();
  // None will be sent. Returns whether there was one with a slice.
  bool Drop();
  // Whether one has its payload in a caller's memory.
  bool of_caller() const;

 private:
  std::vector<OutFrame> ring_;
  size_t front_ = 0, size_ = 0;
};

// Where the frames of a connection come from and go.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // The next frame to send of those that any connection with the peer may carry; false: none.
  virtual bool NextFrame(OutFrame* /*frame*/) { return false; }
  // The place for the payload of a slice, with room for header.bytes; nullptr and *wrong if no such
  // slice is due.
  virtual std::byte* PlaceOf(const FrameHeader& header, std::string* wrong) = 0;
  // A frame is complete and has been checked. Returns what is wrong with it, or "".
  virtual std::string Arrived(const FrameHeader& header) = 0;
};

class Connection {
 public:
  // `sink` outlives the connection; `name` begins its errors.
  Connection(std::string name, Protection protection, FrameSink* sink)
      : name_(std::move(name)), encrypts_(protection == Protection::kEncrypt), sink_(sink) {}

  // The connection is made, once.
  void Open(UniqueFd fd, FrameGuard out, FrameGuard in);
  bool made() const { return fd_.valid(); }
  // The connection carries nothing any more, or cannot be made.
  void Fail(std::string why);

  // Queues a frame that the caller has laid out in memory, header first. The memory belongs to the
  // connection until *in_flight is false again. Sends what the socket takes.
  Status Send(std::byte* frame, bool* in_flight);
  bool encrypts() const { return encrypts_; }
  // The same for a header alone, which is copied.
  Status Send(const FrameHeader& header);
  // Sends what the socket takes now.
  void Flush();
  // Reads what has arrived, up to a limit of frames, and returns the number of frames. An error is
  // one of the peer's doing: bytes that it must not send.
  Result<int> Receive();

  int fd() const { return fd_.get(); }
  bool unsent() const { return !queue_.empty() && failure_.empty(); }
  // Edge-triggered readiness: the owner calls these when epoll reports it.
  // `ended`: the peer sends no more, so a short read is not the last one.
  void SetReadable(bool ended) {
    readable_ = true;
    ended_ = ended_ || ended;
  }
  void SetWritable() { writable_ = true; }
  bool readable() const { return readable_ && failure_.empty(); }
  bool writable() const { return writable_ && failure_.empty(); }
  // Why the connection carries nothing any more; "": it lives.
  const std::string& failure() const { return failure_; }
  // The connection has failed with slices that were not sent.
  bool dropped_slices() const { return dropped_slices_; }
  // Ends the connection if a payload in a caller's memory is not sent.
  void DropUnsent();
  void Close();
  // Whether the peer's machine has acknowledged all that was sent.
  bool Acknowledged() const;

 private:
  bool Seal(OutFrame* out);
  void Refill();
  // Takes `bytes` off the front of the queue.
  void Complete(size_t bytes);
  std::span<std::byte> Place();
  Status Take(size_t bytes, int* frames);
  // The same for bytes that were read elsewhere.
  Status TakeCopies(std::span<const std::byte> bytes, int* frames);
  Status HeaderArrived(int* frames);
  Status FrameArrived(int* frames);
  Status Wrong(const std::string& what) const;

  const std::string name_;
  const bool encrypts_;
  UniqueFd fd_;
  std::optional<FrameGuard> out_guard_, in_guard_;  // of a connection that is made
  FrameSink* const sink_;
  FrameQueue queue_;
  size_t front_sent_ = 0;         // bytes of the first frame that are sent
  FrameHeader incoming_;          // of the next frame
  FrameHeader header_;            // of the frame whose payload is read
  std::byte* payload_ = nullptr;  // its place; nullptr: a header is read
  size_t have_ = 0;               // bytes of the payload or header
  bool readable_ = false, writable_ = false, ended_ = false;
  std::string failure_;
  bool dropped_slices_ = false;
};

}  // namespace inccl::tcp

#endif  // INCCL_TRANSPORT_TCP_TCP_CONNECTION_H_
