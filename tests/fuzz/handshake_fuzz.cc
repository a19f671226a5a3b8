// SPDX-License-Identifier: Apache-2.0
//
// Both ends of the handshake, fed with bytes in pieces of any size. No end gets through without
// the key.
#include "bootstrap/handshake.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

using bootstrap::ClientHandshake;
using bootstrap::ClientIdentity;
using bootstrap::HandshakeTerms;
using bootstrap::ServerHandshake;

HandshakeTerms Terms() {
  HandshakeTerms terms;
  bootstrap::Mac secret{};
  secret[3] = std::byte{7};
  terms.key = bootstrap::Key(secret);
  terms.own = bootstrap::ServerKey::Create().value();
  return terms;
}

}  // namespace

void Run(Data data) {
  static const HandshakeTerms terms = Terms();
  Input input(data);
  ServerHandshake server;
  server.Start(&terms);
  ClientHandshake client;
  const std::byte way{input.Byte()};
  const bool to_server = (way & std::byte{1}) != std::byte{0};
  ClientIdentity identity{.rank = 1, .nranks = 4};
  if ((way & std::byte{2}) != std::byte{0}) {
    identity.server_key = terms.own->public_key();
  }
  client.Start(&terms, identity, {});
  while (!input.empty()) {
    const size_t piece = 1 + input.Byte() % 40;
    if (to_server) {
      if (server.state() != ServerHandshake::State::kReading &&
          server.state() != ServerHandshake::State::kAsked) {
        break;
      }
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
  // What a server with another key and clients with another key would send.
  HandshakeTerms other = Terms();
  other.key = bootstrap::Key(bootstrap::Mac{});
  ServerHandshake server;
  server.Start(&other);
  ClientHandshake client, knows;
  client.Start(&other, {.rank = 1, .nranks = 4}, {});
  const std::vector<std::byte> ask(client.to_send().begin(), client.to_send().end());
  (void)server.Feed(ask);
  (void)client.Feed(server.greeting());
  knows.Start(&other, {.rank = 1, .nranks = 4, .server_key = other.own->public_key()}, {});
  std::vector<std::vector<std::byte>> examples(3);
  const auto in_pieces = [](std::byte which, bootstrap::Bytes bytes, std::vector<std::byte>* out) {
    out->push_back(which);
    for (size_t at = 0; at < bytes.size(); at += 40) {
      out->push_back(std::byte{39});
      const bootstrap::Bytes piece = bytes.subspan(at, std::min<size_t>(40, bytes.size() - at));
      out->insert(out->end(), piece.begin(), piece.end());
    }
  };
  std::vector<std::byte> asks = ask;
  asks.insert(asks.end(), client.to_send().begin(), client.to_send().end());
  in_pieces(std::byte{1}, asks, &examples[0]);
  in_pieces(std::byte{0}, server.greeting(), &examples[1]);
  in_pieces(std::byte{1}, knows.to_send(), &examples[2]);
  return examples;
}

}  // namespace inccl::fuzz
