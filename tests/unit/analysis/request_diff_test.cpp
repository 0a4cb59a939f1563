#include "client/analysis/requests/request_diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "client/analysis/requests/request_report.h"
#include "tests/support/analysis/memory_source.h"

namespace cgdebug::analysis::requests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing_support::MemorySource;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> Bytes(const auto& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(values[0]));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// The values of a token in layer n, of four elements.
std::vector<float> Values(const Token& token, int layer) {
  const auto base = static_cast<float>(100 * token.request + token.position + 1);
  const auto n = static_cast<float>(layer + 1);
  return {base * n, base + n, base - n, n};
}

// Three layers of a model, whose calls have these many rows.
class Model {
 public:
  explicit Model(std::uint64_t rows) : rows_(rows) {
    table_ = source.AddSlot("rows", {rows, 2}, layout::Dtype::kInt64);
    for (int layer = 0; layer < 3; ++layer) {
      layers_.push_back(source.AddSlot("fwd/" + std::to_string(layer), {rows, 4}));
    }
  }
  void Call(std::uint64_t replay, std::vector<Token> tokens) {
    tokens.resize(rows_, Token{-1, 0});
    std::vector<std::int64_t> table;
    for (const Token& token : tokens) {
      table.insert(table.end(), {token.request, token.position});
    }
    source.AddBytes(table_, replay, Bytes(table));
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      std::vector<float> values;
      for (const Token& token : tokens) {
        const std::vector<float> row = Values(token, static_cast<int>(layer));
        values.insert(values.end(), row.begin(), row.end());
      }
      calls_[{layer, replay}] = values;
      source.Add(layers_[layer], replay, values);
    }
  }
  // The source keeps nothing of the call any more.
  void LetGo(std::uint64_t replay) {
    for (std::size_t slot = 0; slot <= layers_.size(); ++slot) {
      source.Remove(slot, replay);
      source.gaps.push_back(
          {.slot = slot, .count = 1, .cause = std::string(ToText(layout::LossCause::kNotKept))});
    }
  }
  // What was removed is there.
  void Restore(std::size_t layer, std::uint64_t replay) {
    source.Add(layers_[layer], replay, calls_.at({layer, replay}));
  }
  // Changes an element of a row.
  void Change(std::size_t layer, std::uint64_t replay, std::size_t row, float factor) {
    std::vector<float>& values = calls_.at({layer, replay});
    values[row * 4 + 1] *= factor;
    source.Change(layers_[layer], replay, values);
  }

  MemorySource source;

 private:
  std::uint64_t rows_;
  std::size_t table_ = 0;
  std::vector<std::size_t> layers_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::vector<float>> calls_;
};

// Two requests of three tokens, one row at a time.
Model Alone() {
  Model model(1);
  std::uint64_t replay = 0;
  for (std::int64_t request : {1, 2}) {
    for (std::int64_t position : {0, 1, 2}) model.Call(++replay, {{request, position}});
  }
  return model;
}

// The same in buckets of four rows, of which one or two are padding.
Model Batched() {
  Model model(4);
  model.Call(1, {{2, 0}, {1, 0}, {1, 1}});
  model.Call(2, {{1, 2}, {2, 1}});
  model.Call(3, {{2, 2}});
  return model;
}

RequestDiff CompareAll(Model& a, Model& b) {
  Result<RequestDiff> diff = CompareRequests(a.source, b.source, {});
  EXPECT_TRUE(diff.ok()) << diff.error().message;
  return *std::move(diff);
}

std::string TextOf(const RequestDiff& diff) { return RequestAnswer(diff).Text(); }

TEST(RequestDiff, FindsATokenInWhateverRowOfWhateverBucketItIs) {
  Model a = Alone(), b = Batched();
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kNothing);
  EXPECT_EQ(diff.tokens, 6);
  EXPECT_EQ(diff.compared, 18);
  EXPECT_EQ(diff.equal, 18);
  EXPECT_EQ(TextOf(diff), "same: 6 tokens of 2 requests in 3 probes, bit for bit");
}

TEST(RequestDiff, ACallWhoseRowsWereToldAndInWhichNothingWasSeenTakesNoTokens) {
  Model a = Alone(), b = Batched();
  const std::size_t told = b.source.AddSlot("rows", {2, 2}, layout::Dtype::kInt64);
  b.source.Slots()[told].graph_id = 7;
  b.source.AddBytes(told, 1, Bytes(std::vector<std::int64_t>{1, 0, 2, 0}));
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kNothing) << TextOf(diff);
  EXPECT_EQ(diff.compared, 18);
}

