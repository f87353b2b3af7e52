// The team under fire: many small jobs, several callers, and its size changed meanwhile.
#include <thread>

#include "check/check.hpp"
#include "team.hpp"

namespace octavo::check {
namespace {

constexpr int jobs = 300;

// Every task of every job is done exactly once, and its plain writes are there when `parallel` returns.
void many_jobs(uint32_t seed) {
  Random random(seed);
  std::vector<int64_t> done;
  for (int job = 0; job < jobs; ++job) {
    const int64_t tasks = 1 + random.below(40);
    done.assign(static_cast<size_t>(tasks), 0);
    parallel(tasks, [&](int64_t task) { done[static_cast<size_t>(task)] += task + 1; });
    for (int64_t task = 0; task < tasks; ++task) CHECK(done[static_cast<size_t>(task)] == task + 1);
  }
}

// The same where tasks have owners, of which some have no task, and which are more or fewer than the threads.
void many_jobs_by_owner(uint32_t seed) {
  Random random(seed);
  std::vector<int64_t> done;
  for (int job = 0; job < jobs; ++job) {
    const int64_t owners = 1 + random.below(6);
    std::vector<int64_t> first{0};
    for (int64_t owner = 0; owner < owners; ++owner) first.push_back(first.back() + random.below(8));
    done.assign(static_cast<size_t>(first.back()), 0);
    parallel_by_owner(first.data(), owners, [&](int64_t task) { done[static_cast<size_t>(task)] += task + 1; });
    for (int64_t task = 0; task < first.back(); ++task) CHECK(done[static_cast<size_t>(task)] == task + 1);
  }
}

}  // namespace

void check_team() {
  std::vector<std::thread> callers;
  for (uint32_t seed = 1; seed <= 3; ++seed) callers.emplace_back(many_jobs, seed);
  for (uint32_t seed = 4; seed <= 5; ++seed) callers.emplace_back(many_jobs_by_owner, seed);
  for (int size : {2, 4, 1, 3}) Team::instance().resize(size);
  for (std::thread& caller : callers) caller.join();
  // A job within a job runs on the thread that starts it: it never waits for the team that it is part of.
  std::vector<int64_t> sums(8, 0);
  parallel(8, [&](int64_t task) {
    parallel(4, [&](int64_t inner) { sums[static_cast<size_t>(task)] += inner; });
  });
  for (const int64_t sum : sums) CHECK(sum == 6);
}

}  // namespace octavo::check
