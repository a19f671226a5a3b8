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

// This library's name of a Highway target.
std::string NameOf(int64_t target) {
  if ((target & kReference) != 0) return "scalar";
  std::string name = hwy::TargetName(target);
  if (name.starts_with("AVX3")) name.replace(0, 4, "avx512");  // keeps suffixes
  std::erase(name, '_');
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

struct Target {
  int64_t bits;
  std::string name;
};

// Lower bits are better targets. The reference is always available and comes last.
std::vector<Target> TargetsOf(int64_t bits) {
  std::vector<Target> found;
  for (int64_t there = bits & ~kReference; there != 0; there &= there - 1) {
    found.push_back({there & -there, NameOf(there & -there)});
  }
  found.push_back({kReference, NameOf(kReference)});
  return found;
}

// Calls hwy::SupportedTargets only once, because it resets Highway's choice.
const std::vector<Target>& Targets() {
  static const std::vector<Target> targets = TargetsOf(hwy::SupportedTargets() & HWY_TARGETS);
  return targets;
}

}  // namespace

Status SetSimdTarget(std::string_view name) {
  int64_t bits = 0;  // of the target and all worse ones: some files have no kernels for the best
  for (const Target& target : Targets()) {
    if (bits != 0 || target.name == name || name == "best") bits |= target.bits;
  }
  if (bits != 0) {
    hwy::GetChosenTarget().Update(bits);
    return Status::Ok();
  }
  return InvalidArgument(fmt::format("instruction set \"{}\" is none of best, {}",
                                     name.substr(0, 32), fmt::join(SimdTargets(), ", ")));
}

const char* SimdTargetName() {
  const std::vector<Target>& targets = Targets();
  const int64_t in_use = HWY_DYNAMIC_DISPATCH(ThisTarget)();
  for (const Target& target : targets) {
    if ((target.bits & in_use) != 0) return target.name.c_str();
  }
  return targets.back().name.c_str();
}

std::vector<std::string> SimdTargets() {
  std::vector<std::string> names;
  for (const Target& target : Targets()) names.push_back(target.name);
  return names;
}

std::vector<std::string> SimdTargetsBuilt() {
  std::vector<std::string> names;
  for (const Target& target : TargetsOf(HWY_TARGETS)) names.push_back(target.name);
  return names;
}

}  // namespace inccl
#endif  // HWY_ONCE