// The three layers of a model, whose calls have these many rows: each in a graph of its own, which
// tells the rows as well, and the last outside of graphs.
class Pieces {
 public:
  explicit Pieces(std::uint64_t rows) : rows_(rows) {
    for (std::uint64_t graph : {1, 2, 0}) {
      pieces_.push_back({source.AddSlot("rows", {rows, 2}, layout::Dtype::kInt64),
                         source.AddSlot("fwd/" + std::to_string(pieces_.size()), {rows, 4})});
      for (const std::size_t slot : {pieces_.back().table, pieces_.back().layer}) {
        source.Slots()[slot].graph_id = graph;
      }
    }
  }
  void Call(std::uint64_t replay, std::vector<Token> tokens) {
    for (std::size_t n = 0; n < pieces_.size(); ++n) Piece(n, replay, tokens);
  }
  // error: of the second element of each row.
  void Piece(std::size_t n, std::uint64_t replay, std::vector<Token> tokens, float error = 0) {
    tokens.resize(rows_, Token{-1, 0});
    std::vector<std::int64_t> table;
    std::vector<float> values;
    for (const Token& token : tokens) {
      table.insert(table.end(), {token.request, token.position});
      std::vector<float> row = Values(token, static_cast<int>(n));
      row[1] *= 1 + error;
      values.insert(values.end(), row.begin(), row.end());
    }
    source.AddBytes(pieces_[n].table, replay, Bytes(table));
    source.Add(pieces_[n].layer, replay, values);
  }

  MemorySource source;

 private:
  struct Slots {
    std::size_t table = 0;
    std::size_t layer = 0;
  };
  std::uint64_t rows_;
  std::vector<Slots> pieces_;
};

TEST(RequestDiff, PiecesOfACallAreComparedAsOne) {
  Model whole = Batched();
  Pieces pieces(4);
  pieces.Call(1, {{2, 0}, {1, 0}, {1, 1}});
  pieces.Call(2, {{1, 2}, {2, 1}});
  pieces.Call(3, {{2, 2}});
  const Result<RequestDiff> diff = CompareRequests(whole.source, pieces.source, {});
  EXPECT_EQ(diff->outcome(), Outcome::kNothing) << TextOf(*diff);
  EXPECT_EQ(diff->tokens, 6);
  EXPECT_EQ(diff->compared, 18);
}

TEST(RequestDiff, AnErrorOfAnEarlierPieceIsNoGrowthInALaterOne) {
  Pieces a(1), b(1);
  a.Call(1, {{1, 0}});
  for (std::size_t n = 0; n < 3; ++n) {
    b.Piece(n, 1, {{1, 0}}, 0.002f * static_cast<float>(n + 1));
  }
  const Result<RequestDiff> diff = CompareRequests(a.source, b.source, {});
  EXPECT_EQ(diff->grown, 1);
  EXPECT_EQ(diff->first->a.slot->probe, "fwd/0");
}

TEST(RequestDiff, PiecesThatAreComputedAgainAreAnotherCall) {
  Pieces a(1), b(1);
  for (Pieces* one : {&a, &b}) {
    for (const std::uint64_t replay : {1, 2}) one->Call(replay, {{1, 0}});
  }
  b.Piece(2, 3, {{1, 1}});
  a.Piece(2, 3, {{1, 1}}, 0.5f);
  const Result<RequestDiff> diff = CompareRequests(a.source, b.source, {});
  EXPECT_EQ(diff->tokens, 3);
  EXPECT_EQ(diff->compared, 7);
  EXPECT_EQ(diff->equal, 6);
  EXPECT_EQ(diff->first->a.key.replay, 3);
}

TEST(RequestDiff, APieceThatComesInALaterLookIsOfItsCall) {
  Pieces a(1), b(1);
  const std::unique_ptr<RequestComparison> comparison = MakeRequestComparison({});
  for (std::size_t n = 0; n < 3; ++n) {
    for (Pieces* one : {&a, &b}) one->Piece(n, 1, {{1, 0}});
    EXPECT_TRUE(comparison->Look(a.source, b.source, /*is_last=*/n == 2).ok());
  }
  const RequestDiff diff = comparison->Answer();
  EXPECT_EQ(diff.outcome(), Outcome::kNothing) << TextOf(diff);
  EXPECT_EQ(diff.tokens, 1);
  EXPECT_EQ(diff.compared, 3);
}

