// SPDX-License-Identifier: Apache-2.0
//
// The parsers: unique id, frames, registrations, tables, errors; and what a gathering decides.
#include "bootstrap/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "bootstrap/bootstrap_world.h"
#include "bootstrap/gathering.h"
#include "bootstrap/handshake.h"
#include "bootstrap/unique_id.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using namespace bootstrap;  // NOLINT(build/namespaces)

using IdBytes = std::array<std::byte, kUniqueIdBytes>;

UniqueId SampleId() {
  UniqueId id;
  id.needs_secret_file = true;
  UniqueIdAddress v4, v6;
  v4.family = 4;
  v4.address = {std::byte{10}, std::byte{0}, std::byte{0}, std::byte{7}};
  v4.port = 0x1234;
  v6.family = 6;
  v6.address.fill(std::byte{0xFE});
  v6.port = 65535;
  v6.scope = 3;
  id.addresses = {v4, v6};
  id.server_key.fill(std::byte{0x4E});
  Mac secret;
  secret.fill(std::byte{0x5A});
  id.secret = Key(secret);
  return id;
}

IdBytes Encoded(const UniqueId& id) {
  IdBytes bytes;
  id.Encode(bytes.data());
  return bytes;
}

TEST(UniqueIdTest, ReadsBackWhatWasWritten) {
  const UniqueId id = SampleId();
  const IdBytes bytes = Encoded(id);
  const Result<UniqueId> back = UniqueId::Decode(bytes.data());
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->needs_secret_file, true);
  EXPECT_EQ(back->addresses, id.addresses);
  EXPECT_EQ(back->server_key, id.server_key);
  EXPECT_EQ(id.ToString(), "unique id 4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e");
  EXPECT_TRUE(std::equal(back->secret.bytes().begin(), back->secret.bytes().end(),
                         id.secret.bytes().begin()));
}

TEST(UniqueIdTest, TheDocumentedOffsets) {
  const IdBytes bytes = Encoded(SampleId());
  const auto at = [&](size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "iclu");
  EXPECT_EQ(at(4), 2);
  EXPECT_EQ(at(5), 1);
  EXPECT_EQ(at(6), 2);
  EXPECT_EQ(at(8), 4);
  EXPECT_EQ(at(10), 10);
  EXPECT_EQ(at(13), 7);
  EXPECT_EQ(at(26), 0x34);
  EXPECT_EQ(at(27), 0x12);
  EXPECT_EQ(at(30), 6);
  EXPECT_EQ(at(50), 3);
  EXPECT_EQ(at(52), 0x4E);
  EXPECT_EQ(at(83), 0x4E);
  EXPECT_EQ(at(84), 0x5A);
  EXPECT_EQ(at(115), 0x5A);
  const uint32_t crc = Crc32c(Bytes(bytes).first(116));
  EXPECT_EQ(at(116), static_cast<int>(crc & 0xFF));
  EXPECT_EQ(at(119), static_cast<int>(crc >> 24));
  for (size_t i = 120; i < kUniqueIdBytes; ++i) EXPECT_EQ(at(i), 0);
}

TEST(UniqueIdTest, EveryFlippedBitIsNoticed) {
  const IdBytes good = Encoded(SampleId());
  for (size_t bit = 0; bit < kUniqueIdBytes * 8; ++bit) {
    IdBytes bad = good;
    bad[bit / 8] ^= std::byte{1} << (bit % 8);
    const Result<UniqueId> id = UniqueId::Decode(bad.data());
    ASSERT_FALSE(id.ok()) << "bit " << bit;
    EXPECT_EQ(id.status().code(), Code::kInvalidArgument);
    EXPECT_CONTAINS(id.status().message(), "id: ");
  }
}

