// SPDX-License-Identifier: Apache-2.0
//
// A switch with long cables between network namespaces, for kernels without netem. Each namespace
// gets a TUN device e0 with the address 10.77.0.K/24 (K = 1, 2, ...), and this process passes IPv4
// packets between them. Each port has RATE in either direction and a queue of QUEUE_MS. A packet
// arrives DELAY_MS after its last bit has left the sender's port. A share of LOSS of the packets is
// dropped at random. It never reorders the packets of two hosts. perf/hosts.sh compiles and runs
// it, as root; it ends with SIGTERM.
//
// usage: delay_switch DELAY_MS RATE_MBIT QUEUE_MS LOSS NAMESPACE...
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
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kMtu = 9000, kTransmitQueue = 20000, kPacketsAtOnce = 32;
constexpr double kFrameBytes = 38;  // of Ethernet, with preamble and gap
constexpr size_t kMostWaiting = 1 << 15;
constexpr uint32_t kNetwork = 0x0a4d0000;  // 10.77.0.0
constexpr size_t kDestination = 19;        // last byte of an IPv4 destination
constexpr double kNsPerS = 1e9;

struct Packet {
  double due = 0;
  std::vector<unsigned char> data;
};

struct Port {
  int fd = -1;
  double sends_free = 0, receives_free = 0;  // when the link ends what it carries, either way
  std::deque<Packet> waiting;                // in the order in which they are due
};

struct Cable {
  double delay = 0, bytes_per_s = 0, queue = 0, loss = 0;
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

// Puts a packet that `from` has sent at `now` onto its cable, unless a queue is full.
void Carry(const Cable& cable, double now, const unsigned char* data, size_t bytes, Port* from,
           Port* to) {
  const double wire = (static_cast<double>(bytes) + kFrameBytes) / cable.bytes_per_s;
  from->sends_free = std::max(from->sends_free, now);
  if (from->sends_free - now > cable.queue || to->waiting.size() == kMostWaiting) return;
  from->sends_free += wire;
  const double arrives = from->sends_free + cable.delay;
  to->receives_free = std::max(to->receives_free, arrives - wire);
  if (to->receives_free - arrives > cable.queue) return;
  to->receives_free += wire;
  to->waiting.push_back({to->receives_free, {data, data + bytes}});
}

[[noreturn]] void Run(const Cable& cable, std::vector<Port>* ports) {
  std::array<unsigned char, kMtu + 64> buffer{};
  std::vector<pollfd> polls;
  for (const Port& port : *ports) polls.push_back({port.fd, POLLIN, 0});
  std::mt19937 random(1);
  std::uniform_real_distribution<double> draw(0, 1);
  while (true) {
    bool busy = false;
    const double now = Now();
    for (Port& from : *ports) {
      for (int k = 0; k < kPacketsAtOnce; ++k) {
        const ssize_t bytes = read(from.fd, buffer.data(), buffer.size());
        if (bytes <= static_cast<ssize_t>(kDestination)) break;
        busy = true;
        const size_t to = buffer[0] >> 4 == 4 ? size_t{buffer[kDestination]} - 1 : ports->size();
        if (to >= ports->size() || (cable.loss > 0 && draw(random) < cable.loss)) continue;
        Carry(cable, now, buffer.data(), static_cast<size_t>(bytes), &from, &(*ports)[to]);
      }
    }
    const double then = Now();
    double next = then + 1;
    for (Port& port : *ports) {
      while (!port.waiting.empty() && port.waiting.front().due <= then) {
        const std::vector<unsigned char>& data = port.waiting.front().data;
        // A full queue of the receiver drops it, as a NIC would.
        (void)!write(port.fd, data.data(), data.size());
        port.waiting.pop_front();
      }
      if (!port.waiting.empty()) next = std::min(next, port.waiting.front().due);
    }
    if (busy) continue;
    const double wait = std::max(0.0, next - Now());
    timespec timeout{};
    timeout.tv_sec = static_cast<time_t>(wait);
    timeout.tv_nsec = static_cast<long>((wait - static_cast<double>(timeout.tv_sec)) * kNsPerS);
    ppoll(polls.data(), polls.size(), &timeout, nullptr);
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kHosts = 5;  // arguments before them
  if (argc <= kHosts) {
    std::fprintf(stderr, "usage: %s DELAY_MS RATE_MBIT QUEUE_MS LOSS NAMESPACE...\n", argv[0]);
    return 2;
  }
  constexpr double kMs = 1e-3, kBytesPerMbit = 1e6 / 8;
  const Cable cable{.delay = std::atof(argv[1]) * kMs,
                    .bytes_per_s = std::atof(argv[2]) * kBytesPerMbit,
                    .queue = std::atof(argv[3]) * kMs,
                    .loss = std::atof(argv[4])};
  std::vector<Port> ports;
  for (int i = kHosts; i < argc; ++i) {
    ports.push_back({.fd = OpenTun(argv[i], static_cast<uint32_t>(i - kHosts + 1))});
  }
  constexpr char kReady[] = "ready\n";
  if (write(STDOUT_FILENO, kReady, sizeof kReady - 1) < 0) Die("standard output");
  Run(cable, &ports);
}
