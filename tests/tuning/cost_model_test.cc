// SPDX-License-Identifier: Apache-2.0
//
// The cost model against values by hand and against the schedules themselves, whose messages and
// elements are counted here.
#include "tuning/cost_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "collectives/schedule_cases.h"
#include "compress/codec.h"
#include "tuning/tuner.h"
#include "verify/validate.h"

namespace inccl {
namespace {

using enum Algorithm;
using enum Collective;

// Ranks with equal letters share a host.
HostMap Hosts(const std::string& letters) {
  const std::vector<uint64_t> identities(letters.begin(), letters.end());
  return HostMap(identities);
}

// The hosts "abc..." are on the sites of these digits.
HostMap Hosts(const std::string& letters, const std::string& digits) {
  HostMap hosts = Hosts(letters);
  std::vector<int> sites;
  for (const char digit : digits) sites.push_back(digit - '0');
  hosts.SetSites(sites);
  return hosts;
}

// Ranks of one site share a "host".
HostMap BySite(const HostMap& hosts) {
  std::vector<uint64_t> identities;
  for (int rank = 0; rank < hosts.nranks(); ++rank) {
    identities.push_back(static_cast<uint64_t>(hosts.SiteOf(hosts.HostOf(rank))));
  }
  return HostMap(identities);
}

// A number of elements that all numbers of parts below divide into superblocks.
constexpr uint64_t kDivisible = uint64_t{kSuperblock} * 5040;

struct Counts {
  uint64_t messages = 0;  // of the rank with the most, both ways
  uint64_t link = 0;      // elements
  uint64_t hops = 0;
  uint64_t shm = 0;
  uint64_t serial = 0;  // elements of a chunk that a strand awaits after it has sent some of it
  uint64_t site = 0;    // elements on the link of a site
  uint64_t left = 0;    // hops from site to site
};

Counts CountOf(const test::Case& which, int root, const HostMap& hosts) {
  ScheduleRequest request;
  request.collective = which.collective;
  request.algorithm = which.algorithm;
  request.nranks = hosts.nranks();
  request.root = root;
  request.hosts = &hosts;
  const std::vector<Schedule> all = test::MakeAll(request);
  const auto h = static_cast<size_t>(hosts.hosts()), n = static_cast<size_t>(hosts.nranks());
  std::vector<uint64_t> messages(n), out(h), in(h), shm(n);
  const HostMap by_site = BySite(hosts);
  std::vector<uint64_t> leaves(static_cast<size_t>(by_site.hosts())), enters(leaves);
  uint64_t serial = 0;
  for (const Schedule& schedule : all) {
    const Phase& phase = schedule.phases.back();
    const bool segments = SegmentsOf(which.collective, 2) > 1;
    const uint64_t part = segments ? kDivisible : kDivisible / phase.chunks;
    for (const Strand& strand : schedule.strands) {
      bool sent = false;
      for (const Step& step : strand.steps) {
        for (uint32_t i = 0; i < step.inputs && sent; ++i) {
          const Operand& input = schedule.operands[step.first_operand + i];
          if (input.space == Space::kLane) serial = part;
        }
        for (uint32_t i = 0; i < step.outputs; ++i) {
          const Operand& output = schedule.operands[step.first_operand + step.inputs + i];
          if (output.space != Space::kLane) continue;
          sent = true;
          for (const int to : schedule.lanes[output.index].consumers) {
            if (hosts.SameHost(schedule.rank, to)) {
              shm[static_cast<size_t>(to)] += part;
              continue;
            }
            ++messages[static_cast<size_t>(schedule.rank)];
            ++messages[static_cast<size_t>(to)];
            out[static_cast<size_t>(hosts.HostOf(schedule.rank))] += part;
            in[static_cast<size_t>(hosts.HostOf(to))] += part;
            if (by_site.SameHost(schedule.rank, to)) continue;
            leaves[static_cast<size_t>(by_site.HostOf(schedule.rank))] += part;
            enters[static_cast<size_t>(by_site.HostOf(to))] += part;
          }
        }
      }
    }
  }
  const Result<Proof> proof = Validate(all, 1, &hosts);
  EXPECT_TRUE(proof.ok()) << proof.status().message();
  const Result<Proof> between_sites = Validate(all, 1, &by_site);
  EXPECT_TRUE(between_sites.ok());
  return {
      *std::max_element(messages.begin(), messages.end()),
      std::max(*std::max_element(out.begin(), out.end()), *std::max_element(in.begin(), in.end())),
      static_cast<uint64_t>(proof->crossing_steps),
      *std::max_element(shm.begin(), shm.end()),
      serial,
      std::max(*std::max_element(leaves.begin(), leaves.end()),
               *std::max_element(enters.begin(), enters.end())),
      static_cast<uint64_t>(between_sites->crossing_steps)};
}

bool Compared(const test::Case& which, const HostMap& hosts) {
  return which.collective != kAllToAll && which.collective != kGather &&
         which.collective != kScatter &&
         HasSchedule(which.collective, which.algorithm, hosts.nranks(), &hosts);
}

class ShapesOf : public testing::TestWithParam<test::Case> {};

TEST_P(ShapesOf, AreThoseOfTheSchedulesOnEqualHosts) {
  for (const char* const letters : {"ab", "abc", "abcd", "abcde", "abcdefgh", "aabb", "abab",
                                    "abcabc", "aaabbb", "aabbccdd", "aaaabbbb", "abcdabcd"}) {
    const HostMap hosts = Hosts(letters);
    if (!Compared(GetParam(), hosts)) continue;
    for (int root = 0; root < (HasRoot(GetParam().collective) ? hosts.nranks() : 1); ++root) {
      SCOPED_TRACE(fmt::format("{} root {}", letters, root));
      const Counts counts = CountOf(GetParam(), root, hosts);
      const CostShape shape =
          ShapeOf(GetParam().collective, GetParam().algorithm, root, kDivisible, hosts);
      EXPECT_EQ(shape.link_elements, counts.link);
      EXPECT_EQ(shape.network_messages, counts.messages);
      EXPECT_EQ(shape.network_hops, counts.hops);
      // With several ranks on a host a strand may also wait for those.
      if (hosts.LargestHost() == 1) {
        EXPECT_EQ(shape.serial_elements, counts.serial);
      }
      // No rank receives more, and hardly less.
      EXPECT_GE(shape.shm_elements, counts.shm);
      EXPECT_LE(shape.shm_elements, 2 * counts.shm);
    }
  }
}

TEST_P(ShapesOf, KnowSites) {
  for (const auto& [letters, digits] : {std::pair("abcd", "0101"),
                                        {"abcd", "0011"},
                                        {"abcdef", "012012"},
                                        {"abcdefgh", "01101001"},
                                        {"abcdefgh", "01230123"},
                                        {"aabbccdd", "0110"},
                                        {"abcdabcd", "0101"},
                                        {"abc", "012"}}) {
    const HostMap hosts = Hosts(letters, digits);
    if (!Compared(GetParam(), hosts)) continue;
    for (int root = 0; root < (HasRoot(GetParam().collective) ? hosts.nranks() : 1); ++root) {
      SCOPED_TRACE(fmt::format("{} on sites {} root {}", letters, digits, root));
      const Counts counts = CountOf(GetParam(), root, hosts);
      const CostShape shape =
          ShapeOf(GetParam().collective, GetParam().algorithm, root, kDivisible, hosts);
      EXPECT_EQ(shape.site_elements, counts.site);
      EXPECT_EQ(shape.network_hops - shape.site_hops, counts.left);
      EXPECT_EQ(shape.network_hops, counts.hops);
      EXPECT_EQ(shape.link_elements, counts.link);
      EXPECT_EQ(shape.network_messages, counts.messages);
    }
  }
}

TEST_P(ShapesOf, AreBoundsOnOtherHosts) {
  for (const char* const letters :
       {"aab", "abb", "aaab", "abbbb", "aabbc", "abcabca", "abbbbbbc", "aabcdefg", "aaabbcbca"}) {
    const HostMap hosts = Hosts(letters);
    if (!Compared(GetParam(), hosts)) continue;
    SCOPED_TRACE(letters);
    const Counts counts = CountOf(GetParam(), 0, hosts);
    const CostShape shape =
        ShapeOf(GetParam().collective, GetParam().algorithm, 0, kDivisible, hosts);
    EXPECT_GE(shape.link_elements, counts.link);
    EXPECT_LE(shape.link_elements, counts.link * 3 / 2);
    EXPECT_GE(shape.network_messages, counts.messages);
    EXPECT_LE(shape.network_messages, 2 * counts.messages);
    EXPECT_GE(shape.network_hops, counts.hops);
    EXPECT_LE(shape.network_hops, counts.hops + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, ShapesOf, testing::ValuesIn(test::HostsCases()),
                         test::CaseName);

// 100 us a message, 10 us a further one, 1 ns a byte; all else is free.
constexpr CostConstants kRound{.network_latency_ns = 100'000,
                               .network_message_ns = 10'000,
                               .network_byte_ps = 1'000,
                               .shm_latency_ns = 1'000,
                               .shm_byte_ps = 0,
                               .reduce_byte_ps = 0,
                               .encode_element_ps = 0,
                               .decode_element_ps = 0,
                               .hop_element_ps = 0,
                               .fold_element_ps = 0};

TunerCall CallOf(const HostMap& hosts, uint64_t bytes) {
  TunerCall call{{.nranks = hosts.nranks(), .count = bytes / sizeof(float)}};
  call.hosts = &hosts;
  return call;
}

uint64_t Microseconds(const TunerCall& call, Algorithm algorithm, const CostConstants& constants) {
  return EstimateCost(call, algorithm, constants).ns / 1000;
}

TEST(CostModelTest, IsWhatAHandComputes) {
  const HostMap four = Hosts("abcd");
  const uint64_t d = 4 << 20;  // 4194.304 us on the link
  const TunerCall call = CallOf(four, d);
  // 3 sent and 3 received, 2 of which the latency has; 3 d.
  EXPECT_EQ(Microseconds(call, kOneShot, kRound), 100u + 40 + 12582);
  // 2 (3 + 3) messages, 8 of them further ones; 2 * 3/4 d.
  EXPECT_EQ(Microseconds(call, kTwoShot, kRound), 200u + 80 + 6291);
  // 2 messages each way; 2 d.
  EXPECT_EQ(Microseconds(call, kRecursiveDoubling, kRound), 200u + 8388);
  // 6 hops; 2 * 3/4 d.
  EXPECT_EQ(Microseconds(call, kRing, kRound), 600u + 6291);
  // Two hosts of two: two hops over the network, two inside (1 us each); 2 * 1/2 d.
  const HostMap pairs = Hosts("aabb");
  EXPECT_EQ(Microseconds(CallOf(pairs, d), kHierarchical, kRound), 200u + 2 + 4194);
  // Each rank sends 2 chunks of d/4 and its result twice, and receives as much; the link has 4 of
  // each.
  EXPECT_EQ(Microseconds(CallOf(pairs, d), kTwoShot, kRound), 200u + 40 + 8388);
  // Inside first: one hop there; two ranks exchange d over the link.
  EXPECT_EQ(Microseconds(CallOf(pairs, d), kRecursiveDoubling, kRound), 100u + 1 + 8388);
}

TEST(CostModelTest, EachConstantCountsWhatItsNameSays) {
  const HostMap hosts = Hosts("aabbccdd", "0011");
  const TunerCall call = CallOf(hosts, 1 << 20);
  TunerCall compressed = call;
  compressed.compressed = true;
  compressed.wire = {.data = 6 * WireBits::kUnit, .side = WireBits::kUnit / 4, .side_phases = 1};
  for (const CostField& field : kCostFields) {
    if (std::string(field.name) == "shorten_element_ps") continue;  // ShorteningPaysOnSlowLinks
    CostConstants base;
    base.site_byte_ps = base.network_byte_ps;
    CostConstants dearer = base;
    dearer.*field.value *= 10;
    const bool of_codec = std::string(field.name).find("element") != std::string::npos;
    const bool of_sums = std::string(field.name).find("reduce") != std::string::npos;
    bool plain_differs = false, compressed_differs = false;
    for (const Algorithm algorithm : {kRing, kTwoShot, kHierarchical}) {
      plain_differs = plain_differs || EstimateCost(call, algorithm, dearer).ns >
                                           EstimateCost(call, algorithm, base).ns;
      compressed_differs = compressed_differs || EstimateCost(compressed, algorithm, dearer).ns >
                                                     EstimateCost(compressed, algorithm, base).ns;
    }
    EXPECT_EQ(plain_differs, !of_codec) << field.name;
    EXPECT_EQ(compressed_differs, !of_sums) << field.name;
  }
}

// 6 bits an element are 6/32 of the bytes, and the agreement is a phase of its own.
TEST(CostModelTest, CompressedCallsCountTheBitsOfTheirCodec) {
  const HostMap hosts = Hosts("abcd");
  TunerCall call = CallOf(hosts, 4 << 20);
  call.compressed = true;
  call.wire = {.data = 6 * WireBits::kUnit};
  EXPECT_EQ(Microseconds(call, kTwoShot, kRound), 200u + 80 + 1179);  // 6291 * 6/32
  // One shot: 100 + 4 * 10 + 3 * 4194 / 128 us; two shots: 200 + 8 * 10 + 3/2 * 4194 / 128 us.
  call.wire = {.data = 6 * WireBits::kUnit, .side = WireBits::kUnit / 4, .side_phases = 1};
  EXPECT_EQ(Microseconds(call, kTwoShot, kRound), 200u + 80 + 1179 + 140 + 98);
  EXPECT_TRUE(EstimateCost(call, kTwoShot, kRound).side_one_shot);
  call.count *= 16;
  EXPECT_FALSE(EstimateCost(call, kTwoShot, kRound).side_one_shot);
}

// Where nobody owns a part, every rank encodes the whole result, so that all get the same bits. Of
// two hosts all algorithms send as much, and what their codecs do decides.
TEST(CostModelTest, WhoOwnsNoPartEncodesTheWholeResult) {
  const HostMap two = Hosts("ab");
  CostConstants encoding = kRound;
  encoding.encode_element_ps = 1'000'000;
  TunerCall call = CallOf(two, 4 << 20);
  call.compressed = true;
  call.wire = {.data = 6 * WireBits::kUnit};
  const auto encoded = [&](Algorithm algorithm) {
    return (EstimateCost(call, algorithm, encoding).ns - EstimateCost(call, algorithm, kRound).ns) /
           1000 / (call.count / 2);
  };
  EXPECT_EQ(encoded(kOneShot), 4u);
  EXPECT_EQ(encoded(kRecursiveDoubling), 4u);
  EXPECT_EQ(encoded(kTwoShot), 3u);  // its input, and half of the result
  EXPECT_EQ(encoded(kRing), 1u);     // half of its input; the rest is a hop sum
  const Result<Choice> choice = Choose(call, AlgorithmFilter(), TunerTable());
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->algorithm, kRing);
}

// The agreement of qsgd is one number for 2^20 elements: little, but something.
TEST(CostModelTest, EveryAgreementHasBytes) {
  for (const char* spec : {"qsgd:q=8", "qsgd_ms", "hbi:bits=4"}) {
    const auto codec = MakeCodec(spec);
    ASSERT_TRUE(codec.ok());
    EXPECT_GT(WireBitsOf(**codec, Collective::kAllReduce, 4).side, 0u) << spec;
  }
  const HostMap hosts = Hosts("abcd");
  TunerCall call = CallOf(hosts, 4 << 20);
  call.compressed = true;
  call.wire = {.data = 6 * WireBits::kUnit, .side = 0, .side_phases = 1};
  EXPECT_GE(EstimateCost(call, kTwoShot, kRound).ns, 0u);  // no division by zero (sanitizers)
}

// Small calls: the fewest messages in a row; large calls: the fewest bytes on a link. Between them
// the bytes only become fewer.
TEST(CostModelTest, TheChoiceGoesFromFewMessagesToFewBytes) {
  // Else one-shot to many ranks costs more than its one hop.
  const TunerTable table = *TunerTable::Parse("cost network_message_ns 0", "table");
  for (const char* const letters : {"ab", "abc", "abcd", "aabb", "abab", "aabbccdd", "aaab",
                                    "abcdefghijklmnop", "aaaabbbbccccdddd"}) {
    const HostMap hosts = Hosts(letters);
    for (const Collective collective :
         {kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce}) {
      uint64_t least_hops = UINT64_MAX, least_link = UINT64_MAX, last_link = UINT64_MAX;
      for (int a = 0; a < kAlgorithms; ++a) {
        const auto algorithm = static_cast<Algorithm>(a);
        if (!HasSchedule(collective, algorithm, hosts.nranks(), &hosts)) continue;
        const CostShape shape = ShapeOf(collective, algorithm, 0, kDivisible, hosts);
        least_hops = std::min(least_hops, shape.network_hops);
        least_link = std::min(least_link, shape.link_elements);
      }
      for (uint64_t count = kDivisible >> 10; count <= kDivisible << 8; count *= 2) {
        SCOPED_TRACE(fmt::format("{} {} {}", Name(collective), letters, count));
        TunerCall call{{.collective = collective, .nranks = hosts.nranks(), .count = count}};
        call.hosts = &hosts;
        const Result<Choice> choice = Choose(call, AlgorithmFilter(), table);
        ASSERT_TRUE(choice.ok());
        const CostShape shape = ShapeOf(collective, choice->algorithm, 0, kDivisible, hosts);
        EXPECT_LE(shape.link_elements, last_link);
        last_link = shape.link_elements;
      }
      EXPECT_EQ(last_link, least_link) << letters;
      TunerCall call{{.collective = collective, .nranks = hosts.nranks(), .count = 1}};
      call.hosts = &hosts;
      const Algorithm small = Choose(call, AlgorithmFilter(), table)->algorithm;
      EXPECT_EQ(ShapeOf(collective, small, 0, 1, hosts).network_hops, least_hops) << letters;
    }
  }
}

// A strand that sends and then waits has only a few slices on a link, whatever it holds.
TEST(CostModelTest, LongLinksWantSlicesThatFollowEachOther) {
  for (const char* const letters : {"ab", "abcd"}) {
    const HostMap hosts = Hosts(letters);
    TunerTable far;
    far.SetLink(1000, 20'000);
    for (const bool compressed : {false, true}) {
      const auto chosen = [&](uint64_t bytes) {
        TunerCall call = CallOf(hosts, bytes);
        call.slots.under_way = BytesUnderWay(far.costs());
        call.compressed = compressed;
        if (compressed) call.wire = {.data = 6 * WireBits::kUnit, .side = 2, .side_phases = 1};
        return ShapeOf(kAllReduce, Choose(call, AlgorithmFilter(), far)->algorithm, 0, kDivisible,
                       hosts);
      };
      EXPECT_EQ(chosen(64 << 20).serial_elements, 0u) << letters;
      EXPECT_EQ(chosen(64 << 10).network_hops, 1u) << letters;
    }
  }
}

TEST(CostModelTest, AllRanksChooseAlike) {
  for (const char* const letters : {"abcd", "aabb", "abab", "aaab", "abcabca"}) {
    const HostMap hosts = Hosts(letters);
    for (uint64_t bytes = 1024; bytes <= 64 << 20; bytes *= 4) {
      TunerCall call = CallOf(hosts, bytes);
      const Result<Choice> first = Choose(call, AlgorithmFilter());
      for (call.rank = 1; call.rank < call.nranks; ++call.rank) {
        const HostMap own = Hosts(letters);
        call.hosts = &own;
        const Result<Choice> choice = Choose(call, AlgorithmFilter());
        EXPECT_EQ(choice->algorithm, first->algorithm);
        EXPECT_EQ(choice->side_one_shot, first->side_one_shot);
        EXPECT_EQ(choice->estimates_ns, first->estimates_ns);
      }
    }
  }
}

TEST(CostModelTest, NoEstimateOverflows) {
  std::vector<uint64_t> identities(4096);
  for (size_t rank = 0; rank < identities.size(); ++rank) identities[rank] = rank / 2048;
  const HostMap hosts(identities);
  CostConstants most;
  for (const CostField& field : kCostFields) most.*field.value = field.most;
  for (const Collective collective :
       {kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce}) {
    for (int a = 0; a < kAlgorithms; ++a) {
      const auto algorithm = static_cast<Algorithm>(a);
      if (!HasSchedule(collective, algorithm, 4096, &hosts)) continue;
      uint64_t last = 0;
      for (int shift = 0; shift <= 60; shift += 10) {
        TunerCall call{{.collective = collective,
                        .type = DataType::kFloat64,
                        .nranks = 4096,
                        .count = uint64_t{1} << shift}};
        call.hosts = &hosts;
        const uint64_t ns = EstimateCost(call, algorithm, most).ns;
        EXPECT_GE(ns, last) << Name(collective) << " " << Name(algorithm) << " 2^" << shift;
        last = ns;
      }
    }
  }
}

// Where the link is slow enough that the time for it is there, and calls are long enough.
TEST(CostModelTest, ShorteningPaysOnSlowLinks) {
  const HostMap two = Hosts("ab"), four = Hosts("abcd"), pairs = Hosts("aabb");
  CostConstants gigabit, ten;
  gigabit.network_byte_ps = 8'500;
  const auto call = [](const HostMap& hosts, uint64_t bytes) {
    TunerCall made = CallOf(hosts, bytes);
    made.compressed = true;
    made.wire = {.data = 6 * WireBits::kUnit, .side_phases = 1, .shorter = WireBits::kUnit / 2};
    return made;
  };
  constexpr uint64_t kLong = 64 << 20, kShort = 64 << 10;
  for (const HostMap* hosts : {&two, &four, &pairs}) {
    EXPECT_TRUE(ShorteningPays(call(*hosts, kLong), kTwoShot, gigabit));
    EXPECT_FALSE(ShorteningPays(call(*hosts, kLong), kTwoShot, ten));
    EXPECT_FALSE(ShorteningPays(call(*hosts, kShort), kTwoShot, gigabit));
    EXPECT_TRUE(ShorteningPays(call(*hosts, kLong), kRing, gigabit));  // results
    EXPECT_FALSE(ShorteningPays(call(*hosts, kLong), kRecursiveDoubling, gigabit));
    TunerCall other = call(*hosts, kLong);
    other.wire.shorter = 0;  // a codec of one length
    EXPECT_FALSE(ShorteningPays(other, kTwoShot, gigabit));
    other = call(*hosts, kLong);
    other.compressed = false;
    EXPECT_FALSE(ShorteningPays(other, kTwoShot, gigabit));
    CostConstants far = gigabit;
    far.network_latency_ns = 10'000'000;
    EXPECT_FALSE(ShorteningPays(call(two, kLong), kTwoShot, far));
    far.network_byte_ps *= 2;
    EXPECT_TRUE(ShorteningPays(call(two, kLong), kTwoShot, far));
    CostConstants slow = gigabit;  // processors
    slow.shorten_element_ps = 20'000;
    EXPECT_FALSE(ShorteningPays(call(*hosts, kLong), kTwoShot, slow));
  }
  // A link that the hosts of a site share.
  CostConstants sites = ten;
  sites.site_byte_ps = 8'500;
  EXPECT_TRUE(ShorteningPays(call(Hosts("abcd", "0011"), kLong), kTwoShot, sites));
}

}  // namespace
}  // namespace inccl
