// SPDX-License-Identifier: Apache-2.0
//
// A switch with long cables between network namespaces, for kernels without netem. Each namespace
// gets a TUN device e0 with the address 10.77.0.K/24 (K = 1, 2, ...), and this process passes IPv4
// packets between them. Each port has RATE in either direction and a queue of QUEUE_MS. A packet
// arrives DELAY_MS after its last bit has left the sender's port. A share of LOSS of the packets is
// dropped at random. It never reorders the packets of two hosts. perf/hosts.sh compiles and runs
// it, as root; it ends with SIGTERM.
//
// With SITES > 0, host K is on the site K modulo SITES. Packets take 0.05 ms to hosts of the same
// site. Those to other sites pass the links of both sites, if these have a rate.
//
// usage: delay_switch DELAY_MS RATE_MBIT QUEUE_MS LOSS SITES SITE_MBIT NAMESPACE...
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kMtu = 9000, kTransmitQueue = 20000, kPacketsAtOnce = 32;
constexpr double kFrameBytes = 38;  // of Ethernet, with preamble and gap
constexpr size_t kMostWaiting = 1 << 15;
constexpr uint32_t kNetwork = 0x0a4d0000;  // 10.77.0.0
constexpr size_t kDestination = 19;        // last byte of an IPv4 destination
constexpr double kNsPerS = 1e9;

constexpr double kInSite = 50e-6;  // seconds

struct Packet {
  double due = 0;
  std::vector<unsigned char> data;
};

// The queue in front of a link that ends what it carries at `free`.
struct Link {
  double free = 0;

  // Returns when the last bit of a packet that comes at `now` has passed; -1: the queue is full.
  double Pass(double now, double seconds, double queue) {
    free = std::max(free, now);
    if (free - now > queue) return -1;
    return free += seconds;
  }
};

struct Port {
  int fd = -1;
  Link out, in;
  std::deque<Packet> waiting;  // in the order in which they are due
};

struct Cable {
  double delay = 0, bytes_per_s = 0, queue = 0, loss = 0;
  size_t sites = 0;
  double site_bytes_per_s = 0;

  bool Leaves(size_t from, size_t to) const { return sites == 0 || from % sites != to % sites; }
  bool HasSiteLinks() const { return sites > 0 && site_bytes_per_s > 0; }
};

// A packet between two ports.
struct Travelling {
  double arrives = 0;
  uint64_t number = 0;
  size_t from = 0, to = 0;
  std::vector<unsigned char> data;

  bool operator>(const Travelling& other) const {
    return std::pair(arrives, number) > std::pair(other.arrives, other.number);
  }
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void Die(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

int OpenTun(const std::string& name, uint32_t number) {
  const std::string path = "/var/run/netns/" + name;
  const int ns = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) Die(path);
  close(ns);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  std::strcpy(request.ifr_name, "e0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) Die("/dev/net/tun");
  const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto set = [&](unsigned long what, const char* name_of) {
    if (ioctl(s, what, &request) != 0) Die(name + ": " + name_of);
  };
  auto* const address = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
  *address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(kNetwork + number)}};
  set(SIOCSIFADDR, "address");
  address->sin_addr.s_addr = htonl(0xffffff00);
  set(SIOCSIFNETMASK, "netmask");
  request.ifr_mtu = kMtu;
  set(SIOCSIFMTU, "mtu");
  request.ifr_qlen = kTransmitQueue;
  set(SIOCSIFTXQLEN, "txqueuelen");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  set(SIOCSIFFLAGS, "up");
  close(s);
  return fd;
}

class Switch {
 public:
  Switch(const Cable& cable, std::vector<Port> ports)
      : cable_(cable), ports_(std::move(ports)), sites_(std::max<size_t>(1, cable.sites)) {}

  [[noreturn]] void Run() {
    std::vector<pollfd> polls;
    for (const Port& port : ports_) polls.push_back({port.fd, POLLIN, 0});
    while (true) {
      const bool busy = Take(Now());
      const double now = Now();
      Arrive(now);
      const double next = Deliver(now);
      if (busy) continue;
      const double wait = std::max(0.0, next - Now());
      timespec timeout{};
      timeout.tv_sec = static_cast<time_t>(wait);
      timeout.tv_nsec = static_cast<long>((wait - static_cast<double>(timeout.tv_sec)) * kNsPerS);
      ppoll(polls.data(), polls.size(), &timeout, nullptr);
    }
  }

 private:
  struct Site {
    Link out, in;
  };

