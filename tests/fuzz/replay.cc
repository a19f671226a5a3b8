// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target on its examples, on the files of the directories that are named, and on
// mutations of them: usage: TARGET [--mutations N] DIRECTORY...
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/rng.h"
#include "fuzz/fuzz.h"

namespace {

using Bytes = std::vector<std::byte>;

uint64_t Seed() {
  const char* text = std::getenv("INCCL_TEST_SEED");
  if (text != nullptr) return std::strtoull(text, nullptr, 10);
  return static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : state_(seed) {}

  Bytes Mutate(const std::vector<Bytes>& inputs) {
    Bytes bytes = inputs[Below(inputs.size())];
    for (uint64_t edits = 1 + Below(4); edits > 0; --edits) Edit(inputs, &bytes);
    return bytes;
  }

 private:
  uint64_t Below(uint64_t limit) {
    state_ = inccl::Mix64(state_ + 0x9E3779B97F4A7C15u);
    return state_ % limit;
  }

  void Edit(const std::vector<Bytes>& inputs, Bytes* bytes) {
    const size_t at = Below(bytes->size() + 1);
    const auto place = bytes->begin() + static_cast<ptrdiff_t>(at);
    static constexpr uint8_t kNotable[] = {0, 1, 0x7f, 0x80, 0xff, 0xfe, ',', '=', ':', '^'};
    switch (Below(6)) {
      case 0:
        if (place != bytes->end()) *place = std::byte{static_cast<uint8_t>(Below(256))};
        break;
      case 1:
        if (place != bytes->end()) *place ^= std::byte{static_cast<uint8_t>(1u << Below(8))};
        break;
      case 2: bytes->insert(place, std::byte{kNotable[Below(std::size(kNotable))]}); break;
      case 3: bytes->resize(at); break;
      case 4: {  // a piece of another input
        const Bytes& other = inputs[Below(inputs.size())];
        const size_t from = Below(other.size() + 1);
        const size_t count = Below(std::min<size_t>(other.size() - from, 64) + 1);
        bytes->insert(place, other.begin() + static_cast<ptrdiff_t>(from),
                      other.begin() + static_cast<ptrdiff_t>(from + count));
        break;
      }
      default:
        if (place != bytes->end()) *place = std::byte{kNotable[Below(std::size(kNotable))]};
    }
  }

  uint64_t state_;
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t mutations = 2000;
  std::vector<Bytes> inputs = inccl::fuzz::Examples();
  const size_t examples = inputs.size();
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
      mutations = std::strtoull(argv[++i], nullptr, 10);
      continue;
    }
    if (!std::filesystem::is_directory(argv[i])) continue;  // a target without findings so far
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      inputs.push_back(inccl::fuzz::FromText({std::istreambuf_iterator<char>(file), {}}));
    }
  }
  inputs.emplace_back();
  const uint64_t seed = Seed();
  std::printf("%zu examples, %zu files, %llu mutations, INCCL_TEST_SEED=%llu\n", examples,
              inputs.size() - examples - 1, static_cast<unsigned long long>(mutations),
              static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  for (const Bytes& input : inputs) inccl::fuzz::Run(inccl::fuzz::Exact(input));
  Mutator mutator(seed);
  for (uint64_t i = 0; i < mutations; ++i) {
    inccl::fuzz::Run(inccl::fuzz::Exact(mutator.Mutate(inputs)));
  }
  return 0;
}
