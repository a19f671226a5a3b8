// SPDX-License-Identifier: Apache-2.0
//
// Configuration files: any text, and its values as the values of the variables that it names.
#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "config/config_files.h"
#include "config/variables.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

bool IsNameByte(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

void CheckError(const Status& status, int lines) {
  Require(status.code() == Code::kInvalidArgument, "a bad file is an invalid argument");
  const std::string& message = status.message();
  int line = 0;
  Require(std::sscanf(message.c_str(), "file:%d: ", &line) == 1, "an error names file and line");
  Require(line >= 1 && line <= lines, "the line is one of the file");
  Require(Escaped(message) == message, "an error is fit for a terminal");
  Require(message.size() < 400, "an error is short");
}

void CheckSettings(const std::vector<FileSetting>& settings, int lines) {
  std::string again;
  int before = 0;
  for (const FileSetting& setting : settings) {
    Require(
        !setting.name.empty() && std::all_of(setting.name.begin(), setting.name.end(), IsNameByte),
        "a name is one");
    Require(setting.line > before && setting.line <= lines, "lines ascend");
    before = setting.line;
    for (const FileSetting& other : settings) {
      Require(&other == &setting || other.name != setting.name, "a name stands once");
    }
    again += setting.name + "=" + setting.value + "\n";
  }
  const Result<std::vector<FileSetting>> back = ParseConfigFile(again, "file");
  Require(back.ok() && back->size() == settings.size(), "what was read can be written and read");
  for (size_t i = 0; i < settings.size(); ++i) {
    Require((*back)[i].name == settings[i].name && (*back)[i].value == settings[i].value,
            "what was read has not changed");
  }
}

}  // namespace

void Run(Data data) {
  const std::string text = ToText(data);
  const int lines = 1 + static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  const Result<std::vector<FileSetting>> settings = ParseConfigFile(text, "file");
  if (!settings.ok()) return CheckError(settings.status(), lines);
  CheckSettings(*settings, lines);
  const Result<Environment> env = ReadEnvironment([&](const char* name) -> const char* {
    for (const FileSetting& setting : *settings) {
      if (setting.name == name) return setting.value.c_str();
    }
    return nullptr;
  });
  if (env.ok()) return;
  const bool named = std::any_of(settings->begin(), settings->end(), [&](const auto& setting) {
    return env.status().message().starts_with(setting.name + ": ");
  });
  Require(named, "an error names the variable");
  Require(Escaped(env.status().message()) == env.status().message(),
          "an error of a value is fit for a terminal");
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  for (const char* text :
       {"# a comment\nINCCL_ALGO=ring;allreduce:^tree\n\n  INCCL_CHANNELS = 2 \t# two\r\n",
        "INCCL_CODEC=hbi:bits=6\nINCCL_DEBUG=INFO\nINCCL_DEBUG_SUBSYS=^COLL,TUNING\n",
        "A=1\nB=2\nA=3\n", "no assignment\n", "=x", "export A=1", "A=\x1b[2J", "A=\xc2\x9b\xff",
        "INCCL_SLICE_BYTES=99999999999999999999\n",
        "INCCL_TEST_LINK_GBPS=1e400\nINCCL_TEST_LINK_US=nan"}) {
    examples.push_back(FromText(text));
  }
  for (const VariableInfo& variable : VariableTable()) {
    examples.push_back(FromText(std::string(variable.name) + "=" + variable.default_value + "\n"));
  }
  return examples;
}

}  // namespace inccl::fuzz
