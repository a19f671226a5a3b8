// SPDX-License-Identifier: Apache-2.0
#include "config/config_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace inccl::test {
namespace {

using Values = std::map<std::string, std::string>;

// A directory with files, and an environment that is a map.
class ConfigFilesTest : public ::testing::Test {
 protected:
  ConfigFilesTest() {
    std::string name = ::testing::TempDir() + "inccl-config-XXXXXX";
    root_ = mkdtemp(name.data());
    std::filesystem::create_directories(root_ / "xdg");
    std::filesystem::create_directories(root_ / "home");
    environment_ = {{"HOME", (root_ / "home").string()}};
  }
  ~ConfigFilesTest() override { std::filesystem::remove_all(root_); }

  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ / name) << text;
    chmod((root_ / name).c_str(), 0600);  // whatever the umask of who runs this
    return (root_ / name).string();
  }
  Result<Settings> Load() {
    return Settings::Load(
        [this](const char* name) -> const char* {
          const auto found = environment_.find(name);
          return found == environment_.end() ? nullptr : found->second.c_str();
        },
        (root_ / "system").string());
  }
  // The error of Load, which must fail.
  std::string LoadError() {
    const Result<Settings> settings = Load();
    EXPECT_FALSE(settings.ok());
    return settings.status().message();
  }

  std::filesystem::path root_;
  Values environment_;
};

TEST_F(ConfigFilesTest, TheGrammar) {
  const Result<std::vector<FileSetting>> settings = ParseConfigFile(
      "# a comment\n"
      "\n"
      "  INCCL_ALGO = ring;allreduce:^tree \t\r\n"
      "INCCL_JOB=a#b # a comment\n"
      "\t# another\n"
      "INCCL_HOSTID==x=\n"
      "INCCL_CODEC=\n"
      "lower_1=2",
      "f");
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  const std::vector<std::vector<std::string>> expected = {
      {"INCCL_ALGO", "ring;allreduce:^tree", "3"},
      {"INCCL_JOB", "a#b", "4"},
      {"INCCL_HOSTID", "=x=", "6"},
      {"INCCL_CODEC", "", "7"},
      {"lower_1", "2", "8"}};
  ASSERT_EQ(settings->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*settings)[i].name, expected[i][0]);
    EXPECT_EQ((*settings)[i].value, expected[i][1]);
    EXPECT_EQ(std::to_string((*settings)[i].line), expected[i][2]);
  }
  EXPECT_TRUE(ParseConfigFile("", "f")->empty());
  EXPECT_TRUE(ParseConfigFile("\n\n#", "f")->empty());
}

