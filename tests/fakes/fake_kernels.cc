// SPDX-License-Identifier: Apache-2.0
#include "fakes/fake_kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "device/runtime.h"
#include "fakes/fake_device.h"
#include "support/kernel_target.h"

namespace inccl::test {
namespace {

FakeLaunches launches;

const cuda::Launchers& Emulated() { return EmulatedTarget().launchers(); }

FakeDevice* Fake() { return static_cast<FakeDevice*>(CurrentDevice()); }

// Where the processor finds what the kernel finds at `pointer`.
template <class T>
T* At(FakeDevice* device, T* pointer) {
  if (pointer == nullptr) return nullptr;
  if (device->DeviceOf(pointer) >= 0) {
    return reinterpret_cast<T*>(device->Reach(static_cast<const void*>(pointer)));
  }
  if (device->AddressOf(0, pointer) != pointer) {
    std::fprintf(stderr, "fake kernel: %p is not memory that the device reaches\n",
                 static_cast<const void*>(pointer));
    std::abort();
  }
  return pointer;
}

// As a GPU's instructions ask for it.
template <class T>
T* AlignedAt(FakeDevice* device, T* pointer, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
    std::fprintf(stderr, "fake kernel: %p is no multiple of %zu\n",
                 static_cast<const void*>(pointer), alignment);
    std::abort();
  }
  return At(device, pointer);
}

size_t SizeOf(cuda::ElementType type) {
  if (type == cuda::ElementType::kFloat64) return 8;
  return type == cuda::ElementType::kFloat32 ? 4 : 2;
}

size_t CodeBytes(cuda::CastFormat format) {
  return format == cuda::CastFormat::kBf16 || format == cuda::CastFormat::kFp16 ? 2 : 1;
}

cuda::PackedArgs At(FakeDevice* device, const cuda::PackedArgs& packed) {
  return {AlignedAt(device, packed.data, 4), At(device, packed.tiles), packed.contributions};
}

// A slice with pointers that hold where the processor reads them; its tables, too. When the kernel
// runs: not before is there anything in the memory that it reads.
class HostSlice {
 public:
  HostSlice(FakeDevice* device, const cuda::SliceArgs& slice) : args_(slice) {
    args_.words = AlignedAt(device, slice.words, 4);
    args_.points = At(device, slice.points);
    uint8_t last = 0;
    for (uint32_t s = 0; s < slice.superblocks(); ++s) last = std::max(last, args_.points[s]);
    const cuda::LevelChoice* const choices = At(device, slice.choices);
    choices_.assign(choices, choices + last + 1);
    for (cuda::LevelChoice& choice : choices_) {
      choice.sum = At(device, choice.sum);
      choice.result = At(device, choice.result);
    }
    args_.choices = choices_.data();
  }
  HostSlice(const HostSlice&) = delete;
  HostSlice& operator=(const HostSlice&) = delete;
  const cuda::SliceArgs& args() const { return args_; }

