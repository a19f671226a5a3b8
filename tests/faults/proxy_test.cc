// SPDX-License-Identifier: Apache-2.0
//
// A proxy in the connections between hosts damages, cuts, splices or repeats what they carry. A
// call that succeeds has the right sum; damage to a frame ends in an error that names the peer.
//
// The last rank makes all of its connections itself, and the proxy is in its process: to the
// rendezvous (0), to the control connections of the ranks before it (from 1), to their data
// connections.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "bootstrap/crypto.h"
#include "bootstrap/handshake.h"
#include "faults/connection_proxy.h"
#include "faults/network_faults.h"
#include "support/seed.h"
#include "transport/tcp/tcp_connection.h"

namespace inccl::test {
namespace {

using Way = ChaosProxy::Way;
using Faults = ChaosProxy::Faults;
using Stop = ChaosProxy::Stop;
constexpr Way kWays[] = {Way::kToServer, Way::kToClient};

constexpr size_t kCount = 3000;
constexpr uint64_t kCalls = 3;
constexpr double kInit = 3.0 * kSlowness, kOp = 2.0 * kSlowness, kDead = 2.0 * kSlowness;
// The bytes of a stream that the handshake takes.
constexpr uint64_t Handshake(Way way) {
  return way == Way::kToServer ? bootstrap::kHelloBytes : bootstrap::kReplyBytes;
}
const char* Name(Way way) { return way == Way::kToServer ? "to server" : "to client"; }

// The connections of the last rank, in the order in which it makes them: 0 with the rendezvous,
// then one for data with each peer, then one for control messages with each.
bool IsData(size_t connection, int nranks) {
  return connection > 0 && connection < static_cast<size_t>(nranks);
}
size_t DataWith(int peer) { return static_cast<size_t>(1 + peer); }

using ProxyAction = std::function<void(ConnectionProxy&)>;

struct Actions {
  ProxyAction at_start;         // before the rank joins
  ProxyAction after_join = {};  // the rank has joined
  ProxyAction after_call = {};  // the rank's first call is over
  uint64_t calls = kCalls;      // at most
  useconds_t pause = 0;         // between calls
};

// Where the last rank reports bytes that the proxy has sent: when it has joined, and at its end.
constexpr size_t kAtJoin = 0, kAtEnd = 24;
constexpr size_t kConnections = 60;  // their number
size_t Counter(size_t when, size_t connection, Way way) {
  return when + 2 * connection + static_cast<size_t>(way);
}

void ReportSent(const Side& side, size_t when, ConnectionProxy& proxy) {
  for (size_t connection = 0; connection < 12; ++connection) {
    for (const Way way : kWays) {
      side.mine().counters[Counter(when, connection, way)] = proxy->sent(connection, way);
    }
  }
  side.mine().counters[kConnections] = proxy->connections();
}

// Where the headers of frames begin in the streams of a data connection.
std::vector<uint64_t> HeaderOffsets(const std::string& stream, Way way) {
  std::vector<uint64_t> offsets;
  tcp::FrameHeader header;
  for (uint64_t at = Handshake(way); at + sizeof header <= stream.size();) {
    offsets.push_back(at);
    std::memcpy(&header, stream.data() + at, sizeof header);
    at += sizeof header + header.bytes;
  }
  return offsets;
}

// Sums up to the first error. False: a sum was wrong.
bool Sum(const Side& side, ccl_comm_t comm, const Actions& actions, ConnectionProxy* proxy) {
  Report& mine = side.mine();
  std::vector<float> data(kCount), sum(kCount);
  for (uint64_t call = 0; call < actions.calls; ++call) {
    for (size_t i = 0; i < kCount; ++i) {
      data[i] = static_cast<float>((i + call) % 997 * (static_cast<size_t>(side.rank()) + 1));
    }
    mine.result =
        ccl_allreduce(data.data(), sum.data(), kCount, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    if (mine.result != CCL_SUCCESS) {
      mine.SetText(ccl_get_last_error(comm));
      return true;
    }
    for (size_t i = 0; i < kCount; ++i) {
      if (sum[i] !=
          static_cast<float>((i + call) % 997) * static_cast<float>(SumOfRanks(side.nranks()))) {
        return false;
      }
    }
    ++mine.calls;
    if (proxy != nullptr && actions.after_call && call == 0) actions.after_call(*proxy);
    if (actions.pause > 0) usleep(actions.pause);
  }
  return true;
}

// Ranks whose calls succeeded wait for the others: the end is not what is tested.
void LeaveTogether(const Side& side) {
  constexpr int kEnded = 5;
  side.mine().stage = kEnded;
  for (int rank = 0; rank < side.nranks(); ++rank) (void)side.Await(rank, kEnded);
}

int Body(const Side& side, const Actions& actions) {
  const bool proxied = side.rank() == side.nranks() - 1;
  std::unique_ptr<ConnectionProxy> proxy;
  if (proxied) proxy = std::make_unique<ConnectionProxy>();
  if (proxied && actions.at_start) actions.at_start(*proxy);
  const double start = Seconds();
  ccl_comm_t comm = nullptr;
  int code = 0;
  if (side.Init(&comm, CCL_CONFIG_INIT) == CCL_SUCCESS) {
    side.mine().stage = kJoined;
    if (proxied) {
      ReportSent(side, kAtJoin, *proxy);
      if (actions.after_join) actions.after_join(*proxy);
    }
    if (!Sum(side, comm, actions, proxy.get())) code = 13;
    if (side.mine().result != CCL_SUCCESS) side.mine().stage = 5;
  }
  side.mine().seconds = Seconds() - start;
  LeaveTogether(side);
  if (proxied) ReportSent(side, kAtEnd, *proxy);
  if (proxied && side.mine().result == CCL_SUCCESS) {
    const size_t last = DataWith(side.rank() - 1);
    std::string text;
    for (const Way way : kWays) {
      for (const uint64_t offset : HeaderOffsets((*proxy)->Recorded(last, way), way)) {
        text += fmt::format("{} {} ", static_cast<int>(way), offset);
      }
    }
    side.mine().SetText(text.c_str());
  }
  if (comm != nullptr && ccl_comm_destroy(comm) != CCL_SUCCESS) code = 12;
  return code;
}

struct Case {
  std::string name;
  NetworkMode mode;
  size_t connection = 0;
  Way way = Way::kToServer;
  uint64_t offset = 0;  // of the first byte that is concerned
  Actions actions;
  bool starved = false;  // a control connection, while data flows
};

class ProxyTest : public NetworkFaultTest {
 protected:
  ProxyTest()
      : NetworkFaultTest({.init_seconds = kInit, .op_seconds = kOp, .dead_seconds = kDead}) {}

  // Without IPv6, which a rank tries when the handshake over IPv4 has failed.
  void MakeHosts(int count) {
    NetworkFaultTest::MakeHosts(count);
    for (int host = 0; host < count; ++host) {
      hosts().Run(host, {"ip", "-6", "address", "flush", "dev", "e0"});
    }
  }

  std::unique_ptr<ProcessWorld> Make(const NetworkMode& mode, const Actions& actions) {
    const ScopedEnv env(
        {{"INCCL_NET_SECURITY", mode.security}, {"INCCL_SOCKETS_PER_PEER", mode.sockets}});
    return std::make_unique<ProcessWorld>(
        WorldOptions{
            .nranks = hosts().count(),
            .deadline_seconds = 60.0 * kSlowness,
            // The rendezvous of ranks that did not join lives on.
            .baseline = false,
            .enter = hosts().Ranks(),
        },
        [=](const Side& side) { return Body(side, actions); });
  }

  // A run without faults; the last rank's report.
  void Measure(const NetworkMode& mode, std::vector<uint64_t>* counters,
               std::array<std::vector<uint64_t>, 2>* headers) {
    const auto world = Make(mode, {.at_start = {}});
    world->ExpectAllExited();
    for (int rank = 0; rank < world->nranks(); ++rank) {
      EXPECT_EQ(world->report(rank).result, CCL_SUCCESS) << world->report(rank).text;
    }
    const auto& report = world->report(world->nranks() - 1);
    counters->assign(std::begin(report.counters), std::end(report.counters));
    *headers = {};
    std::istringstream numbers(report.text);
    size_t way = 0;
    for (uint64_t offset = 0; numbers >> way >> offset;) headers->at(way).push_back(offset);
  }

  void Run(const std::vector<Case>& cases,
           const std::function<void(const Case&, ProcessWorld&)>& check) {
    const char* const only = std::getenv("INCCL_TEST_CASE");
    std::vector<Case> selected;
    std::copy_if(cases.begin(), cases.end(), std::back_inserter(selected), [&](const Case& c) {
      return only == nullptr || c.name.find(only) != std::string::npos;
    });
    RecordProperty("cases", static_cast<int>(selected.size()));
    RunWorlds(
        selected.size(), 8, [&](size_t i) { return Make(selected[i].mode, selected[i].actions); },
        [&](size_t i, ProcessWorld& world) {
          SCOPED_TRACE(selected[i].name);
          world.ExpectAllExited();
          for (int rank = 0; rank < world.nranks(); ++rank) {
            const Report& report = world.report(rank);
            EXPECT_LT(report.seconds, kInit + kOp + kDead + SlackSeconds()) << report.text;
          }
          check(selected[i], world);
        });
  }

  static bool Reached(const Case& c, ProcessWorld& world) {
    return world.report(world.nranks() - 1).counters[Counter(kAtEnd, c.connection, c.way)] >
           c.offset;
  }
  // Every rank has failed. Its error names a rank of `peers` other than itself, if there is one.
  static void ExpectAllFail(ProcessWorld& world, const std::vector<int>& peers) {
    for (int rank = 0; rank < world.nranks(); ++rank) {
      const Report& report = world.report(rank);
      const auto result = static_cast<ccl_result_t>(report.result.load());
      EXPECT_NE(result, CCL_SUCCESS) << "rank " << rank;
      if (result == CCL_SUCCESS) continue;
      const std::string text = report.text;
      const bool init = Matches(text, ": init: ");
      EXPECT_EQ(MissingFromError(text, result,
                                 {.rank = rank, .nranks = world.nranks(), .during_init = init}),
                "");
      if (peers.empty()) continue;
      // What another rank reports may name this rank; init lists ranks.
      std::vector<int> others;
      std::copy_if(peers.begin(), peers.end(), std::back_inserter(others),
                   [&](int peer) { return peer != rank || Matches(text, " reports: "); });
      const std::string names = fmt::format("({})", fmt::join(others, "|"));
      const std::string pattern =
          init ? "(ranks?|peer|did) ([0-9], )*" + names
               : "peer " + names + "@[^ :]+:[0-9]+|reports: rank " + names + "/";
      EXPECT_TRUE(Matches(text, pattern)) << text;
    }
  }
  static void ExpectSuccess(ProcessWorld& world) {
    for (int rank = 0; rank < world.nranks(); ++rank) {
      EXPECT_EQ(world.report(rank).result, CCL_SUCCESS) << world.report(rank).text;
    }
  }
};

// `count` offsets in [begin, end), or all.
std::vector<uint64_t> Offsets(Rng* rng, uint64_t begin, uint64_t end, size_t count) {
  std::vector<uint64_t> offsets;
  if (std::getenv("INCCL_TEST_EXHAUSTIVE") != nullptr) {
    for (uint64_t offset = begin; offset < end; ++offset) offsets.push_back(offset);
  } else if (begin < end) {
    for (size_t i = 0; i < count; ++i) offsets.push_back(begin + rng->Below(end - begin));
  }
  return offsets;
}

TEST_F(ProxyTest, Row27_AFlippedBitIsNeverAWrongSum) {
  ForRow("27", "tcp");
  MakeHosts(2);
  Rng rng(TestSeed());
  constexpr size_t kData = 1, kControl = 2;
  const size_t some = kSanitized ? 2 : 6;
  std::vector<Case> cases;
  std::vector<uint64_t> sizes;
  std::array<std::vector<uint64_t>, 2> headers;  // by way
  for (const NetworkMode mode : {NetworkMode{"auth"}, {"encrypt"}, {"none"}}) {
    Measure(mode, &sizes, &headers);
    EXPECT_GE(headers[0].size(), kCalls);
    EXPECT_EQ(sizes[kConnections], 3u);
    const bool first = std::string(mode.security) == "auth";  // the others differ in the data only
    for (size_t connection = 0; connection <= kControl; ++connection) {
      if (!first && connection != kData) continue;
      for (const Way way : kWays) {
        // Two of three calls: what follows shows that the damaged frame has been read.
        const uint64_t joined = sizes[Counter(kAtJoin, connection, way)];
        const uint64_t all = sizes[Counter(kAtEnd, connection, way)];
        const uint64_t end = connection != kData ? joined : joined + (all - joined) / 2;
        std::vector<uint64_t> offsets = Offsets(&rng, 0, Handshake(way), first ? some : 1);
        for (const uint64_t offset : Offsets(&rng, Handshake(way), end, 2 * some)) {
          offsets.push_back(offset);
        }
        for (const uint64_t header : headers[static_cast<size_t>(way)]) {
          if (connection != kData || header >= end || kSanitized) continue;
          offsets.push_back(header + rng.Below(sizeof(tcp::FrameHeader)));
        }
        for (const uint64_t offset : offsets) {
          const auto bit = static_cast<uint8_t>(1u << rng.Below(8));
          cases.push_back({.name = fmt::format("{} connection {} {} byte {} bit {:02x}",
                                               mode.security, connection, Name(way), offset, bit),
                           .mode = mode,
                           .connection = connection,
                           .way = way,
                           .offset = offset,
                           .actions = {.at_start = [=](ConnectionProxy& proxy) {
                             proxy->SetFaults(connection, way, {.flips = {{offset, bit}}});
                           }}});
        }
      }
    }
  }
  Run(cases, [&](const Case& c, ProcessWorld& world) {
    if (!Reached(c, world)) return ExpectSuccess(world);
    if (c.offset < Handshake(c.way)) {
      // The rank connects again, or gives up.
      const bool again = world.report(1).counters[kConnections] > 3;
      if (again && world.report(1).result == CCL_SUCCESS) return ExpectSuccess(world);
      return ExpectAllFail(world, {});
    }
    // Headers under "none" have spare bits; control messages are not awaited.
    if (c.connection == kData && std::string(c.mode.security) == "none") return;
    if (c.connection == kControl) return;
    ExpectAllFail(world, c.connection == 0 ? std::vector<int>{} : std::vector<int>{0, 1});
  });
}

TEST_F(ProxyTest, Row19_PiecesAndDelaysAreNoError) {
  ForRow("19", "tcp");
  MakeHosts(3);
  std::vector<Case> cases;
  for (const NetworkMode& mode : kNetworkModes) {
    for (const Faults& faults : {Faults{.piece = 1}, Faults{.piece = 67, .delay_seconds = 0.002},
                                 Faults{.delay_seconds = 0.02}}) {
      cases.push_back({.name = fmt::format("{} pieces of {} delay {}", mode.security, faults.piece,
                                           faults.delay_seconds),
                       .mode = mode,
                       .actions = {.at_start = [faults](ConnectionProxy& proxy) {
                         for (size_t connection = 0; connection < 12; ++connection) {
                           for (const Way way : kWays) proxy->SetFaults(connection, way, faults);
                         }
                       }}});
    }
  }
  Run(cases, [](const Case&, ProcessWorld& world) { ExpectSuccess(world); });
}

// A connection ends, is reset or carries no more from some byte on. A control connection that
// stands still is no failure while data flows.
TEST_F(ProxyTest, Row06_ACutConnectionIsNamed) {
  ForRow("4,6", "tcp");
  MakeHosts(3);
  Rng rng(TestSeed() + 1);
  std::vector<uint64_t> sizes;
  std::array<std::vector<uint64_t>, 2> headers;
  Measure({}, &sizes, &headers);
  ASSERT_EQ(sizes[kConnections], 5u);
  std::vector<Case> cases;
  for (size_t connection = 0; connection < 5; ++connection) {
    for (const Stop stop : {Stop::kHold, Stop::kEnd, Stop::kReset}) {
      const Way way = kWays[rng.Below(2)];
      const uint64_t joined = sizes[Counter(kAtJoin, connection, way)];
      const uint64_t all = sizes[Counter(kAtEnd, connection, way)];
      // A control connection need not carry anything before ranks have joined.
      const uint64_t end = IsData(connection, 3) ? joined + (all - joined) / 2
                                                 : std::max(joined, Handshake(way) + 1);
      std::vector<uint64_t> offsets = Offsets(&rng, 0, Handshake(way), 1);
      offsets.push_back(Offsets(&rng, Handshake(way), end, 1)[0]);
      for (const uint64_t offset : offsets) {
        const bool starved = stop == Stop::kHold && offset >= Handshake(way) && connection > 0 &&
                             !IsData(connection, 3);
        if (starved && kSanitized) continue;  // they only wait
        // Silence takes time to be noticed.
        const unsigned calls = stop == Stop::kHold ? 4000u * kSlowness : 4000u;
        cases.push_back({.name = fmt::format("connection {} {} byte {} stop {}", connection,
                                             Name(way), offset, static_cast<int>(stop)),
                         .mode = {},
                         .connection = connection,
                         .way = way,
                         .offset = offset,
                         .actions = {.at_start =
                                         [=](ConnectionProxy& proxy) {
                                           proxy->SetFaults(connection, way,
                                                            {.stop_at = offset, .stop = stop});
                                         },
                                     .calls = offset < Handshake(way) ? 10u : calls,
                                     .pause = 1000},
                         .starved = starved});
        if (!starved) continue;
        Case idle = cases.back();  // no data flows for longer than a peer may be silent
        idle.name += " idle";
        idle.starved = false;
        idle.actions.calls = 2;
        idle.actions.pause = static_cast<useconds_t>(2.5 * kDead * 1e6);
        cases.push_back(std::move(idle));
      }
    }
  }
  Run(cases, [&](const Case& c, ProcessWorld& world) {
    // A rank whose handshake was cut connects again. That is too late where the other end has sent
    // its part of the handshake.
    const bool again = world.report(2).counters[kConnections] > 5;
    if (again && world.report(2).result == CCL_SUCCESS) return ExpectSuccess(world);
    // What arrives from a peer for data says that it lives.
    if (c.starved) return ExpectSuccess(world);
    const int server = c.connection == 1 || c.connection == 3 ? 0 : 1;
    ExpectAllFail(world, c.connection == 0 ? std::vector<int>{} : std::vector<int>{server, 2});
  });
}

TEST_F(ProxyTest, Row28_SplicedConnectionsAreRefused) {
  ForRow("28", "tcp");
  MakeHosts(3);
  std::vector<Case> cases;
  for (const NetworkMode mode : {NetworkMode{"auth"}, {"encrypt"}}) {
    for (const size_t first : {1u, 3u}) {  // data, control
      cases.push_back(
          {.name = fmt::format("{} connections {} and {}", mode.security, first, first + 1),
           .mode = mode,
           .actions = {
               .at_start = {},
               .after_join = [first](ConnectionProxy& proxy) { proxy->Splice(first, first + 1); },
               .calls = 2000,
               .pause = 1000}});
    }
  }
  Run(cases, [](const Case&, ProcessWorld& world) { ExpectAllFail(world, {0, 1, 2}); });
}

TEST_F(ProxyTest, Row28_RepeatedBytesAreRefused) {
  ForRow("28", "tcp");
  MakeHosts(2);
  std::vector<Case> cases;
  for (const NetworkMode mode : {NetworkMode{"auth"}, {"encrypt"}}) {
    for (const size_t connection : {1u, 2u}) {
      for (const Way way : kWays) {
        cases.push_back(
            {.name = fmt::format("{} connection {} {}", mode.security, connection, Name(way)),
             .mode = mode,
             .actions = {.at_start = {},
                         .after_call =
                             [=](ConnectionProxy& proxy) {
                               // A control connection may be silent until its first heartbeat.
                               EXPECT_TRUE(proxy->AwaitSent(connection, way, Handshake(way) + 1));
                               const std::string bytes = proxy->Recorded(connection, way);
                               proxy->Inject(connection, way, bytes.substr(Handshake(way)));
                             },
                         .calls = 2000,
                         .pause = 1000}});
      }
    }
  }
  Run(cases, [](const Case&, ProcessWorld& world) { ExpectAllFail(world, {0, 1}); });
}

}  // namespace
}  // namespace inccl::test
