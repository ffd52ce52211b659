#include "models/exported/plan.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "models/exported/analysis.h"
#include "models/exported/archive.h"
#include "models/exported/program_reader.h"
#include "models/testing/draft.h"

namespace gpipe::exported {
namespace {

using testing::Draft;

TEST(PlanTest, AChainIsCutEverywhere) {
  Draft draft;
  ValueId x = draft.input();
  for (int k = 0; k < 4; ++k) x = draft.node({x});
  const Program& program = draft.finish(x);
  EXPECT_EQ(crossings(program), (std::vector<int>{kNoCut, 1, 1, 1}));
  const auto plans = plan_layers(program, 1);
  ASSERT_EQ(plans.size(), 4u);
  for (std::size_t k = 0; k < 4; ++k) {
    EXPECT_EQ(plans[k].nodes, std::vector<int>{static_cast<int>(k)});
    EXPECT_EQ(plans[k].inputs.size(), 1u);
  }
  EXPECT_EQ(plan_layers(program, 0).size(), 1u);
}

TEST(PlanTest, AShortSkipCountsAndALongOneDoesNot) {
  for (const int length : {20, 200}) {
    Draft draft;
    const ValueId input = draft.input();
    const ValueId mask = draft.input();
    ValueId x = input;
    for (int k = 0; k < length; ++k) x = draft.node({x, mask});
    const Program& program = draft.finish(x);
    const bool is_long = length == 200;
    EXPECT_EQ(crossings(program)[5], is_long ? 1 : 2);
    const auto plans = plan_layers(program, 1);
    ASSERT_EQ(plans.size(), is_long ? 200u : 1u);
    if (!is_long) continue;
    // From one user to the next.
    EXPECT_EQ(plans[0].pops.size(), 0u);
    EXPECT_EQ(plans[0].stashes.size(), 1u);
    EXPECT_EQ(plans[199].pops.size(), 1u);
    EXPECT_EQ(plans[199].pops[0].hop, 198);
    EXPECT_EQ(plans[199].stashes.size(), 0u);
  }
}

TEST(PlanTest, ATensorThatChangesLaterDoesNotCross) {
  Draft draft;
  const ValueId a = draft.node({draft.input()});
  const ValueId b = draft.node({a}, {a});  // in place
  draft.program.values[b].memory = a;
  const ValueId c = draft.node({b});
  const Program& program = draft.finish(c);
  EXPECT_EQ(crossings(program), (std::vector<int>{kNoCut, kNoCut, 1}));
}

TEST(PlanTest, UsesOfAChangingBufferStayTogether) {
  Draft draft;
  const ValueId buffer = draft.add(Origin::kBuffer);
  ValueId x = draft.node({draft.input(), buffer});
  x = draft.node({x});
  const ValueId changed = draft.node({buffer, x}, {buffer});
  draft.program.values[changed].memory = buffer;
  x = draft.node({x});
  const Program& program = draft.finish(x);
  EXPECT_EQ(crossings(program), (std::vector<int>{kNoCut, kNoCut, kNoCut, 1}));
}

TEST(AnalysisTest, AnInputThatChangesIsRefused) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId changed = draft.node({input}, {input});
  draft.program.values[changed].memory = input;
  draft.program.outputs = {changed};
  analyze(draft.program, /*keep_random=*/true);
  EXPECT_EQ(draft.program.problems,
            std::vector<std::string>{
                "node '' (node 0) changes the input 'v0' in place; clone() the "
                "input in forward()"});
}

TEST(AnalysisTest, OutputsNeedTheRowsInTheFirstDimensionOnly) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId loss = draft.node({input});
  const ValueId square = draft.node({input});
  const ValueId good = draft.node({input});
  draft.program.values[loss].sizes = {};
  draft.program.values[square].sizes = {draft.rows, draft.rows};
  draft.program.outputs = {loss, square, good};
  analyze(draft.program, /*keep_random=*/true);
  ASSERT_EQ(draft.program.problems.size(), 2u);
  EXPECT_EQ(draft.program.problems[0],
            "output 'v1' has no dimension 0, as a loss that is computed in the "
            "model, so the outputs of micro-batches cannot be concatenated; "
            "choose other outputs with ExportedOptions::outputs");
  EXPECT_NE(draft.program.problems[1].find("in dimension 1, too"),
            std::string::npos);
}

