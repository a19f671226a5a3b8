// SPDX-License-Identifier: Apache-2.0
//
// How ranks agree on a transport. What they do with it is tests/api/transports_test.cc.
#include "init/transport_selection.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/rng.h"
#include "bootstrap/bootstrap_world.h"
#include "init/thread_transports.h"
#include "memory/host_allocator.h"
#include "support/seed.h"
#include "transport/ucx/ucx_transport.h"
#if INCCL_TEST_VERBS
#include "fakes/verbs/fake_verbs.h"
#endif

namespace inccl::test {
namespace {

TransportOffer Sample(bool ok) {
  TransportOffer offer;
  offer.transport = "ucx";
  if (ok) {
    offer.payload.assign(300, std::byte{5});
    offer.device_slices = true;
    offer.link_mbps = 25'000;
  } else {
    offer.status = SystemError("no such luck");
  }
  return offer;
}

TEST(TransportRegionTest, ReadsBackWhatWasWritten) {
  const Result<TransportOffer> good = TransportOffer::Decode(Sample(true).Encode());
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->transport, "ucx");
  EXPECT_TRUE(good->status.ok());
  EXPECT_EQ(good->payload, Sample(true).payload);
  EXPECT_TRUE(good->device_slices);
  EXPECT_EQ(good->link_mbps, 25'000u);
  const Result<TransportOffer> bad = TransportOffer::Decode(Sample(false).Encode());
  ASSERT_TRUE(bad.ok());
  EXPECT_EQ(bad->status.code(), Code::kSystemError);
  EXPECT_EQ(bad->status.message(), "no such luck");
  EXPECT_FALSE(bad->device_slices);
  TransportOffer talkative = Sample(false);
  talkative.status = SystemError(std::string(100000, 'x'));  // cut, so that it is no failure
  EXPECT_LE(talkative.Encode().size(), kMaxBlob);
  EXPECT_TRUE(TransportOffer::Decode(talkative.Encode()).ok());
  TransportOffer largest = Sample(true);
  largest.payload.resize(kMaxUcxAddressBytes);
  EXPECT_LE(largest.Encode().size(), kMaxBlob);
}

TEST(TransportRegionTest, DamageIsAnErrorOrAnOffer) {
  const std::vector<std::byte> good = Sample(true).Encode();
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(TransportOffer::Decode(std::span(good).first(n)).ok()) << n;
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(TransportOffer::Decode(longer).ok());
  Rng rng(TestSeed());
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = Sample(round % 2 == 0).Encode();
    for (uint64_t i = 0; i <= rng.Below(3); ++i) {
      bytes[rng.Below(bytes.size())] = static_cast<std::byte>(rng.Next());
    }
    const Result<TransportOffer> offer = TransportOffer::Decode(bytes);
    if (offer.ok()) {
      EXPECT_LE(offer->payload.size(), kMaxBlob);
    }
  }
}

HostMap HostsOf(const Mesh& mesh) {
  std::vector<uint64_t> identities;
  for (const Peer& peer : mesh.peers) identities.push_back(peer.info.host_id);
  return HostMap(identities);
}

// Joins n threads as if they were processes and chooses. `adjust` may set INCCL_HOSTID.
std::vector<Result<std::unique_ptr<Transport>>> ChooseAmong(
    int n, const std::function<void(int rank, Environment*)>& adjust, int without_device = -1,
    const std::function<void(int rank, JoinOptions*)>& alter = {}) {
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  EXPECT_TRUE(id.ok());
  std::vector<Result<std::unique_ptr<Transport>>> chosen;
  for (int rank = 0; rank < n; ++rank) chosen.emplace_back(InternalError("not run"));
  OnThreads(n, [&](int rank) {
    Environment environment = TestEnvironment();
    adjust(rank, &environment);
    TransportSelection transport(rank, n, environment, rank != without_device);
    JoinOptions options = Options(rank, n);
    options.host_id = environment.hostid;
    transport.Advertise(&options);
    if (alter) alter(rank, &options);
    Result<std::unique_ptr<Transport>>& end = chosen[static_cast<size_t>(rank)];
    options.begin = [&](const Mesh& mesh) -> Result<JoinOptions::Alongside> {
      if (Status status = transport.TakeOffers(mesh); !status.ok()) return status;
      return transport.Begin(mesh, HostsOf(mesh),
                             {.deadline = options.deadline, .timeout_ms = options.timeout_ms});
    };
    options.prepare = [&](Mesh* mesh, bootstrap::RendezvousClient* rendezvous) {
      end = transport.Choose(
          {.mesh = mesh,
           .rendezvous = rendezvous,
           .limits = {.deadline = options.deadline, .timeout_ms = options.timeout_ms}},
          HostsOf(*mesh));
      return end.status();
    };
    const Result<Mesh> mesh = JoinWithId(*id, options);
    if (!mesh.ok()) end = mesh.status();
    EXPECT_EQ(transport.all_device_slices(), without_device < 0) << rank;
    EXPECT_EQ(transport.slowest_link_mbps(), 0u);  // loopback
  });
  return chosen;
}

TEST(TransportSelectionTest, TheFirstThatAllCan) {
  const bool ucx = UcxTransport::Built();
  struct Case {
    const char* list;
    const char* chosen;
  };
  std::vector<Case> cases = {{"", "shm"}, {"shm", "shm"}, {"loopback,shm", "shm"}};
  if (ucx) {
    cases.push_back({"ucx", "ucx"});
    cases.push_back({"ucx,shm", "ucx"});
    cases.push_back({"loopback,ucx,shm", "ucx"});
  } else {
    cases.push_back({"ucx,shm", "shm"});
  }
  for (const Case& c : cases) {
    const Baseline baseline;
    const auto chosen = ChooseAmong(
        3, [&](int, Environment* environment) { environment->transport = c.list; },
        &c == &cases[1] ? 2 : -1);
    for (const auto& end : chosen) {
      ASSERT_TRUE(end.ok()) << c.list << ": " << end.status().message();
      EXPECT_STREQ((*end)->caps().name, c.chosen) << c.list;
    }
  }
}

// Pairs without the rank that cannot use the transport keep it; all learn which rank and why.
TEST(TransportSelectionTest, ARankThatCannotDecidesForItsPairs) {
  if (!UcxTransport::Built()) {
    const auto chosen =
        ChooseAmong(2, [](int, Environment* environment) { environment->transport = "ucx"; });
    for (const auto& end : chosen) {
      ASSERT_FALSE(end.ok());
      EXPECT_CONTAINS(end.status().message(), "built without UCX");
    }
    return;
  }
  const auto broken_on_one = [](const char* list) {
    return [list](int rank, Environment* environment) {
      environment->transport = list;
      if (rank == 1) environment->ucx_tls = "nosuch";
    };
  };
  for (const auto& end : ChooseAmong(3, broken_on_one("ucx,shm"))) {
    ASSERT_TRUE(end.ok()) << end.status().message();
    EXPECT_STREQ((*end)->caps().name, "shm+ucx");
  }
  const auto chosen = ChooseAmong(3, broken_on_one("ucx,loopback"));
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_FALSE(chosen[rank].ok());
    const std::string& text = chosen[rank].status().message();
    EXPECT_CONTAINS(text, "rank " + std::to_string(rank) + "/3: init:");
    EXPECT_CONTAINS(text, "INCCL_TRANSPORT=ucx,loopback");
    EXPECT_CONTAINS(text, "ucx: on rank 1: ");
    EXPECT_CONTAINS(text, "nosuch");
    EXPECT_CONTAINS(text, "for ranks 0 and 1 (and 1 other pair)");
    EXPECT_CONTAINS(text, "loopback: loopback joins threads of one process only");
  }
}

