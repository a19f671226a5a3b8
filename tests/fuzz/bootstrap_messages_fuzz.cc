// SPDX-License-Identifier: Apache-2.0
//
// A stream of frames cut anywhere, and every message that may be in one.
#include "bootstrap/messages.h"
#include "collectives/call.h"
#include "fuzz/fuzz.h"
#include "init/transport_selection.h"

namespace inccl::fuzz {
namespace {

using bootstrap::FrameParser;

void Decode(uint8_t kind, Data body) {
  switch (kind % 8) {
    case 0: {
      const Result<bootstrap::Registration> registration = bootstrap::Registration::Decode(body);
      if (registration.ok()) {
        // A rendezvous hands on what it has decoded.
        Require(bootstrap::Registration::Decode(registration->Encode()).ok(),
                "a registration can be sent on");
      }
      break;
    }
    case 1:
      for (const uint32_t nranks : {1u, 3u, 64u}) {
        const Result<bootstrap::RankTable> table = bootstrap::RankTable::Decode(body, nranks);
        if (table.ok()) Require(table->ranks.size() == nranks, "a table names every rank");
      }
      break;
    case 2: Require(!bootstrap::DecodeError(body).ok(), "an error stays one"); break;
    case 3: {
      const Result<CallRecord> record = CallRecord::Decode(body);
      if (record.ok()) (void)record->ToString();
      break;
    }
    case 4: (void)TransportOffer::Decode(body); break;
    case 5: {
      const auto links = bootstrap::DecodeLinks(body, 1, 3);
      if (!links.ok()) break;
      for (const MeasuredLink& link : *links) Require(link.b == 0 || link.b == 2, "a peer");
      break;
    }
    case 6: {
      const Result<Sites> sites = bootstrap::DecodeSites(body, 3);
      if (!sites.ok()) break;
      for (const int site : sites->of_host) Require(site < sites->count, "a site");
      (void)sites->RoundTripUs(sites->count - 1, sites->count - 1);
      break;
    }
    default: {
      const Result<bootstrap::Blobs> blobs = bootstrap::DecodeBlobs(body, 3);
      if (!blobs.ok()) break;
      Require(blobs->size() == 3, "a blob of each rank");
      for (const auto& blob : *blobs) Require(blob.size() <= kMaxBlob, "no blob above the limit");
    }
  }
}

}  // namespace

void Run(Data data) {
  Input input(data);
  FrameParser parser(4096);
  size_t appended = 0;
  while (!input.empty()) {
    const Data piece = input.Take(1 + input.Byte());
    appended += piece.size();
    parser.Append(piece);
    FrameParser::Frame frame;
    FrameParser::Next next = FrameParser::Next::kFrame;
    while ((next = parser.Pop(&frame)) == FrameParser::Next::kFrame) {
      Require(frame.body.size() <= 4096, "no frame above the limit");
      Decode(frame.kind, Exact(frame.body));
    }
    Require(parser.buffered() <= appended, "no more is held than has come");
    if (next == FrameParser::Next::kMalformed) return;
  }
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> bodies(6);
  bootstrap::Registration registration;
  registration.record.host = "host";
  registration.record.mesh_name = "inccl-mesh-0123";
  registration.nranks = 4;
  registration.agreement = "version=1 algorithm=any";
  bodies[0] = registration.Encode();
  bodies[2] = bootstrap::EncodeError(TimeoutError("rank 1 of 3 did not arrive"));
  CallRecord record;
  record.codec = "hbi:bits=6";
  bodies[3] = record.Encode();
  bodies[4] = TransportOffer{"shm", Status::Ok(), std::vector<std::byte>(16)}.Encode();
  bodies[5] = bootstrap::EncodeBlobs({bodies[4], {}, bodies[4]});
  std::vector<std::vector<std::byte>> examples;
  for (size_t kind = 0; kind < bodies.size(); ++kind) {
    std::vector<std::byte> frame, example;
    bootstrap::AppendFrame(static_cast<uint8_t>(kind), bodies[kind], &frame);
    for (size_t at = 0; at < frame.size(); at += 256) {
      const size_t count = std::min<size_t>(256, frame.size() - at);
      example.push_back(std::byte{255});
      example.insert(example.end(), frame.begin() + static_cast<ptrdiff_t>(at),
                     frame.begin() + static_cast<ptrdiff_t>(at + count));
    }
    examples.push_back(std::move(example));
  }
  return examples;
}

}  // namespace inccl::fuzz
