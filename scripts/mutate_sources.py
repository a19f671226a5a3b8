#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that tests notice small changes of the sources.

Makes one edit at a time to a limit, a rule or a memory order, in a copy of the source tree in a
temporary directory, builds what the edit touches, and runs the tests that must notice it, which are
those of the folder. With --format: edits to constants and rules of the format of the codec hbi, of
which one test of the codec after the other is run until one fails. Prints for each edit what caught
it. Exit status 1 if an edit that is not listed as equivalent survives, or if one listed as
equivalent is caught; 2 if an edit no longer fits the sources.
"""
import argparse
import concurrent.futures
import contextlib
import filecmp
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIME_LIMIT = 300  # seconds of one test program; one that hangs has noticed, too

# Quick ones first.
TESTS = ["hbi_kernels", "hbi_state", "hbi_checksum", "hbi_malformed", "codec_spec", "hbi_groups", "hbi_bounds",
         "hbi_segments_bounds", "hbi_promises", "hbi_golden", "hbi_segments", "hbi_entropy"]

FORMAT, WORDS = "compress/hbi/format.h", "compress/hbi/side_words.h"
PLAN, PLAN_H = "compress/hbi/plan.cc", "compress/hbi/plan.h"
ENTROPY, ENTROPY_H = "compress/hbi/entropy.cc", "compress/hbi/entropy.h"
SCALAR, RNG, CONFIG = "compress/kernels/scalar_kernels.cc", "base/rng.h", "compress/hbi/config.cc"

# Files of tests that are not in the program of their folder.
PROGRAMS = {"transport/memory_order_test.cc": "transport_model"}

# Name, file below src, old text (there exactly once), new text, the file of tests that must notice it.
SOURCE_EDITS = [
    ("a read to the last byte", "base/bytes.h",
     "if (!ok_ || count > bytes_.size()) {",
     "if (!ok_ || count >= bytes_.size()) {", "base/bytes_test.cc"),
    ("delete is no character", "base/text.cc", "first != 0x7F", "first != 0x7E", "base/escaped_test.cc"),
    ("surrogates", "base/text.cc", "point < 0xE000;", "point < 0xDFFF;", "base/escaped_test.cc"),
    ("largest value", "config/values.h",
     "if (number < low || number > high)",
     "if (number < low || number >= high)", "config/variables_test.cc"),
    ("range of one port", "config/variables.cc",
     "range.first > range.last",
     "range.first >= range.last", "config/variables_test.cc"),
    ("a comment after a blank", "config/config_files.cc",
     "kBlanks.find(line[i - 1]) != kBlanks.npos",
     "true", "config/config_files_test.cc"),
    ("a part of a processor", "topology/processors.cc",
     "static_cast<double>(ranks.size()) > std::ceil(quota)",
     "static_cast<double>(ranks.size()) > quota", "topology/processors_test.cc"),
    ("a list of one processor", "topology/processors.cc", "last < first", "last <= first", "topology/processors_test.cc"),
    ("the smallest host", "topology/host_map.cc",
     "smallest = std::min(",
     "smallest = std::max(", "topology/host_map_test.cc"),
    ("who gets one more", "collectives/call.cc",
     "each + (index < extra ? 1 : 0)",
     "each + (index <= extra ? 1 : 0)", "collectives/chunking_test.cc"),
    ("slots that fit exactly", "tuning/segmentation.cc", "<= budget.bytes", "< budget.bytes", "tuning/slot_budget_test.cc"),
    ("the faster of two", "tuning/segmentation.cc",
     "return size.time[1] < size.time[0];",
     "return size.time[1] > size.time[0];", "tuning/store_policy_test.cc"),
    ("what a rollback brings back", "compress/residual/residual.cc",
     "entry.now = (entry.now + 2) % 3;",
     "entry.now = (entry.now + 1) % 3;", "compress/residual_test.cc"),
    ("a rollback of that call", "base/lineage.h",
     "call.operation > shrunk.completed.on_all",
     "call.operation >= shrunk.completed.on_all", "compress/residual_test.cc"),
    ("a rollback of that communicator's call", "base/lineage.h",
     "shrunk.communicator == call.communicator",
     "true", "compress/residual_test.cc"),
    ("a rollback of no later call", "base/lineage.h",
     "call.operation <= shrunk.completed.here",
     "true", "compress/residual_test.cc"),
    ("headers within the memory", "transport/mapped/mapped_transport.cc",
     "if (bytes > end - entry.offset) return wrong",
     "if (bytes > bytes_) return wrong", "transport/mapped_test.cc"),
    ("regions within the memory", "transport/mapped/mapped_transport.cc",
     "RegionBlockBytes(nranks_) > end - offset",
     "kPage > end - offset", "transport/mapped_test.cc"),
    ("a payload within the memory", "transport/mapped/mapped_transport.h",
     "bytes <= end - offset",
     "bytes <= bytes_", "transport/mapped_test.cc"),
    ("order of a credit", "transport/mapped/mapped_transport.cc",
     "credit_->released.store(ticket_, std::memory_order_seq_cst)",
     "credit_->released.store(ticket_, std::memory_order_relaxed)", "transport/memory_order_test.cc"),
    ("a credit that only releases", "transport/mapped/mapped_transport.cc",
     "credit_->released.store(ticket_, std::memory_order_seq_cst)",
     "credit_->released.store(ticket_, std::memory_order_release)", "transport/memory_order_test.cc"),
    ("order of a slice", "transport/mapped/mapped_transport.cc",
     "static_cast<uint32_t>(ticket_ + 1), std::memory_order_seq_cst",
     "static_cast<uint32_t>(ticket_ + 1), std::memory_order_release", "transport/memory_order_test.cc"),
    ("a header after its number", "transport/mapped/mapped_transport.cc",
     "  slot_header->delivered.store(header.delivered, std::memory_order_relaxed);\n"
     "  slot_header->seq.store(static_cast<uint32_t>(ticket_ + 1), std::memory_order_seq_cst);\n"
     "",
     "  slot_header->seq.store(static_cast<uint32_t>(ticket_ + 1), std::memory_order_seq_cst);\n"
     "  slot_header->delivered.store(header.delivered, std::memory_order_relaxed);\n"
     "", "transport/memory_order_test.cc"),
    ("order of a look for slices", "transport/mapped/mapped_transport.cc",
     "theirs.seq.load(std::memory_order_seq_cst)",
     "theirs.seq.load(std::memory_order_relaxed)", "transport/memory_order_test.cc"),
    ("order of a look for credits", "transport/mapped/mapped_transport.cc",
     "released.load(std::memory_order_seq_cst)",
     "released.load(std::memory_order_acquire)", "transport/memory_order_test.cc"),
    ("a token after the sleep", "transport/mapped/wakeup.cc",
     "  const uint32_t token = area_->counter.load(std::memory_order_seq_cst);\n"
     "  area_->sleeping.store(kSleepsOnFutex, std::memory_order_seq_cst);\n"
     "",
     "  area_->sleeping.store(kSleepsOnFutex, std::memory_order_seq_cst);\n"
     "  const uint32_t token = area_->counter.load(std::memory_order_seq_cst);\n"
     "", "transport/memory_order_test.cc"),
    ("a sleep that only releases", "transport/mapped/wakeup.cc",
     "store(kSleepsOnFutex, std::memory_order_seq_cst)",
     "store(kSleepsOnFutex, std::memory_order_release)", "transport/memory_order_test.cc"),
    ("a look for sleepers", "transport/mapped/wakeup.h",
     "sleeping.load(std::memory_order_seq_cst)",
     "sleeping.load(std::memory_order_relaxed)", "transport/memory_order_test.cc"),
    ("an eventfd's sleep", "transport/mapped/wakeup.h",
     "store(kSleepsOnEventFd, std::memory_order_seq_cst)",
     "store(kSleepsOnEventFd, std::memory_order_release)", "transport/memory_order_test.cc"),
    ("no wake without a number", "transport/mapped/wakeup.cc",
     "  wakeup->counter.fetch_add(1, std::memory_order_seq_cst);\n  FutexWake(wakeup, scope);",
     "  FutexWake(wakeup, scope);", "transport/memory_order_test.cc"),
    ("entries in order", "transport/mapped/mapped_transport.cc",
     "store(count + 1, std::memory_order_seq_cst)",
     "store(count + 1, std::memory_order_release)", "transport/memory_order_test.cc"),
    ("the first error of a stream", "stream/stream.cc",
     "if (error_.ok()) error_ = status;",
     "error_ = status;", "stream/host_stream_test.cc"),
    ("positions in order", "stream/stream.h",
     "while (!completed_.empty() && completed_.front())",
     "if (!completed_.empty() && completed_.front())", "stream/host_stream_test.cc"),
    ("a wait for what came before", "stream/stream.cc",
     "while (completed_.count() < until)",
     "while (completed_.count() < enqueued_)", "stream/host_stream_test.cc"),
    ("streams in order", "stream/stream.cc",
     "  std::sort(sorted.begin(), sorted.end(), std::less<>());\n",
     "", "stream/host_stream_test.cc"),
    ("the first error of a position", "stream/batch.h",
     "    if (status_.ok()) status_ = status;\n    if (--open_ == 0 && !released_) stream_->Complete",
     "    status_ = status;\n    if (--open_ == 0 && !released_) stream_->Complete", "stream/host_stream_test.cc"),
    ("the first error of a group", "stream/batch.h",
     "    if (status_.ok()) status_ = status;\n    if (--open_ == 0) changed_",
     "    status_ = status;\n    if (--open_ == 0) changed_", "stream/host_stream_test.cc"),
    ("a worker is idle first", "stream/batch.cc",
     "    open_.fetch_sub(1, std::memory_order_acq_rel);\n"
     "    changed_.NotifyAll();\n"
     "    const MutexUnlock unlocked(&mutex_);\n"
     "    for (const std::shared_ptr<StreamOrder>& order : batch.orders) order->Complete(status);\n"
     "    if (batch.completion != nullptr) batch.completion->Done(status);\n"
     "",
     "    {\n"
     "      const MutexUnlock unlocked(&mutex_);\n"
     "      for (const std::shared_ptr<StreamOrder>& order : batch.orders) order->Complete(status);\n"
     "      if (batch.completion != nullptr) batch.completion->Done(status);\n"
     "    }\n"
     "    open_.fetch_sub(1, std::memory_order_acq_rel);\n"
     "    changed_.NotifyAll();\n"
     "", "stream/worker_test.cc"),
    ("a stall of before", "failure/liveness.cc",
     "SystemClock().Now() - looked_ < kLookedLately",
     "looked_ > 0", "failure/liveness_test.cc"),
    ("a stall of the last receive", "failure/liveness.cc",
     "  send_recv_ = calls;\n  warned_ = far_told_ = false;\n  asked_ = looked_ = 0;",
     "  send_recv_ = calls;\n  warned_ = far_told_ = false;", "failure/liveness_test.cc"),
    ("stalled as long as the limit", "failure/liveness.cc",
     "entry.position.stalled < search->stall",
     "entry.position.stalled <= search->stall", "failure/positions_test.cc"),
    ("an answer as old as the limit", "failure/liveness.cc",
     "search->now - entry.answered_at > kFresh",
     "search->now - entry.answered_at >= kFresh", "failure/positions_test.cc"),
    ("missing in the call itself", "failure/liveness.cc",
     "entry.position.sequence < sequence",
     "entry.position.sequence <= sequence", "failure/positions_test.cc"),
    ("calls that are remembered", "failure/liveness.cc",
     "if (ours.sequence != theirs.sequence || ours.SameCall(theirs))",
     "if (ours.SameCall(theirs))", "failure/call_history_test.cc"),
    ("records of before", "failure/liveness.cc", "back > 0; --back", "back > 1; --back", "failure/call_history_test.cc"),
    ("memory that is gone", "communicator/zero_copy.cc",
     "  std::erase(added_, &entry);\n",
     "", "communicator/registrations_test.cc"),
    ("memory that is taken back", "communicator/zero_copy.cc",
     "  removed_.clear();\n",
     "", "communicator/registrations_test.cc"),
    ("two slices are enough", "communicator/zero_copy.cc",
     "call.bytes() >= kLeastZeroCopySlices",
     "call.bytes() > kLeastZeroCopySlices", "communicator/zero_copy_test.cc"),
    ("writable memory first", "communicator/zero_copy.cc",
     "{&output_, &input_, &result_}",
     "{&input_, &output_, &result_}", "communicator/zero_copy_test.cc"),
    ("slices without credit", "transport/tcp/tcp_peer.cc",
     "header.seq - end->released > end->spec.depth)",
     "header.seq - end->released > end->spec.depth + 1u)", "transport/tcp_test.cc"),
    ("credits that overtake", "transport/tcp/tcp_peer.cc",
     "end->allowed = std::max(end->allowed, header.credit);",
     "end->allowed = header.credit;", "transport/tcp_test.cc"),
    ("plans by root", "communicator/collective_runner.cc",
     " && plan.args.root == call.root &&",
     " &&", "communicator/plans_test.cc"),
    ("a batch's first error", "communicator/communicator.cc",
     "    if (first.ok()) first = std::move(status);\n",
     "    first = std::move(status);\n", "communicator/communicator_test.cc"),
    ("sends before collectives", "stream/batch.h",
     "(call.kind == CallKind::kCollective ? calls : send_recv)",
     "(call.kind != CallKind::kSend ? calls : send_recv)", "stream/worker_test.cc"),
    ("as many beats as needed", "init/options.cc",
     "if (dead_ms < kLeastBeats * heartbeat_ms)",
     "if (dead_ms <= kLeastBeats * heartbeat_ms)", "init/options_test.cc"),
    ("the longest name", "init/options.cc",
     "strnlen(config.name, kMostNameBytes + 1) > kMostNameBytes",
     "strnlen(config.name, kMostNameBytes + 1) >= kMostNameBytes", "init/options_test.cc"),
    ("sockets in the agreement", "init/options.cc",
     "      env->sockets_per_peer, env->control_all_pairs,",
     "      1, env->control_all_pairs,", "init/options_test.cc"),
    ("a message heard before", "control/router.cc", "if (number <= heard) return true;", "if (number < heard) return true;",
     "control/router_test.cc"),
    ("the first one acknowledged", "control/router.cc", "envelope.number < first ||", "envelope.number <= first ||",
     "control/router_test.cc"),
    ("who cuts others off", "control/router.cc", "if (gone.end != End::kLeft) lost_ = true;", "", "control/router_test.cc"),
    ("a bad number of a message", "control/local_plane.cc",
     "if (kind == kDisconnect || kind > kMostControlKind) return;",
     "if (kind == kDisconnect || kind >= kMostControlKind) return;", "control/control_test.cc"),
    ("connections of one source", "bootstrap/pending_connections.cc", "if (of_source < budget.per_source) {",
     "if (of_source <= budget.per_source) {", "bootstrap/attack_test.cc"),
    ("ranks that are all connected", "bootstrap/mesh.cc", "if (nranks <= all_pairs) return;",
     "if (nranks < all_pairs) return;", "bootstrap/control_graph_test.cc"),
    ("an attempt again", "bootstrap/rendezvous_server.cc",
     "options.of_job && at->second->IsAgain(registration)", "false", "bootstrap/comm_id_test.cc"),
    ("an id serves once", "bootstrap/rendezvous_server.cc",
     "meeting.holders = 0;", "", "bootstrap/failure_test.cc"),
    ("a second rank 0", "bootstrap/rendezvous_server.cc", "session.rank == 0 && !session.own()", "false",
     "bootstrap/failure_test.cc"),
    ("the number of a creation that failed", "bootstrap/bootstrap.cc",
     "jobs_[job].under_way.erase(number);", "(void)jobs_[job], (void)number;", "bootstrap/comm_id_test.cc"),
    ("a rank that missed the end", "bootstrap/bootstrap.cc", "if (joined.ok() || before)", "if (joined.ok() && !before)",
     "bootstrap/comm_id_test.cc"),
    ("a blob is not the end", "bootstrap/rendezvous_server.cc",
     "session->member() && !session->blob", "session->member()", "bootstrap/exchange_test.cc"),
    ("what all ranks find", "bootstrap/bootstrap.cc", "verdict.message().ends_with(own)", "false", "bootstrap/exchange_test.cc"),
    ("a network of one address", "bootstrap/interfaces.cc", "network.bits >= 0 && network.bits <= most;",
     "network.bits >= 0 && network.bits < most;", "bootstrap/listen_test.cc"),
    ("bits of a network", "bootstrap/interfaces.cc", "if (bits % 8 == 0) return true;", "return true;",
     "bootstrap/listen_test.cc"),
    ("a rank too many", "bootstrap/handshake.cc", "rank_ >= nranks_) return HandshakeFault::kRank;",
     "rank_ > nranks_) return HandshakeFault::kRank;", "bootstrap/crypto_test.cc"),
    ("the end of a slot", "engine/device_engine.cc", "bytes <= piece.bytes - offset ?", "bytes <= piece.bytes ?",
     "device/engine_steps_test.cc"),
    ("memory opened as long as asked", "engine/device_engine.cc", "known < bytes", "known <= bytes", "device/sharing_test.cc"),
    ("constants without an owner", "engine/device_engine.cc", "it->second.owner.use_count() > 1",
     "it->second.owner.use_count() > 0", "device/engine_steps_test.cc"),
    ("memory kept twice as large", "memory/device_allocator.cc", "piece.bytes > most) continue;", "piece.bytes >= most) continue;",
     "device/memory_test.cc"),
    ("the end of a piece", "memory/device_allocator.cc", "bytes > size - offset) return", "bytes > size) return",
     "device/memory_test.cc"),
    ("the smallest piece shared", "memory/device_allocator.cc", "if (piece->bytes < piece->device->ShareGranularity())",
     "if (piece->bytes <= piece->device->ShareGranularity())", "device/memory_test.cc"),
    ("a group within a group", "api/submit.cc", "if (--current->depth_ > 0) return Status::Ok();",
     "if (--current->depth_ > 1) return Status::Ok();", "api/group_test.cc"),
    ("a root beyond the ranks", "api/collectives.cc", "call.root >= call.nranks)", "call.root > call.nranks)", "api/errors_test.cc"),
    ("vectors that touch", "api/collectives.cc", "if (buffer.begin < before.end) {", "if (buffer.begin <= before.end) {",
     "api/fused_test.cc"),
    ("a process that forked", "api/handles.cc", "if (comm_->fork_generation != ForkGeneration()) return OfParent();\n", "\n",
     "api/lifecycle_test.cc"),
    ("as many options as allowed", "ext/nccl/collectives.cc", "if (++count > kMostOptions) {", "if (++count >= kMostOptions) {",
     "nccl/call_config_test.cc"),
    ("options of others", "ext/nccl/collectives.cc", "    if (option->key.vendor_id != INCCL_NCCL_VENDOR_ID) continue;\n", "",
     "nccl/call_config_test.cc"),
    ("a short configuration", "ext/nccl/collectives.cc", "if (given->size < kLeast) {", "if (given->size <= kLeast) {",
     "nccl/call_config_test.cc"),
]

# Name, file below src, old text (there exactly once), new text, why no test can see it (None: one must).
FORMAT_EDITS = [
    # Cheap to build first.
    ("level", PLAN, "19,  22,  23,", "19,  21,  23,", None),
    ("largest level", PLAN, "3071, 4095};", "3071, 4094};", None),
    ("share of the agreement", PLAN, "kAgreement8 = 2,", "kAgreement8 = 1,", None),
    ("share of own words", PLAN, "kOwnWords8 = 1;", "kOwnWords8 = 0;", None),
    ("error of a sum", PLAN, "(int64_t{1} << 36) / (int64_t{k} * k)", "(int64_t{1} << 35) / (int64_t{k} * k)", None),
    ("error of a result", PLAN, "group == 0 ? 39 : 40", "group == 0 ? 38 : 40", None),
    ("error of groups", PLAN, "group == 0 ? 39 : 40", "group == 0 ? 39 : 39", None),
    ("steps of a result", PLAN, "2 * int64_t{k2} + 1;", "2 * int64_t{k2};", None),
    ("error of dropping", PLAN, "6 * (int64_t{1} << 36) / 5", "7 * (int64_t{1} << 36) / 5", None),
    ("root of a threshold", PLAN, "1.3195079107728942", "1.33", None),
    ("price of a threshold", PLAN, "36 - std::bit_width", "35 - std::bit_width", None),
    ("points on the hull's line", PLAN, ">= (c.error - a.error)", "> (c.error - a.error)", None),
    ("equal errors", PLAN, "choice.error >= hull.back().error", "choice.error > hull.back().error",
     "no two choices that meet on a hull have equal errors: all collectives, ref, unbiased, m, n up to 129 and some beyond"),
    ("after a dropped one", PLAN, "more.size() - LowerHull(more).size()", "more.size() - 1 - LowerHull(more).size()",
     None),
    ("hops with words", PLAN, "(n % m > 1 ? 1 : 0)", "(n % m > 0 ? 1 : 0)", None),
    ("energy one below", PLAN, "65536, 49667,", "65536, 49668,", None),
    ("energy seven below", PLAN, "12417, 9410}", "12417, 9411}", None),
    ("energy step one", PLAN, "{456419,", "{459300,", None),
    ("energy step nine", PLAN, "172951, 150562}", "172951, 150600}", None),
    ("energy step nine by one", PLAN, "172951, 150562}", "172951, 150563}",
     "no sum of the energies of eight blocks is 150562: the next ones are 150522 and 150589"),
    ("clamped step", PLAN, "std::min(magnitude / levels, double{FLT_MAX})", "(magnitude / levels)", None),
    ("scale of own codes", "compress/hbi/format.h", "levels / (levels + 1)", "levels / (levels + 2)", None),
    ("step of an average", PLAN, "static_cast<float>(std::min(magnitude / summed, double{FLT_MAX}))",
     "table->step[code] / static_cast<float>(nranks)", None),
    ("factor", PLAN, "static_cast<float>(k * 65536.0 / magnitude)",
     "static_cast<float>(65536.0 / magnitude) * static_cast<float>(k)", None),
    ("budget met exactly", PLAN, "Cost(rule, energies, middle) <= budget", "Cost(rule, energies, middle) < budget", None),
    ("leftover spent exactly", PLAN, "if (more8 > left8) break;", "if (more8 >= left8) break;", None),
    ("leftover of two steps", PLAN, "left8 -= more8;", "left8 -= more8;\n      break;", None),
    ("leftover in order", PLAN, "by_exponent[exponent + 1]", "by_exponent[exponent]", None),
    ("hashes of a superblock", SCALAR, "args->counter += kSuperblock / 2", "args->counter += kSuperblock / 4", None),
    ("order of a pair", SCALAR, "tile[at] + base * tile[at + kBlock]", "base * tile[at] + tile[at + kBlock]", None),
    ("blocks of a pair", SCALAR, "return pair / kBlock * 2 * kBlock + pair % kBlock", "return pair / kBlock * kBlock + pair",
     None),
    ("scale of a rotation", SCALAR, "1.0f / 16;", "1.0f / 8;", None),
    ("offset of j below 16", FORMAT, "j < 16 ? hash : hash >> 16", "j < 17 ? hash : hash >> 16", None),
    ("middle of an n-th", FORMAT, "offsets.inverse >> 16;", "offsets.inverse >> 15;", None),
    ("clamp", FORMAT, "if (v > limit) v = limit;", "", None),
    ("least bits", CONFIG, "kMinBits8 = 4,", "kMinBits8 = 5,", None),
    ("range of delta", PLAN_H, "kMaxDelta = 1400", "kMaxDelta = 350", None),
    ("scale of even levels", PLAN_H, "kEvenScale = 8", "kEvenScale = 7", None),
    ("depth of even levels", PLAN_H, "kEvenDepth = 40", "kEvenDepth = 41", None),
    ("even levels where they fit", PLAN, "even_.steps.front().cost * live > Budget(superblocks)",
     "even_.steps.front().cost * live >= Budget(superblocks)", None),
    ("least even choice", PLAN, "thresholds[over] - 1 - kEvenDepth", "thresholds[over] - 1", None),
    ("most below the top", WORDS, "kMostBelow = 7,", "kMostBelow = 6,", None),
    ("most below the top of an outer word", WORDS, "kMostBelowOuter = 3;", "kMostBelowOuter = 2;", None),
    ("lowest code", WORDS, "top < first + most", "top < most", None),
    ("lowest middle code", WORDS, "kMiddleFirst = 321", "kMiddleFirst = 320", None),
    ("last top", WORDS, "top > kLastCode || WordOfTop", "top > kLastCode + 1 || WordOfTop", None),
    ("codes below the least", WORDS, "farthest <= top - least", "farthest <= top", None),
    ("middle tops in outer words", WORDS, "WordOfTop(top) % 256 != word % 256", "false", None),
    ("a block at the top", WORDS, "nearest == 0 &&", "", None),
    ("a block at the top of many words", WORDS, "& kOnes) == kOnes}", "& kOnes) == 0}", None),
    ("differences without levels", WORDS, "return word >> 8 == 0;", "return true;", None),
    ("longest code", ENTROPY_H, "kCodeBits = 11", "kCodeBits = 10", None),
    ("superblocks of a run", ENTROPY_H, "kRunSuperblocks = 8", "kRunSuperblocks = 4", None),
    ("a probability", ENTROPY, "466541", "467541", None),
    ("a deviation", ENTROPY, "3526975", "3536975", None),
    ("weight of the rarest", ENTROPY, "- 1) + 16)", "- 1) + 15)", None),
    ("raw bits", ENTROPY, "bits > 4 ? bits - 4 : 0", "bits > 3 ? bits - 3 : 0", None),
    ("shape of sums", ENTROPY, "std::min(5u, 1 + bits)", "std::min(6u, 1 + bits)", None),
    ("shape of results", ENTROPY, "std::min(k - 1, 2u)", "std::min(k, 2u)", None),
    ("cost of heads", ENTROPY, "64 * RawBits(k) + 1;", "64 * RawBits(k) + 2;", None),
    ("mantissa 1", FORMAT, "0x3f93088c", "0x3f93088d", None),
    ("mantissa 4", FORMAT, "0x3fdedc67", "0x3fdedc66", None),
    ("first code", FORMAT, "kFirstFifth = -500", "kFirstFifth = -499", None),
    ("code of tiny", FORMAT, "fifths <= kFirstFifth ? 1", "fifths <= kFirstFifth ? 2", None),
    ("base 11", FORMAT, "0xb55a2d160b05", "0xb55a2d160a05", None),
    ("base 181", FORMAT, "0xb55a2d160b05", "0xb45a2d160b05", None),
    ("inverse of a base", FORMAT, "46604", "46603", None),
    ("multiplier of lowbias32", FORMAT, "0x846ca68b", "0x846ca68d", None),
    ("shift of lowbias32", FORMAT, "x ^= x >> 15;", "x ^= x >> 14;", None),
    ("salt of results", FORMAT, "kResult = 1,", "kResult = 4,", None),
    ("salt of signs", FORMAT, "kSigns = 2,", "kSigns = 4,", None),
    ("salt of groups", FORMAT, "kGroups = 3 }", "kGroups = 4 }", None),
    ("high bits of a block", FORMAT, "(block >> 28)", "(block >> 29)", None),
    ("place of a salt", FORMAT, "(static_cast<uint64_t>(salt) << 32)", "(static_cast<uint64_t>(salt) << 33)", None),
    ("shift of a rank", FORMAT, "(uint64_t{65536} * static_cast<uint32_t>(rank))",
     "(uint64_t{65535} * static_cast<uint32_t>(rank))", None),
    ("n-ths", FORMAT, "static_cast<uint16_t>(65536 / n)", "static_cast<uint16_t>(65535 / n)", None),
    ("half an n-th", FORMAT, "shift + 32768 / n", "shift + 32767 / n", None),
    ("nearest", FORMAT, "kRoundHalfUp = 0x8000", "kRoundHalfUp = 0x7fff", None),
    ("limit of 2 n K", FORMAT, "kFieldLimit = 65536", "kFieldLimit = 32768", None),
    ("largest k", FORMAT, "kMaxLevels = 4095", "kMaxLevels = 4094", None),
    ("version", FORMAT, "kFormatVersion = 3", "kFormatVersion = 4", None),
    ("multiplier of mix64", RNG, "0xBF58476D1CE4E5B9u", "0xBF58476D1CE4E5BBu", None),
    ("shift of mix64", RNG, "(z >> 27)", "(z >> 26)", None),
]

# What an edit reaches of the codec and its tests; all other objects are as built before.
TOUCHED = re.compile(r"/(src/compress/hbi/|src/compress/kernels/hbi_|tests/compress/(hbi_|codec_spec_))")
# The vector kernels are compiled for the least instruction set and AVX2 only: they take as long as all else together.
FEW_TARGETS = "-DHWY_DISABLED_TARGETS=(HWY_AVX3|HWY_AVX3_DL|HWY_SSE4|HWY_SSSE3)"
# Before that: the tests HbiFormat.* of hbi_kernels_test.cc, which need little of what a header touches and run no vectors.
FEW_OBJECTS = re.compile(r"/hbi/(format|hull|plan)\.cc$|/hbi_scalar\.cc$|/hbi_kernels_test\.cc$")


class Tree:
    """A copy of the source tree, built once without edits."""

    def __init__(self, folder, jobs, edits, programs):
        self.root, self.jobs = folder / "tree", jobs
        self.build, self.out = self.root / "build/release", folder / "out"
        files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                               capture_output=True, text=True).stdout.split("\0")
        for name in filter(lambda name: name and (ROOT / name).is_file(), files):
            if not (self.root / name).is_file() or not filecmp.cmp(ROOT / name, self.root / name, shallow=False):
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.root / name)
                shutil.copymode(ROOT / name, self.root / name)
        self.env = dict(os.environ, INCCL_CONF_FILE="/dev/null")
        self.env.setdefault("INCCL_TEST_SEED", "1")
        self.edits = edits
        options = ["-DINCCL_CUDA=OFF", "-DINCCL_BUILD_PERF=OFF", "-DINCCL_BUILD_TOOLS=OFF", "-DCMAKE_UNITY_BUILD=OFF"]
        self._must(["cmake", "--preset", "release", *options], self.root)
        self._must(self._make(programs), self.root)

    def _make(self, programs):
        return ["cmake", "--build", self.build, "-j", str(self.jobs), "--target", *programs]

    def try_edit(self, edit):
        """None if all tests pass with the edit, else what noticed it."""
        source = self.root / "src" / edit[1]
        text = source.read_text()
        source.write_text(text.replace(edit[2], edit[3]))
        try:
            return self.run(edit)
        finally:
            source.write_text(text)

    def _fails(self, program, arguments):
        """Whether the test program does, and how."""
        try:
            status = subprocess.run([program, *arguments], cwd=self.build, env=self.env, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL, timeout=TIME_LIMIT).returncode
        except subprocess.TimeoutExpired:
            return ", which hangs"
        return "" if status != 0 else None

    def _must(self, command, where):
        done = subprocess.run(command, cwd=where, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(done.stdout[-4000:] + f"\nmutate_sources.py: {command[0]} failed")
        return done.stdout


class SourceTree(Tree):
    """Each edit is built with the program of the test that must notice it."""

    def __init__(self, folder, jobs, edits):
        super().__init__(folder, jobs, edits, sorted({self._program(edit[4]) for edit in edits}))

    @staticmethod
    def _program(test):
        return PROGRAMS.get(test, test.split("/")[0]) + "_tests"

    def run(self, edit=None):
        tests = [edit[4]] if edit else sorted({edit[4] for edit in self.edits})
        if edit and subprocess.run(self._make([self._program(edit[4])]), cwd=self.root, env=self.env,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            return "the compiler"
        for test in tests:
            how = self._fails(self.build / "tests" / self._program(test), ["--source=" + test.split("/")[1]])
            if how is not None:
                return test + how
        return None


class FormatTree(Tree):
    """Compiles of each edit what matters to the tests of the codec, faster than a build would."""

    def __init__(self, folder, jobs, edits):
        super().__init__(folder, jobs, edits, ["compress_tests", "compress_counting_tests"])
        self._read()

    def _read(self):
        """What depends on what, and how it is compiled and linked."""
        self.depends, current = {}, None
        for line in self._must(["ninja", "-t", "deps"], self.build).splitlines():
            if line and not line.startswith(" "):
                current = line.split(":")[0]
            elif line.strip() and current:
                path = os.path.normpath(os.path.join(self.build, line.strip()))
                self.depends.setdefault(path, set()).add(current)
        self.compile = {}
        for entry in json.load(open(self.build / "compile_commands.json")):
            arguments = shlex.split(entry["command"])
            if os.path.basename(arguments[0]) == "ccache":
                del arguments[0]
            self.compile[arguments[arguments.index("-o") + 1]] = (arguments, entry["file"])
        programs = ["tests/compress_tests", "tests/compress_counting_tests"]
        links = [shlex.split(self._must(["ninja", "-t", "commands", p], self.build).splitlines()[-1]) for p in programs]
        self.link = [a for a in links[0][2:-2] if not (a.endswith(".o") and "/compress_tests.dir/" in a)]
        self.tests = [a for link in links for a in link if re.search(r"/compress\w*_tests\.dir/(hbi_|codec_spec_)\w*\.cc\.o$", a)]

    def run(self, edit=None):
        source = edit and os.path.normpath(self.root / "src" / edit[1])
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        touched = [o for o in self.depends.get(source, ()) if o in self.compile and TOUCHED.search(self.compile[o][1])]
        if source and not touched:
            sys.exit(f"mutate_sources.py: nothing depends on {source}")
        # The one that takes longest begins.
        touched.sort(key=lambda o: "hbi_kernels.cc" not in o)
        objects = {o: str(self.out / f"{i}.o") for i, o in enumerate(touched)}
        few = [o for o in touched if FEW_OBJECTS.search(self.compile[o][1])]
        noticed = None
        if any("hbi_kernels.cc" in o for o in touched):
            noticed = self._stage(few, {o: objects[o] for o in few}, [o for o in self.tests if "hbi_kernels_test" in o],
                                  [["--gtest_filter=HbiFormat.*"]])
        else:
            few = []
        return noticed or self._stage([o for o in touched if o not in few], objects, self.tests,
                                      [[f"--source={test}_test.cc"] for test in TESTS])

    def _stage(self, to_compile, objects, tests, runs):
        """Compiles, links these tests with all of `objects`, runs them."""
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            if not all(pool.map(lambda o: self._compile(o, objects[o]), to_compile)):
                return "the compiler"
        program = self.out / "tests"
        link = list(self.link)
        link[link.index("-o") + 1] = str(program)
        # Before the archives, so that they take the place of what is in there.
        link[link.index("-o"):link.index("-o")] = [objects.get(o, o) for o in tests] + [
            path for o, path in objects.items() if o not in self.tests]
        self._must(link, self.build)
        for arguments in runs:
            what = arguments[0].split("=")[1].removesuffix(".cc")
            how = self._fails(program, arguments)
            if how is not None:
                return what + how
        return None

    def _compile(self, name, out):
        arguments, source = self.compile[name]
        arguments = list(arguments)
        arguments[arguments.index("-o") + 1] = out
        if source.endswith("/hbi_kernels.cc"):
            arguments.append(FEW_TARGETS)
        if "-include" not in arguments:  # a precompiled header has its own level
            arguments = ["-O1" if a == "-O3" else a for a in arguments]
        return subprocess.run(arguments, cwd=self.build, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-j", type=int, default=os.cpu_count(), metavar="JOBS", help="parallel compilations")
    parser.add_argument("--format", action="store_true", help="edits of the format of the codec hbi")
    parser.add_argument("--dir", metavar="DIR", help="keep the copy and its build in DIR, for the next run")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without an edit first")
    parser.add_argument("--list", action="store_true", help="print the edits only")
    parser.add_argument("--only", metavar="NAME,...", help="these edits only")
    parser.add_argument("--from", dest="start", metavar="NAME", help="begin with this edit")
    parser.add_argument("--sample", type=int, metavar="N", help="N of the edits, drawn with the seed INCCL_TEST_SEED")
    options = parser.parse_args()
    everything = FORMAT_EDITS if options.format else SOURCE_EDITS
    edits, names = everything, [edit[0] for edit in everything]
    if len(set(names)) != len(names):
        sys.exit("mutate_sources.py: two edits of one name")
    if options.start:
        edits = edits[names.index(options.start):]
    if options.only:
        wanted = [name.strip() for name in options.only.split(",")]
        if set(wanted) - set(names):
            parser.error(f"unknown: {', '.join(set(wanted) - set(names))}")
        edits = sorted((edit for edit in edits if edit[0] in wanted), key=lambda edit: wanted.index(edit[0]))
    if options.sample:
        seed = int(os.environ.get("INCCL_TEST_SEED") or random.SystemRandom().getrandbits(32))
        print(f"INCCL_TEST_SEED={seed}")
        edits = random.Random(seed).sample(edits, min(options.sample, len(edits)))
    for name, path, old, _, _ in SOURCE_EDITS + FORMAT_EDITS:
        if (times := (ROOT / "src" / path).read_text().count(old)) != 1:
            print(f"{name}: src/{path} has {times} times: {old}", file=sys.stderr)
            return 2
    if options.list:
        for name, path, old, new, last in edits:
            note = f" ({last})" if not options.format else f" (equivalent: {last})" if last else ""
            print(f"{name}: src/{path}: {old} -> {new}{note}")
        return 0
    wrong = caught = 0
    with contextlib.nullcontext(options.dir) if options.dir else tempfile.TemporaryDirectory(prefix="inccl-mutants-") as folder:
        tree = (FormatTree if options.format else SourceTree)(pathlib.Path(folder).resolve(), options.j, edits)
        if not options.no_baseline and (noticed := tree.run()):
            sys.exit(f"mutate_sources.py: without an edit {noticed} fails")
        for edit in edits:
            begin = time.monotonic()
            noticed, equivalent = tree.try_edit(edit), edit[4] if options.format else None
            caught += noticed is not None
            wrong += (noticed is None) != (equivalent is not None) or (noticed == "the compiler" and not options.format)
            result = f"caught by {noticed}" if noticed else f"equivalent: {equivalent}" if equivalent else "SURVIVES"
            print(f"{edit[0]:<28} {result}{' (listed as equivalent)' if noticed and equivalent else ''}, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)
    print(f"{len(edits)} edits, {caught} caught, {wrong} not as listed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
