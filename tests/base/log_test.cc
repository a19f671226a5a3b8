// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace inccl::test {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() : pattern_(::testing::TempDir() + "inccl-log-%p-%h") {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    host_ = host;
    file_ = ::testing::TempDir() + "inccl-log-" + std::to_string(getpid()) + "-" + host_;
  }
  ~LogTest() override {
    EXPECT_TRUE(ConfigureLog(LogLevel::kNone, kDefaultLogSubsystems, "").ok());
    std::remove(file_.c_str());
  }
  std::vector<std::string> Lines() const {
    std::ifstream in(file_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  std::string pattern_, file_, host_;
};

TEST_F(LogTest, SilentUnlessAsked) {
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kWarn, "not asked for");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(LogEnabled(LogLevel::kVersion));
}

TEST_F(LogTest, LinesSayWhoAndWhat) {
  ASSERT_TRUE(ConfigureLog(LogLevel::kInfo, kDefaultLogSubsystems, pattern_).ok());
  Log(LogLevel::kInfo, "first");
  Log(LogLevel::kWarn, LogSubsystem::kControl, "number {} of {}", 2, "three");
  Log(LogLevel::kTrace, "too fine");
  Log(LogLevel::kInfo, LogSubsystem::kCodec, "not asked for");
  Log(LogLevel::kInfo, "from a peer: \x1b[2J\n\x7f{}");
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  const std::string prefix = host_ + ":" + std::to_string(getpid()) + ":\\d+ inccl ";
  EXPECT_TRUE(std::regex_match(lines[0], std::regex(prefix + "INFO first"))) << lines[0];
  EXPECT_TRUE(std::regex_match(lines[1], std::regex(prefix + "WARN number 2 of three")))
      << lines[1];
  EXPECT_NE(lines[2].find("from a peer: \\x1b[2J\\x0a\\x7f{}"), std::string::npos) << lines[2];
}

TEST_F(LogTest, AFunctionTakesTheLines) {
  ASSERT_TRUE(ConfigureLog(LogLevel::kInfo, kDefaultLogSubsystems, pattern_).ok());
  static std::vector<std::string> taken;
  SetLogFunction([](const char* level, const char* text) {
    taken.push_back(std::string(level) + " " + text);
  });
  Log(LogLevel::kWarn, "first\n");
  Log(LogLevel::kTrace, "too fine");
  Log(LogLevel::kInfo, "second");
  SetLogFunction(nullptr);
  Log(LogLevel::kInfo, "third");
  EXPECT_EQ(taken, (std::vector<std::string>{"WARN first\\x0a", "INFO second"}));
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_NE(Lines()[0].find("third"), std::string::npos);
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  ASSERT_TRUE(ConfigureLog(LogLevel::kTrace, kAllLogSubsystems, pattern_).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) {
        Log(LogLevel::kTrace, LogSubsystem::kTransport, "{}", std::string(200, 'x'));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = Lines();
  EXPECT_EQ(lines.size(), 800u);
  for (const std::string& line : lines) {
    ASSERT_TRUE(line.ends_with("inccl TRACE " + std::string(200, 'x'))) << line;
  }
}

TEST_F(LogTest, AFileThatCannotBeOpenedIsAnError) {
  const Status status = ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, "/nowhere/at/all");
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_NE(status.message().find("/nowhere/at/all"), std::string::npos);
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kWarn, "to stderr then");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("WARN to stderr then\n"),
            std::string::npos);
}

TEST_F(LogTest, PlaceholdersOfTheFileName) {
  const std::string name = ::testing::TempDir() + "inccl-log-" + std::to_string(getpid()) + "%px%";
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems,
                           ::testing::TempDir() + "inccl-log-%p%%px%%")
                  .ok());
  Log(LogLevel::kWarn, "here");
  std::ifstream in(name);
  std::string line;
  EXPECT_TRUE(std::getline(in, line)) << name;
  EXPECT_TRUE(line.ends_with("WARN here")) << line;
  std::remove(name.c_str());
}

// A file that is not this user's alone is an error that names it and what is wrong; nothing is
// written to it, and lines go to stderr.
class LogFileTest : public LogTest {
 protected:
  void ExpectRefused(const std::string& file, const std::string& why) {
    const Status status = ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, file);
    EXPECT_EQ(status.code(), Code::kSystemError);
    EXPECT_NE(status.message().find("INCCL_DEBUG_FILE: " + file), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    ::testing::internal::CaptureStderr();
    Log(LogLevel::kWarn, "to stderr then");
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("WARN to stderr then\n"),
              std::string::npos);
  }
};

