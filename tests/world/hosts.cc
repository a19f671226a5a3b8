// SPDX-License-Identifier: Apache-2.0
#include "world/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

namespace inccl::test {
namespace {

constexpr size_t kMostFds = Hosts::kMostHosts + 2;  // SCM_RIGHTS takes at most 253

// What a forked child tells its parent, with descriptors.
struct Message {
  int error = 0;
  char step[60]{};
};

// Sends a message and its descriptors; in a forked child, so it allocates nothing.
void Send(int to, Message message, const int* fds, size_t count) {
  iovec data{&message, sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (count > 0) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
  }
  (void)sendmsg(to, &header, MSG_NOSIGNAL);
}

Message Receive(int from, std::vector<UniqueFd>* fds) {
  Message message{EPIPE, "the child that was to do it"};
  Message got;
  iovec data{&got, sizeof got};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  if (TEMP_FAILURE_RETRY(recvmsg(from, &header, MSG_CMSG_CLOEXEC)) != sizeof got) return message;
  const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  for (size_t at = 0; rights != nullptr && CMSG_LEN(at) < rights->cmsg_len; at += sizeof(int)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights) + at, sizeof fd);
    fds->emplace_back(fd);
  }
  return got;
}

// Runs `body` in a child, which may change its namespaces, and returns what the child sends.
template <typename Body>
Message InChild(const Body& body, std::vector<UniqueFd>* fds) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return {errno, "socketpair"};
  }
  const UniqueFd parent(ends[0]);
  UniqueFd child(ends[1]);
  const pid_t pid = fork();
  if (pid == 0) {
    body(child.get());
    _exit(0);
  }
  child.Reset();
  if (pid < 0) return {errno, "fork"};
  const Message message = Receive(parent.get(), fds);
  TEMP_FAILURE_RETRY(waitpid(pid, nullptr, 0));
  return message;
}

bool WriteFile(const char* path, const char* text) {
  const UniqueFd fd(open(path, O_WRONLY | O_CLOEXEC));
  const auto length = static_cast<ssize_t>(std::strlen(text));
  return fd.valid() && write(fd.get(), text, std::strlen(text)) == length;
}

