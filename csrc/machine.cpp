#include "machine.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace octavo {
namespace {

#if defined(__x86_64__)
// Whether bit `bit` of a register of CPUID is set; for what compilers' probes know by several names, or not
// at all.
bool has_bit(unsigned leaf, unsigned subleaf, int reg, int bit) {
  unsigned registers[4] = {0, 0, 0, 0};  // EAX to EDX
  const int known =
      __get_cpuid_count(leaf, subleaf, &registers[0], &registers[1], &registers[2], &registers[3]);
  return known != 0 && (registers[reg] >> bit & 1) != 0;
}

bool has_f16c() { return has_bit(1, 0, 2, 29); }

// The product of bytes, for 32 of them.
bool has_avx_vnni() { return has_bit(7, 1, 0, 4); }

// GCC's and Clang's probe also checks whether the operating system saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// Whether the processor has AMX's products of bfloat16 and of bytes, and the system lets this process use its
// registers: they are large, so Linux saves them only for processes that request it. The request is made once
// and holds for the whole process; from then on an alternate signal stack must have room for them (some 11
// KiB).
bool request_amx() {
#if defined(__linux__)
  constexpr int edx = 3, amx_bf16 = 22, amx_tile = 24, amx_int8 = 25;
  if (!has_bit(7, 0, edx, amx_bf16) || !has_bit(7, 0, edx, amx_tile) || !has_bit(7, 0, edx, amx_int8)) {
    return false;
  }
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

bool has_amx() {
  static const bool granted = request_amx();
  return granted;
}
#endif

}  // namespace

// AVX512_BF16 does two multiply-adds in the time of one on AMD's processors; on Intel's it takes four times as
// long as one, so that they do without it (where AMX is missing).
std::vector<std::string> runnable_isas() {
  std::vector<std::string> isas{"portable"};
#if defined(__x86_64__)
  const bool bf16_is_slow = __builtin_cpu_is("intel");
  if (has_avx2()) isas.emplace_back("avx2");
  if (has_avx2() && has_avx_vnni()) isas.emplace_back("avx2_vnni");
  if (has_avx512_bf16() && bf16_is_slow) isas.emplace_back("avx512_bf16");
  if (has_avx512()) isas.emplace_back("avx512");
  if (has_avx512_bf16() && !bf16_is_slow) isas.emplace_back("avx512_bf16");
  if (has_avx512_bf16() && has_amx()) isas.emplace_back("avx512_amx");
#endif
  return isas;
}

std::vector<std::string> found_instruction_sets() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  const auto note = [&](const char* name, int supported) {
    if (supported) found.emplace_back(name);
  };
  note("sse4.2", __builtin_cpu_supports("sse4.2"));
  note("avx", __builtin_cpu_supports("avx"));
  note("avx2", __builtin_cpu_supports("avx2"));
  note("fma", __builtin_cpu_supports("fma"));
  note("f16c", has_f16c());
  note("avxvnni", has_avx_vnni());
  note("avx512f", __builtin_cpu_supports("avx512f"));
  note("avx512bw", __builtin_cpu_supports("avx512bw"));
  note("avx512vl", __builtin_cpu_supports("avx512vl"));
  note("avx512dq", __builtin_cpu_supports("avx512dq"));
  note("avx512vnni", __builtin_cpu_supports("avx512vnni"));
  note("avx512bf16", __builtin_cpu_supports("avx512bf16"));
  note("amx", has_amx());
#elif defined(__aarch64__)
  found.emplace_back("neon");
#endif
  return found;
}

}  // namespace octavo
