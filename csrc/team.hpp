// One small, persistent team of threads that shares the tasks of one operation at a time.
//
// A job is `tasks` calls of a function, claimed one by one. The caller works too, and waits only for tasks
// that a thread has claimed, never for a thread that has not woken up: on a busy machine a late worker costs
// nothing. Workers spin for a bounded time after a job (the next one usually follows within microseconds),
// then sleep. If the team is busy with another thread's job, or the process was forked, the caller does all
// of its job alone: results never depend on which thread does a task.
//
// Tasks may have an owner thread: the one that does them unless it is late. A thread without tasks of its own
// left helps the others. So rows that pass through many jobs stay in the caches of one core.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

class Team {
 public:
  using Function = void (*)(void* context, int64_t task);

  // The process's team. It is never destroyed: its threads may sleep until the process is gone.
  static Team& instance();

  // Threads that share a job, the caller included.
  int size() const { return size_.load(std::memory_order_relaxed); }
  // How many pauses a thread waits before it sleeps: none if there are more threads than cores.
  int spins() const { return spins_; }
  void resize(int size);

  static constexpr int64_t owners_max = 64;

  // Tasks [first[h], first[h + 1]) belong to thread h; first[0] is 0, and `owners` at most owners_max.
  void run(const int64_t* first, int64_t owners, Function function, void* context);

 private:
  // Claims: the job's generation in the upper half, the next task in the lower; `closed` while a job is being
  // written, so that a thread that read an old job can never claim a task of a new one.
  struct alignas(64) Owner {
    std::atomic<uint64_t> claims{0};
    std::atomic<int64_t> end{0};
  };

  Team();
  void start_workers(int count);
  void stop_workers();
  void work(uint32_t seen, int64_t thread);
  void take_tasks(uint32_t generation, int64_t thread);
  bool take_tasks_of(Owner& owner, uint32_t generation, int64_t& done);
  Owner& owner(int64_t index) { return owners_[static_cast<size_t>(index)]; }
  static void after_fork_in_child();

  std::array<Owner, owners_max> owners_;
  alignas(64) std::atomic<int64_t> finished_{0};     // tasks done of the current job
  alignas(64) std::atomic<uint32_t> generation_{0};  // what workers sleep on
  std::atomic<int64_t> num_owners_{1};
  std::atomic<Function> function_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> tasks_{0};  // of all owners
  std::atomic<int> size_{1};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> forked_{false};
  alignas(64) std::mutex busy_;  // held by the thread whose job it is
  std::vector<std::thread> workers_;
  int spins_ = 0;
};

// Opens when so many tasks have passed. Before a thread waits, each of them must have been claimed by a
// thread that waits for nothing behind this gate.
class alignas(64) Gate {
 public:
  void close(int64_t tasks) { left_.store(static_cast<int32_t>(tasks), std::memory_order_relaxed); }
  void pass() {
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_all();
  }
  void wait() const;

 private:
  std::atomic<int32_t> left_{0};
};

// Calls body(task) for each task in [0, first[owners]), those from first[h] on preferably in thread h.
template <class Body>
void parallel_by_owner(const int64_t* first, int64_t owners, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  Team::instance().run(
      first, owners, [](void* context, int64_t task) { (*static_cast<Plain*>(context))(task); }, &body);
}

// Calls body(task) for each task in [0, tasks), shared out over the team.
template <class Body>
void parallel(int64_t tasks, Body&& body) {
  const int64_t first[] = {0, tasks};
  parallel_by_owner(first, 1, body);
}

// Rows [first(h), first(h + 1)) belong to thread h: nearly equal parts.
struct Owners {
  int64_t rows, count;

  int64_t first(int64_t owner) const { return rows * owner / count; }
  int64_t rows_of(int64_t owner) const { return first(owner + 1) - first(owner); }
  int64_t of(int64_t row) const { return ((row + 1) * count - 1) / rows; }
};

// How many tasks of about `work` operations in all: enough to balance the team, none too small to be worth a
// claim.
inline int64_t tasks_for(int64_t units, int64_t work, int64_t work_min, int64_t threads) {
  if (threads == 1) return 1;
  const int64_t worthwhile = work / work_min + 1;
  int64_t tasks = 4 * threads;
  if (worthwhile < tasks) tasks = worthwhile;
  return units < tasks ? units : tasks;
}

// Cores that this process may use.
int available_cores();

}  // namespace octavo