// Damage that the checksum does not show, because its author fixed the checksum.
TEST(UniqueIdTest, FieldsAreChecked) {
  const auto decode_with = [](size_t offset, int value) {
    IdBytes bytes = Encoded(SampleId());
    bytes[offset] = static_cast<std::byte>(value);
    ByteWriter crc;
    crc.U32(Crc32c(Bytes(bytes).first(116)));
    std::copy(crc.bytes().begin(), crc.bytes().end(), bytes.begin() + 116);
    const Result<UniqueId> id = UniqueId::Decode(bytes.data());
    return id.ok() ? std::string("accepted") : id.status().message();
  };
  EXPECT_EQ(decode_with(6, 1), "accepted");
  EXPECT_CONTAINS(decode_with(4, 1), "version 1");
  EXPECT_CONTAINS(decode_with(5, 2), "flags 0x2");
  EXPECT_CONTAINS(decode_with(6, 3), "3 addresses");
  EXPECT_CONTAINS(decode_with(7, 1), "addresses");
  EXPECT_CONTAINS(decode_with(8, 5), "family 5");
  EXPECT_CONTAINS(decode_with(9, 1), "family");
  const IdBytes zeros{};
  EXPECT_CONTAINS(UniqueId::Decode(zeros.data()).status().message(), "ccl_get_unique_id");
}

TEST(UniqueIdTest, TheTextHasTheNonceAndNotTheSecret) {
  const std::string text = SampleId().ToString();
  EXPECT_EQ(text, "unique id 4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e");
}

TEST(FrameTest, AnyPortionsGiveTheSameFrames) {
  Rng rng(TestSeed());
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> stream;
    std::vector<std::pair<uint8_t, std::vector<std::byte>>> sent;
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> body(rng.Below(5) == 0 ? 0 : rng.Below(300));
      for (std::byte& b : body) b = static_cast<std::byte>(rng.Next());
      sent.emplace_back(static_cast<uint8_t>(rng.Next()), body);
      AppendFrame(sent.back().first, body, &stream);
    }
    FrameParser parser(300);
    size_t next = 0;
    for (Bytes rest = stream; !rest.empty();) {
      const size_t n = 1 + rng.Below(std::min<size_t>(rest.size(), 100));
      parser.Append(rest.first(n));
      rest = rest.subspan(n);
      FrameParser::Frame frame;
      FrameParser::Next result;
      while ((result = parser.Pop(&frame)) == FrameParser::Next::kFrame) {
        ASSERT_LT(next, sent.size());
        EXPECT_EQ(frame.kind, sent[next].first);
        ASSERT_TRUE(std::equal(frame.body.begin(), frame.body.end(), sent[next].second.begin(),
                               sent[next].second.end()));
        ++next;
      }
      ASSERT_EQ(result, FrameParser::Next::kNeedMore);
    }
    EXPECT_EQ(next, sent.size());
    EXPECT_EQ(parser.buffered(), 0u);
  }
}

TEST(FrameTest, ALengthThatIsTooLargeIsMalformedAtOnce) {
  FrameParser parser(1000);
  ByteWriter header;
  header.U32(1001);
  parser.Append(header.bytes());
  FrameParser::Frame frame;
  EXPECT_EQ(parser.Pop(&frame), FrameParser::Next::kMalformed);
  EXPECT_EQ(parser.Pop(&frame), FrameParser::Next::kMalformed);
}

Registration Sample(uint32_t rank, uint32_t nranks = 4) {
  Registration r;
  r.record = {.rank = rank,
              .pid = 1000 + rank,
              .uid = 7,
              .host_id = 0x123456789ABCDEF0,
              .machine_id = 0x1122334455667788,
              .host = "node",
              .mesh_name = "inccl-mesh-0123",
              .mesh_addresses = std::vector<UniqueIdAddress>(rank % 3, {.port = 4711}),
              .blob = std::vector<std::byte>(rank * 10, std::byte{9}),
              .round_trip_us = 20'000 + rank};
  r.nranks = nranks;
  r.timeout_ms = 3000;
  r.remaining = 3 * kSecond;
  r.agreement = "version=1 channels=2 codec=hbi:bits=6";
  return r;
}

void ExpectEqual(const RankRecord& a, const RankRecord& b) {
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.pid, b.pid);
  EXPECT_EQ(a.uid, b.uid);
  EXPECT_EQ(a.host_id, b.host_id);
  EXPECT_EQ(a.machine_id, b.machine_id);
  EXPECT_EQ(a.host, b.host);
  EXPECT_EQ(a.mesh_name, b.mesh_name);
  EXPECT_EQ(a.mesh_addresses, b.mesh_addresses);
  EXPECT_EQ(a.blob, b.blob);
  EXPECT_EQ(a.round_trip_us, b.round_trip_us);
}