// Two views of each row, in the order a1 a2 b1 b2. Micro-batches of one row
// would give a1 b1 a2 b2.
TEST(AnalysisTest, OutputsWithTheRowsOfSeveralTensorsAreRefused) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId other = draft.node({input});
  const Extent twice{draft.rows.symbol, 2 * draft.rows.factor};
  const ValueId both = draft.node({input, other});
  draft.program.nodes.back().target = "torch.ops.aten.cat.default";
  draft.program.values[both].sizes = {twice};
  const ValueId loss = draft.node({both});
  draft.program.values[loss].sizes = {twice};
  const ValueId half = draft.node({loss});
  const ValueId wide = draft.node({input, other});  // along dimension 1
  draft.program.nodes.back().target = "torch.ops.aten.cat.default";
  const ValueId wide_loss = draft.node({other, loss});
  draft.program.nodes.back().target = "torch.ops.aten.cat.default";
  draft.program.values[wide_loss].sizes = {twice};
  const ValueId table = draft.add(Origin::kParameter);
  draft.program.values[table].sizes = {{Extent::kNone, 1}};
  const ValueId queries = draft.node({table});  // one for each row
  draft.program.nodes.back().target = "torch.ops.aten.repeat.default";
  const ValueId stack = draft.node({input, other});
  draft.program.values[stack].sizes = {{Extent::kNone, 2}, draft.rows};
  const ValueId flat = draft.node({stack});
  draft.program.values[flat].sizes = {twice};
  const Extent many{twice.symbol, 6 * twice.factor};
  const ValueId long_flat = draft.node({stack});
  draft.program.values[long_flat].sizes = {many};
  // view(-1, 2 * width) of it, which mixes rows.
  const ValueId mixed = draft.node({stack});
  draft.program.nodes.back().target = "torch.ops.aten.view.default";
  const ValueId tokens = draft.node({loss});
  draft.program.nodes.back().target = "torch.ops.aten.view.default";
  draft.program.values[tokens].sizes = {many};
  const ValueId product = draft.node({tokens});
  draft.program.values[product].sizes = {many};
  const ValueId texts = draft.node({product});
  draft.program.nodes.back().target = "torch.ops.aten.reshape.default";
  draft.program.values[texts].sizes = {twice};
  const ValueId apart = draft.node({tokens});
  draft.program.nodes.back().target = "torch.ops.aten.view.default";
  draft.program.values[apart].sizes = {{Extent::kNone, 2}, draft.rows};
  const ValueId one = draft.node({apart});
  const ValueId rows = draft.node({input, other});
  draft.program.nodes.back().target = "torch.ops.aten.vstack.default";
  draft.program.values[rows].sizes = {twice};
  draft.program.outputs = {loss,      half,  wide,  wide_loss, queries, flat,
                           long_flat, mixed, texts, one,       rows};
  analyze(draft.program, /*keep_random=*/true);
  std::vector<std::string> expected;
  for (const ValueId each :
       {loss, wide_loss, flat, long_flat, mixed, texts, rows}) {
    expected.push_back(
        "output '" + draft.program.values[each].name +
        "' has the rows of several tensors one after the other, as of "
        "torch.cat() along dimension 0, so the outputs of micro-batches cannot "
        "be concatenated; choose other outputs with ExportedOptions::outputs");
  }
  EXPECT_EQ(draft.program.problems, expected);
}