 private:
  cuda::SliceArgs args_;
  std::vector<cuda::LevelChoice> choices_;
};

// `work` returns what a launcher returns.
template <class Work>
int Enqueue(std::atomic<uint64_t>* count, void* stream, Work work) {
  ++*count;
  Fake()->Launch(stream, [work = std::move(work)] {
    if (work() != 0) std::abort();
  });
  return 0;
}

int SideWords(cuda::ElementType type, const void* elements, uint32_t count, uint32_t* words,
              void* stream) {
  FakeDevice* const device = Fake();
  return Enqueue(&launches.side_words, stream, [=] {
    return Emulated().side_words(type, AlignedAt(device, elements, SizeOf(type)), count,
                                 AlignedAt(device, words, 4), nullptr);
  });
}

int Encode(cuda::ElementType type, const cuda::EncodeArgs& given, void* stream) {
  FakeDevice* const device = Fake();
  return Enqueue(&launches.encode, stream, [=] {
    const HostSlice slice(device, given.slice);
    const cuda::EncodeArgs args{.slice = slice.args(),
                                .elements = AlignedAt(device, given.elements, SizeOf(type)),
                                .in = At(device, given.in),
                                .out = At(device, given.out)};
    return Emulated().encode(type, args, nullptr);
  });
}

int Add(const cuda::AddArgs& given, void* stream) {
  FakeDevice* const device = Fake();
  return Enqueue(&launches.add, stream, [=] {
    const HostSlice slice(device, given.slice);
    const cuda::AddArgs args{.slice = slice.args(),
                             .a = At(device, given.a),
                             .b = At(device, given.b),
                             .out = At(device, given.out)};
    return Emulated().add(args, nullptr);
  });
}

int Decode(cuda::ElementType type, const cuda::DecodeArgs& given, void* stream) {
  FakeDevice* const device = Fake();
  return Enqueue(&launches.decode, stream, [=] {
    const HostSlice slice(device, given.slice);
    cuda::DecodeArgs args = given;
    args.slice = slice.args();
    args.words = AlignedAt(device, given.words, 4);
    args.in = At(device, given.in);
    args.elements = AlignedAt(device, given.elements, SizeOf(type));
    return Emulated().decode(type, args, nullptr);
  });
}

int Fold(cuda::ElementType type, const cuda::FoldArgs& given, void* stream) {
  FakeDevice* const device = Fake();
  return Enqueue(&launches.fold, stream, [=] {
    const HostSlice slice(device, given.slice);
    cuda::FoldArgs args = given;
    args.slice = slice.args();
    for (uint32_t i = 0; i < given.source_count; ++i) {
      args.sources[i] = At(device, given.sources[i]);
    }
    args.own = AlignedAt(device, given.own, SizeOf(type));
    args.sum = At(device, given.sum);
    args.result_words = AlignedAt(device, given.result_words, 4);
    args.result = At(device, given.result);
    args.elements = AlignedAt(device, given.elements, SizeOf(type));
    return Emulated().fold(type, args, nullptr);
  });
}

int CastEncode(cuda::CastFormat format, const float* in, uint32_t count, uint8_t* out,
               void* stream) {
  FakeDevice* const device = Fake();
  return Enqueue(&launches.cast_encode, stream, [=] {
    return Emulated().cast_encode(format, AlignedAt(device, in, 4), count,
                                  AlignedAt(device, out, CodeBytes(format)), nullptr);
  });
}

int CastDecode(cuda::CastFormat format, const uint8_t* in, uint32_t count, float* out,
               void* stream) {
  FakeDevice* const device = Fake();
  return Enqueue(&launches.cast_decode, stream, [=] {
    return Emulated().cast_decode(format, AlignedAt(device, in, CodeBytes(format)), count,
                                  AlignedAt(device, out, 4), nullptr);
  });
}

int Reduce(const cuda::ReduceKernelArgs& given, void* stream) {
  FakeDevice* const device = Fake();
  return Enqueue(&launches.reduce, stream, [=] {
    cuda::ReduceKernelArgs args = given;
    const size_t size = inccl::SizeOf(given.type);
    for (uint32_t i = 0; i < given.inputs; ++i) args.in[i] = AlignedAt(device, given.in[i], size);
    for (uint32_t i = 0; i < given.outputs; ++i)
      args.out[i] = AlignedAt(device, given.out[i], size);
    return Emulated().reduce(args, nullptr);
  });
}

const char* ErrorName(int) { return "an error of the fake device"; }

}  // namespace

const cuda::Launchers& FakeKernels() {
  static constexpr cuda::Launchers kLaunchers = {.side_words = SideWords,
                                                 .encode = Encode,
                                                 .add = Add,
                                                 .decode = Decode,
                                                 .fold = Fold,
                                                 .cast_encode = CastEncode,
                                                 .cast_decode = CastDecode,
                                                 .reduce = Reduce,
                                                 .error_name = ErrorName};
  return kLaunchers;
}

const FakeLaunches& LaunchesSoFar() { return launches; }

}  // namespace inccl::test
