// SPDX-License-Identifier: Apache-2.0
//
// Specifications of codecs: the grammar, typed values, hbi's keys and canonical text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/codecs.h"
#include "support/seed.h"

namespace inccl {
namespace {

// Every part of `parts` must stand in the error's text.
void ExpectError(const Status& status, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "\"" << part << "\" is not in: " << status.message();
  }
}

std::string CanonicalOf(const std::string& spec) {
  const Result<std::shared_ptr<const Codec>> codec = MakeCodec(spec);
  return codec.ok() ? (*codec)->spec() : codec.status().message();
}

TEST(CodecSpec, Parses) {
  const Result<CodecSpec> spec = CodecSpec::Parse("name_2:a=1,bc=-x.Y+_");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->name(), "name_2");
  ASSERT_NE(spec->Find("a"), nullptr);
  EXPECT_EQ(*spec->Find("a"), "1");
  EXPECT_EQ(*spec->Find("bc"), "-x.Y+_");
  EXPECT_EQ(spec->Find("b"), nullptr);
  const Result<CodecSpec> bare = CodecSpec::Parse("none");
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(bare->name(), "none");
}

TEST(CodecSpec, RejectsWhatIsNotTheGrammar) {
  const struct {
    std::string text;
    std::vector<std::string> error;
  } kCases[] = {
      {"", {"empty codec name"}},
      {":a=1", {"empty codec name"}},
      {"HBI:bits=6", {"codec name \"HBI\""}},
      {"2x", {"codec name \"2x\""}},
      {"a b", {"codec name \"a b\""}},
      {"x:", {"\"\"", "key=value"}},
      {"x:a=1,", {"\"\"", "key=value"}},
      {"x:,a=1", {"\"\"", "key=value"}},
      {"x:a", {"\"a\"", "key=value"}},
      {"x:=1", {"empty key"}},
      {"x:a=", {"a: empty value"}},
      {"x:a=1 ", {"a: the value \"1 \""}},
      {"x:a=1=2", {"a: the value \"1=2\""}},
      {"x:a=\n", {"a: the value \"\\x0a\""}},
      {"x:A=1", {"key \"A\""}},
      {"x:a=1,b=2,a=3", {"a is given twice", "1", "3"}},
      {"x:a=\xff", {"\\xff"}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    const Result<CodecSpec> spec = CodecSpec::Parse(c.text);
    ASSERT_FALSE(spec.ok());
    ExpectError(spec.status(), c.error);
  }
}

TEST(CodecSpec, LengthsAreBounded) {
  EXPECT_TRUE(CodecSpec::Parse(std::string(CodecSpec::kMaxName, 'a')).ok());
  EXPECT_FALSE(CodecSpec::Parse(std::string(CodecSpec::kMaxName + 1, 'a')).ok());
  const std::string key(CodecSpec::kMaxName, 'k'), value(CodecSpec::kMaxValue, 'v');
  EXPECT_TRUE(CodecSpec::Parse("x:" + key + "=" + value).ok());
  EXPECT_FALSE(CodecSpec::Parse("x:" + key + "k=" + value).ok());
  EXPECT_FALSE(CodecSpec::Parse("x:" + key + "=" + value + "v").ok());
  std::string text = "x:a=1";
  for (int i = 0; text.size() <= CodecSpec::kMaxText; ++i) text += fmt::format(",k{}=1", i);
  const Result<CodecSpec> spec = CodecSpec::Parse(text);
  ASSERT_FALSE(spec.ok());
  ExpectError(spec.status(), {"512"});
}

TEST(CodecSpec, RandomTextNeverCrashesAndErrorsArePrintable) {
  Rng rng(test::TestSeed());
  const std::string letters = "hbi:its=6,k2ag.-\n\xff 0";
  for (int i = 0; i < 20000; ++i) {
    std::string text = rng.Below(2) == 0 ? "hbi:" : "";
    for (uint64_t length = rng.Below(40); length > 0; --length) {
      text += letters[rng.Below(letters.size())];
    }
    const Result<std::shared_ptr<const Codec>> codec = MakeCodec(text);
    if (codec.ok()) {
      EXPECT_EQ(CanonicalOf((*codec)->spec()), (*codec)->spec()) << text;
      continue;
    }
    EXPECT_EQ(codec.status().code(), Code::kInvalidArgument);
    for (const char c : codec.status().message()) {
      ASSERT_TRUE(c >= 0x20 && c < 0x7f) << codec.status().message();
    }
  }
}

TEST(CodecSpec, Integers) {
  const Result<CodecSpec> spec =
      CodecSpec::Parse("x:a=7,b=-1,c=99999999999999999999,d=7x,e=18446744073709551615,f=+1");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(*spec->Integer("a", 1, 0, 10), 7u);
  EXPECT_EQ(*spec->Integer("missing", 5, 0, 10), 5u);
  EXPECT_EQ(*spec->Integer("e", 0, 0, UINT64_MAX), UINT64_MAX);
  ExpectError(spec->Integer("a", 1, 8, 10).status(), {"a=7", "[8, 10]"});
  for (const char* key : {"b", "c", "d", "f"}) {
    ExpectError(spec->Integer(key, 0, 0, UINT64_MAX).status(), {key, *spec->Find(key)});
  }
}

TEST(CodecSpec, Eighths) {
  const struct {
    const char* text;
    int eighths;  // -1: an error
  } kCases[] = {{"6", 48},
                {"6.0", 48},
                {"5.5", 44},
                {"5.125", 41},
                {"5.1250", 41},
                {"5.875", 47},
                {"0.5", 4},
                {"16", 128},
                {"16.0", 128},
                {"6.1", -1},
                {"6.", -1},
                {".5", -1},
                {"16.125", -1},
                {"0.375", -1},
                {"-6", -1},
                {"6.12", -1},
                {"1e1", -1},
                {"6.0625", -1},
                {"99999999999999999999", -1}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    const Result<CodecSpec> spec = CodecSpec::Parse(std::string("x:bits=") + c.text);
    ASSERT_TRUE(spec.ok());
    const Result<uint64_t> value = spec->Eighths("bits", 0, 4, 128);
    if (c.eighths < 0) {
      ASSERT_FALSE(value.ok());
      ExpectError(value.status(), {"bits=", c.text, "[0.5, 16]"});
      continue;
    }
    ASSERT_TRUE(value.ok()) << value.status().message();
    EXPECT_EQ(*value, static_cast<uint64_t>(c.eighths));
  }
  for (uint64_t eighths = 4; eighths <= 128; ++eighths) {
    const Result<CodecSpec> spec = CodecSpec::Parse("x:bits=" + FormatEighths(eighths));
    ASSERT_TRUE(spec.ok());
    EXPECT_EQ(*spec->Eighths("bits", 0, 4, 128), eighths);
  }
}

TEST(HbiSpec, CanonicalListsEveryKeySorted) {
  const auto expected = [&](const char* ag, const char* bits, int k, int k2, int min_bytes,
                            const char* ref) {
    return fmt::format(
        "hbi:ag={},bits={},checksum=0,code=auto,k={},k2={},levels=even,local=codes,m=0,min_bytes={"
        "},ref={},"
        "rht=0,unbiased=0",
        ag, bits, k, k2, min_bytes, ref);
  };
  EXPECT_EQ(CanonicalOf("hbi"), expected("requant", "6", 0, 0, 1024, "direct"));
  EXPECT_EQ(CanonicalOf("hbi:bits=6"), expected("requant", "6", 0, 0, 1024, "direct"));
  EXPECT_EQ(CanonicalOf("hbi:bits=5.50"), expected("requant", "5.5", 0, 0, 1024, "direct"));
  EXPECT_EQ(CanonicalOf("hbi:k=15"), expected("requant", "0", 15, 15, 1024, "direct"));
  EXPECT_EQ(CanonicalOf("hbi:k2=127,k=1"), expected("requant", "0", 1, 127, 1024, "direct"));
  EXPECT_EQ(CanonicalOf("hbi:ref=ring,min_bytes=4096,ag=exact,bits=4.125"),
            expected("exact", "4.125", 0, 0, 4096, "ring"));
  const auto with = [](std::string spec, const std::string& from, const std::string& to) {
    return spec.replace(spec.find(from), from.size(), to);
  };
  EXPECT_EQ(CanonicalOf("hbi:levels=energy"),
            with(CanonicalOf("hbi"), "levels=even", "levels=energy"));
  EXPECT_EQ(CanonicalOf("hbi:m=4"), with(CanonicalOf("hbi"), ",m=0", ",m=4"));
  for (const std::string key : {"checksum", "rht", "unbiased"}) {
    std::string on = CanonicalOf("hbi");
    on.replace(on.find(key + "=0"), key.size() + 2, key + "=1");
    EXPECT_EQ(CanonicalOf("hbi:" + key + "=1"), on);
    EXPECT_EQ(CanonicalOf("hbi:" + key + "=0"), CanonicalOf("hbi"));
  }
  for (const std::string text :
       {"hbi", "hbi:k=7,k2=31,ag=exact", "hbi:bits=8,ref=ring", "hbi:bits=4,rht=1",
        "hbi:k=15,k2=7,checksum=1", "hbi:m=3", "hbi:m=32768", "hbi:unbiased=1", "hbi:levels=energy",
        "hbi:bits=2.5,code=entropy"}) {
    EXPECT_EQ(CanonicalOf(CanonicalOf(text)), CanonicalOf(text));
  }
  // Sorted, as the text claims.
  const Result<CodecSpec> parsed = CodecSpec::Parse(CanonicalOf("hbi"));
  ASSERT_TRUE(parsed.ok());
  std::string keys = CanonicalOf("hbi").substr(4), last;
  while (!keys.empty()) {
    const std::string key = keys.substr(0, keys.find('='));
    EXPECT_LT(last, key);
    last = key;
    const size_t comma = keys.find(',');
    keys = comma == std::string::npos ? "" : keys.substr(comma + 1);
  }
}

// Ranks compare it; a specification alone does not tell versions of the format apart.
TEST(HbiSpec, TheIdentityNamesTheVersionOfTheFormat) {
  const auto codec = *MakeCodec("hbi:bits=5");
  EXPECT_EQ(codec->identity(), codec->spec() + " (format 3)");
  const auto other = *MakeCodec("bf16");
  EXPECT_EQ(other->identity(), other->spec());
}

TEST(HbiSpec, ErrorsNameKeyAndValue) {
  const struct {
    const char* text;
    std::vector<std::string> error;
  } kCases[] = {
      {"hbi:bit=6", {"bit", "6", "bits"}},
      {"hbi:bits=0.25", {"bits=0.25"}},
      {"hbi:bits=17", {"bits=17"}},
      {"hbi:bits=6,k=15", {"bits=6", "k=15", "contradict"}},
      {"hbi:bits=6,k2=15", {"bits=6", "k2=15", "contradict"}},
      {"hbi:k2=15", {"k2=15", "without k"}},
      {"hbi:bits=0", {"bits=0", "no levels"}},
      {"hbi:k=4096", {"k=4096", "4095"}},
      {"hbi:k=x", {"k=x"}},
      {"hbi:ref=tree", {"ref=tree", "direct", "ring"}},
      {"hbi:ag=both", {"ag=both", "requant", "exact"}},
      {"hbi:policy=h",
       {"unknown key policy",
        "there are ag, bits, checksum, code, k, k2, levels, local, m, min_bytes, ref, rht, "
        "unbiased"}},
      {"hbi:min_bytes=-1", {"min_bytes=-1"}},
      {"hbi:unbiased=2", {"unbiased=2"}},
      {"hbi:levels=equal", {"levels=equal"}},
      {"hbi:levels=energy,k=3", {"levels=energy", "k=3"}},
      {"hbi:m=1", {"m=1", "groups of one rank"}},
      {"hbi:m=40000", {"m=40000"}},
      {"hbi:m=4,ref=ring", {"m=4", "ref=ring", "contradict"}},
      {"hbi:m=4,ag=exact", {"m=4", "ag=exact", "contradict"}},
      {"hbi:code=huffman", {"code=huffman", "fixed", "entropy"}},
      {"hbi:code=entropy,ref=ring", {"code=entropy", "ref=ring", "contradict"}},
      {"hbi:ag=exact,code=entropy", {"code=entropy", "ag=exact", "contradict"}},
      {"hbi:code=entropy,m=4", {"code=entropy", "m=4", "contradict"}},
      {"hbi:rht=yes", {"rht=yes"}},
      {"hbi:checksum=2", {"checksum=2"}},
      {"none:bits=6", {"none", "bits", "6"}},
      {"zip", {"zip", "hbi", "none"}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    const Result<std::shared_ptr<const Codec>> codec = MakeCodec(c.text);
    ASSERT_FALSE(codec.ok());
    ExpectError(codec.status(), c.error);
  }
}

TEST(OtherSpecs, CanonicalTextListsEveryKey) {
  const struct {
    const char* given;
    const char* canonical;
  } kCases[] = {
      {"bf16", "bf16"},
      {"fp16", "fp16"},
      {"fp8", "fp8:format=e4m3"},
      {"mxfp8:format=e5m2", "mxfp8:format=e5m2"},
      {"lossless", "lossless"},
      {"dither", "dither:bits=4,block=256,levels=linear,norm=max,sparse=0"},
      {"dither:sparse=1,norm=l2,levels=pow2,block=32,bits=2",
       "dither:bits=2,block=32,levels=pow2,norm=l2,sparse=1"},
      {"onebit", "onebit:block=256"},
      {"onebit:block=64", "onebit:block=64"},
      {"qsgd", "qsgd:q=8"},
      {"qsgd_ms", "qsgd_ms:q=4+8"},
      {"qsgd_ms:q=1+2+3+16", "qsgd_ms:q=1+2+3+16"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(CanonicalOf(c.given), c.canonical);
    EXPECT_EQ(CanonicalOf(c.canonical), c.canonical);
  }
}

TEST(OtherSpecs, ErrorsNameKeyAndValue) {
  const struct {
    const char* text;
    std::vector<std::string> error;
  } kCases[] = {
      {"bf16:x=1", {"bf16", "x", "1"}},
      {"fp8:format=e3m4", {"fp8", "format=e3m4", "e4m3", "e5m2"}},
      {"mxfp8:block=16", {"mxfp8", "block", "format"}},
      {"lossless:level=9", {"lossless", "level"}},
      {"dither:bits=1", {"dither", "bits=1", "2", "8"}},
      {"dither:bits=7,levels=pow2", {"bits=7", "6"}},
      {"dither:levels=log", {"levels=log", "linear", "pow2"}},
      {"dither:norm=l1", {"norm=l1", "max", "l2"}},
      {"onebit:block=512", {"onebit", "block=512", "256"}},
      {"qsgd:q=0", {"qsgd", "q=0", "16"}},
      {"qsgd:q=17", {"q=17"}},
      {"qsgd:q=4+8", {"q=4+8"}},
      {"qsgd_ms:q=8", {"q=8", "ascending"}},
      {"qsgd_ms:q=8+4", {"q=8+4"}},
      {"qsgd_ms:q=4+4", {"q=4+4"}},
      {"qsgd_ms:q=4+17", {"q=4+17"}},
      {"qsgd_ms:q=1+2+3+4+5", {"q=1+2+3+4+5"}},
      {"qsgd_ms:q=4+8+", {"q=4+8+"}},
      {"qsgd_ms:q=+4", {"q=+4"}},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.text);
    const Result<std::shared_ptr<const Codec>> codec = MakeCodec(c.text);
    ASSERT_FALSE(codec.ok());
    ExpectError(codec.status(), c.error);
  }
}

TEST(HbiSpec, Supports) {
  const auto supports = [](const char* spec, Collective collective, DataType type, ReduceOp op,
                           int nranks) {
    return (*MakeCodec(spec))->Supports(collective, type, op, nranks);
  };
  for (int type = 0; type < kDataTypes; ++type) {
    const auto data_type = static_cast<DataType>(type);
    const bool wanted = data_type == DataType::kFloat16 || data_type == DataType::kFloat32 ||
                        data_type == DataType::kFloat64 || data_type == DataType::kBfloat16;
    for (int op = 0; op < kReduceOpKinds; ++op) {
      const auto reduce = static_cast<ReduceOp>(op);
      const bool sums = reduce == ReduceOp::kSum || reduce == ReduceOp::kAvg;
      const Status status = supports("hbi", Collective::kAllReduce, data_type, reduce, 8);
      EXPECT_EQ(status.ok(), wanted && sums) << Name(data_type) << " " << Name(reduce);
      if (!status.ok()) {
        EXPECT_NE(status.message().find(wanted ? Name(reduce) : Name(data_type)),
                  std::string::npos);
      }
    }
  }
  const auto all_reduce = [&](const char* spec, int nranks) {
    return supports(spec, Collective::kAllReduce, DataType::kFloat32, ReduceOp::kSum, nranks).ok();
  };
  for (int c = 0; c < kCollectiveKinds; ++c) {
    const auto collective = static_cast<Collective>(c);
    const bool wanted = collective == Collective::kAllReduce ||
                        collective == Collective::kReduceScatter ||
                        collective == Collective::kAllGather;
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      // Where nothing is reduced, the operation does not matter.
      const bool matters = collective != Collective::kAllGather && op == ReduceOp::kMax;
      EXPECT_EQ(supports("hbi", collective, DataType::kFloat32, op, 8).ok(), wanted && !matters)
          << Name(collective) << " " << Name(op);
    }
    EXPECT_FALSE(supports("hbi", collective, DataType::kInt32, ReduceOp::kSum, 8).ok());
    EXPECT_FALSE(supports("hbi", collective, DataType::kFloat32, ReduceOp::kSum, 1).ok());
  }
  EXPECT_FALSE(all_reduce("hbi", 1));
  EXPECT_TRUE(all_reduce("hbi", 2));
  EXPECT_TRUE(all_reduce("hbi", 32767));
  EXPECT_FALSE(all_reduce("hbi", 32768));
  EXPECT_TRUE(all_reduce("hbi:k=4095", 8));
  EXPECT_FALSE(all_reduce("hbi:k=4095", 9));
  EXPECT_TRUE(all_reduce("hbi:k=511", 64));
  EXPECT_FALSE(all_reduce("hbi:k=512", 64));
}

TEST(HbiSpec, GroupsAreForAllReduceOnDirect) {
  const auto codec = *MakeCodec("hbi:m=2");
  EXPECT_TRUE(codec->Fits(Collective::kAllReduce, 4).ok());
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllGather}) {
    const Status status = codec->Fits(collective, 4);
    ASSERT_FALSE(status.ok());
    ExpectError(status, {"m=2", Name(collective), "allreduce"});
  }
  EXPECT_EQ(codec->side_phases().size(), 1u);
  EXPECT_EQ(codec->route().group, 2);
  EXPECT_EQ(std::string(codec->route().because), "m of the codec hbi");
  EXPECT_EQ((*MakeCodec("hbi"))->route().group, 0);
}