TEST_F(ConfigFilesTest, BadLinesAreNamed) {
  const std::vector<std::vector<std::string>> bad = {
      {"INCCL_ALGO\n", "f:1: \"INCCL_ALGO\" is not of the form NAME=value"},
      {"\n#\n=3\n", "f:3: \"\" is no name"},
      {"INCCL ALGO=ring", "f:1: \"INCCL ALGO\" is no name"},
      {"export INCCL_ALGO=ring", "f:1: \"export INCCL_ALGO\" is no name"},
      {"1X=2", "f:1: \"1X\" is no name"},
      {"A=1\nB=2\nA=1\n", "f:3: A has a value in line 1 already"},
      {std::string("A=\0b", 4), "f:1: a control character"},
      {"A=\x1b[2J", "f:1: a control character"},
      {std::string(5000, 'x'), "f:1: \"" + std::string(80, 'x') + "...\" is not of the form"},
  };
  for (const std::vector<std::string>& line : bad) {
    const Result<std::vector<FileSetting>> settings = ParseConfigFile(line[0], "f");
    ASSERT_FALSE(settings.ok()) << line[0];
    EXPECT_EQ(settings.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(settings.status().message().rfind(line[1], 0), 0u) << settings.status().message();
  }
}

TEST_F(ConfigFilesTest, EnvironmentOverUserFileOverSystemFile) {
  const std::string user = Write("home/.inccl.conf", "INCCL_ALGO=tree\nINCCL_CHANNELS=2\n");
  const std::string system =
      Write("system", "INCCL_ALGO=ring\nINCCL_CHANNELS=1\n\nINCCL_CODEC=hbi:bits=4\n");
  environment_["INCCL_ALGO"] = "direct";
  const Result<Settings> settings = Load();
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_STREQ(settings->Get("INCCL_ALGO"), "direct");
  EXPECT_EQ(settings->Where("INCCL_ALGO"), "environment");
  EXPECT_STREQ(settings->Get("INCCL_CHANNELS"), "2");
  EXPECT_EQ(settings->Where("INCCL_CHANNELS"), user + ":2");
  EXPECT_STREQ(settings->Get("INCCL_CODEC"), "hbi:bits=4");
  EXPECT_EQ(settings->Where("INCCL_CODEC"), system + ":4");
  EXPECT_EQ(settings->Described("INCCL_CODEC"), "INCCL_CODEC (" + system + ":4)");
  EXPECT_EQ(settings->Get("INCCL_TEST_SIMD"), nullptr);
  EXPECT_EQ(settings->Where("INCCL_TEST_SIMD"), "");
  EXPECT_EQ(settings->Described("INCCL_TEST_SIMD"), "INCCL_TEST_SIMD");
  ASSERT_EQ(settings->files().size(), 2u);
  EXPECT_EQ(settings->files()[0].path, user);
  EXPECT_EQ(settings->files()[0].settings, 2u);
  EXPECT_EQ(settings->files()[1].path, system);
  EXPECT_EQ(settings->files()[1].state, Settings::FileState::kRead);
  EXPECT_TRUE(settings->warnings().empty());
}

TEST_F(ConfigFilesTest, AnEmptyValueHidesWhatIsBelow) {
  Write("system", "INCCL_ALGO=ring\nINCCL_CHANNELS=7\n");
  Write("home/.inccl.conf", "INCCL_CHANNELS=\n");
  environment_["INCCL_ALGO"] = "";
  const Result<Settings> settings = Load();
  ASSERT_TRUE(settings.ok());
  const Result<Environment> env = ApplySettings(*settings, nullptr);
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env->algo, "");
  EXPECT_EQ(env->channels, 1);
}

TEST_F(ConfigFilesTest, TheProcessComesAfterTheEnvironmentAndBeforeFiles) {
  Write("system", "INCCL_ALGO=ring\nINCCL_CHANNELS=2\nINCCL_THREADS=3\n");
  environment_["INCCL_ALGO"] = "tree";
  ASSERT_TRUE(SetVariable("INCCL_ALGO", "direct", "a test").ok());
  ASSERT_TRUE(SetVariable("INCCL_CHANNELS", "4", "a test").ok());
  Result<Settings> settings = Load();
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_STREQ(settings->Get("INCCL_ALGO"), "tree");
  EXPECT_STREQ(settings->Get("INCCL_CHANNELS"), "4");
  EXPECT_EQ(settings->Described("INCCL_CHANNELS"), "INCCL_CHANNELS (a test)");
  EXPECT_STREQ(settings->Get("INCCL_THREADS"), "3");
  for (const char* name : {"INCCL_ALGO", "INCCL_CHANNELS"}) {
    ASSERT_TRUE(SetVariable(name, nullptr, "").ok());
  }
  settings = Load();
  EXPECT_STREQ(settings->Get("INCCL_CHANNELS"), "2");
  EXPECT_EQ(SetVariable("INCCL_CHANELS", "1", "").message(),
            "name: INCCL_CHANELS is no variable of this library; did you mean INCCL_CHANNELS?");
  EXPECT_EQ(SetVariable("INCCL_RANK", "1", "").message(),
            "name: INCCL_RANK can be set in the environment only");
}