// Each snapshot is one of several in its call: that of number 100 * call + iteration.
class IteratedSource : public MemorySource {
 public:
  Result<std::vector<source::Key>> Keys(std::size_t slot) override {
    std::vector<source::Key> keys = *MemorySource::Keys(slot);
    for (source::Key& key : keys) {
      key = {key.id / 100, key.id, static_cast<std::uint32_t>(key.id % 100)};
    }
    return keys;
  }
  Result<source::Snapshot> Get(std::size_t slot, const source::Key& key) override {
    Result<source::Snapshot> snapshot = MemorySource::Get(slot, {key.id, key.id});
    snapshot->key = key;
    return snapshot;
  }
  Result<source::Values> Load(const source::Snapshot& snapshot) override {
    source::Snapshot stored = snapshot;
    stored.key.replay = snapshot.key.id;
    return MemorySource::Load(stored);
  }
};

// Three layers that call one module, which has the values of layers 5, 6 and 7. graphs: of each.
void AddCallsOfOneModule(MemorySource* source, const std::vector<std::uint64_t>& graphs,
                         float error_of_last = 0) {
  const Token token{1, 0};
  const bool is_eager = graphs.front() == 0;
  std::size_t shared = 0;
  for (std::size_t n = 0; n < graphs.size(); ++n) {
    const auto graph_of = [&](const std::size_t slot) {
      source->Slots()[slot].graph_id = graphs[n];
      return slot;
    };
    if (n == 0 || !is_eager) {
      const std::size_t table = graph_of(source->AddSlot("rows", {1, 2}, layout::Dtype::kInt64));
      source->AddBytes(table, 100, Bytes(std::vector<std::int64_t>{token.request, token.position}));
    }
    std::vector<float> values = Values(token, 5 + static_cast<int>(n));
    if (n + 1 == graphs.size()) values[1] *= 1 + error_of_last;
    if (n == 0 || !is_eager) shared = graph_of(source->AddSlot("fwd/shared", {1, 4}));
    source->Add(shared, is_eager ? 100 + n : 100, values);
    const std::size_t layer = graph_of(source->AddSlot("fwd/" + std::to_string(n), {1, 4}));
    source->Add(layer, 100, Values(token, static_cast<int>(n)));
  }
}

TEST(RequestDiff, AModuleThatEachPieceCallsIsComparedCallByCall) {
  IteratedSource eager, pieces, faulty;
  AddCallsOfOneModule(&eager, {0, 0, 0});
  AddCallsOfOneModule(&pieces, {1, 2, 3});
  AddCallsOfOneModule(&faulty, {1, 2, 3}, 0.5f);
  const Result<RequestDiff> same = CompareRequests(eager, pieces, {});
  EXPECT_EQ(same->outcome(), Outcome::kNothing) << TextOf(*same);
  EXPECT_EQ(same->tokens, 1);
  EXPECT_EQ(same->equal, 6);
  const Result<RequestDiff> grown = CompareRequests(eager, faulty, {});
  EXPECT_EQ(grown->grown, 1);
  EXPECT_EQ(grown->first->a.slot->probe, "fwd/shared");
  EXPECT_EQ(grown->first->a.key.iteration, 2);
  EXPECT_EQ(grown->first->b.slot->graph_id, 3);
}

TEST(RequestDiff, TensorsOfTwoShapesThatOneModuleMakesInACallAreBothThere) {
  IteratedSource a, b;
  for (MemorySource* source : {&a, &b}) {
    AddCallsOfOneModule(source, {0});
    const std::size_t other = source->AddSlot("fwd/shared", {5, 4});
    source->Slots()[other].graph_id = 0;
    source->Add(other, 100, std::vector<float>(20));
  }
  const Result<RequestDiff> diff = CompareRequests(a, b, {});
  EXPECT_EQ(diff->compared, 3);
}

// A module that computes these tokens of the call alone. error: of the second element of each row.
void AddHead(Model* model, std::uint64_t replay, const std::vector<Token>& tokens,
             float error = 0) {
  std::vector<std::int64_t> table;
  std::vector<float> values;
  for (const Token& token : tokens) {
    table.insert(table.end(), {token.request, token.position});
    std::vector<float> row = Values(token, 3);
    row[1] *= 1 + error;
    values.insert(values.end(), row.begin(), row.end());
  }
  MemorySource& source = model->source;
  source.AddBytes(source.AddSlot("rows/head", {tokens.size(), 2}, layout::Dtype::kInt64), replay,
                  Bytes(table));
  source.Add(source.AddSlot("fwd/head/0", {tokens.size(), 4}), replay, values);
}