void SetHost(const std::string& hosts, int rank, Environment* environment) {
  environment->hostid = hosts.substr(static_cast<size_t>(rank), 1);
}

// What the pair of ranks uses, by what its lanes can do.
std::string Used(const Transport& transport, int a, int b) {
  return transport.CapsFor(a, {&b, 1}).read_in_place ? "shm" : "ucx";
}

TEST(TransportSelectionTest, RanksOfOneHostUseShm) {
  if (!UcxTransport::Built()) return;
  for (const char* hosts : {"aabb", "abab", "aab", "abcab"}) {
    for (const char* list : {"", "shm,ucx"}) {
      const std::string text = hosts;
      const auto n = static_cast<int>(text.size());
      const Baseline baseline;
      const auto chosen = ChooseAmong(n, [&](int rank, Environment* environment) {
        SetHost(text, rank, environment);
        environment->transport = list;
      });
      for (int rank = 0; rank < n; ++rank) {
        const auto& end = chosen[static_cast<size_t>(rank)];
        ASSERT_TRUE(end.ok()) << end.status().message();
        EXPECT_STREQ((*end)->caps().name, "shm+ucx");
        EXPECT_EQ((*end)->caps().slot_memory, (*chosen[0])->caps().slot_memory);
        for (int peer = 0; peer < n; ++peer) {
          if (peer == rank) continue;
          const bool same = text[static_cast<size_t>(rank)] == text[static_cast<size_t>(peer)];
          EXPECT_EQ(Used(**end, rank, peer), same ? "shm" : "ucx") << hosts << rank << peer;
        }
      }
    }
  }
}

