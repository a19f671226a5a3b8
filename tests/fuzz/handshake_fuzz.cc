// SPDX-License-Identifier: Apache-2.0
//
// Both ends of the handshake, fed with bytes in pieces of any size. No end gets through without
// the key.
#include "bootstrap/handshake.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

using bootstrap::ClientHandshake;
using bootstrap::HandshakeTerms;
using bootstrap::ServerHandshake;

HandshakeTerms Terms() {
  HandshakeTerms terms;
  bootstrap::Mac secret{};
  secret[3] = std::byte{7};
  terms.key = bootstrap::Key(secret);
  return terms;
}

}  // namespace

void Run(Data data) {
  static const HandshakeTerms terms = Terms();
  Input input(data);
  ServerHandshake server;
  server.Start(&terms, {});
  ClientHandshake client;
  client.Start(&terms, {.rank = 1, .nranks = 4}, {});
  const bool to_server = (input.Byte() & 1) != 0;
  while (!input.empty()) {
    const size_t piece = 1 + input.Byte() % 40;
    if (to_server) {
      if (server.state() != ServerHandshake::State::kReading) break;
      (void)server.Feed(input.Take(std::min(piece, server.wanted())));
    } else {
      if (client.state() == ClientHandshake::State::kDone ||
          client.state() == ClientHandshake::State::kFailed) {
        break;
      }
      (void)client.Feed(input.Take(std::min(piece, client.wanted())));
    }
  }
  Require(server.state() != ServerHandshake::State::kDone, "no client without the key");
  Require(client.state() != ClientHandshake::State::kDone, "no server without the key");
}

std::vector<std::vector<std::byte>> Examples() {
  // What a server with another key and a client with another key would send.
  HandshakeTerms other = Terms();
  other.key = bootstrap::Key(bootstrap::Mac{});
  ServerHandshake server;
  server.Start(&other, {});
  ClientHandshake client;
  client.Start(&other, {.rank = 1, .nranks = 4}, {});
  (void)client.Feed(server.greeting());
  std::vector<std::vector<std::byte>> examples(2);
  const auto in_pieces = [](std::byte which, bootstrap::Bytes bytes, std::vector<std::byte>* out) {
    out->push_back(which);
    for (size_t at = 0; at < bytes.size(); at += 40) {
      out->push_back(std::byte{39});
      const bootstrap::Bytes piece = bytes.subspan(at, std::min<size_t>(40, bytes.size() - at));
      out->insert(out->end(), piece.begin(), piece.end());
    }
  };
  in_pieces(std::byte{1}, client.hello(), &examples[0]);
  in_pieces(std::byte{0}, server.greeting(), &examples[1]);
  return examples;
}

}  // namespace inccl::fuzz