// Of each call in Alone() but the first, and the last token of each request in those of Batched().
void AddHeads(Model* alone, Model* batched, float error = 0) {
  for (std::uint64_t replay = 2; replay <= 6; ++replay) {
    const auto n = static_cast<std::int64_t>(replay) - 1;
    AddHead(alone, replay, {{1 + n / 3, n % 3}});
  }
  AddHead(batched, 1, {{2, 0}, {1, 1}}, error);
  AddHead(batched, 2, {{1, 2}, {2, 1}}, error);
  AddHead(batched, 3, {{2, 2}}, error);
}

TEST(RequestDiff, AModuleWithRowsOfItsOwnIsComparedByThem) {
  Model alone = Alone(), batched = Batched();
  AddHeads(&alone, &batched);
  const RequestDiff diff = CompareAll(alone, batched);
  EXPECT_EQ(diff.outcome(), Outcome::kNothing) << TextOf(diff);
  EXPECT_EQ(diff.equal, 18 + 5);
}

TEST(RequestDiff, TheErrorOfARowGrowsInTheRowThatAModuleHasOfIt) {
  Model alone = Alone(), batched = Batched();
  AddHeads(&alone, &batched, 0.5f);
  batched.Change(2, 1, 2, 1.5f);  // of request 1, position 1, in the layer before
  const RequestDiff diff = CompareAll(alone, batched);
  EXPECT_EQ(diff.grown, 5) << "once for each token";
  EXPECT_EQ(diff.first->a.slot->probe, "fwd/2");
  EXPECT_EQ(diff.unequal->row_b, 2);
}

TEST(RequestDiff, ARowThatOneSideLacksInAModuleMakesItInconclusive) {
  Model alone = Alone(), batched = Batched();
  AddHeads(&alone, &batched);
  AddHead(&alone, 1, {{1, 0}});
  const RequestDiff diff = CompareAll(alone, batched);
  EXPECT_EQ(diff.outcome(), Outcome::kInconclusive);
  EXPECT_THAT(diff.missing, ElementsAre(HasSubstr("only one side has it of some row")));
}

TEST(RequestDiff, SwappedRequestsGrow) {
  Model a = Alone(), b(4);
  b.Call(1, {{1, 0}, {2, 0}, {1, 1}});  // as Batched(), but for the order of the first two
  b.Call(2, {{1, 2}, {2, 1}});
  b.Call(3, {{2, 2}});
  const std::vector<std::int64_t> table = {2, 0, 1, 0, 1, 1, -1, 0};
  b.source.AddBytes(0, 1, Bytes(table));
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kFound);
  EXPECT_EQ(diff.probes[diff.first->probe].name, "fwd/0");
}

TEST(RequestDiff, RoundingIsNoGrowth) {
  Model a = Alone(), b = Batched();
  b.Change(1, 1, 2, 1 + 1e-6f);
  b.Change(2, 1, 2, 1 + 3e-6f);
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kNothing);
  EXPECT_EQ(diff.compared - diff.equal, 2);
  const std::string text = TextOf(diff);
  EXPECT_THAT(text, StartsWith("no growth of the error: 6 tokens of 2 requests in 3 probes; 16 of "
                               "18 rows are equal bit for bit"));
  EXPECT_THAT(text, HasSubstr("the first that are not equal: fwd/1, request 1 position 1"));
  EXPECT_THAT(text, HasSubstr("the largest: fwd/2"));
  EXPECT_THAT(text, HasSubstr("cannot be told from rounding"));
  EXPECT_EQ(RequestJson(diff)["verdict"], "no_growth");
}

TEST(RequestDiff, NamesTheFirstProbeInWhichTheErrorGrows) {
  Model a = Alone(), b = Batched();
  b.Change(0, 2, 1, 1 + 1e-6f);
  b.Change(1, 2, 1, 1.1f);
  b.Change(2, 2, 1, 1.2f);
  b.Change(2, 3, 0, 1.2f);
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kFound);
  EXPECT_EQ(diff.grown, 2);
  const std::string text = TextOf(diff);
  EXPECT_THAT(text, StartsWith("first growth of the error: fwd/1, request 2 position 1"));
  EXPECT_THAT(text, HasSubstr("A: fwd/1@5 row 0"));
  EXPECT_THAT(text, HasSubstr("B: fwd/1@2 row 1"));
  const Json json = RequestJson(diff);
  EXPECT_EQ(json["verdict"], "growth");
  EXPECT_EQ(json["first"]["b"]["row"], 1);
}