// Only lanes over TCP may be as deep as long links want.
// Offers that only some ranks send with the join are exchanged by all.
TEST(TransportSelectionTest, RanksMayOfferMoreOrLessWithTheJoin) {
  for (const int silent : {-1, 0, 2}) {
    const auto chosen = ChooseAmong(
        3,
        [](int rank, Environment* environment) {
          SetHost("aab", rank, environment);
          environment->transport = "shm,tcp";
          environment->socket_ifname = "lo";
        },
        -1,
        [&](int rank, JoinOptions* options) {
          if (rank == silent) options->network_blob = nullptr;
        });
    for (const auto& end : chosen) {
      ASSERT_TRUE(end.ok()) << silent << ": " << end.status().message();
      EXPECT_STREQ((*end)->caps().name, "shm+tcp") << silent;
    }
  }
}

TEST(TransportSelectionTest, MalformedOffersNameTheRank) {
  using Bytes = std::vector<std::byte>;
  const std::vector<std::function<Bytes(Bytes)>> damages = {
      [](const Bytes&) { return Bytes(); },
      [](Bytes bytes) { return bytes.resize(bytes.size() - 1), bytes; },
      [](Bytes bytes) { return bytes.push_back(std::byte{0}), bytes; },
      [](Bytes bytes) { return bytes.insert(bytes.end(), bytes.begin(), bytes.end()), bytes; },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    const auto chosen = ChooseAmong(
        3, [](int, Environment* environment) { environment->socket_ifname = "lo"; }, -1,
        [&](int rank, JoinOptions* options) {
          if (rank != 1) return;
          const auto right = options->network_blob;
          options->network_blob = [right, damage = damages[i]] { return damage(right()); };
        });
    for (const auto& end : chosen) {
      ASSERT_FALSE(end.ok()) << i;
      EXPECT_CONTAINS(end.status().message(), "peer rank 1 sent no offer of the transport shm");
    }
  }
}

TEST(TransportSelectionTest, AllPartsMustTakeDeepLanes) {
  struct Case {
    const char *hosts, *list;
    bool deep;
  };
  for (const Case& c : {Case{"aab", "shm,tcp", true}, Case{"ab", "tcp", true},
                        Case{"aab", "shm,ucx", !UcxTransport::Built()}}) {
    const auto chosen = ChooseAmong(static_cast<int>(std::string(c.hosts).size()),
                                    [&](int rank, Environment* environment) {
                                      SetHost(c.hosts, rank, environment);
                                      environment->transport = std::string(c.list) + ",tcp";
                                    });
    for (const auto& end : chosen) {
      ASSERT_TRUE(end.ok()) << end.status().message();
      EXPECT_EQ((*end)->caps().deep_lanes, c.deep) << (*end)->caps().name;
    }
  }
}

// The parts that no pair needs are not made, and what was made in vain is gone.
TEST(TransportSelectionTest, OneTransportForAllPairsIsTakenAlone) {
  if (!UcxTransport::Built()) return;
  struct Case {
    const char *hosts, *list, *chosen;
  };
  for (const Case& c : {Case{"ab", "", "ucx"}, Case{"abc", "shm,ucx", "ucx"},
                        Case{"aab", "ucx,shm", "ucx"}, Case{"aaa", "shm,ucx", "shm"}}) {
    const auto n = static_cast<int>(std::string(c.hosts).size());
    const auto chosen = ChooseAmong(n, [&](int rank, Environment* environment) {
      SetHost(c.hosts, rank, environment);
      environment->transport = c.list;
      if (std::string(c.chosen) == "shm") environment->ucx_tls = "nosuch";  // never asked
    });
    for (const auto& end : chosen) {
      ASSERT_TRUE(end.ok()) << end.status().message();
      EXPECT_STREQ((*end)->caps().name, c.chosen) << c.hosts;
    }
  }
}

