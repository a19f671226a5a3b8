// SPDX-License-Identifier: Apache-2.0
//
// The table of variables, for people and programs.
#include <fmt/format.h>

#include "config/variables.h"
#include "init/options.h"
#include "tools/info/sections.h"

namespace inccl::tools {
namespace {

// What is wrong with one variable alone; null if nothing.
Json ErrorOf(const Settings& settings, const char* name) {
  const Result<Environment> env = ReadEnvironment(
      [&](const char* asked) {
        return std::string_view(asked) == name ? settings.Get(asked) : nullptr;
      },
      [&](const char* asked) { return settings.Where(asked); });
  return env.ok() ? Json() : Json(env.status().message());
}

const char* StateName(Settings::FileState state) {
  switch (state) {
    case Settings::FileState::kRead: return "read";
    case Settings::FileState::kAbsent: return "absent";
    case Settings::FileState::kUnreadable: return "unreadable";
    case Settings::FileState::kRefused: return "refused";
  }
  return "unknown";
}

// A cell of a table must not end it.
std::string Cell(const char* text) {
  std::string cell;
  for (const char* c = text; *c != '\0'; ++c) {
    if (*c == '|') cell += '\\';
    cell += *c;
  }
  return cell;
}

}  // namespace

Json EnvironmentSection(const Result<Settings>& settings) {
  Json json;
  json["files"] = Json::array();
  json["warnings"] = Json::array();
  if (settings.ok()) {
    for (const Settings::File& file : settings->files()) {
      json["files"].push_back(
          {{"path", file.path}, {"state", StateName(file.state)}, {"settings", file.settings}});
    }
    json["warnings"] = settings->warnings();
  }
  for (const std::string& name : UnknownVariables(environ)) {
    json["warnings"].push_back(name + " is set, but is no variable of this library" +
                               DidYouMean(name));
  }
  json["variables"] = Json::array();
  for (const VariableInfo& info : VariableTable()) {
    const char* value = settings.ok() ? settings->Get(info.name) : nullptr;
    const std::string where = settings.ok() ? settings->Where(info.name) : "";
    json["variables"].push_back(
        {{"name", info.name},
         {"type", info.type},
         {"meaning", info.meaning},
         {"values", info.values},
         {"default", info.default_value},
         {"environment_only", info.environment_only},
         {"value", value == nullptr ? Json() : Json(value)},
         {"source", where.empty() ? "default" : where},
         {"error", value == nullptr ? Json() : ErrorOf(*settings, info.name)}});
  }
  // All of it together, as a communicator would be made with it.
  const Result<InitOptions> options = ResolveOptions(nullptr);
  json["error"] = options.ok() ? Json() : Json(options.status().message());
  return json;
}

std::string EnvironmentMarkdown() {
  constexpr const char* kHead =
      "| variable | type | meaning | values | default |\n|---|---|---|---|---|\n";
  std::string users = kHead, tests = kHead;
  for (const VariableInfo& info : VariableTable()) {
    std::string* const table = info.IsForTests() ? &tests : &users;
    *table += fmt::format("| `{}`{} | {} | {} | {} | {} |\n", info.name,
                          info.environment_only ? " *" : "", Cell(info.type), Cell(info.meaning),
                          Cell(info.values), Cell(info.default_value));
  }
  return users + "\n" + tests;
}

}  // namespace inccl::tools