// Rows a0 a1 b0 b1 that the program takes as two tensors of two rows.
TEST(AnalysisTest, PartsOfInputsThatBeginWithSeveralTensorsAreRefused) {
  Draft draft;
  const ValueId input = draft.input();
  draft.program.values[input].sizes = {{draft.rows.symbol, 2}};
  std::vector<std::string> expected;
  // Adds an output that is computed from `read`, with `rows` rows.
  const auto add_output = [&](ValueId read, const std::string& target,
                              const Extent& rows, bool is_refused) {
    const ValueId output = draft.node({read});
    draft.program.nodes.back().target = "torch.ops.aten." + target;
    draft.program.values[output].sizes = {rows};
    draft.program.outputs.push_back(output);
    if (!is_refused) return;
    expected.push_back(
        "output '" + draft.program.values[output].name +
        "' has the rows of several tensors one after the other, as of "
        "torch.cat() along dimension 0, so the outputs of micro-batches cannot "
        "be concatenated; choose other outputs with ExportedOptions::outputs");
  };
  add_output(input, "chunk.default", draft.rows, true);
  add_output(input, "narrow.default", draft.rows, true);
  add_output(input, "slice.Tensor", draft.rows, true);  // x[:n]
  for (const int64_t step : {1, 2}) {
    add_output(input, "slice.Tensor", draft.rows, step == 1);
    std::vector<Argument>& arguments = draft.program.nodes.back().arguments;
    arguments.resize(5);
    arguments[4].constant = step;
  }
  // x.view(1, 2, n)[0].relu(), of which select() or unbind() take a group, and
  // x.view(1, 2 * n)[0].
  const Extent one{Extent::kNone, 1}, two{Extent::kNone, 2};
  ValueId groups = input;
  for (const char* target : {"view.default", "select.int", "relu.default"}) {
    groups = draft.node({groups});
    draft.program.nodes.back().target = std::string("torch.ops.aten.") + target;
    draft.program.values[groups].sizes = {two, draft.rows};
  }
  draft.program.values[draft.program.nodes[5].results[0].values[0]].sizes = {
      one, two, draft.rows};
  add_output(groups, "select.int", draft.rows, true);
  const ValueId whole = draft.node({input});
  draft.program.nodes.back().target = "torch.ops.aten.view.default";
  draft.program.values[whole].sizes = {one, {draft.rows.symbol, 2}};
  add_output(whole, "select.int", {draft.rows.symbol, 2}, false);
  analyze(draft.program, /*keep_random=*/true);
  EXPECT_EQ(draft.program.problems, expected);
}

// A recurrent layer keeps 2 * n sequences that torch.cat() has joined in
// dimension 1, and view(2, n) parts them again.
TEST(AnalysisTest, JoinedRowsMayLeaveTheFirstDimensionAndBeParted) {
  Draft draft;
  const ValueId input = draft.input();
  draft.program.values[input].sizes = {draft.rows};
  const Extent one{Extent::kNone, 1}, two{Extent::kNone, 2};
  const Extent both{draft.rows.symbol, 2};
  ValueId last = input;
  const auto add = [&](const std::string& target, std::vector<Extent> sizes) {
    last = draft.node({last});
    draft.program.nodes.back().target = "torch.ops.aten." + target;
    draft.program.values[last].sizes = std::move(sizes);
  };
  add("cat.default", {both});
  add("lstm.input", {one, both});
  add("select.int", {both});
  add("view.default", {two, draft.rows});
  add("select.int", {draft.rows});
  draft.program.outputs = {last};
  analyze(draft.program, /*keep_random=*/true);
  EXPECT_TRUE(draft.program.problems.empty());
}

