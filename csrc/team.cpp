#include "team.hpp"

#include <algorithm>
#include <stdexcept>

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

constexpr uint32_t closed = 0xFFFFFFFFu;
constexpr int spins_max = 1500;  // some 30 to 70 microseconds of pauses

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Another library's floating-point mode in this thread (flushing subnormals, say) must not show here.
class PlainFloatMode {
 public:
#if defined(__x86_64__)
  PlainFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~PlainFloatMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  PlainFloatMode() {}
#endif
};

uint64_t claim_of(uint32_t generation, uint32_t next) {
  return static_cast<uint64_t>(generation) << 32 | next;
}

}  // namespace

void Gate::wait() const {
  if (left_.load(std::memory_order_acquire) == 0) return;
  const int spins = Team::instance().spins();
  for (int spin = 0; spin < spins && left_.load(std::memory_order_acquire) != 0; ++spin) pause_briefly();
  for (int32_t left = left_.load(std::memory_order_acquire); left != 0;
       left = left_.load(std::memory_order_acquire)) {
    left_.wait(left, std::memory_order_acquire);
  }
}

int available_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned cores = std::thread::hardware_concurrency();
  return cores ? static_cast<int>(cores) : 1;
}

Team& Team::instance() {
  static Team* team = new Team;
  return *team;
}

Team::Team() {
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  start_workers(available_cores() - 1);
}

void Team::after_fork_in_child() { instance().forked_.store(true); }

void Team::start_workers(int count) {
  stopping_.store(false);
  spins_ = count < available_cores() ? spins_max : 0;  // spinning pays only if each thread has a core
  const uint32_t seen = generation_.load();
  for (int i = 0; i < count; ++i) workers_.emplace_back([this, seen, i] { work(seen, i + 1); });
  size_.store(count + 1);
}

void Team::stop_workers() {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void Team::resize(int size) {
  if (forked_.load()) return;  // the threads, and perhaps the owner of the lock, stayed in the parent
  const std::lock_guard<std::mutex> lock(busy_);
  if (size == this->size()) return;
  stop_workers();
  start_workers(size - 1);
}

void Team::run(const int64_t* first, int64_t owners, Function function, void* context) {
  if (owners < 1 || owners > owners_max) throw std::invalid_argument("tasks have 1 to 64 owners");
  const PlainFloatMode mode;
  const int64_t tasks = first[owners];
  std::unique_lock<std::mutex> lock(busy_, std::defer_lock);
  if (tasks <= 1 || size() == 1 || tasks >= closed || forked_.load(std::memory_order_relaxed) ||
      !lock.try_lock()) {
    for (int64_t task = 0; task < tasks; ++task) function(context, task);
    return;
  }
  // 1. Close the old job, write the new one, open it.
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  const int64_t old_owners = num_owners_.load(std::memory_order_relaxed);
  for (int64_t h = 0; h < std::max(owners, old_owners); ++h)
    owner(h).claims.store(claim_of(generation - 1, closed));
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  tasks_.store(tasks, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  num_owners_.store(owners, std::memory_order_relaxed);
  for (int64_t h = 0; h < owners; ++h) {
    owner(h).end.store(first[h + 1], std::memory_order_release);
    owner(h).claims.store(claim_of(generation, static_cast<uint32_t>(first[h])));
  }
  generation_.store(generation);
  generation_.notify_all();
  // 2. Work, then wait for the tasks that others have claimed.
  take_tasks(generation, 0);
  for (int spin = 0; spin < spins_ && finished_.load(std::memory_order_acquire) != tasks; ++spin)
    pause_briefly();
  for (int64_t done = finished_.load(); done != tasks; done = finished_.load()) finished_.wait(done);
}

void Team::take_tasks(uint32_t generation, int64_t thread) {
  const int64_t owners = num_owners_.load(std::memory_order_relaxed);
  int64_t done = 0;
  for (int64_t h = 0; h < owners; ++h) {
    if (!take_tasks_of(owner((thread + h) % owners), generation, done)) break;
  }
  if (done == 0) return;
  // Until these are counted the job is open, so this is still its number of tasks. The caller compares the
  // count alone: afterwards it may already be writing its next job.
  const int64_t tasks = tasks_.load(std::memory_order_relaxed);
  if (finished_.fetch_add(done) + done == tasks) finished_.notify_all();
}

// False where the job is over. `done` grows by the tasks that were done.
bool Team::take_tasks_of(Owner& owner, uint32_t generation, int64_t& done) {
  uint64_t claim = owner.claims.load();
  while (static_cast<uint32_t>(claim >> 32) == generation) {
    const uint32_t task = static_cast<uint32_t>(claim);
    // An end that belongs to a newer job brings the news that the old one is closed.
    if (task >= owner.end.load(std::memory_order_acquire)) return true;
    const Function function = function_.load(std::memory_order_relaxed);
    void* context = context_.load(std::memory_order_relaxed);
    // Success means that the job has not changed since `claim` was read, nor can it until `done` is counted.
    if (!owner.claims.compare_exchange_weak(claim, claim + 1)) continue;
    function(context, task);
    ++done;
    claim = owner.claims.load();
  }
  return false;
}

void Team::work(uint32_t seen, int64_t thread) {
  const PlainFloatMode mode;
  while (true) {
    for (int spin = 0; spin < spins_ && generation_.load(std::memory_order_acquire) == seen; ++spin)
      pause_briefly();
    while (generation_.load() == seen) generation_.wait(seen);
    seen = generation_.load();
    if (stopping_.load()) return;
    take_tasks(seen, thread);
  }
}

}  // namespace octavo
