// SPDX-License-Identifier: Apache-2.0
#include "submit.h"

namespace inccl {
namespace {

Status Run(Communicator* communicator, const Call& call) { return communicator->Run(call); }
Status Run(Communicator* communicator, const PointCall& call) {
  return communicator->RunPoints({call});
}
void Put(const Call& call, Batch* batch) { batch->calls.push_back(call); }
void Put(const PointCall& call, Batch* batch) { batch->points.push_back(call); }

template <typename AnyCall>
Status SubmitAny(const std::shared_ptr<Communicator>& communicator,
                 const std::shared_ptr<Stream>& stream, const AnyCall& call) {
  if (Group* group = Group::Current(); group != nullptr) {
    group->Add(communicator, stream, call);
    return Status::Ok();
  }
  if (stream == nullptr) return Run(communicator.get(), call);
  if (Status sticky = communicator->error(); !sticky.ok()) return sticky;
  Batch batch;
  Put(call, &batch);
  batch.turns.push_back({stream, stream->Enter()});
  const uint64_t place = batch.turns.front().place;
  Status status = communicator->Enqueue(std::move(batch));
  if (!status.ok()) {
    communicator->Fail(status);
    stream->Leave(place, status);
  }
  return status;
}

}  // namespace

const PreMulSum* FindReduction(ccl_comm_t comm, int op) {
  const int index = op - kReduceOps;
  if (index < 0 || static_cast<size_t>(index) >= comm->reductions.size()) return nullptr;
  const std::optional<PreMulSum>& found = comm->reductions[static_cast<size_t>(index)];
  return found ? &*found : nullptr;
}

Status SubmitCall(const std::shared_ptr<Communicator>& communicator,
                  const std::shared_ptr<Stream>& stream, const Call& call) {
  return SubmitAny(communicator, stream, call);
}

Status SubmitCall(const std::shared_ptr<Communicator>& communicator,
                  const std::shared_ptr<Stream>& stream, const PointCall& call) {
  return SubmitAny(communicator, stream, call);
}

}  // namespace inccl
