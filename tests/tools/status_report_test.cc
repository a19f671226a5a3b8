// SPDX-License-Identifier: Apache-2.0
//
// Which ranks inccl-status calls late, from answers written down here.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/status/report.h"

namespace inccl::test {
namespace {

using tools::Json;

Json Rank(int rank, bool in_call, int stalled_ms, const std::vector<int>& waits_for) {
  return {{"rank", rank},
          {"process", "host:" + std::to_string(rank)},
          {"host", 0},
          {"state", "answered"},
          {"op", in_call ? 7 : 6},
          {"in_call", in_call},
          {"place", in_call ? "in op 7 allreduce()" : "after op 6"},
          {"stalled_ms", stalled_ms},
          {"waits_for", waits_for}};
}

Json Unknown(int rank) {
  return {{"rank", rank}, {"process", "host:9"}, {"host", 1}, {"state", "unknown"}};
}

// What rank `own` answers.
Json Answer(int own, const std::vector<Json>& ranks) {
  return {{"pid", 100 + own},
          {"communicators",
           {{{"id", "c"},
             {"name", "x"},
             {"rank", own},
             {"transport", "shm"},
             {"completed", 6},
             {"error", nullptr},
             {"ranks", ranks},
             {"connections", Json::array()}}}}};
}

Json Late(const std::vector<Json>& ranks, bool circle = false) {
  const std::vector<Json> answers = {Answer(0, ranks)};
  const Json all = tools::JoinAnswers(answers, 500);
  EXPECT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["circle"], circle);
  return all[0]["late"];
}

TEST(StatusReportTest, TheRankAtTheEndOfAllChainsIsLate) {
  EXPECT_EQ(Late({Rank(0, true, 900, {1}), Rank(1, true, 900, {2}), Rank(2, false, 0, {}),
                  Rank(3, true, 800, {1, 2})}),
            Json::parse(R"([{"rank":2,"waiting":[0,1,3]}])"));
  // Two of them.
  EXPECT_EQ(Late({Rank(0, true, 900, {1, 2}), Rank(1, false, 0, {}), Rank(2, true, 0, {})}),
            Json::parse(R"([{"rank":1,"waiting":[0]},{"rank":2,"waiting":[0]}])"));
}

TEST(StatusReportTest, ShortWaitsDoNotCount) {
  EXPECT_EQ(Late({Rank(0, true, 499, {1}), Rank(1, false, 0, {})}), Json::array());
}

TEST(StatusReportTest, CirclesHaveNoLateRank) {
  EXPECT_EQ(Late({Rank(0, true, 900, {1}), Rank(1, true, 900, {0})}, true), Json::array());
}

TEST(StatusReportTest, WhatARankSaysOfItselfCounts) {
  // Rank 0 knows of an earlier state of rank 1; rank 2 has not been asked.
  const std::vector<Json> answers = {
      Answer(0, {Rank(0, true, 900, {1}), Rank(1, true, 700, {2}), Unknown(2)}),
      Answer(1, {Unknown(0), Rank(1, false, 0, {}), Unknown(2)})};
  for (const std::vector<Json>& order : {answers, std::vector<Json>{answers[1], answers[0]}}) {
    const Json communicator = tools::JoinAnswers(order, 500)[0];
    EXPECT_EQ(communicator["late"], Json::parse(R"([{"rank":1,"waiting":[0]}])"));
    EXPECT_EQ(communicator["ranks"][2]["state"], "unknown");
    EXPECT_EQ(communicator["ranks"][1]["pid"], 101);
  }
}

TEST(StatusReportTest, AsText) {
  Json silent = Unknown(2);
  silent["state"] = "silent";
  silent["silent_ms"] = 1200;
  Json answer = Answer(0, {Rank(0, true, 900, {1}), Rank(1, false, 0, {}), silent});
  answer["communicators"][0]["error"] = "it has failed";
  answer["communicators"][0]["connections"] = Json::parse(
      R"([{"peer":1,"use":"control","over":"unix"},
          {"peer":2,"use":"data","over":"tcp","sent":5,"received":6,"acknowledged":5,
           "retransmits":3,"rtt_us":80,"quiet_ms":40}])");
  answer["communicators"][0]["sites"] =
      Json::parse(R"({"of_host":[0,1,0],"round_trip_us":[90,20100,20100,0]})");
  const std::vector<Json> answers = {answer};
  EXPECT_EQ(tools::StatusText(tools::JoinAnswers(answers, 500), true),
            R"(communicator c "x": 3 ranks on 2 hosts, shm
     0 host:0: in op 7 allreduce(); no progress for 0.9 s, waits for rank 1
       failed: it has failed
     1 host:1: outside the library, after op 6
     2 host:9: has not answered for 1.2 s
  site 0: hosts 0, 2; round trips 20.1 ms to site 1
  site 1: hosts 1
  late: rank 1 (host:1), outside the library, after op 6; rank 0 waits for it in op 7 allreduce(), for 0.9 s
    0 - 1: control, unix
    0 - 2: data, tcp, sent 5 B, received 6 B, 3 retransmits, round trip 80 us, nothing received for 40 ms
)");
}

}  // namespace
}  // namespace inccl::test
