// Attention over KV in codes of eight bits.
#include "kernels/attend.hpp"

namespace octavo::OCTAVO_ISA {

void OCTAVO_ATTEND(int8)(const Attention& a, const AttentionTask& task) { attend_as<KvKind::int8>(a, task); }

}  // namespace octavo::OCTAVO_ISA