TEST(RequestDiff, AnErrorThatStaysGrowsOnce) {
  Model a = Alone(), b = Batched();
  for (std::size_t layer : {0, 1, 2}) b.Change(layer, 2, 1, 1.1f);
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.grown, 1);
  EXPECT_EQ(diff.probes[diff.first->probe].name, "fwd/0");
}

TEST(RequestDiff, NanOfOneSideIsGrowth) {
  Model a = Alone(), b = Batched();
  b.Change(1, 1, 0, kNan);
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kFound);
  EXPECT_THAT(TextOf(diff), HasSubstr("only one of them is finite"));
  a.Change(1, 4, 0, kNan);  // the same token
  EXPECT_EQ(CompareAll(a, b).outcome(), Outcome::kNothing);
}

TEST(RequestDiff, ATokenThatOneSideLacksMakesItInconclusive) {
  Model a = Alone(), b = Batched();
  b.Call(4, {{3, 0}});
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kInconclusive);
  EXPECT_THAT(diff.missing, ElementsAre("only B has 1 row, the first request 3 position 0"));
}

TEST(RequestDiff, ATokenThatWasComputedTwiceIsComparedInOrder) {
  Model a = Alone(), b = Batched();
  a.Call(7, {{1, 0}});
  b.Call(4, {{1, 0}});
  a.Change(2, 7, 0, 2);
  b.Change(2, 4, 0, 2);
  EXPECT_EQ(CompareAll(a, b).outcome(), Outcome::kNothing);
  b.Change(2, 4, 0, 3);
  EXPECT_EQ(CompareAll(a, b).first->a.key.replay, 7);
}

TEST(RequestDiff, WhatCannotBeComparedMakesItInconclusive) {
  const auto first_missing = [](Model& a, Model& b) {
    const RequestDiff diff = CompareAll(a, b);
    EXPECT_EQ(diff.outcome(), Outcome::kInconclusive);
    EXPECT_THAT(TextOf(diff), StartsWith("inconclusive: "));
    return diff.missing.empty() ? "" : diff.missing.front();
  };
  {
    Model a = Alone(), b = Batched();
    b.source.DropValues(2, 1);
    EXPECT_THAT(first_missing(a, b), HasSubstr("no values were recorded"));
  }
  {
    Model a = Alone(), b = Batched();
    b.source.damaged = {2};
    EXPECT_THAT(first_missing(a, b), HasSubstr("the values are damaged"));
  }
  {
    Model a = Alone(), b = Batched();
    b.source.Remove(3, 2);
    EXPECT_THAT(first_missing(a, b), HasSubstr("B did not see it in the call of these rows"));
  }
  {
    Model a = Alone(), b = Batched();
    const std::size_t other = b.source.AddSlot("fwd/other", {3, 3});
    b.source.Add(other, 1, std::vector<float>(9));
    EXPECT_THAT(first_missing(a, b), HasSubstr("A did not see it in the call of these rows"));
  }
  {
    Model a = Alone(), b = Batched();
    const std::size_t of_a = a.source.AddSlot("fwd/other", {1, 3});
    const std::size_t of_b = b.source.AddSlot("fwd/other", {3, 3});
    a.source.Add(of_a, 1, std::vector<float>(3));
    b.source.Add(of_b, 1, std::vector<float>(9));
    EXPECT_THAT(first_missing(a, b),
                HasSubstr("its first dimensions are not the rows of the call"));
  }
  {
    Model a = Alone(), b = Batched();
    b.source.Slots()[2].part = "rows:0:2 of [4,4]";
    EXPECT_THAT(first_missing(a, b), HasSubstr("only a part was recorded"));
  }
  {
    Model a = Alone(), b = Batched();
    b.source.Remove(0, 3);
    EXPECT_THAT(CompareAll(a, b).missing, testing::Contains("B: nobody told the rows of 1 call"));
  }
  {
    Model a = Alone(), b = Batched();
    b.source.gaps = {{.slot = 2, .count = 3, .cause = "overwritten before they were read"}};
    EXPECT_EQ(CompareAll(a, b).outcome(), Outcome::kInconclusive);
  }
}

