// Attention over KV in float32.
#include "kernels/attend.hpp"

namespace octavo::OCTAVO_ISA {

void OCTAVO_ATTEND(f32)(const Attention& a, const AttentionTask& task) { attend_as<KvKind::f32>(a, task); }

}  // namespace octavo::OCTAVO_ISA