TEST(TransportSelectionTest, APairWithoutATransportIsNamedOnEveryRank) {
  const Baseline baseline;
  const auto alone = ChooseAmong(4, [&](int rank, Environment* environment) {
    SetHost("aaba", rank, environment);
    environment->transport = "shm";
  });
  for (size_t rank = 0; rank < alone.size(); ++rank) {
    ASSERT_FALSE(alone[rank].ok());
    EXPECT_EQ(alone[rank].status().code(), Code::kInvalidUsage);
    EXPECT_EQ(alone[rank].status().message(),
              "rank " + std::to_string(rank) +
                  "/4: init: no common transport of INCCL_TRANSPORT=shm for ranks 0 and 2 (and 2 "
                  "other pairs): shm: ranks 0 and 2 are on different hosts");
  }
  if (!UcxTransport::Built()) return;
  const auto both = ChooseAmong(3, [&](int rank, Environment* environment) {
    SetHost("aab", rank, environment);
    environment->transport = "shm,ucx";
    if (rank == 1) environment->ucx_tls = "nosuch";
  });
  for (const auto& end : both) {
    ASSERT_FALSE(end.ok());
    const std::string& text = end.status().message();
    EXPECT_CONTAINS(text, "for ranks 1 and 2: ");
    EXPECT_CONTAINS(text, "shm: ranks 1 and 2 are on different hosts; ucx: on rank 1: ");
    EXPECT_CONTAINS(text, "nosuch");
  }
}

#if INCCL_TEST_VERBS
// Hosts with RDMA use it where the list has it; a rank that may not use its port has the next
// transport with all peers of other hosts.
TEST(TransportSelectionTest, RdmaBetweenHosts) {
  fake_verbs::Get().SetMachine(fake_verbs::Get().StandardMachine());
  for (const bool excluded : {false, true}) {
    for (const char* list : {"", "shm,verbs,ucx,tcp", "shm,verbs,tcp"}) {
      const auto chosen = ChooseAmong(3, [&](int rank, Environment* environment) {
        SetHost("aab", rank, environment);
        environment->transport = list;
        environment->socket_ifname = "lo";
        if (excluded && rank == 2) environment->ib_hca = "^fake0";
      });
      const bool ucx = std::string(list) != "shm,verbs,tcp" && UcxTransport::Built();
      for (const auto& end : chosen) {
        ASSERT_TRUE(end.ok()) << end.status().message();
        EXPECT_STREQ((*end)->caps().name, !excluded ? "shm+verbs" : ucx ? "shm+ucx" : "shm+tcp");
      }
    }
  }
  fake_verbs::Get().SetMachine({});
}

// Pairs whose path loses packets take the next transport; the others keep RDMA.
TEST(TransportSelectionTest, RdmaIsTriedBeforeItIsChosen) {
  fake_verbs::Machine machine = fake_verbs::Get().StandardMachine();
  fake_verbs::DeviceModel lossy = machine.devices[0];
  lossy.name = "lossy0";
  lossy.ports[0].network = -1;
  machine.devices.push_back(lossy);  // the connections of rank 1, by the ranks' numbers
  fake_verbs::Get().SetMachine(machine);
  const auto among = [](const char* list) {
    return ChooseAmong(3, [list](int rank, Environment* environment) {
      SetHost("abc", rank, environment);
      environment->transport = list;
      environment->socket_ifname = "lo";
    });
  };
  {
    const auto chosen = among("verbs,tcp");
    for (const auto& end : chosen) {
      ASSERT_TRUE(end.ok()) << end.status().message();
      EXPECT_STREQ((*end)->caps().name, "verbs+tcp");
    }
    std::vector<std::byte> memory(8192);
    const auto registered =
        (*chosen[0])->exports()->Register(memory.data(), memory.size(), {.keep = true});
    ASSERT_TRUE(registered.ok());
    for (const int peer : {1, 2}) {
      const auto lane =
          (*chosen[0])
              ->OpenSend({.producer = 0, .consumers = {peer}, .slot_bytes = 100, .depth = 1});
      ASSERT_TRUE(lane.ok());
      // Over TCP from 16 KiB on, and from any memory.
      EXPECT_EQ((*lane)->SendsFrom(memory.data(), memory.size(), false), peer == 2);
      EXPECT_FALSE((*lane)->ReachableFrom(registered->region));
    }
  }
  for (const auto& end : among("verbs")) {
    ASSERT_FALSE(end.ok());
    EXPECT_CONTAINS(end.status().message(),
                    "for ranks 0 and 1 (and 1 other pair): verbs: between ");
    EXPECT_CONTAINS(end.status().message(),
                    "between ranks 0 and 1: rank 0: lossy0:1: transport retry counter exceeded");
  }
  EXPECT_EQ(fake_verbs::Get().OpenObjects(), 0u);
  fake_verbs::Get().SetMachine({});
}