// unbiased=1 drops nothing, so the budget must be enough for K = 1 everywhere.
TEST(HbiSpec, UnbiasedNeedsBits) {
  const struct {
    Collective collective;
    const char* options;
    int nranks;
    double least;
  } kCases[] = {
      // 2 bits each for sum and result; words 0.1875 a phase.
      {Collective::kAllReduce, "", 2, 2.25},
      {Collective::kAllReduce, "", 64, 2.25},
      {Collective::kReduceScatter, "", 8, 2.25},  // 2 bits, words 0.25
      {Collective::kAllGather, "", 8, 2.125},     // 2 bits, words 0.125
      // Sums of 1, 2, 3 contributions take 2, 2.5, 3 bits.
      {Collective::kAllReduce, ",ref=ring", 4, 2.5},  // (7.5 / 3 + 2) / 2 + 0.1875 = 2.4375
      {Collective::kReduceScatter, ",ref=ring", 4, 2.75},
      // Six contributions and a sum of four with words: (14.125 / 7 + 2.375) / 2 = 2.196
      {Collective::kAllReduce, ",m=4", 8, 2.25},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(fmt::format("{} of {}{}", Name(c.collective), c.nranks, c.options));
    const auto fits = [&](double bits, const char* unbiased) {
      const std::string spec = fmt::format("hbi:bits={},{}{}", bits, unbiased, c.options);
      return (*MakeCodec(spec))->Fits(c.collective, c.nranks);
    };
    EXPECT_TRUE(fits(c.least, "unbiased=1").ok());
    EXPECT_TRUE(fits(c.least - 0.125, "unbiased=0").ok());
    const Status refused = fits(c.least - 0.125, "unbiased=1");
    ASSERT_FALSE(refused.ok());
    ExpectError(refused, {fmt::format("bits={}", c.least - 0.125), "unbiased=1",
                          fmt::format("at least bits={}", c.least), Name(c.collective)});
  }
  EXPECT_TRUE((*MakeCodec("hbi:k=1,unbiased=1"))->Fits(Collective::kAllReduce, 4).ok());
  // Too many ranks for any levels at all.
  EXPECT_FALSE((*MakeCodec("hbi:unbiased=1"))->Fits(Collective::kAllReduce, 40000).ok());
}

}  // namespace
}  // namespace inccl