TEST_F(ConfigFilesTest, WhichUserFile) {
  Write("home/.inccl.conf", "INCCL_CHANNELS=3\n");
  environment_["XDG_CONFIG_HOME"] = (root_ / "xdg").string();
  EXPECT_STREQ(Load()->Get("INCCL_CHANNELS"), "3");  // there is none in xdg yet
  Write("xdg/inccl.conf", "INCCL_CHANNELS=4\n");
  EXPECT_STREQ(Load()->Get("INCCL_CHANNELS"), "4");
  environment_["XDG_CONFIG_HOME"] = "xdg";  // must be absolute
  EXPECT_STREQ(Load()->Get("INCCL_CHANNELS"), "3");
  environment_["INCCL_CONF_FILE"] = Write("named", "INCCL_ALGO=ring");
  EXPECT_EQ(Load()->Get("INCCL_CHANNELS"), nullptr);
  EXPECT_STREQ(Load()->Get("INCCL_ALGO"), "ring");
  environment_["INCCL_CONF_FILE"] = "/dev/null";
  EXPECT_EQ(Load()->Get("INCCL_ALGO"), nullptr);
  environment_["INCCL_CONF_FILE"] = "";
  EXPECT_STREQ(Load()->Get("INCCL_CHANNELS"), "3");
  // As secure_getenv has it where the program runs with another user's rights.
  environment_.clear();
  EXPECT_EQ(Load()->Get("INCCL_CHANNELS"), nullptr);
  EXPECT_EQ(Load()->files().size(), 1u);
}

TEST_F(ConfigFilesTest, ANamedFileMustBeReadable) {
  environment_["INCCL_CONF_FILE"] = (root_ / "nowhere").string();
  EXPECT_NE(LoadError().find("INCCL_CONF_FILE: configuration file " + root_.string() + "/nowhere"),
            std::string::npos);
  environment_["INCCL_CONF_FILE"] = root_.string();
  EXPECT_NE(LoadError().find("Is a directory"), std::string::npos);
  environment_["INCCL_CONF_FILE"] = Write("long", std::string(64 * 1024 + 1, '\n'));
  EXPECT_NE(LoadError().find("longer than 65536 bytes"), std::string::npos);
  environment_["INCCL_CONF_FILE"] = Write("long", std::string(64 * 1024, '\n'));
  EXPECT_TRUE(Load().ok());
  environment_["INCCL_CONF_FILE"] = "/dev/zero";
  EXPECT_NE(LoadError().find("longer than"), std::string::npos);
}

TEST_F(ConfigFilesTest, APipeIsNotWaitedFor) {
  const std::string pipe = (root_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  environment_["INCCL_CONF_FILE"] = pipe;
  EXPECT_TRUE(Load().ok());  // no writer: the end at once
}

TEST_F(ConfigFilesTest, AFileThatMayNotBeReadIsAWarning) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const std::string file = Write("home/.inccl.conf", "INCCL_CHANNELS=3\n");
  ASSERT_EQ(chmod(file.c_str(), 0), 0);
  const Result<Settings> settings = Load();
  ASSERT_TRUE(settings.ok());
  ASSERT_EQ(settings->warnings().size(), 1u);
  EXPECT_NE(settings->warnings()[0].find(file), std::string::npos);
  EXPECT_EQ(settings->files()[0].state, Settings::FileState::kUnreadable);
}

// What others may have written is not this user's configuration: the file that is found is left
// out, with a warning; the one that was named is an error. Both name the file and say why.
TEST_F(ConfigFilesTest, AFileThatOthersMayHaveWrittenDoesNotCount) {
  const std::string file = Write("home/.inccl.conf", "INCCL_CHANNELS=3\n");
  const auto expect_refused = [&](const std::string& why) {
    environment_.erase("INCCL_CONF_FILE");
    const Result<Settings> settings = Load();
    ASSERT_TRUE(settings.ok()) << settings.status().message();
    EXPECT_EQ(settings->Get("INCCL_CHANNELS"), nullptr);
    EXPECT_EQ(settings->files()[0].state, Settings::FileState::kRefused);
    EXPECT_EQ(settings->warnings(), std::vector<std::string>{"configuration file " + file + ": " +
                                                             why + "; it is not used"});
    environment_["INCCL_CONF_FILE"] = file;
    EXPECT_EQ(LoadError(), "INCCL_CONF_FILE: configuration file " + file + ": " + why);
  };
  for (const mode_t mode : {0620u, 0602u, 0666u, 0020u}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    char text[8];
    std::snprintf(text, sizeof text, "%04o", mode);
    if (geteuid() != 0 && (mode & 0400) == 0) continue;
    expect_refused("mode " + std::string(text) + " lets others write to it (chmod go-w)");
  }
  environment_.erase("INCCL_CONF_FILE");
  for (const mode_t mode : {0600u, 0644u, 0400u}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_STREQ(Load()->Get("INCCL_CHANNELS"), "3");
  }
  if (geteuid() != 0) return;  // the rest needs files of others
  ASSERT_EQ(chown(file.c_str(), 4711, 0), 0);
  expect_refused("belongs to uid 4711, neither to uid 0 nor to root");
  ASSERT_EQ(chown(file.c_str(), 0, 0), 0);
  environment_.erase("INCCL_CONF_FILE");
  // Root's file counts for everybody.
  std::filesystem::permissions(root_, std::filesystem::perms::all);
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  ASSERT_EQ(seteuid(4711), 0);
  EXPECT_STREQ(Load()->Get("INCCL_CHANNELS"), "3");
  ASSERT_EQ(seteuid(0), 0);
}