TEST_F(LogFileTest, IsItsOwnersAloneWhateverTheUmask) {
  const mode_t before = umask(0);
  const Status status = ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, pattern_);
  umask(before);
  ASSERT_TRUE(status.ok()) << status.message();
  struct stat info {};
  ASSERT_EQ(stat(file_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(LogFileTest, LinksAreNotFollowed) {
  const std::string target = file_ + ".target";
  std::ofstream(target) << "precious\n";
  ASSERT_EQ(symlink(target.c_str(), file_.c_str()), 0);
  ExpectRefused(file_, "symbolic links are not followed");
  ASSERT_EQ(unlink(file_.c_str()), 0);
  ASSERT_EQ(link(target.c_str(), file_.c_str()), 0);
  ExpectRefused(file_, "has 2 names");
  std::ifstream in(target);
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(content, "precious\n");
  std::remove(target.c_str());
}

TEST_F(LogFileTest, APipeIsNeitherWaitedForNorTaken) {
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  ExpectRefused(file_, "No such device or address");  // without a reader a plain open would wait
  const int reader = open(file_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  ExpectRefused(file_, "not a regular file");
  close(reader);
}

TEST_F(LogFileTest, AnotherUsersFileIsNotTaken) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  std::ofstream(file_).close();
  ASSERT_EQ(chown(file_.c_str(), 4711, 4711), 0);
  ExpectRefused(file_, "belongs to uid 4711, not to uid 0");
}

TEST_F(LogTest, AFileIsAppendedTo) {
  for (const char* text : {"one", "two"}) {
    ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, pattern_).ok());
    Log(LogLevel::kWarn, text);
    ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, "").ok());
  }
  EXPECT_EQ(Lines().size(), 2u);
}

TEST_F(LogTest, LevelsContainThoseBefore) {
  constexpr LogLevel kAll[] = {LogLevel::kVersion, LogLevel::kWarn, LogLevel::kInfo,
                               LogLevel::kTrace};
  for (const LogLevel set : kAll) {
    ASSERT_TRUE(ConfigureLog(set, kAllLogSubsystems, pattern_).ok());
    for (const LogLevel line : kAll) EXPECT_EQ(LogEnabled(line), line <= set);
  }
  // Subsystems filter INFO and TRACE only.
  ASSERT_TRUE(ConfigureLog(LogLevel::kTrace, 0, pattern_).ok());
  for (const LogLevel line : kAll) EXPECT_EQ(LogEnabled(line), line <= LogLevel::kWarn);
}

TEST_F(LogTest, AReaderThatHasGoneKillsNoProcess) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  const int before = dup(STDERR_FILENO);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, "").ok());
  Log(LogLevel::kWarn, "into the void");  // SIGPIPE would end this process
  dup2(before, STDERR_FILENO);
  close(before);
  close(ends[1]);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST_F(LogTest, ASocketWithoutAReaderBlocksNoThread) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const std::string block(4096, 'x');
  while (send(ends[1], block.data(), block.size(), MSG_DONTWAIT) > 0) {
  }
  const int own = dup(STDERR_FILENO);
  ASSERT_GE(dup2(ends[1], STDERR_FILENO), 0);
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, "").ok());
  Log(LogLevel::kWarn, "dropped");  // else this test would not end
  close(ends[0]);
  Log(LogLevel::kWarn, "into the void");
  dup2(own, STDERR_FILENO);
  close(own);
  close(ends[1]);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

// A pipe without room, whose other end stays open and is not read.
class FullPipe {
 public:
  FullPipe() {
    EXPECT_EQ(pipe2(ends_, O_CLOEXEC | O_NONBLOCK), 0);
    const std::string block(4096, 'x');
    while (write(ends_[1], block.data(), block.size()) > 0) {
    }
    while (write(ends_[1], "x", 1) > 0) {
    }
    EXPECT_EQ(fcntl(ends_[1], F_SETFL, 0), 0);  // as a parent's is: its writers wait
  }
  ~FullPipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  int write_end() const { return ends_[1]; }
  // Everything that is in it.
  std::string Drain() const {
    std::string all(1 << 20, '\0');
    size_t filled = 0;
    for (ssize_t got; (got = read(ends_[0], all.data() + filled, all.size() - filled)) > 0;) {
      filled += static_cast<size_t>(got);
    }
    all.resize(filled);
    return all;
  }

 private:
  int ends_[2];
};

// Standard error goes there meanwhile.
class StandardErrorTo {
 public:
  explicit StandardErrorTo(int fd) : own_(dup(STDERR_FILENO)) {
    EXPECT_GE(dup2(fd, STDERR_FILENO), 0);
  }
  ~StandardErrorTo() {
    dup2(own_, STDERR_FILENO);
    close(own_);
  }

 private:
  const int own_;
};

// A limit stands for a disk without room: of both the log learns by write's error.
TEST_F(LogTest, AFileThatTakesNoLineEndsNoProcessAndIsNotPassedOver) {
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, pattern_).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 30, .rlim_max = before.rlim_max};  // the first line is torn
  const FullPipe pipe;
  pipe.Drain();
  {
    const StandardErrorTo there(pipe.write_end());
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    Log(LogLevel::kWarn, "beyond the limit");  // SIGXFSZ would end this process
    Log(LogLevel::kWarn, "far beyond");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  }
  const std::string told = pipe.Drain();
  EXPECT_TRUE(
      std::regex_match(told, std::regex(".* inccl WARN INCCL_DEBUG_FILE: " + pattern_ +
                                        " takes no more lines: File too large \\(errno 27\\)\n")))
      << told;
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 0);
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kWarn, "within it");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 2u);  // how many are missing behind the torn one, and the last one
  EXPECT_NE(lines[0].find("WARN 2 lines are missing here"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("WARN within it"), std::string::npos) << lines[1];
}

