// SPDX-License-Identifier: Apache-2.0
#include "api/submit.h"

#include <span>
#include <vector>

#include "device/runtime.h"
#include "stream/stream.h"

namespace inccl {
namespace {

struct Buffer {
  const char* name;
  const void* data;
  uint64_t elements;  // 0: the call has no such buffer
};

std::string MemoryOf(Device* device, const void* data) {
  const int number = device->DeviceOf(data);
  return number < 0 ? "memory of the host" : fmt::format("memory of device {}", number);
}

// Which memory holds the buffers of a call.
struct StreamPlace {
  bool on_device = false;
  int device = -1;  // the device that holds all of them; -1: none or several
};

// `otherwise`: on_device if the call has no buffers.
Result<StreamPlace> PlaceOf(Device* device, std::span<const Buffer> buffers, bool otherwise) {
  const Buffer* first = nullptr;
  StreamPlace place{.on_device = otherwise, .device = -1};
  for (const Buffer& buffer : buffers) {
    if (buffer.elements == 0) continue;
    const int number = device->DeviceOf(buffer.data);
    if (first == nullptr) {
      first = &buffer;
      place = {.on_device = number >= 0, .device = number};
    } else if ((number >= 0) != place.on_device) {
      return InvalidArgument(fmt::format("{} is {}, {} {}: they must be of one kind", first->name,
                                         MemoryOf(device, first->data), buffer.name,
                                         MemoryOf(device, buffer.data)));
    } else if (number != place.device) {
      place.device = -1;
    }
  }
  return place;
}

Result<std::shared_ptr<Stream>> StreamFor(ccl_stream_t stream, std::span<const Buffer> buffers,
                                          StreamPlace* place) {
  std::shared_ptr<Stream> own = stream == nullptr ? nullptr : FindStream(stream);
  const bool foreign = stream != nullptr && own == nullptr;
  Device* const device = foreign ? LookForDevice() : CurrentDevice();
  if (device == nullptr) {
    if (foreign) return NoStream();
    return own;
  }
  Result<StreamPlace> found = PlaceOf(device, buffers, foreign);
  if (!found.ok()) return found.status();
  *place = *found;
  if (!place->on_device) {
    if (!foreign) return own;
    return InvalidArgument(
        "stream: not of ccl_stream_create, which a call on memory of the host takes, or NULL");
  }
  if (own != nullptr) {
    return InvalidArgument(
        "stream: of ccl_stream_create, but the buffers are memory of a device: give a stream of "
        "the "
        "device");
  }
  return DeviceStreamOf(device, stream);
}

}  // namespace

const PreMulSum* FindReduction(ccl_comm_t comm, int op) { return comm->reductions.Find(op); }

Result<std::shared_ptr<Stream>> StreamOf(ccl_stream_t stream, const Communicator& communicator,
                                         Call* call) {
  if (stream == nullptr && CurrentDevice() == nullptr) return std::shared_ptr<Stream>();
  std::vector<Buffer> several;
  const Extent extent = ExtentOf(*call, communicator.rank(), communicator.nranks());
  const Buffer both[] = {{"send", call->send, extent.send}, {"recv", call->recv, extent.recv}};
  std::span<const Buffer> buffers = both;
  if (call->vectors != nullptr) {
    for (const FusedVector& vector : *call->vectors) {
      several.push_back({"send", vector.send, vector.count});
      several.push_back({"recv", vector.recv, vector.count});
    }
    buffers = several;
  }
  StreamPlace place;
  Result<std::shared_ptr<Stream>> found = StreamFor(stream, buffers, &place);
  call->on_device = place.on_device;
  call->device = place.device;
  Device* const device = CurrentDevice();
  if (found.ok() && !call->on_device && call->scalar_at != nullptr && device != nullptr &&
      device->DeviceOf(call->scalar_at) >= 0) {
    return InvalidArgument(
        fmt::format("op: its factor is {}, the buffers memory of the host: make it with a factor "
                    "there",
                    MemoryOf(device, call->scalar_at)));
  }
  return found;
}

Status SubmitCall(const std::shared_ptr<Communicator>& communicator,
                  const std::shared_ptr<Stream>& stream, const Call& call) {
  Group* const group = Group::Current();
  // For sends and receives in a group, the end of the group prepares all of them together.
  if (group == nullptr || call.kind == CallKind::kCollective) communicator->PrepareFor({&call, 1});
  if (group != nullptr) {
    // An error that is known now spoils the group, and End starts nothing.
    Status status = stream == nullptr ? Status::Ok() : stream->Check();
    if (status.ok()) group->Add(communicator, stream, call);
    return status;
  }
  if (stream == nullptr) return communicator->Run(call);
  if (Status sticky = communicator->error(); !sticky.ok()) return sticky;
  Batch batch;
  batch.Add(call);
  const auto order = std::make_shared<StreamOrder>(stream, 1);
  batch.orders.push_back(order);
  if (Status status = order->Enqueue(communicator->label()); !status.ok()) return status;
  Status status = communicator->Enqueue(std::move(batch));
  if (!status.ok()) order->Complete(communicator->MakeSticky(status));
  return status;
}

}  // namespace inccl