TEST(MessagesTest, ReadBackWhatWasWritten) {
  const Registration r = Sample(2);
  const Result<Registration> back = Registration::Decode(r.Encode());
  ASSERT_TRUE(back.ok());
  ExpectEqual(back->record, r.record);
  EXPECT_EQ(back->nranks, 4u);
  EXPECT_EQ(back->timeout_ms, 3000u);
  EXPECT_EQ(back->remaining, 3 * kSecond);
  EXPECT_EQ(back->agreement, r.agreement);

  RankTable table;
  ASSERT_TRUE(FillRandom(table.session).ok());
  for (uint32_t i = 0; i < 4; ++i) table.ranks.push_back(Sample(i).record);
  const Result<RankTable> table_back = RankTable::Decode(table.Encode(), 4);
  ASSERT_TRUE(table_back.ok());
  EXPECT_EQ(table_back->session, table.session);
  for (size_t i = 0; i < 4; ++i) ExpectEqual(table_back->ranks[i], table.ranks[i]);
  EXPECT_FALSE(RankTable::Decode(table.Encode(), 5).ok());

  const Status error = DecodeError(EncodeError(TimeoutError("late")));
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.message(), "late");
}

TEST(MessagesTest, TextsOfPeersAreFitForATerminal) {
  const std::string evil = "\x1b[2J\nnode\xc2\x9b";
  const std::string shown = R"(\x1b[2J\x0anode\xc2\x9b)";
  Registration r = Sample(1);
  r.record.host = evil;
  const Result<Registration> registration = Registration::Decode(r.Encode());
  ASSERT_TRUE(registration.ok());
  EXPECT_EQ(registration->record.host, shown);
  EXPECT_EQ(NameOf(registration->record), "1@" + shown + ":1001");
  RankTable table;
  for (uint32_t i = 0; i < 3; ++i) table.ranks.push_back(Sample(i).record);
  table.ranks[2].host = evil;
  const Result<RankTable> ranks = RankTable::Decode(table.Encode(), 3);
  ASSERT_TRUE(ranks.ok());
  EXPECT_EQ(ranks->ranks[2].host, shown);
  EXPECT_EQ(DecodeError(EncodeError(RemoteError(evil))).message(), shown);
}

TEST(MessagesTest, TruncationsAndExtensionsAreErrors) {
  RankTable table;
  for (uint32_t i = 0; i < 4; ++i) table.ranks.push_back(Sample(i).record);
  std::vector<std::byte> registration = Sample(2).Encode(), ranks = table.Encode(),
                         error = EncodeError(TimeoutError("late"));
  for (size_t n = 0; n < registration.size(); ++n) {
    EXPECT_FALSE(Registration::Decode(Bytes(registration).first(n)).ok());
  }
  for (size_t n = 0; n < ranks.size(); ++n) {
    EXPECT_FALSE(RankTable::Decode(Bytes(ranks).first(n), 4).ok());
  }
  for (size_t n = 0; n < error.size(); ++n) {
    EXPECT_EQ(DecodeError(Bytes(error).first(n)).code(), Code::kInternalError);
  }
  for (std::vector<std::byte>* bytes : {&registration, &ranks, &error}) {
    bytes->push_back(std::byte{0});
  }
  EXPECT_FALSE(Registration::Decode(registration).ok());
  EXPECT_FALSE(RankTable::Decode(ranks, 4).ok());
  EXPECT_EQ(DecodeError(error).code(), Code::kInternalError);
}