// As Model, but of long rows there are sketches alone.
class Sketched {
 public:
  explicit Sketched(std::uint64_t rows) {
    table_ = source.AddSlot("rows", {rows, 2}, layout::Dtype::kInt64);
    for (int layer = 0; layer < 3; ++layer) {
      const std::string name = "fwd/" + std::to_string(layer);
      tensors_.push_back(source.AddSlot(name, {rows, 16}));
      sketches_.push_back(source.AddSlot("sketch/" + name, {rows, 8}, layout::Dtype::kInt32));
    }
  }
  // factor: of all rows of layer 1.
  void Call(std::uint64_t replay, const std::vector<Token>& tokens, float factor = 1) {
    std::vector<std::int64_t> table;
    for (const Token& token : tokens) {
      table.insert(table.end(), {token.request, token.position});
    }
    source.AddBytes(table_, replay, Bytes(table));
    for (std::size_t layer = 0; layer < 3; ++layer) {
      std::vector<float> values, sums;
      for (const Token& token : tokens) {
        std::vector<float> row = Values(token, static_cast<int>(layer));
        for (float& value : row) value *= layer == 1 ? factor : 1;
        for (int i = 0; i < 4; ++i) values.insert(values.end(), row.begin(), row.end());
        for (int i = 0; i < 2; ++i) sums.insert(sums.end(), row.begin(), row.end());
      }
      source.Add(tensors_[layer], replay, values);
      source.DropValues(tensors_[layer], replay);
      source.AddBytes(sketches_[layer], replay, Bytes(sums));
    }
  }

  MemorySource source;

 private:
  std::size_t table_ = 0;
  std::vector<std::size_t> tensors_;
  std::vector<std::size_t> sketches_;
};

RequestDiff CompareAll(Sketched& a, Sketched& b) {
  Result<RequestDiff> diff = CompareRequests(a.source, b.source, {});
  EXPECT_TRUE(diff.ok()) << diff.error().message;
  return *std::move(diff);
}

TEST(RequestDiff, EqualSketchesAreNoEqualBits) {
  Sketched a(1), b(2);
  a.Call(1, {{1, 0}});
  a.Call(2, {{2, 0}});
  b.Call(1, {{2, 0}, {1, 0}});
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kNothing);
  EXPECT_EQ(diff.compared, 6);
  EXPECT_EQ(diff.equal, 0);
  EXPECT_EQ(diff.alike, 6);
  const std::string text = RequestAnswer(diff).Text();
  EXPECT_THAT(text, StartsWith("no growth of the error: 2 tokens of 2 requests in 3 probes; 0 of 6 "
                               "rows are equal bit for bit, 6 have equal sketches"));
  EXPECT_THAT(text, HasSubstr("cannot be told from rounding"));
  EXPECT_EQ(RequestJson(diff)["verdict"], "no_growth");
}

TEST(RequestDiff, TensorsWithTheSameHashesAreEqualWithoutTheirValues) {
  Sketched a(2), b(2);
  a.Call(1, {{2, 0}, {1, 0}});
  b.Call(1, {{2, 0}, {1, 0}});
  EXPECT_EQ(CompareAll(a, b).equal, 6);
  b.source.has_ordered_hash = false;  // the rows may have been swapped
  EXPECT_EQ(CompareAll(a, b).alike, 6);
}

TEST(RequestDiff, SketchesNameTheProbeInWhichTheErrorGrows) {
  Sketched a(1), b(2);
  a.Call(1, {{1, 0}});
  b.Call(1, {{2, 0}, {1, 0}}, 1.25f);
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kFound);
  const std::string text = RequestAnswer(diff).Text();
  EXPECT_THAT(text, StartsWith("first growth of the error: fwd/1, request 1 position 0"));
  EXPECT_THAT(text, HasSubstr("they are about 0.2 of their size apart, by their sketches"));
  EXPECT_EQ(RequestJson(diff)["first"]["probe"], "fwd/1");
}

TEST(RequestDiff, WhatSketchesTellMustGrowByMore) {
  Sketched a(1), b(1);
  const auto factor = static_cast<float>(1 + 9 * 0x1p-20);
  a.Call(1, {{1, 0}});
  b.Call(1, {{1, 0}}, factor);
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kNothing);
  EXPECT_EQ(diff.unequal->is_by_sketch, true);
}

TEST(RequestDiff, SketchesOfAnUnknownTensorAreNotCompared) {
  Sketched a(1), b(1);
  a.Call(1, {{1, 0}});
  b.Call(1, {{1, 0}});
  b.source.Slots()[1].shape = {3, 16};
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kInconclusive);
  EXPECT_THAT(diff.missing, testing::Contains(HasSubstr("it is not told of what it is a sketch")));
}