// Four columns of each row, which x.view(4, n) mixes with those of other rows.
TEST(AnalysisTest, ViewsWithRowsAfterAnotherDimensionAreRefused) {
  Draft draft;
  const ValueId input = draft.input();
  const Extent four{Extent::kNone, 4};
  draft.program.values[input].sizes = {draft.rows, four};
  const ValueId turned = draft.node({input});
  draft.program.nodes.back().target = "torch.ops.aten.t.default";
  const ValueId viewed = draft.node({input});
  draft.program.nodes.back().target = "torch.ops.aten.view.default";
  for (const ValueId each : {turned, viewed}) {
    draft.program.values[each].sizes = {four, draft.rows};
    draft.program.outputs.push_back(draft.node({each}));
  }
  analyze(draft.program, /*keep_random=*/true);
  ASSERT_EQ(draft.program.problems.size(), 1u);
  EXPECT_EQ(draft.program.problems[0].find("output 'v4' has the rows of"), 0u);
}

// As of torch.empty(4, 0), or the weight of nn.Linear(0, 16).
TEST(AnalysisTest, AWeightMayHaveNoElements) {
  Draft draft;
  const ValueId weight = draft.add(Origin::kParameter);
  draft.program.values[weight].sizes = {{Extent::kNone, 4}, {Extent::kNone, 0}};
  const ValueId transposed = draft.node({weight});
  draft.program.values[transposed].sizes = {{Extent::kNone, 0},
                                            {Extent::kNone, 4}};
  draft.finish(draft.node({draft.input(), transposed}));
}

TEST(AnalysisTest, SizesThatAreComputedFromTheRowsAreRefused) {
  Draft draft;
  const std::string name = draft.program.symbols.name(draft.rows.symbol);
  const Extent more = draft.program.symbols.parse(name + " + 5");
  const Extent other = draft.program.symbols.parse(name + "0 + 5");
  const ValueId input = draft.input();
  const ValueId queue = draft.node({input}), free = draft.node({input});
  draft.program.values[queue].sizes = {draft.rows, more};
  draft.program.values[free].sizes = {draft.rows, other};
  draft.program.outputs = {queue, free};
  analyze(draft.program, /*keep_random=*/true);
  ASSERT_EQ(draft.program.problems.size(), 1u);
  EXPECT_NE(draft.program.problems[0].find(
                "has a size that is computed from the rows of the inputs in "
                "dimension 1"),
            std::string::npos);
}

// Dim.AUTO gives inputs that meet in no operator a symbol each.
TEST(AnalysisTest, InputsMayHaveASymbolEachForTheirRows) {
  Draft draft;
  const ValueId image = draft.input(), text = draft.input();
  const ValueId fixed = draft.input();
  const Extent texts = draft.program.symbols.parse("s1");
  draft.program.values[text].sizes = {texts};
  draft.program.values[fixed].sizes = {{Extent::kNone, 10}};
  const ValueId of_image = draft.node({image});
  const ValueId of_text = draft.node({text});
  const ValueId of_both = draft.node({image, text});
  const ValueId table = draft.node({fixed});
  draft.program.values[of_text].sizes = {texts};
  draft.program.values[of_both].sizes = {draft.rows, texts};
  draft.program.values[table].sizes = {{Extent::kNone, 10}};
  draft.program.outputs = {of_image, of_text, of_both, table};
  analyze(draft.program, /*keep_random=*/true);
  EXPECT_EQ(draft.program.problems,
            (std::vector<std::string>{
                "output 'v5' has the rows of one input in dimension 0 and "
                "those of another one in dimension 1 (export an input that all "
                "rows share with a fixed dimension 0), so the outputs of "
                "micro-batches cannot be concatenated; choose other outputs "
                "with ExportedOptions::outputs",
                "output 'v6' does not have the rows of the inputs in dimension "
                "0, so the outputs of micro-batches cannot be concatenated; "
                "choose other outputs with ExportedOptions::outputs"}));
}

