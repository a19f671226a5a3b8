// SPDX-License-Identifier: Apache-2.0
//
// Specifications of codecs. What is accepted has a canonical form that means the same.
#include "compress/codec.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {

void Run(Data data) {
  const Result<std::shared_ptr<const Codec>> codec = MakeCodec(ToText(data));
  if (!codec.ok()) {
    Require(!codec.status().message().empty(), "a refusal says why");
    return;
  }
  const Result<std::shared_ptr<const Codec>> again = MakeCodec((*codec)->spec());
  Require(again.ok(), "the canonical form is accepted");
  Require((*again)->spec() == (*codec)->spec(), "the canonical form is its own");
  double bits = 0, error = 0;
  (*codec)->Bound(4, &bits, &error);
  Require(bits >= 0 && error >= 0, "bounds are bounds");
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  for (const char* text :
       {"bf16", "fp16", "fp8:format=e5m2", "mxfp8:format=e4m3", "lossless", "onebit:block=64",
        "qsgd:q=16", "qsgd_ms:q=2+4+8", "dither:bits=4,levels=pow2", "none", "hbi", "hbi:bits=6",
        "hbi:k=15,k2=31", "hbi:bits=4.5,min_bytes=1M",
        "hbi:ref=direct,rht=0,unbiased=0,checksum=0,m=0,ag=requant", "hbi:m=4,bits=5",
        "hbi:m=3,checksum=1"}) {
    examples.push_back(FromText(text));
  }
  return examples;
}

}  // namespace inccl::fuzz
