// SPDX-License-Identifier: Apache-2.0
#include "tools/info/print.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace inccl::tools {
namespace {

std::string Scalar(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    return text.empty() ? "-" : Escaped(text);
  }
  return value.dump();
}

// "a 1, b 2" of an object, "x, y" of an array of scalars.
std::string Inline(const Json& value) {
  if (!value.is_structured()) return Scalar(value);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += key + " ";
    text += Inline(item);
  }
  return text.empty() ? "-" : text;
}

std::string Spaced(std::string key) {
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

// One line per key; a list of objects is one line per object.
std::string Lines(const Json& section) {
  std::string text;
  for (const auto& [key, value] : section.items()) {
    const bool list = value.is_array() && !value.empty() && value[0].is_object();
    if (!list) {
      text += fmt::format("  {:<16} {}\n", Spaced(key), Inline(value));
      continue;
    }
    for (const Json& item : value) {
      text += fmt::format("  {:<16} {}\n", Spaced(key), Spaced(Inline(item)));
    }
  }
  return text;
}

std::string PortLines(const Json& ports) {
  std::string text;
  for (const Json& port : ports) {
    text += fmt::format("    {:<14} {}, {}, MTU {}", Scalar(port["port"]), Scalar(port["state"]),
                        Scalar(port["link"]), Scalar(port["mtu"]));
    if (!port["gid"].is_null()) {
      text += fmt::format(", GID {} {}", Scalar(port["gid_index"]), Scalar(port["gid"]));
    }
    if (!port["why_not"].is_null()) {
      text += "; not used: " + Scalar(port["why_not"]);
    } else if (port["gpu_memory_why_not"].is_null()) {
      text += "; sends from memory of GPUs";
    } else {
      text += "; memory of GPUs goes through slots: " + Scalar(port["gpu_memory_why_not"]);
    }
    text += '\n';
  }
  return text;
}

std::string TransportLines(const Json& section) {
  std::string text;
  for (const Json& transport : section) {
    const Json& works = transport["works"];
    const std::string verdict = works.is_null() ? "?" : works.get<bool>() ? "works" : "no";
    text += fmt::format("  {:<16} {}: {}", Scalar(transport["name"]), verdict,
                        Scalar(transport["joins"]));
    if (!transport["why_not"].is_null()) text += "; " + Scalar(transport["why_not"]);
    if (transport.contains("max_slot_bytes")) {
      text += fmt::format("; slots up to {} bytes", transport["max_slot_bytes"].get<uint64_t>());
    }
    text += '\n';
    if (transport.contains("ports")) text += PortLines(transport["ports"]);
  }
  return text;
}

std::string EnvironmentLines(const Json& section) {
  std::string text;
  for (const Json& file : section["files"]) {
    text += fmt::format("  {}: {}, {} settings\n", Scalar(file["path"]), Scalar(file["state"]),
                        file["settings"].get<size_t>());
  }
  for (const Json& warning : section["warnings"]) text += "  warning: " + Scalar(warning) + '\n';
  for (const Json& variable : section["variables"]) {
    const std::string value = variable["value"].is_null() ? Scalar(variable["default"])
                                                          : '"' + Scalar(variable["value"]) + '"';
    text += fmt::format("  {} ({}) = {} [{}]\n      {}: {}\n", Scalar(variable["name"]),
                        Scalar(variable["type"]), value, Scalar(variable["source"]),
                        Scalar(variable["meaning"]), Scalar(variable["values"]));
    if (!variable["error"].is_null()) text += "      error: " + Scalar(variable["error"]) + '\n';
  }
  if (!section["error"].is_null()) text += "  error: " + Scalar(section["error"]) + '\n';
  return text;
}

// "least to most" over the ranks, or the one number that all have.
std::string Over(const Json& ranks, const char* key) {
  if (ranks[0][key].is_null()) return "not known";
  uint64_t least = UINT64_MAX, most = 0;
  for (const Json& rank : ranks) {
    least = std::min(least, rank[key].get<uint64_t>());
    most = std::max(most, rank[key].get<uint64_t>());
  }
  return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
}

}  // namespace

std::string SectionText(const std::string& name, const Json& section) {
  std::string text = name + "\n";
  if (name == "transports") return text + TransportLines(section);
  if (name == "environment") return text + EnvironmentLines(section);
  return text + Lines(section);
}

std::string ExplainText(const Json& section) {
  std::string text = fmt::format("{} of {} {} ({} bytes) on {} ranks, {}\n",
                                 Scalar(section["collective"]), section["count"].get<uint64_t>(),
                                 Scalar(section["type"]), section["bytes"].get<uint64_t>(),
                                 section["ranks"].get<int>(), Scalar(section["op"]));
  const auto line = [&](const char* key, const std::string& value) {
    text += fmt::format("  {:<16} {}\n", key, value);
  };
  line("codec", Scalar(section["codec"]));
  if (section.contains("uncompressed_because")) {
    line("not compressed", Scalar(section["uncompressed_because"]));
  }
  if (section.value("needs_residual", false)) {
    line("error feedback", "needed: the codec is biased; pass a residual with every call");
  }
  line("algorithm", Scalar(section["why"]));
  if (section["algorithm"].is_null()) return text;
  if (!section["agreement"].is_null()) line("agreement", Scalar(section["agreement"]));
  line("steps",
       fmt::format("{} on the longest chain of messages of one window", Scalar(section["steps"])));
  line("channels", Scalar(section["channels"]));
  line("windows", fmt::format("{} of {} elements", Scalar(section["windows"]),
                              Scalar(section["window_elements"])));
  line("slices", fmt::format("up to {} elements, {} bytes uncompressed; slots of {} bytes, {} per "
                             "lane",
                             Scalar(section["slice_elements"]), Scalar(section["slice_bytes"]),
                             Scalar(section["slot_bytes"]), Scalar(section["slots_per_lane"])));
  const Json& ranks = section["per_rank"];
  line("sent per rank", fmt::format("{} slices, {} bytes uncompressed", Over(ranks, "slices"),
                                    Over(ranks, "uncompressed_bytes")));
  if (section.contains("hosts")) {
    line("between hosts",
         fmt::format("{} bytes uncompressed per rank, {} hosts",
                     Over(ranks, "uncompressed_bytes_to_other_hosts"), Scalar(section["hosts"])));
  }
  line("on the wire", fmt::format("expected {}, at most {} bytes, headers of {} bytes a slice "
                                  "included",
                                  Over(ranks, "wire_bytes_expected"),
                                  Over(ranks, "wire_bytes_at_most"), kHeaderBytes));
  line("memory",
       fmt::format("{} bytes of slots and scratch per rank", Over(ranks, "memory_bytes")));
  return text;
}

}  // namespace inccl::tools
