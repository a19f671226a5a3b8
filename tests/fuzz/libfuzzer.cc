// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target under libFuzzer. With INCCL_FUZZ_EXAMPLES=DIRECTORY the examples are written
// there first, to start from.
#include <fstream>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const char* directory = std::getenv("INCCL_FUZZ_EXAMPLES");
  if (directory == nullptr) return 0;
  int number = 0;
  for (const std::vector<std::byte>& example : inccl::fuzz::Examples()) {
    std::ofstream file(std::string(directory) + "/example" + std::to_string(number++),
                       std::ios::binary);
    file << inccl::fuzz::ToText(example);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  inccl::fuzz::Run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
