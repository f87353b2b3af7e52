// One small, persistent team of threads that shares the tasks of one operation at a time.
//
// A job is `tasks` calls of a function, claimed one by one. The caller works too, and waits only for tasks
// that somebody has claimed, never for a thread that has not woken up: on a busy machine a late worker costs
// nothing. Workers spin for a bounded time after a job (the next one usually follows within microseconds),
// then sleep. If the team is busy with another thread's job, or the process was forked, the caller does all
// of its job alone: results never depend on who does a task.
#pragma once

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
  void resize(int size);

  void run(int64_t tasks, Function function, void* context);

 private:
  Team();
  void start_workers(int count);
  void stop_workers();
  void work(uint32_t seen);
  void take_tasks(uint32_t generation);
  static void after_fork_in_child();

  // Claims: the job's generation in the upper half, the next task in the lower; `closed` while a job is being
  // written, so that a thread that read an old job can never claim a task of a new one.
  std::atomic<uint64_t> claims_{0};
  std::atomic<uint32_t> generation_{0};  // what workers sleep on
  std::atomic<int64_t> finished_{0};     // tasks done of the current job
  std::atomic<Function> function_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> tasks_{0};
  std::atomic<int> size_{1};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> forked_{false};
  std::mutex busy_;  // held by the thread whose job it is
  std::vector<std::thread> workers_;
  int spins_ = 0;
};

// Calls body(task) for each task in [0, tasks), shared out over the team.
template <class Body>
void parallel(int64_t tasks, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  Team::instance().run(
      tasks, [](void* context, int64_t task) { (*static_cast<Plain*>(context))(task); }, &body);
}

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
