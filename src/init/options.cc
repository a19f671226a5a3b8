// SPDX-License-Identifier: Apache-2.0
#include "init/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>

#include "base/fault_point.h"
#include "base/text.h"
#include "bootstrap/interfaces.h"
#include "compress/simd.h"
#include "config/config_files.h"
#include "config/values.h"
#include "control/status_socket.h"
#include "device/runtime.h"

namespace inccl {
namespace {

constexpr int kMostChannels = 32;
constexpr int kMostHeartbeatMs = 1000;  // where no one sets it
constexpr int kLeastBeats = 3;          // heartbeats that a peer must miss before it counts as dead
constexpr size_t kMostNameBytes = 128;

Result<ccl_config_t> CopyConfig(const ccl_config_t* given) {
  ccl_config_t config = CCL_CONFIG_INIT;
  if (given == nullptr) return config;
  if (given->size < sizeof(size_t) || given->size > 4096) {
    return InvalidArgument(fmt::format(
        "config->size: {}, must be sizeof(ccl_config_t); use CCL_CONFIG_INIT", given->size));
  }
  std::memcpy(&config, given, std::min(given->size, sizeof config));
  for (const auto& [name, value] :
       {std::pair("blocking", config.blocking), std::pair("preserve_input", config.preserve_input),
        std::pair("reproducible", config.reproducible)}) {
    if (value < 0 || value > 1) {
      return InvalidArgument(fmt::format("config->{}: {} is neither 0 nor 1", name, value));
    }
  }
  if (config.channels < 0 || config.channels > kMostChannels) {
    return InvalidArgument(
        fmt::format("config->channels: {} is not in [0, {}]", config.channels, kMostChannels));
  }
  for (const auto& [name, value, least] : {std::tuple("init_timeout_ms", config.init_timeout_ms, 0),
                                           std::tuple("op_timeout_ms", config.op_timeout_ms, 0),
                                           std::tuple("heartbeat_ms", config.heartbeat_ms, 0),
                                           std::tuple("dead_ms", config.dead_ms, -1)}) {
    if (value < least || value > kMaxTimeoutMs) {
      return InvalidArgument(
          fmt::format("config->{}: {} is not in [{}, {}]", name, value, least, kMaxTimeoutMs));
    }
  }
  if (config.name != nullptr && strnlen(config.name, kMostNameBytes + 1) > kMostNameBytes) {
    return InvalidArgument(fmt::format("config->name: longer than {} bytes", kMostNameBytes));
  }
  return config;
}

// The interface is used when this rank makes a unique id in a split or shrink. A given name is
// checked here, so that a wrong one is reported at once.
Status ResolveInterface(const ccl_config_t& config, Environment* env) {
  if (config.socket_ifname == nullptr) return Status::Ok();
  const std::string names = WithoutBlanks(config.socket_ifname);
  const auto addresses = bootstrap::ChooseAddresses(names);
  if (addresses.status().code() == Code::kInvalidUsage) {
    return InvalidArgument("config->" + addresses.status().message());
  }
  env->socket_ifname = names;
  return addresses.status();
}

Result<ControlOptions> ResolveControl(const ccl_config_t& config, const Environment& env) {
  const int dead_ms = config.dead_ms != 0 ? config.dead_ms : env.dead_timeout_ms;
  int heartbeat_ms = config.heartbeat_ms != 0 ? config.heartbeat_ms : env.heartbeat_ms;
  if (heartbeat_ms == 0) {
    heartbeat_ms = dead_ms <= 0 ? kMostHeartbeatMs : std::clamp(dead_ms / 10, 1, kMostHeartbeatMs);
  }
  const Time heartbeat = heartbeat_ms * kMillisecond;
  if (dead_ms <= 0) return ControlOptions{.heartbeat = heartbeat, .dead_after = kNever};
  if (dead_ms < kLeastBeats * heartbeat_ms) {
    return InvalidArgument(fmt::format(
        "dead_ms (INCCL_DEAD_TIMEOUT_MS): {}, must be at least {} times heartbeat_ms, {}", dead_ms,
        kLeastBeats, heartbeat_ms));
  }
  return ControlOptions{.heartbeat = heartbeat, .dead_after = dead_ms * kMillisecond};
}

Status ResolveComm(const ccl_config_t& config, const Settings& settings, const Environment& env,
                   CommOptions* comm, std::string* algorithm_text) {
  const auto name = [&](const char* field, const char* in_config, const char* variable) {
    return in_config != nullptr ? std::string(field) : settings.Described(variable);
  };
  *algorithm_text = config.algorithm != nullptr ? config.algorithm : env.algo;
  Result<AlgorithmFilter> filter = AlgorithmFilter::Parse(*algorithm_text);
  if (!filter.ok()) {
    return InvalidArgument(fmt::format("{}: {}",
                                       name("config->algorithm", config.algorithm, "INCCL_ALGO"),
                                       filter.status().message()));
  }
  comm->algorithms = *filter;
  *algorithm_text = filter->text();
  if (!env.tuner_file.empty()) {
    Result<TunerTable> table = TunerTable::Load(env.tuner_file);
    if (!table.ok()) {
      return InvalidArgument(
          fmt::format("{}: {}", settings.Described("INCCL_TUNER_FILE"), table.status().message()));
    }
    comm->tuner_table = *std::move(table);
  }
  comm->channels = config.channels != 0 ? config.channels : env.channels;
  comm->slice_bytes = static_cast<uint32_t>(env.slice_bytes);
  comm->slot_bytes_max = static_cast<uint64_t>(env.slot_bytes_max);
  comm->nt_store_bytes = static_cast<uint64_t>(env.nt_store_bytes);
  comm->threads = env.threads;
  comm->reproducible = config.reproducible != 0 || env.reproducible;
  comm->abort_on_error = env.abort_on_error;
  comm->preserve_input = config.preserve_input != 0;
  if (config.name != nullptr) comm->name = Escaped(config.name);
  const int op_timeout_ms = config.op_timeout_ms != 0 ? config.op_timeout_ms : env.op_timeout_ms;
  comm->op_timeout = op_timeout_ms * kMillisecond;
  const std::string codec = config.codec != nullptr ? config.codec
                            : !env.codec.empty()    ? env.codec
                                                    : "hbi:bits=6";
  Result<std::shared_ptr<const Codec>> made = MakeCodec(codec);
  if (!made.ok()) {
    return InvalidArgument(fmt::format("{}: {}", name("config->codec", config.codec, "INCCL_CODEC"),
                                       made.status().message()));
  }
  comm->default_codec = *made;
  for (int c = 0; comm->reproducible && c < kCollectiveKinds; ++c) {
    const auto collective = static_cast<Collective>(c);
    // Without sums every order is right; calls that have no algorithm return an error.
    if (!Reduces(collective) || !filter->AdmitsAny(collective)) continue;
    TunerCall call;
    call.collective = collective;
    call.reproducible = true;
    Result<Choice> choice = Choose(call, *filter);
    if (!choice.ok()) return choice.status();
  }
  return Status::Ok();
}

}  // namespace

Result<InitOptions> ResolveOptions(const ccl_config_t* given) {
  Result<ccl_config_t> config = CopyConfig(given);
  if (!config.ok()) return config.status();
  if (Status status = FAULT_ARM(); !status.ok()) return status;
  Result<Settings> settings = Settings::Load([](const char* name) { return secure_getenv(name); });
  if (!settings.ok()) return settings.status();
  Result<Environment> env = ApplySettings(*settings, environ);
  if (!env.ok()) return env.status();
  InitOptions options;
  if (Status status = ResolveInterface(*config, &*env); !status.ok()) return status;
  Result<ListenRules> listen = ListenRules::Of(*env);
  if (!listen.ok()) {
    return InvalidArgument(fmt::format("{}: {}", settings->Described("INCCL_SOCKET_ALLOW"),
                                       listen.status().message()));
  }
  options.listen = *std::move(listen);
  if (env->status) options.status_directory = StatusDirectory(secure_getenv("XDG_RUNTIME_DIR"));
  options.environment = *env;
  std::string algorithm;
  if (Status status = ResolveComm(*config, *settings, *env, &options.comm, &algorithm);
      !status.ok()) {
    return status;
  }
  const char* const slice_bytes = settings->Get("INCCL_SLICE_BYTES");
  options.slice_bytes_given = slice_bytes != nullptr && *slice_bytes != '\0';
  if (!env->simd.empty()) {
    if (Status status = SetSimdTarget(env->simd); !status.ok()) {
      return InvalidArgument(
          fmt::format("{}: {}", settings->Described("INCCL_TEST_SIMD"), status.message()));
    }
  }
  options.link = {.gbps = env->link_gbps, .latency_us = env->link_us, .clock = &SystemClock()};
  options.init_timeout_ms =
      config->init_timeout_ms != 0 ? config->init_timeout_ms : env->init_timeout_ms;
  options.blocking = config->blocking != 0;
  Result<ControlOptions> control = ResolveControl(*config, *env);
  if (!control.ok()) return control.status();
  options.control = *control;
  options.agreement = fmt::format(
      "version={} algorithm={} tuner_table={:x} channels={} slice_bytes={} slot_bytes_max={}{} "
      "reproducible={} codec={} link={}/{} "
      "transport={} ucx_tls={} net_security={} sockets_per_peer={} control_all_pairs={} "
      "heartbeat_ms={} dead_ms={}",
      CCL_VERSION_CODE, algorithm.empty() ? "any" : algorithm, options.comm.tuner_table.Digest(),
      options.comm.channels, options.comm.slice_bytes, options.comm.slot_bytes_max,
      env->slot_bytes_given ? "" : "+", options.comm.reproducible ? 1 : 0,
      options.comm.default_codec->identity(), env->link_gbps, env->link_us,
      env->transport.empty() ? "default" : env->transport,
      env->ucx_tls.empty() ? "default" : env->ucx_tls, Name(env->net_security),
      env->sockets_per_peer, env->control_all_pairs, options.control.heartbeat / kMillisecond,
      options.control.dead_after == kNever ? 0 : options.control.dead_after / kMillisecond);
  return options;
}

bool TakesDeviceSlices(const InitOptions& options) {
  return !options.slice_bytes_given && LookForDevice() != nullptr;
}

std::unique_ptr<Transport> WithLink(std::unique_ptr<Transport> transport, const LinkOptions& link) {
  if (link.gbps <= 0 && link.latency_us <= 0) return transport;
  LinkOptions options = link;
  if (options.gbps <= 0) options.gbps = 1e6;  // latency only; a rate this high has no effect
  return EmulateLink(std::move(transport), options);
}

}  // namespace inccl