TEST_F(ConfigFilesTest, UnknownNamesAreWarnedOf) {
  const std::string user = Write("home/.inccl.conf", "INCCL_CHANELS=3\nNCCL_ALGO=Ring\n");
  const Result<Settings> settings = Load();
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(
      settings->warnings(),
      (std::vector<std::string>{
          user + ":1: INCCL_CHANELS is no variable of this library; did you mean INCCL_CHANNELS?",
          user + ":2: NCCL_ALGO is no variable of this library; did you mean INCCL_ALGO?"}));
}

TEST_F(ConfigFilesTest, WhatIsOfOneProcessCannotBeInAFile) {
  for (const char* name : {"INCCL_RANK", "INCCL_SIZE", "INCCL_JOB", "INCCL_CONF_FILE"}) {
    const std::string file = Write("system", std::string("\n") + name + "=1\n");
    EXPECT_EQ(LoadError().rfind(file + ":2: " + name + "=1: ", 0), 0u) << LoadError();
  }
}

TEST_F(ConfigFilesTest, ABadValueIsNamedWithItsPlace) {
  const std::string system = Write("system", "INCCL_CHANNELS=two\n");
  Result<Environment> env = ApplySettings(*Load(), nullptr);
  ASSERT_FALSE(env.ok());
  EXPECT_EQ(env.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(env.status().message(),
            "INCCL_CHANNELS (" + system + ":1): \"two\" is not a whole number; it takes 1 to 32");
  environment_["INCCL_CHANNELS"] = "0";
  env = ApplySettings(*Load(), nullptr);
  ASSERT_FALSE(env.ok());
  EXPECT_EQ(env.status().message(),
            "INCCL_CHANNELS (environment): \"0\" is not in [1, 32]; it takes 1 to 32");
  environment_["INCCL_CHANNELS"] = "5";
  env = ApplySettings(*Load(), nullptr);
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env->channels, 5);
}

TEST_F(ConfigFilesTest, TheLogTellsEverythingOnce) {
  const std::string log = (root_ / "log").string();
  const std::string user = Write("home/.inccl.conf", "INCCL_DEBUG=INFO\nINCCL_OTHER=1\n");
  Write("system", "INCCL_DEBUG_FILE=" + log + "\n");
  environment_["INCCL_CHANNELS"] = "3";
  const char* const names[] = {"INCCL_CHANELS=1", nullptr};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(ApplySettings(*Load(), names).ok());
  // Messages about a wrong value elsewhere still go where the log goes.
  environment_["INCCL_CHANNELS"] = "x";
  ASSERT_FALSE(ApplySettings(*Load(), names).ok());
  ASSERT_TRUE(ConfigureLog(LogLevel::kNone, kDefaultLogSubsystems, "").ok());
  std::vector<std::string> lines;
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line.substr(line.find(" inccl ") + 7));
  }
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "VERSION version 0.1.0",
                       "WARN " + user + ":2: INCCL_OTHER is no variable of this library",
                       "WARN INCCL_CHANELS is set, but is no variable of this library; did you "
                       "mean INCCL_CHANNELS?",
                       "INFO INCCL_CHANNELS is \"3\" (environment)",
                       "INFO INCCL_DEBUG is \"INFO\" (" + user + ":1)",
                       "INFO INCCL_DEBUG_FILE is \"" + log + "\" (" + root_.string() + "/system:1)",
                       "INFO INCCL_CHANNELS is \"x\" (environment)"}));
}

}  // namespace
}  // namespace inccl::test