TEST(MessagesTest, ImpossibleFieldsAreErrors) {
  Registration r = Sample(4, 4);
  EXPECT_FALSE(Registration::Decode(r.Encode()).ok()) << "rank 4 of 4";
  r = Sample(0, 0);
  EXPECT_FALSE(Registration::Decode(r.Encode()).ok());
  r = Sample(0, kMostWireRanks + 1);
  EXPECT_FALSE(Registration::Decode(r.Encode()).ok());
  r = Sample(0);
  r.agreement.assign(kMaxAgreement + 1, 'x');
  EXPECT_FALSE(Registration::Decode(r.Encode()).ok());
  r = Sample(0);
  r.record.mesh_name.assign(101, 'x');
  EXPECT_FALSE(Registration::Decode(r.Encode()).ok());
  r = Sample(0);
  r.record.blob.resize(kMaxBlob);
  EXPECT_TRUE(Registration::Decode(r.Encode()).ok());
  r.record.blob.resize(kMaxBlob + 1);
  EXPECT_FALSE(Registration::Decode(r.Encode()).ok());
  r = Sample(0);
  r.record.host.assign(1000, 'h');  // cut by the writer, so that a long host name is no failure
  EXPECT_TRUE(Registration::Decode(r.Encode()).ok());
  EXPECT_EQ(DecodeError(EncodeError(Status(static_cast<Code>(99), "?"))).code(),
            Code::kInternalError);
}