TEST(AnalysisTest, AnAssignmentMovesToTheLastUseOfItsBuffer) {
  Draft draft;
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId a = draft.node({draft.input(), buffer});
  const ValueId b = draft.node({a});
  const ValueId c = draft.node({b});
  draft.node({buffer, a}, {buffer});
  draft.program.nodes.back().target = "torch.ops.aten.copy_.default";
  const Program& program = draft.finish(c);
  ASSERT_EQ(program.nodes.size(), 4u);
  EXPECT_EQ(program.nodes[1].target, "torch.ops.aten.copy_.default");
  EXPECT_FALSE(program.nodes[1].needed);
  EXPECT_TRUE(program.nodes[2].needed);
  EXPECT_EQ(crossings(program), (std::vector<int>{kNoCut, kNoCut, 1, 1}));
}

// Adds `target`.copy_(`source`), and returns its result.
ValueId add_assignment(Draft& draft, ValueId target, ValueId source) {
  const ValueId result = draft.node({target, source}, {target});
  draft.program.nodes.back().target = "torch.ops.aten.copy_.default";
  draft.program.values[result].memory = target;
  return result;
}

// Returns the result of each node, in order.
std::vector<ValueId> order_of(const Program& program) {
  std::vector<ValueId> results;
  for (const Node& each : program.nodes) {
    results.push_back(each.results.at(0).values.at(0));
  }
  return results;
}

// previous.copy_(current); current.copy_(mean), where `previous` is used last.
TEST(AnalysisTest, AnAssignmentReadsABufferBeforeTheNextOneChangesIt) {
  Draft draft;
  const ValueId current = draft.add(Origin::kBuffer);
  const ValueId previous = draft.add(Origin::kBuffer);
  const ValueId a = draft.node({draft.input(), current});
  const ValueId mean = draft.node({a});
  const ValueId out = draft.node({a, previous});
  const ValueId first = add_assignment(draft, previous, current);
  const ValueId second = add_assignment(draft, current, mean);
  EXPECT_EQ(order_of(draft.finish(out)),
            (std::vector<ValueId>{a, mean, out, first, second}));
}

// a.copy_(mean); b.copy_(a), also where `a` is used later than `b`.
TEST(AnalysisTest, AnAssignmentFollowsTheOneThatItReads) {
  for (const bool is_used : {false, true}) {
    Draft draft;
    const ValueId a = draft.add(Origin::kBuffer);
    const ValueId b = draft.add(Origin::kBuffer);
    const ValueId mean = draft.node({draft.input()});
    const ValueId x = draft.node({mean, b});
    const ValueId out = is_used ? draft.node({x, a}) : draft.node({x});
    const ValueId first = add_assignment(draft, a, mean);
    const ValueId second = add_assignment(draft, b, first);
    EXPECT_EQ(order_of(draft.finish(out)),
              is_used ? (std::vector<ValueId>{mean, x, out, first, second})
                      : (std::vector<ValueId>{mean, x, first, second, out}))
        << is_used;
  }
}

TEST(AnalysisTest, OnlyAnAssignmentOfTheBufferItselfIsLeftOut) {
  for (const std::string source :
       {"changed", "converted", "part", "rounded", "turned"}) {
    Draft draft;
    const ValueId buffer = draft.add(Origin::kBuffer);
    const ValueId out = draft.node({draft.input(), buffer});
    const ValueId view =
        draft.node({buffer}, source == "changed" ? std::vector<ValueId>{buffer}
                                                 : std::vector<ValueId>{});
    draft.program.nodes.back().target = source == "turned"
                                            ? "torch.ops.aten.t.default"
                                            : "torch.ops.aten.to.dtype";
    Value& value = draft.program.values[view];
    value.memory = buffer;
    if (source == "part") value.sizes = {{Extent::kNone, 1}};
    if (source == "rounded") value.dtype = c10::ScalarType::BFloat16;
    const ValueId assigned = add_assignment(draft, buffer, view);
    std::vector<ValueId> order{out, view, assigned};
    if (source == "changed") order = {out, view};
    if (source == "converted") order = {out};
    EXPECT_EQ(order_of(draft.finish(out)), order) << source;
  }
}

