// SPDX-License-Identifier: Apache-2.0
//
// Several hosts on one machine: a network namespace per host, each with a NIC "e0" on one switch.
// The namespaces have no names: descriptors of this process hold them, so they vanish, with all
// links, when this process ends in any way. The test's own namespace is never touched, so tests run
// side by side with the same addresses. Needs `ip` and `tc` (iproute2), `nft` for loss, and root or
// user namespaces (not under the thread sanitizer, whose own thread forbids them); a test skips
// where Missing() returns a text.
#ifndef INCCL_TESTS_WORLD_HOSTS_H_
#define INCCL_TESTS_WORLD_HOSTS_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "world/delay_bridge.h"

namespace inccl::test {

// How a host's NIC sends.
struct LinkShape {
  std::string rate = {};  // as tc writes it, "1gbit"; empty: unlimited
};

struct HostsOptions {
  int count = 2;
  LinkShape shape = {};
  bool user_namespace = false;    // also where root needs none
  DelayBridgeOptions delay = {};  // else of INCCL_TEST_DELAY_MS and INCCL_TEST_SITES, if set
};

// Operations report an error as a failure of the current test. All are synchronous.
class Hosts {
 public:
  static constexpr int kSwitch = -1;  // in the place of a host: the namespace of the switch
  static constexpr int kMostHosts = 200;
  enum class Direction { kOut, kIn, kBoth };  // as seen from the host

  // What this machine lacks; empty if nothing.
  static std::string Missing(bool user_namespace = false);

  explicit Hosts(const HostsOptions& options = {});
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  int count() const { return options_.count; }
  static std::string Name(int host);  // "host0"
  static std::string Ipv4(int host);  // 10.77.0.1/24 is host 0
  static std::string Ipv6(int host);  // fd77::1/64 is host 0
  bool has_ipv6() const { return has_ipv6_; }

  // Moves the calling process into a host, and gives it the host's name. For a child that has just
  // been forked. Returns what failed; empty if nothing.
  std::string Enter(int host) const;
  // For WorldOptions::enter: rank r runs on host r / ranks_per_host. This object must outlive the
  // world.
  std::function<std::string(int rank)> Ranks(int ranks_per_host = 1) const;
  // A socket of a host, for this process: one thread can hold both ends of a connection.
  UniqueFd Socket(int host, int domain, int type) const;
  // Runs a program in a host. Returns its exit status (127: it cannot be started); *output gets
  // what it prints.
  int Run(int host, const std::vector<std::string>& command, std::string* output = nullptr,
          const std::string& input = "") const;

  // From here on the switch drops all packets of a host, and no end is told. Packets that wait in
  // the NIC's queue are lost, too.
  void Partition(int host, Direction direction = Direction::kBoth);
  void Heal(int host);
  // The same for packets from one host to another one.
  void Cut(int from, int to) const;
  void Mend(int from, int to) const;
  // Pulls the cable of a host's NIC: the host sees that the carrier is lost.
  void Unplug(int host) const;
  void Plug(int host) const;
  void SetShape(int host, const LinkShape& shape);
  // Of the packets that reach a host, each nth is lost; 0: none. CanLose().
  void LoseEvery(int host, int n) const;
  bool CanLose() const;  // whether this machine has nftables

 private:
  struct Namespaces {
    UniqueFd user;  // only where user namespaces are used
    UniqueFd at_switch;
    std::vector<UniqueFd> hosts;

    int net(int host) const {
      return host == kSwitch ? at_switch.get() : hosts[static_cast<size_t>(host)].get();
    }
  };
  struct Link {
    LinkShape shape;
    bool out_dropped = false, in_dropped = false;
    bool out_queue = false, in_queue = false;  // the NIC, the switch's port has a queue of tc
  };

  // Returns why the system permits no namespaces; empty if it does.
  static std::string Open(int count, bool user_namespace, Namespaces* namespaces);
  static int RunIn(const Namespaces& namespaces, int host, const std::vector<std::string>& command,
                   const std::string& input, std::string* output);
  static const char* EnterNet(const Namespaces& namespaces, int host);
  void Build();
  void StartBridge();
  void Apply(int host);
  void Configure(int host, const std::string& program, const std::string& batch) const;
  void SetNeighbour(int from, int to, bool reachable) const;

  const HostsOptions options_;
  bool has_ipv6_ = false;
  Namespaces namespaces_;
  pid_t bridge_ = -1;  // of delays
  std::vector<Link> links_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_HOSTS_H_