TEST(RequestDiff, ACallWhoseSketchesAreGoneIsNotCompared) {
  Sketched a(1), b(1);
  for (Sketched* one : {&a, &b}) {
    one->Call(1, {{1, 0}});
    one->Call(2, {{1, 1}});
  }
  for (std::size_t sketch : {2, 4, 6}) b.source.Remove(sketch, 1);
  const RequestDiff diff = CompareAll(a, b);
  EXPECT_EQ(diff.outcome(), Outcome::kInconclusive);
  EXPECT_EQ(diff.compared, 3);
  EXPECT_THAT(diff.missing, ElementsAre("fwd/0@1 and 2 more snapshots: the sketch of this call is "
                                        "not kept any more, or not yet"));
}

TEST(RequestDiff, SketchesOfChosenProbesAloneAreCompared) {
  Sketched a(1), b(1);
  a.Call(1, {{1, 0}});
  b.Call(1, {{1, 0}}, 2);
  const auto outcome = [&](const char* glob) {
    Scope scope;
    scope.probes = *Selector::ParseList(glob);
    return CompareRequests(a.source, b.source, scope)->outcome();
  };
  EXPECT_EQ(outcome("fwd/1"), Outcome::kFound);
  EXPECT_EQ(outcome("fwd/[02]"), Outcome::kNothing);
}

// Two jobs that are looked at while they run.
class Followed : public testing::Test {
 protected:
  void Look(bool is_last = false) {
    const Result<void> looked = comparison_->Look(a_.source, b_.source, is_last);
    EXPECT_TRUE(looked.ok()) << looked.error().message;
  }
  // Both compute the next token of a request.
  void Next() {
    const std::uint64_t call = ++calls_;
    for (Model* one : {&a_, &b_}) one->Call(call, {{1, static_cast<std::int64_t>(call)}});
  }

  Model a_{1}, b_{1};
  const std::unique_ptr<RequestComparison> comparison_ = MakeRequestComparison({});
  std::uint64_t calls_ = 0;
};

TEST_F(Followed, WhatWasComparedBeforeItWasLetGoIsNotMissing) {
  for (std::uint64_t call = 1; call <= 5; ++call) {
    Next();
    Look(/*is_last=*/call == 5);
    if (call == 5) break;
    a_.LetGo(call);
    if (call % 2 == 0) b_.LetGo(call);
  }
  const RequestDiff diff = comparison_->Answer();
  EXPECT_THAT(diff.missing, IsEmpty());
  EXPECT_EQ(diff.outcome(), Outcome::kNothing);
  EXPECT_EQ(diff.tokens, 5);
  EXPECT_EQ(diff.compared, 15);
  EXPECT_EQ(diff.equal, 15);
}

TEST_F(Followed, WhatWasLetGoUnreadIsMissing) {
  Next();
  Look();
  Next();
  for (Model* one : {&a_, &b_}) {
    one->LetGo(1);
    one->LetGo(2);
  }
  Next();
  Look();
  const RequestDiff diff = comparison_->Answer();
  EXPECT_EQ(diff.outcome(), Outcome::kInconclusive);
  EXPECT_EQ(diff.tokens, 2);
  EXPECT_THAT(diff.missing, testing::Contains(HasSubstr("lacks 1 snapshot of")));
  EXPECT_THAT(diff.missing, testing::Contains(HasSubstr("no longer kept")));
}

TEST_F(Followed, WhatTheOtherComputesWhenItIsLetGoIsMissing) {
  Next();
  a_.Call(2, {{1, 2}});
  Look();
  a_.LetGo(2);
  Look();
  b_.Call(2, {{1, 2}});
  Look();
  const RequestDiff diff = comparison_->Answer();
  EXPECT_EQ(diff.outcome(), Outcome::kInconclusive);
  EXPECT_EQ(diff.tokens, 1);
  EXPECT_THAT(diff.missing,
              ElementsAre("only A had 1 row while they were kept, the first request 1 position 2",
                          "only B has 1 row, the first request 1 position 2"));
}

TEST_F(Followed, AFaultOfACallThatIsGoneStays) {
  Next();
  Next();
  b_.Change(1, 2, 0, 1.5f);
  Look();
  for (Model* one : {&a_, &b_}) one->LetGo(2);
  Next();
  Look(/*is_last=*/true);
  const RequestDiff diff = comparison_->Answer();
  EXPECT_EQ(diff.outcome(), Outcome::kFound);
  EXPECT_THAT(TextOf(diff), HasSubstr("A: fwd/1@2 row 0"));
}