// a.copy_(a.add_(1)); b.copy_(a), where the export passes the first copy on.
TEST(AnalysisTest, AnAssignmentThatAnotherOneReadsStays) {
  Draft draft;
  const ValueId a = draft.add(Origin::kBuffer);
  const ValueId b = draft.add(Origin::kBuffer);
  const ValueId out = draft.node({draft.input(), a});
  const ValueId changed = draft.node({a}, {a});
  draft.program.values[changed].memory = a;
  const ValueId first = add_assignment(draft, a, changed);
  const ValueId second = add_assignment(draft, b, first);
  EXPECT_EQ(order_of(draft.finish(out)),
            (std::vector<ValueId>{out, changed, first, second}));
}

TEST(AnalysisTest, ACheckNeedsWhatItReads) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId condition = draft.node({input});
  draft.node({condition});
  draft.program.nodes.back().results.clear();
  draft.node({buffer, input}, {buffer});
  draft.program.nodes.back().results.clear();
  const Program& program = draft.finish(draft.node({input}));
  ASSERT_EQ(program.nodes.size(), 4u);
  EXPECT_TRUE(program.nodes[0].needed);   // the condition
  EXPECT_TRUE(program.nodes[1].needed);   // the check
  EXPECT_FALSE(program.nodes[2].needed);  // a change of the buffer
  EXPECT_TRUE(program.nodes[3].needed);
}

TEST(PlanTest, ASizeComesFromATensorThatCrosses) {
  Draft draft;
  const ValueId input = draft.input();
  const ValueId rows = draft.size_of(input);
  const ValueId a = draft.node({input});
  const ValueId b = draft.node({a, rows});
  const auto plans = plan_layers(draft.finish(b), 1);
  ASSERT_EQ(plans.size(), 2u);
  ASSERT_EQ(plans[1].sizes.size(), 1u);
  EXPECT_EQ(plans[1].sizes[0].from, a);
  EXPECT_EQ(plans[1].pops.size(), 0u);
}

std::vector<std::pair<ValueId, int>> pairs_of(const std::vector<Hop>& hops) {
  std::vector<std::pair<ValueId, int>> pairs;
  for (const Hop& each : hops) pairs.emplace_back(each.value, each.hop);
  return pairs;
}

// eval() leaves out the nodes of `counted`, which only change a buffer.
TEST(PlanTest, ASizeDoesNotComeFromATensorThatEvalLeavesOut) {
  Draft draft;
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId input = draft.input();
  const ValueId counted = draft.node({input});
  const ValueId first = draft.node({input});
  const ValueId size = draft.size_of(input);
  const ValueId second = draft.node({first, size});
  draft.node({buffer, counted}, {buffer});
  const auto plans = plan_layers(draft.finish(second), 4);
  bool found = false;
  for (const LayerPlan& each : plans) {
    for (const SizeSource& source : each.sizes) {
      if (source.value != size) continue;
      found = true;
      EXPECT_EQ(source.from, first);
    }
  }
  EXPECT_TRUE(found);
}