// Memory of ccl_mem_alloc is exported once: peers of this host read it, and devices send from it.
TEST(TransportSelectionTest, MemoryIsRegisteredWithAllParts) {
  fake_verbs::Get().SetMachine(fake_verbs::Get().StandardMachine());
  {
    const auto chosen = ChooseAmong(3, [](int rank, Environment* environment) {
      SetHost("aab", rank, environment);
      environment->transport = "shm,verbs";
    });
    ASSERT_TRUE(chosen[0].ok());
    Transport* const end = chosen[0]->get();
    constexpr size_t kBytes = size_t{1} << 20;
    void* const memory = *HostAllocator::Instance().Allocate(kBytes);
    const auto lane =
        end->OpenSend({.producer = 0, .consumers = {2}, .slot_bytes = 100, .depth = 1});
    ASSERT_TRUE(lane.ok());
    const auto handle = end->exports()->Register(memory, kBytes, {.access = Access::kReadWrite});
    ASSERT_TRUE(handle.ok());
    EXPECT_TRUE(handle->writable);  // of shm
    const auto* const data = static_cast<const std::byte*>(memory);
    EXPECT_TRUE((*lane)->SendsFrom(data, kBytes, false));
    // Shm has no other memory, but devices send from what is registered.
    std::vector<std::byte> own(8192);
    const auto of_device = end->exports()->Register(own.data(), own.size(), {.keep = true});
    ASSERT_TRUE(of_device.ok());
    EXPECT_FALSE(of_device->writable);
    EXPECT_TRUE((*lane)->SendsFrom(own.data(), own.size(), false));
    end->exports()->Deregister(*of_device);
    EXPECT_FALSE((*lane)->SendsFrom(own.data(), own.size(), false));
    // A registration that is kept ends in all parts.
    const auto kept =
        end->exports()->Register(memory, kBytes, {.access = Access::kReadWrite, .keep = true});
    ASSERT_TRUE(kept.ok());
    end->exports()->Deregister(*kept);
    EXPECT_FALSE((*lane)->SendsFrom(data, kBytes, false));
    EXPECT_TRUE(end->exports()->Register(memory, kBytes, {.access = Access::kReadWrite}).ok());
    EXPECT_TRUE((*lane)->SendsFrom(data, kBytes, false));
    EXPECT_TRUE(end->exports()->RevokeAccess(*handle).ok());
    EXPECT_FALSE((*lane)->SendsFrom(data, kBytes, false));
    EXPECT_TRUE(HostAllocator::Instance().Free(memory).ok());
  }
  fake_verbs::Get().SetMachine({});
}
#endif

TEST(TransportSelectionTest, ThreadsOfOneProcess) {
  const auto made = [](const std::string& list) {
    Environment environment;
    environment.transport = list;
    return MakeThreadTransports(2, environment);
  };
  EXPECT_STREQ((*made(""))[0]->caps().name, "loopback");
  EXPECT_STREQ((*made("shm"))[1]->caps().name, "shm");
  EXPECT_STREQ((*made("shm,loopback"))[1]->caps().name, "shm");
  if (UcxTransport::Built()) {
    EXPECT_STREQ((*made("ucx"))[1]->caps().name, "ucx");
  } else {
    EXPECT_CONTAINS(made("ucx").status().message(), "built without UCX");
    EXPECT_STREQ((*made("ucx,loopback"))[0]->caps().name, "loopback");
  }
}

}  // namespace
}  // namespace inccl::test
