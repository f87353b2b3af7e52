// A mixture of experts: each row passes through a few of many feed-forward parts, which its logits choose.
//
//   choices   [row][top_k]      experts in ascending order, and how much each counts
//   places    [expert][row]     the same by expert: rows that chose one lie together, in ascending order
//   inputs    of each expert, (its places, E), as gate and up take them: floats, rounded, or codes of each kind
//   inner     of each expert, (its places, F): act(gate) * up, as down takes it
//   out       (T, E)            each row's weighted sum, in the order of the experts' numbers
//
// Weights are read for experts that some row chose, and for no other. An expert's products are those of any
// linear layer, which compute a row by itself, and a row's sum follows the experts' numbers: so its bits
// depend neither on other rows nor on threads.
//
// No Python and no program here. It checks nothing: the code that fills an ExpertsStep has.
#pragma once

#include <cstdint>
#include <vector>

#include "weight.hpp"

namespace octavo {

enum class Scoring { softmax, softmax_of_chosen, sigmoid };

// Equal logits go to the lower expert.
struct Routing {
  int64_t top_k;
  Scoring scoring;
  bool normalised;     // weights are divided by their sum
  bool weighs_input;   // an expert's input is scaled, not its output
};

struct Projection {
  Weight weight;
  const float* bias;  // (outputs,) or null
};

struct Expert {
  Projection gate, up, down;
};

// All experts have the same sizes; kinds may differ, between an expert's parts too.
struct Mixture {
  Routing routing;
  Map activation;
  std::vector<Expert> experts;

  int64_t hidden_size() const { return experts[0].gate.weight.inputs; }
  int64_t inner_size() const { return experts[0].gate.weight.outputs; }
};

struct ExpertsStep {
  const Mixture& mixture;
  const float* x;       // (rows, E)
  const float* logits;  // (rows, experts)
  float* out;           // (rows, E)
  int64_t rows;
};

// Fills `out`. Runs parallel regions of the team; what it needs in between belongs to the calling thread, and
// grows to the largest step that the thread has seen.
void run_experts(const ExpertsStep& step);

}  // namespace octavo