TEST(MessagesTest, RoundTripsAndSitesReadBack) {
  const std::vector<MeasuredLink> links = {{2, 0, 20'000}, {2, 3, 90}};
  const std::vector<std::byte> sent = EncodeLinks(links);
  const Result<std::vector<MeasuredLink>> back = DecodeLinks(sent, 2, 4);
  ASSERT_TRUE(back.ok());
  ASSERT_EQ(back->size(), 2u);
  EXPECT_EQ((*back)[1].a, 2);
  EXPECT_EQ((*back)[1].b, 3);
  EXPECT_EQ((*back)[1].round_trip_us, 90u);
  EXPECT_FALSE(DecodeLinks(sent, 3, 4).ok());  // to itself
  EXPECT_FALSE(DecodeLinks(sent, 2, 3).ok());  // there is no rank 3
  EXPECT_TRUE(DecodeLinks(EncodeLinks({}), 0, 1)->empty());

  const Sites sites{.count = 2, .of_host = {0, 1, 0}, .round_trip_us = {80, 20'000, 20'000, 0}};
  const std::vector<std::byte> told = EncodeSites(sites);
  ASSERT_TRUE(DecodeSites(told, 3).ok());
  EXPECT_EQ(*DecodeSites(told, 3), sites);
  EXPECT_EQ(*DecodeSites(EncodeSites(Sites()), 3), Sites());
  EXPECT_FALSE(DecodeSites(told, 2).ok());
  EXPECT_FALSE(DecodeSites(told, 4).ok());
  for (const std::vector<int>& wrong : {std::vector<int>{1, 0, 0}, {0, 2, 0}, {0, 0, 0}}) {
    Sites broken = sites;
    broken.of_host = wrong;  // does not begin with 0; there is no site 2; nobody is at site 1
    EXPECT_FALSE(DecodeSites(EncodeSites(broken), 3).ok());
  }
  for (size_t n = 0; n < sent.size(); ++n)
    EXPECT_FALSE(DecodeLinks(Bytes(sent).first(n), 2, 4).ok());
  for (size_t n = 0; n < told.size(); ++n) EXPECT_FALSE(DecodeSites(Bytes(told).first(n), 3).ok());
}

TEST(MessagesTest, RandomDamageIsHarmless) {
  Rng rng(TestSeed());
  RankTable table;
  for (uint32_t i = 0; i < 4; ++i) table.ranks.push_back(Sample(i).record);
  const std::vector<std::byte> samples[] = {Sample(1).Encode(), table.Encode(),
                                            EncodeError(TimeoutError("late"))};
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = samples[round % 3];
    for (uint64_t i = 0; i <= rng.Below(4); ++i) {
      bytes[rng.Below(bytes.size())] = static_cast<std::byte>(rng.Next());
    }
    bytes.resize(rng.Below(4) == 0 ? rng.Below(bytes.size() + 1) : bytes.size());
    const Result<Registration> r = Registration::Decode(bytes);
    if (r.ok()) {
      EXPECT_LT(r->record.rank, r->nranks);
      EXPECT_LE(r->nranks, kMostWireRanks);
    }
    const Result<RankTable> t = RankTable::Decode(bytes, 4);
    EXPECT_EQ(t.ok() ? t->ranks.size() : 4, 4u);
    EXPECT_FALSE(DecodeError(bytes).ok());
  }
}

TEST(GatheringTest, CompleteWhenAllHaveCome) {
  Gathering gathering;
  Status why;
  for (const uint32_t rank : {2u, 0u, 3u}) {
    EXPECT_EQ(gathering.Add(Sample(rank), &why), Gathering::Verdict::kJoined);
    EXPECT_FALSE(gathering.complete());
  }
  EXPECT_EQ(gathering.Missing(), "rank 1");
  EXPECT_EQ(gathering.Add(Sample(1), &why), Gathering::Verdict::kJoined);
  EXPECT_TRUE(gathering.complete());
  ASSERT_EQ(gathering.records().size(), 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(gathering.records()[i].rank, i);
}

TEST(GatheringTest, TheFirstOfTwoWins) {
  Gathering gathering;
  Status why;
  gathering.Add(Sample(1), &why);
  Registration second = Sample(1);
  second.record.pid = 77;
  second.record.key[0] = std::byte{77};
  second.agreement = "something else";
  EXPECT_EQ(gathering.Add(second, &why), Gathering::Verdict::kRefused);
  EXPECT_EQ(why.code(), Code::kInvalidUsage);
  EXPECT_EQ(why.message(), "rank 1 is claimed twice: first by 1@node:1001, then by 1@node:77");
  EXPECT_EQ(gathering.record(1).pid, 1001u);
}

// It has a public key of its own for each creation.
TEST(GatheringTest, ARankThatComesAgainTakesItsPlace) {
  Gathering gathering;
  Status why;
  for (const uint32_t rank : {2u, 0u, 1u, 3u}) gathering.Add(Sample(rank), &why);
  Registration again = Sample(1);
  again.attempt = 3;
  EXPECT_EQ(gathering.Add(again, &why), Gathering::Verdict::kReplaces);
  EXPECT_TRUE(gathering.complete());
  EXPECT_EQ(gathering.nranks(), 4);
  EXPECT_EQ(why.message(),
            "rank 1@node:1001 registers by several connections, and the latest counts");
  // What it has sent before may come later.
  EXPECT_EQ(gathering.Add(again, &why), Gathering::Verdict::kRefused);
  again.attempt = 2;
  EXPECT_EQ(gathering.Add(again, &why), Gathering::Verdict::kRefused);
}

// Members of a communicator that grows keep their ranks, and all of them are awaited.
TEST(GatheringTest, MembersComeBeforeThoseWhoJoin) {
  const auto member = [](uint32_t rank) {
    Registration registration = Sample(rank);
    registration.members = 3;
    registration.record.key[0] = std::byte{3};
    return registration;
  };
  Gathering gathering;
  Status why;
  Registration stranger = Sample(1);
  stranger.record.pid = 77;
  EXPECT_EQ(gathering.Add(stranger, &why), Gathering::Verdict::kJoined);
  EXPECT_EQ(gathering.Add(member(0), &why), Gathering::Verdict::kJoined);
  EXPECT_EQ(gathering.Add(member(2), &why), Gathering::Verdict::kJoined);
  EXPECT_EQ(gathering.Missing(), "rank 3");
  EXPECT_EQ(gathering.Add(Sample(3), &why), Gathering::Verdict::kJoined);
  EXPECT_FALSE(gathering.complete());
  EXPECT_EQ(gathering.Missing(), "a member");
  EXPECT_EQ(gathering.Add(member(1), &why), Gathering::Verdict::kReplaces);
  EXPECT_EQ(why.message(), "rank 1 is claimed twice: first by 1@node:1001, then by 1@node:77");
  EXPECT_TRUE(gathering.complete());
  EXPECT_EQ(gathering.record(1).pid, 1001u);
  EXPECT_EQ(gathering.Add(stranger, &why), Gathering::Verdict::kRefused);
  Registration other = member(2);
  other.record.key[1] = std::byte{1};
  EXPECT_EQ(gathering.Add(other, &why), Gathering::Verdict::kRefused);
  Registration again = member(2);
  again.attempt = 1;
  EXPECT_EQ(gathering.Add(again, &why), Gathering::Verdict::kReplaces);
  EXPECT_TRUE(gathering.complete());
}

TEST(GatheringTest, DifferencesNameBothRanksAndBothValues) {
  const auto difference = [](const std::function<void(Registration*)>& change) {
    Gathering gathering;
    Status why;
    EXPECT_EQ(gathering.Add(Sample(3), &why), Gathering::Verdict::kJoined);
    Registration other = Sample(1);
    change(&other);
    EXPECT_EQ(gathering.Add(other, &why), Gathering::Verdict::kBroken);
    EXPECT_EQ(why.code(), Code::kInvalidUsage);
    EXPECT_CONTAINS(why.message(), "3@node:1003");
    EXPECT_CONTAINS(why.message(), "1@node:1001");
    return why.message();
  };
  EXPECT_CONTAINS(difference([](Registration* r) { r->nranks = 5; }), "says 4");
  EXPECT_CONTAINS(difference([](Registration* r) { r->nranks = 5; }), "says 5");
  EXPECT_CONTAINS(difference([](Registration* r) { r->record.uid = 8; }), "uid 8");
  const std::string channels =
      difference([](Registration* r) { r->agreement = "version=1 channels=4 codec=hbi:bits=6"; });
  EXPECT_CONTAINS(channels, "\"channels=2\"");
  EXPECT_CONTAINS(channels, "\"channels=4\"");
  EXPECT_EQ(channels.find("codec"), std::string::npos) << channels;
  const std::string all = difference([](Registration* r) { r->agreement = "no words alike"; });
  EXPECT_CONTAINS(all, "version=1 channels=2 codec=hbi:bits=6");
  EXPECT_CONTAINS(all, "no words alike");
  EXPECT_CONTAINS(difference([](Registration* r) { r->agreement = "no\n\x1b[2Jwords"; }),
                  R"(has "no\x0a\x1b[2Jwords")");
}

TEST(GatheringTest, HostsMayDifferOnOneMachine) {
  Gathering gathering;
  Status why;
  EXPECT_EQ(gathering.Add(Sample(3), &why), Gathering::Verdict::kJoined);
  Registration other = Sample(1);
  other.record.host_id ^= 1;
  EXPECT_EQ(gathering.Add(other, &why), Gathering::Verdict::kJoined);
}

TEST(GatheringTest, ListsOfRanks) {
  EXPECT_EQ(ListRanks({4}), "rank 4");
  EXPECT_EQ(ListRanks({2, 3}), "ranks 2, 3");
  std::vector<int> many;
  for (int i = 0; i < 40; ++i) many.push_back(i);
  EXPECT_CONTAINS(ListRanks(many), ", 15 and 24 more");
}

}  // namespace
}  // namespace inccl::test