// A new user namespace, in which this process is root, with a new network namespace.
bool UnshareUser() {
  std::array<char, 64> uid{}, gid{};
  std::snprintf(uid.data(), uid.size(), "0 %u 1", geteuid());
  std::snprintf(gid.data(), gid.size(), "0 %u 1", getegid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && WriteFile("/proc/self/setgroups", "deny") &&
         WriteFile("/proc/self/uid_map", uid.data()) && WriteFile("/proc/self/gid_map", gid.data());
}

UniqueFd MemoryFile(const std::string& text) {
  UniqueFd fd(memfd_create("text", MFD_CLOEXEC));
  if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) fd.Reset();
  if (fd.valid()) lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

std::string Content(int fd) {
  std::string text(static_cast<size_t>(std::max<off_t>(lseek(fd, 0, SEEK_END), 0)), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

std::string Mac(int host) { return fmt::format("02:77:00:00:00:{:02x}", host + 1); }
constexpr const char* kNoMac = "02:77:ff:ff:ff:ff";  // of no host: the packet goes nowhere

std::string Neighbour(int host, bool ipv6, const std::string& mac) {
  return fmt::format("neigh replace {} lladdr {} dev e0 nud permanent\n",
                     ipv6 ? Hosts::Ipv6(host) : Hosts::Ipv4(host), mac);
}

// A tc command that makes the queue of a device, or deletes it if there is one (`queue`).
std::string QueueCommand(const char* device, const LinkShape& shape, bool dropped, bool queue) {
  const std::string replace = fmt::format("qdisc replace dev {} root ", device);
  if (dropped) return replace + "blackhole\n";
  if (!shape.rate.empty()) {
    return replace + fmt::format("tbf rate {} burst 256kb latency 50ms\n", shape.rate);
  }
  return queue ? fmt::format("qdisc del dev {} root\n", device) : "";
}

}  // namespace

std::string Hosts::Name(int host) {
  return host == kSwitch ? "switch" : fmt::format("host{}", host);
}
std::string Hosts::Ipv4(int host) { return fmt::format("10.77.0.{}", host + 1); }
std::string Hosts::Ipv6(int host) { return fmt::format("fd77::{:x}", host + 1); }

std::string Hosts::Missing(bool user_namespace) {
  Namespaces namespaces;
  const std::string refused = Open(1, user_namespace, &namespaces);
  if (!refused.empty()) return refused;
  for (const char* text :
       {"ip link add switch type bridge", "ip link add port0 type veth peer name e0",
        "tc qdisc replace dev port0 root tbf rate 1gbit burst 256kb latency 50ms",
        "tc qdisc replace dev port0 root blackhole"}) {
    std::vector<std::string> command;
    std::istringstream words(text);
    for (std::string word; words >> word;) command.push_back(word);
    std::string output;
    if (RunIn(namespaces, kSwitch, command, "", &output) != 0) {
      return fmt::format("no network of hosts can be made: {}: {}", text, output);
    }
  }
  return "";
}

std::string Hosts::Open(int count, bool user_namespace, Namespaces* namespaces) {
  std::vector<UniqueFd> fds;
  const Message message = InChild(
      [&](int to) {
        const bool with_user = user_namespace || unshare(CLONE_NEWNET) != 0;
        if (with_user && !UnshareUser()) {
          Send(to, {errno, "unshare(CLONE_NEWUSER | CLONE_NEWNET)"}, nullptr, 0);
          return;
        }
        std::array<int, kMostFds> held{};
        size_t n = 0;
        bool ok = true;
        for (int i = 0; i <= count && ok; ++i) {  // the switch, the hosts
          ok = i == 0 || unshare(CLONE_NEWNET) == 0;
          held[n++] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
          ok = ok && held[n - 1] >= 0;
        }
        if (with_user && ok) {
          held[n++] = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
          ok = held[n - 1] >= 0;
        }
        if (ok) {
          Send(to, {}, held.data(), n);
        } else {
          Send(to, {errno, "unshare(CLONE_NEWNET)"}, nullptr, 0);
        }
      },
      &fds);
  const auto hosts = static_cast<size_t>(count);
  if (message.error == 0 && fds.size() > hosts) {
    namespaces->at_switch = std::move(fds[0]);
    for (size_t i = 1; i <= hosts; ++i) namespaces->hosts.push_back(std::move(fds[i]));
    if (fds.size() > hosts + 1) namespaces->user = std::move(fds[hosts + 1]);
    return "";
  }
  return fmt::format("this process may not make network namespaces: {}: {}", message.step,
                     std::strerror(message.error));
}

// Allocates nothing: also for a child forked from a process with threads. Returns the step that
// failed, with errno.
const char* Hosts::EnterNet(const Namespaces& namespaces, int host) {
  if (namespaces.user.valid() && setns(namespaces.user.get(), CLONE_NEWUSER) != 0) {
    return "setns(CLONE_NEWUSER)";
  }
  return setns(namespaces.net(host), CLONE_NEWNET) != 0 ? "setns(CLONE_NEWNET)" : nullptr;
}

int Hosts::RunIn(const Namespaces& namespaces, int host, const std::vector<std::string>& command,
                 const std::string& input, std::string* output) {
  const UniqueFd in = MemoryFile(input);
  const UniqueFd out = MemoryFile("");
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const std::string in_sbin = "/usr/sbin/" + command[0];  // which a user's PATH may lack
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in.get(), STDIN_FILENO);
    dup2(out.get(), STDOUT_FILENO);
    dup2(out.get(), STDERR_FILENO);
    for (const UniqueFd& net : namespaces.hosts) fcntl(net.get(), F_SETFD, 0);  // Build names them
    if (EnterNet(namespaces, host) == nullptr) {
      execvp(arguments[0], arguments.data());
      execv(in_sbin.c_str(), arguments.data());
    }
    dprintf(STDERR_FILENO, "%s: %s", arguments[0], std::strerror(errno));
    _exit(127);
  }
  int status = -1;
  if (pid > 0) TEMP_FAILURE_RETRY(waitpid(pid, &status, 0));
  if (output != nullptr) *output = Content(out.get());
  return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

namespace {

HostsOptions WithDelay(HostsOptions options) {
  const char* const ms = std::getenv("INCCL_TEST_DELAY_MS");
  if (ms == nullptr || options.delay.delay_ms != 0) return options;
  const char* const sites = std::getenv("INCCL_TEST_SITES");
  options.delay = {.delay_ms = std::atoi(ms), .sites = sites == nullptr ? 0 : std::atoi(sites)};
  return options;
}

}  // namespace

Hosts::Hosts(const HostsOptions& options)
    : options_(WithDelay(options)), links_(static_cast<size_t>(options.count)) {
  const std::string refused = Open(options.count, options.user_namespace, &namespaces_);
  if (!refused.empty()) {
    ADD_FAILURE() << refused;
    std::abort();  // a test asks Missing() first
  }
  Build();
}

void Hosts::Build() {
  has_ipv6_ = Run(0, {"test", "-e", "/proc/net/if_inet6"}) == 0;
  const bool delays = options_.delay.delay_ms > 0;
  std::string batch = "link set lo up\n";
  if (!delays) batch += "link add switch type bridge mcast_snooping 0\nlink set switch up\n";
  for (int host = 0; host < count(); ++host) {
    batch += fmt::format("link add port{0} type veth peer name e0 netns /proc/self/fd/{1}\n", host,
                         namespaces_.net(host));
    batch += fmt::format("link set port{}{} up\n", host, delays ? "" : " master switch");
  }
  Configure(kSwitch, "ip", batch);
  if (delays) StartBridge();
  for (int host = 0; host < count(); ++host) {
    batch = fmt::format("link set lo up\nlink set e0 address {}\n", Mac(host));
    batch += fmt::format("addr add {}/24 dev e0\n", Ipv4(host));
    // Without the second in which duplicates are looked for, the address is usable at once.
    if (has_ipv6_) batch += fmt::format("addr add {}/64 dev e0 nodad\n", Ipv6(host));
    batch += "link set e0 up\n";
    // Neighbours that never expire: to a host that was cut off packets are lost, as behind a
    // router, instead of EHOSTUNREACH after three seconds.
    for (int other = 0; other < count(); ++other) {
      if (other == host) continue;
      batch += Neighbour(other, false, Mac(other));
      if (has_ipv6_) batch += Neighbour(other, true, Mac(other));
    }
    Configure(host, "ip", batch);
    SetShape(host, options_.shape);
  }
}

void Hosts::StartBridge() {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd ready(ends[0]);
  UniqueFd told(ends[1]);
  const pid_t owner = getpid();
  bridge_ = fork();
  if (bridge_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<int> ports;
    const char* const step = getppid() == owner ? EnterNet(namespaces_, kSwitch) : "the owner";
    const std::string failed = step != nullptr ? step : OpenPorts(count(), &ports);
    if (failed.empty()) {
      // The namespaces end with their owner, whatever else it holds.
      for (int fd = 3; fd < ports.front(); ++fd) {
        if (fd != told.get()) close(fd);
      }
    }
    const std::string text = failed + "\n";
    (void)!write(told.get(), text.data(), text.size());
    if (!failed.empty()) _exit(1);
    close(told.get());
    RunDelayBridge(options_.delay, ports);
  }
  told.Reset();
  std::string text(256, '\0');
  text.resize(static_cast<size_t>(
      std::max<ssize_t>(0, TEMP_FAILURE_RETRY(read(ready.get(), text.data(), text.size())))));
  EXPECT_EQ(text, "\n");
}

Hosts::~Hosts() {
  if (bridge_ <= 0) return;
  kill(bridge_, SIGKILL);
  TEMP_FAILURE_RETRY(waitpid(bridge_, nullptr, 0));
}

std::string Hosts::Enter(int host) const {
  const char* step = EnterNet(namespaces_, host);
  const std::string name = Name(host);
  if (step == nullptr && unshare(CLONE_NEWUTS) != 0) step = "unshare(CLONE_NEWUTS)";
  if (step == nullptr && sethostname(name.data(), name.size()) != 0) step = "sethostname";
  if (step == nullptr) return "";
  return fmt::format("entering {}: {}: {}", name, step, std::strerror(errno));
}

std::function<std::string(int)> Hosts::Ranks(int ranks_per_host) const {
  return [this, ranks_per_host](int rank) { return Enter(rank / ranks_per_host); };
}

UniqueFd Hosts::Socket(int host, int domain, int type) const {
  std::vector<UniqueFd> fds;
  const Message message = InChild(
      [&](int to) {
        const char* step = EnterNet(namespaces_, host);
        const int fd = step == nullptr ? socket(domain, type | SOCK_CLOEXEC, 0) : -1;
        Message made{fd < 0 ? errno : 0, "socket"};
        Send(to, made, &fd, fd < 0 ? 0 : 1);
      },
      &fds);
  EXPECT_EQ(message.error, 0) << message.step << ": " << std::strerror(message.error);
  return fds.empty() ? UniqueFd() : std::move(fds[0]);
}

int Hosts::Run(int host, const std::vector<std::string>& command, std::string* output,
               const std::string& input) const {
  return RunIn(namespaces_, host, command, input, output);
}

void Hosts::Configure(int host, const std::string& program, const std::string& batch) const {
  if (batch.empty()) return;
  std::string output;
  EXPECT_EQ(Run(host, {program, "-batch", "-"}, &output, batch), 0)
      << program << " in " << Name(host) << ": " << output << "\nof\n"
      << batch;
}

void Hosts::Apply(int host) {
  Link& link = links_[static_cast<size_t>(host)];
  const std::string out = QueueCommand("e0", link.shape, link.out_dropped, link.out_queue);
  const std::string in =
      QueueCommand(fmt::format("port{}", host).c_str(), {}, link.in_dropped, link.in_queue);
  Configure(host, "tc", out);
  Configure(kSwitch, "tc", in);
  link.out_queue = out.find("replace") != std::string::npos;
  link.in_queue = link.in_dropped;
}

void Hosts::Partition(int host, Direction direction) {
  Link& link = links_[static_cast<size_t>(host)];
  link.out_dropped = direction != Direction::kIn;
  link.in_dropped = direction != Direction::kOut;
  Apply(host);
}

void Hosts::Heal(int host) {
  Link& link = links_[static_cast<size_t>(host)];
  link.out_dropped = link.in_dropped = false;
  Apply(host);
}

void Hosts::SetShape(int host, const LinkShape& shape) {
  links_[static_cast<size_t>(host)].shape = shape;
  Apply(host);
}

void Hosts::SetNeighbour(int from, int to, bool reachable) const {
  const std::string mac = reachable ? Mac(to) : kNoMac;
  Configure(from, "ip",
            Neighbour(to, false, mac) + (has_ipv6_ ? Neighbour(to, true, mac) : std::string()));
}
void Hosts::Cut(int from, int to) const { SetNeighbour(from, to, false); }
void Hosts::Mend(int from, int to) const { SetNeighbour(from, to, true); }

// At the switch: on a NIC that its own host takes down, addresses and routes would go.
void Hosts::Unplug(int host) const {
  Configure(kSwitch, "ip", fmt::format("link set port{} down\n", host));
}
void Hosts::Plug(int host) const {
  Configure(kSwitch, "ip", fmt::format("link set port{} up\n", host));
}

// On the way in: a sender is told of packets that a filter of its own drops.
void Hosts::LoseEvery(int host, int n) const {
  std::string rules = "table inet loss\ndelete table inet loss\n";
  if (n > 0) {
    rules += "table inet loss {\nchain in {\ntype filter hook input priority 0;\n";
    rules += fmt::format("iifname e0 numgen inc mod {} {} drop\n}}\n}}\n", n, n - 1);
  }
  std::string output;
  EXPECT_EQ(Run(host, {"nft", "-f", "-"}, &output, rules), 0) << output << "\nof\n" << rules;
}

bool Hosts::CanLose() const {
  return Run(kSwitch, {"nft", "add table inet none; delete table inet none"}) == 0;
}

}  // namespace inccl::test