  // What the hosts have sent. Returns whether there was anything.
  bool Take(double now) {
    std::array<unsigned char, kMtu + 64> buffer{};
    bool any = false;
    for (size_t from = 0; from < ports_.size(); ++from) {
      for (int k = 0; k < kPacketsAtOnce; ++k) {
        const ssize_t bytes = read(ports_[from].fd, buffer.data(), buffer.size());
        if (bytes < 0 && errno != EAGAIN && errno != EINTR) Die("a host is gone");
        if (bytes <= static_cast<ssize_t>(kDestination)) break;
        any = true;
        const size_t to = buffer[0] >> 4 == 4 ? size_t{buffer[kDestination]} - 1 : ports_.size();
        if (to >= ports_.size() || (cable_.loss > 0 && draw_(random_) < cable_.loss)) continue;
        Send(now, from, to, {buffer.data(), buffer.data() + bytes});
      }
    }
    return any;
  }

  static double Wire(size_t bytes) { return static_cast<double>(bytes) + kFrameBytes; }

  // A full queue drops the packet, here and below.
  void Send(double now, size_t from, size_t to, std::vector<unsigned char> data) {
    const double wire = Wire(data.size());
    double at = ports_[from].out.Pass(now, wire / cable_.bytes_per_s, cable_.queue);
    const bool leaves = cable_.Leaves(from, to);
    if (at >= 0 && leaves && cable_.HasSiteLinks()) {
      at = sites_[from % cable_.sites].out.Pass(at, wire / cable_.site_bytes_per_s, cable_.queue);
    }
    if (at < 0 || travelling_.size() == kMostWaiting * ports_.size()) return;
    travelling_.push(
        {at + (leaves ? cable_.delay : kInSite), ++number_, from, to, std::move(data)});
  }

  void Arrive(double now) {
    while (!travelling_.empty() && travelling_.top().arrives <= now) {
      const Travelling& packet = travelling_.top();
      const double wire = Wire(packet.data.size());
      double at = packet.arrives;
      if (cable_.Leaves(packet.from, packet.to) && cable_.HasSiteLinks()) {
        at = sites_[packet.to % cable_.sites].in.Pass(at, wire / cable_.site_bytes_per_s,
                                                      cable_.queue);
      }
      Port& to = ports_[packet.to];
      // The first bit has come before the last one: what is alone on the link does not wait again.
      if (at >= 0)
        at = to.in.Pass(at - wire / cable_.bytes_per_s, wire / cable_.bytes_per_s, cable_.queue);
      if (at >= 0 && to.waiting.size() < kMostWaiting) to.waiting.push_back({at, packet.data});
      travelling_.pop();
    }
  }

  // Returns when there is something to do again.
  double Deliver(double now) {
    double next = travelling_.empty() ? now + 1 : travelling_.top().arrives;
    for (Port& port : ports_) {
      while (!port.waiting.empty() && port.waiting.front().due <= now) {
        const std::vector<unsigned char>& data = port.waiting.front().data;
        // A full queue of the receiver drops it, as a NIC would.
        (void)!write(port.fd, data.data(), data.size());
        port.waiting.pop_front();
      }
      if (!port.waiting.empty()) next = std::min(next, port.waiting.front().due);
    }
    return next;
  }

  const Cable cable_;
  std::vector<Port> ports_;
  std::vector<Site> sites_;
  std::priority_queue<Travelling, std::vector<Travelling>, std::greater<>> travelling_;
  uint64_t number_ = 0;
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> draw_{0, 1};
};

}  // namespace

int main(int argc, char** argv) {
  constexpr int kHosts = 7;  // arguments before them
  if (argc <= kHosts) {
    std::fprintf(stderr,
                 "usage: %s DELAY_MS RATE_MBIT QUEUE_MS LOSS SITES SITE_MBIT NAMESPACE...\n",
                 argv[0]);
    return 2;
  }
  constexpr double kMs = 1e-3, kBytesPerMbit = 1e6 / 8;
  const Cable cable{.delay = std::atof(argv[1]) * kMs,
                    .bytes_per_s = std::atof(argv[2]) * kBytesPerMbit,
                    .queue = std::atof(argv[3]) * kMs,
                    .loss = std::atof(argv[4]),
                    .sites = static_cast<size_t>(std::max(0, std::atoi(argv[5]))),
                    .site_bytes_per_s = std::atof(argv[6]) * kBytesPerMbit};
  std::vector<Port> ports;
  for (int i = kHosts; i < argc; ++i) {
    ports.emplace_back().fd = OpenTun(argv[i], static_cast<uint32_t>(i - kHosts + 1));
  }
  constexpr char kReady[] = "ready\n";
  if (write(STDOUT_FILENO, kReady, sizeof kReady - 1) < 0) Die("standard output");
  Switch(cable, std::move(ports)).Run();
}
