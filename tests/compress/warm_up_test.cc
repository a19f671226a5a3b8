// SPDX-License-Identifier: Apache-2.0
//
// WarmUp: what it runs, and that it reports nothing.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <vector>

#include "compress/codec_table.h"
#include "compress/codecs.h"

namespace inccl::test {
namespace {

struct Record {
  std::vector<int> ranks;       // of every Begin
  std::vector<Status> results;  // of every Combine
  int outputs = 0;              // elements decoded
};

// Fails the Combine that is `failing`-th, from 0, by an error or for lack of memory.
struct Failure {
  size_t failing = SIZE_MAX;
  bool throws = false;
};

class RecordingState final : public CodecState {
 public:
  RecordingState(std::unique_ptr<CodecState> real, Failure failure, Record* record)
      : real_(std::move(real)), failure_(failure), record_(record) {}
  Status Begin(const CollectiveArgs& call) override {
    record_->ranks.push_back(call.nranks);
    return real_->Begin(call);
  }
  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override {
    if (record_->results.size() == failure_.failing) {
      if (failure_.throws) throw std::bad_alloc();
      record_->results.push_back(InternalError("as the test asks"));
      return record_->results.back();
    }
    record_->results.push_back(real_->Combine(range, inputs, outputs));
    for (const Term& output : outputs) {
      record_->outputs += output.format.form == Form::kOutput ? 1 : 0;
    }
    return record_->results.back();
  }
  void Finish(CodecStats* stats) override { real_->Finish(stats); }

 private:
  const std::unique_ptr<CodecState> real_;
  const Failure failure_;
  Record* const record_;
};

class RecordingCodec final : public Codec {
 public:
  RecordingCodec(const char* spec, Record* record, Failure failure = {})
      : real_(*MakeCodec(spec)), record_(record), failure_(failure) {}
  const std::string& spec() const override { return real_->spec(); }
  Status Supports(Collective collective, DataType type, ReduceOp op, int nranks) const override {
    return real_->Supports(collective, type, op, nranks);
  }
  std::span<const SidePhase> side_phases() const override { return real_->side_phases(); }
  Route route() const override { return real_->route(); }
  uint64_t window_elements() const override { return real_->window_elements(); }
  uint32_t MaxBytes(DataType type, int nranks, uint32_t count) const override {
    return real_->MaxBytes(type, nranks, count);
  }
  void Bound(Collective collective, int nranks, double* bits,
             double* relative_error) const override {
    real_->Bound(collective, nranks, bits, relative_error);
  }
  std::unique_ptr<CodecState> NewState() const override {
    return std::make_unique<RecordingState>(real_->NewState(), failure_, record_);
  }

 private:
  const std::shared_ptr<const Codec> real_;
  Record* const record_;
  const Failure failure_;
};

class WarmUpOfCodec : public testing::TestWithParam<CodecRow> {};

// An owner and another rank get the result, of whatever number of ranks.
TEST_P(WarmUpOfCodec, RunsAWholeCall) {
  for (const int nranks : {2, 3, 8}) {
    Record record;
    WarmUp(RecordingCodec(GetParam().spec, &record), nranks);
    EXPECT_EQ(record.ranks, std::vector<int>({nranks, nranks}));
    for (const Status& status : record.results) EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(record.outputs, 2) << nranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, WarmUpOfCodec, testing::ValuesIn(kCodecTable), CodecRowName);

TEST(WarmUp, TakesFewRanksForMany) {
  for (const int nranks : {1, 1000, 30000}) {
    Record record;
    WarmUp(RecordingCodec("hbi", &record), nranks);
    ASSERT_EQ(record.ranks.size(), 2u);
    EXPECT_GE(record.ranks[0], 2);
    EXPECT_LE(record.ranks[0], 16);
    EXPECT_EQ(record.outputs, 2);
  }
}

TEST(WarmUp, IgnoresErrorsAndLackOfMemory) {
  for (size_t failing = 0; failing < 6; ++failing) {
    for (const bool throws : {false, true}) {
      Record record;
      WarmUp(RecordingCodec("hbi", &record, {failing, throws}), 2);
      EXPECT_EQ(record.results.size(), failing + (throws ? 0 : 1))
          << "no step after the failed one";
    }
  }
}

}  // namespace
}  // namespace inccl::test
