// SPDX-License-Identifier: Apache-2.0
#include "compress/simd.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace {
int64_t ThisTarget() { return HWY_TARGET; }
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {
namespace {

HWY_EXPORT(ThisTarget);

constexpr int64_t kReference = HWY_SCALAR | HWY_EMU128;

// The name of one target in this library's spelling.
std::string NameOf(int64_t target) {
  if ((target & kReference) != 0) return "scalar";
  std::string name = hwy::TargetName(target);
  if (name == "AVX3") return "avx512";
  if (name == "AVX3_DL") return "avx512dl";
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

// Lower bits are better targets; the reference comes last and is always there.
std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  int64_t there = hwy::SupportedTargets() & HWY_TARGETS & ~kReference;
  for (; there != 0; there &= there - 1) targets.push_back(there & -there);
  targets.push_back(kReference);
  return targets;
}

}  // namespace

Status SetSimdTarget(std::string_view name) {
  if (name == "best") {
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return Status::Ok();
  }
  for (const int64_t target : Targets()) {
    if (NameOf(target) == name) {
      hwy::GetChosenTarget().Update(target);
      return Status::Ok();
    }
  }
  return InvalidArgument(fmt::format("instruction set \"{}\" is none of best, {}",
                                     name.substr(0, 32), fmt::join(SimdTargets(), ", ")));
}

const char* SimdTargetName() {
  static const std::vector<std::pair<int64_t, std::string>> names = [] {
    std::vector<std::pair<int64_t, std::string>> all;
    for (const int64_t target : Targets()) all.emplace_back(target, NameOf(target));
    return all;
  }();
  const int64_t target = HWY_DYNAMIC_DISPATCH(ThisTarget)();
  for (const auto& [bits, name] : names) {
    if ((bits & target) != 0) return name.c_str();
  }
  return "scalar";
}

std::vector<std::string> SimdTargets() {
  std::vector<std::string> names;
  for (const int64_t target : Targets()) names.push_back(NameOf(target));
  return names;
}

}  // namespace inccl
#endif  // HWY_ONCE