TEST_F(Followed, ACallThatIsUnderWayIsComparedToItsEnd) {
  Next();
  b_.Change(1, 1, 0, 1.5f);
  b_.Change(2, 1, 0, 1.5f);
  for (Model* one : {&a_, &b_}) one->source.Remove(2, 1);  // fwd/1 comes last
  Look();
  EXPECT_EQ(comparison_->Answer().first->a.slot->probe, "fwd/2");
  EXPECT_EQ(comparison_->Answer().outcome(), Outcome::kFound);
  for (Model* one : {&a_, &b_}) {
    one->source.Remove(3, 1);  // and is seen when others are gone
    one->Restore(1, 1);
  }
  Look(/*is_last=*/true);
  const RequestDiff diff = comparison_->Answer();
  EXPECT_EQ(diff.first->a.slot->probe, "fwd/1");
  EXPECT_EQ(diff.compared, 3);
  EXPECT_EQ(diff.grown, 1);
  EXPECT_THAT(diff.missing, IsEmpty());
}

TEST(RequestDiff, WithoutRowsItSaysWhatToCall) {
  Model a = Alone();
  MemorySource none = testing_support::TwoLayers(3);
  const Result<RequestDiff> diff = CompareRequests(a.source, none, {});
  ASSERT_FALSE(diff.ok());
  EXPECT_THAT(diff.error().message, HasSubstr("Call cgdebug.rows(requests, positions)"));
}

TEST(RequestDiff, AProbeOfTheUsersThatIsCalledRowsIsRefused) {
  Model a = Alone();
  MemorySource other;
  other.Add(other.AddSlot("rows", {4}), 1, {1, 2, 3, 4});
  const Result<RequestDiff> diff = CompareRequests(a.source, other, {});
  ASSERT_FALSE(diff.ok());
  EXPECT_THAT(diff.error().message, HasSubstr("not i64[rows,2]"));
}

TEST(RequestDiff, DimensionsOfBatchAndTokensAreRowsTogether) {
  Model a = Alone();
  MemorySource b;
  const std::size_t table = b.AddSlot("rows", {6, 2}, layout::Dtype::kInt64);
  const std::vector<std::int64_t> tokens = {1, 0, 1, 1, 1, 2, 2, 0, 2, 1, 2, 2};
  b.AddBytes(table, 1, Bytes(tokens));
  for (int layer = 0; layer < 3; ++layer) {
    std::vector<float> values;
    for (std::size_t i = 0; i < tokens.size(); i += 2) {
      const std::vector<float> row = Values({tokens[i], tokens[i + 1]}, layer);
      values.insert(values.end(), row.begin(), row.end());
    }
    b.Add(b.AddSlot("fwd/" + std::to_string(layer), {2, 3, 4}), 1, values);
  }
  const Result<RequestDiff> diff = CompareRequests(a.source, b, {});
  ASSERT_TRUE(diff.ok());
  EXPECT_EQ(diff->equal, 18);
  EXPECT_THAT(diff->missing, IsEmpty());
}

TEST(RequestDiff, IntegersAreNotRounded) {
  Model a = Alone(), b = Batched();
  const auto ids = [](MemorySource* source, std::uint64_t rows, std::uint64_t replay,
                      const std::vector<std::int64_t>& values) {
    const std::size_t slot = source->AddSlot("in/ids", {rows}, layout::Dtype::kInt64);
    source->Slots()[slot].order = 0;  // before the layers
    source->AddBytes(slot, replay, Bytes(values));
  };
  ids(&a.source, 1, 4, {1000000000});
  ids(&b.source, 4, 1, {1000000001, 5, 6, 0});
  const RequestDiff diff = CompareAll(a, b);
  ASSERT_TRUE(diff.first);
  EXPECT_EQ(diff.probes[diff.first->probe].name, "in/ids");
}

TEST(RequestDiff, TextsAreShownInHexadecimal) {
  EXPECT_EQ(TokenText({.request = 17, .position = 412}), "request 17 position 412");
  EXPECT_EQ(TokenText({.request = std::int64_t{1} << 62, .position = 0}),
            "request 4000000000000000 position 0");
}

}  // namespace
}  // namespace cgdebug::analysis::requests