TEST(PlanTest, ASizeThatNoTensorHasPassesFromUserToUser) {
  using Pairs = std::vector<std::pair<ValueId, int>>;
  Draft draft;
  const ValueId input = draft.input();
  ValueId x = draft.node({input});
  const ValueId rows = draft.size_of(x);
  const ValueId twice = draft.size_of(x);
  draft.program.values[twice].extent->factor = 2;
  const auto without_rows = [&](std::vector<ValueId> reads) {
    const ValueId result = draft.node(std::move(reads));
    draft.program.values[result].sizes = {};
    return result;
  };
  x = without_rows({x});        // node 3
  x = without_rows({x, rows});  // node 4
  x = without_rows({x});
  x = draft.node({x, twice});
  const auto plans = plan_layers(draft.finish(x), 1);
  ASSERT_EQ(plans.size(), 5u);
  // The node that reads the size runs where its tensor is.
  EXPECT_EQ(plans[0].nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(pairs_of(plans[0].stashes), (Pairs{{rows, 0}}));
  EXPECT_EQ(pairs_of(plans[2].pops), (Pairs{{rows, 0}}));
  EXPECT_EQ(pairs_of(plans[2].stashes), (Pairs{{rows, 1}}));
  EXPECT_EQ(pairs_of(plans[4].pops), (Pairs{{rows, 1}}));
  // The other size with the same symbol is computed from it.
  EXPECT_EQ(plans[2].sizes.size(), 0u);
  ASSERT_EQ(plans[4].sizes.size(), 1u);
  EXPECT_EQ(plans[4].sizes[0].value, twice);
  EXPECT_EQ(plans[4].sizes[0].from, rows);
  EXPECT_EQ(plans[4].sizes[0].divisor, 1);
  EXPECT_EQ(plans[4].sizes[0].factor, 2);
  for (const int k : {1, 3}) {
    EXPECT_EQ(plans[k].pops.size(), 0u) << k;
    EXPECT_EQ(plans[k].sizes.size(), 0u) << k;
  }
}

TEST(PlanTest, ASliceWithAGradientDoesNotCross) {
  for (const bool has_gradient : {false, true}) {
    Draft draft;
    const ValueId weight = draft.add(Origin::kParameter);
    draft.program.weights[0].requires_grad = has_gradient;
    const ValueId a = draft.node({draft.input(), weight});
    draft.program.values[a].dense = false;
    const Program& program = draft.finish(draft.node({a}));
    EXPECT_EQ(crossings(program)[1], has_gradient ? kNoCut : 1);
  }
}

TEST(PlanTest, AParameterBelongsToItsFirstLayer) {
  Draft draft;
  const ValueId weight = draft.add(Origin::kParameter);
  ValueId x = draft.node({draft.input(), weight});
  x = draft.node({x});
  x = draft.node({x, weight});
  const auto plans = plan_layers(draft.finish(x), 1);
  ASSERT_EQ(plans.size(), 3u);
  EXPECT_EQ(plans[0].weights, std::vector<ValueId>{weight});
  EXPECT_EQ(plans[0].stashes.size(), 1u);
  EXPECT_EQ(plans[2].weights.size(), 0u);
  EXPECT_EQ(plans[2].pops.size(), 1u);
}

TEST(PlanTest, ConstantsAreComputedInEachLayer) {
  Draft draft;
  const ValueId buffer = draft.add(Origin::kBuffer);
  const ValueId table = draft.node({buffer});
  ValueId x = draft.node({draft.input(), table});
  x = draft.node({x, table});
  const auto plans = plan_layers(draft.finish(x), 1);
  ASSERT_EQ(plans.size(), 2u);
  for (const LayerPlan& each : plans) {
    EXPECT_EQ(each.constants, std::vector<int>{0});
    EXPECT_EQ(each.weights, std::vector<ValueId>{buffer});
  }
}

TEST(PlanTest, TheNormOfAnMlpIsOneLayer) {
  Archive archive("models/exported/testdata/mlp.pt2");
  Program program = read_program(archive, {});
  analyze(program, true);
  // linear, num_batches_tracked.add_, batch_norm, relu, dropout, ...
  EXPECT_EQ(crossings(program),
            (std::vector<int>{kNoCut, 1, kNoCut, 1, 1, 1, 1, 1}));
}

TEST(LayerNamesTest, NamesHaveNoDotsAndAreUnique) {
  EXPECT_EQ(layer_names({"a.b", "a.b", "c", "a_b", "a.b"}),
            (std::vector<std::string>{"a_b", "a_b_2", "c", "a_b_3", "a_b_4"}));
}

}  // namespace
}  // namespace gpipe::exported