// Were a line to wait for the reader, this test would not end.
TEST_F(LogTest, AReaderThatHasStoppedBlocksNoThread) {
  const FullPipe pipe;
  // Of lines that have been lost before, a new file knows nothing.
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, pattern_).ok());
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, "").ok());
  const StandardErrorTo there(pipe.write_end());
  for (int i = 0; i < 3; ++i) Log(LogLevel::kWarn, "lost");
  EXPECT_EQ(pipe.Drain().find("lost"), std::string::npos);
  Log(LogLevel::kWarn, "there again");
  const std::string lines = pipe.Drain();
  EXPECT_TRUE(std::regex_match(
      lines, std::regex(".* inccl WARN 3 lines are missing here.*\n.* inccl WARN there again\n")))
      << lines;
  Log(LogLevel::kWarn, "once");
  EXPECT_EQ(pipe.Drain().find("missing"), std::string::npos);
}

// Standard error belongs to others, too: they still wait for the reader.
TEST_F(LogTest, StandardErrorThatIsNotReadBlocksNoThreadAndStaysAsItIs) {
  const FullPipe pipe;
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, "").ok());
  const StandardErrorTo there(pipe.write_end());
  Log(LogLevel::kWarn, "lost");
  const int flags = fcntl(STDERR_FILENO, F_GETFL);
  EXPECT_EQ(flags & O_NONBLOCK, 0);
  EXPECT_EQ(pipe.Drain().find("lost"), std::string::npos);
}

TEST_F(LogTest, ASocketThatIsNotReadBlocksNoThread) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const std::string block(4096, 'x');
  while (send(ends[1], block.data(), block.size(), MSG_DONTWAIT) > 0) {
  }
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, "").ok());
  {
    const StandardErrorTo there(ends[1]);
    Log(LogLevel::kWarn, "lost");
  }
  for (const int fd : ends) close(fd);
}

TEST_F(LogTest, ALineIsCutWhereAPipeWouldTearIt) {
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, pattern_).ok());
  Log(LogLevel::kWarn, std::string(10000, 'x'));
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].size() + 1, size_t{PIPE_BUF});
  EXPECT_TRUE(lines[0].ends_with("xxx...")) << lines[0].substr(lines[0].size() - 20);
}

TEST_F(LogTest, ALineIsNotCutWithinACharacter) {
  ASSERT_TRUE(ConfigureLog(LogLevel::kWarn, kDefaultLogSubsystems, pattern_).ok());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "\u20ac";
  for (const char* before : {"", "x", "xx"}) Log(LogLevel::kWarn, before + text);
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  for (const std::string& line : lines) {
    EXPECT_TRUE(line.ends_with("\u20ac...")) << line.substr(line.size() - 20);
    EXPECT_GT(line.size() + 1, size_t{PIPE_BUF} - 3);
    EXPECT_LE(line.size() + 1, size_t{PIPE_BUF});
  }
}

TEST(LogParseTest, Levels) {
  LogLevel level = LogLevel::kTrace;
  EXPECT_TRUE(ParseLogLevel("", &level));
  EXPECT_EQ(level, LogLevel::kNone);
  EXPECT_TRUE(ParseLogLevel("version", &level));
  EXPECT_EQ(level, LogLevel::kVersion);
  EXPECT_TRUE(ParseLogLevel("Warn", &level));
  EXPECT_EQ(level, LogLevel::kWarn);
  EXPECT_TRUE(ParseLogLevel("TRACE", &level));
  EXPECT_EQ(level, LogLevel::kTrace);
  EXPECT_FALSE(ParseLogLevel("WARNING", &level));
  EXPECT_FALSE(ParseLogLevel("ABORT", &level));  // INCCL_ABORT_ON_ERROR says that
  EXPECT_EQ(level, LogLevel::kTrace);
}

TEST(LogParseTest, Subsystems) {
  uint32_t mask = 0;
  std::string unknown;
  EXPECT_TRUE(ParseLogSubsystems("ALL", &mask, &unknown));
  EXPECT_EQ(mask, kAllLogSubsystems);
  EXPECT_TRUE(ParseLogSubsystems("^codec,TUNING", &mask, &unknown));
  EXPECT_EQ(mask, kAllLogSubsystems & ~(static_cast<uint32_t>(LogSubsystem::kCodec) |
                                        static_cast<uint32_t>(LogSubsystem::kTuning)));
  EXPECT_FALSE(ParseLogSubsystems("INIT,,COLL", &mask, &unknown));
  EXPECT_EQ(unknown, "");
  EXPECT_FALSE(ParseLogSubsystems("INIT,NET", &mask, &unknown));
  EXPECT_EQ(unknown, "NET");
}

}  // namespace
}  // namespace inccl::test
