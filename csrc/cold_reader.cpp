#include "cold_reader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace octavo {
namespace {

constexpr int64_t frame_wanted = 2 << 20;  // bytes: enough for a disk, few enough to stay in a cache
constexpr int64_t frames_wanted = 4;       // of a window too small for such ones
constexpr size_t page = 4096;
constexpr double ns_per_byte_of_memory = 0.5;  // at most: reads that are slower wait for a medium
constexpr double newest_share = 0.125;         // of the last read in their mean
constexpr int64_t readers_of_memory = 2;       // of what needs no medium: more take time from those that compute

}  // namespace

ColdReader::ColdReader(const SecondMemory& memory) : memory_(memory), window_(nullptr, std::free) {
  if (memory_.fd < 0) return;
  memory_.fd = fcntl(memory.fd, F_DUPFD_CLOEXEC, 0);
  if (memory_.fd < 0) throw std::system_error(errno, std::generic_category(), "the file of a second memory");
}

ColdReader::~ColdReader() {
  stop();
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  if (memory_.fd >= 0) close(memory_.fd);
}

void ColdReader::acquire(int64_t layer_bytes, int64_t partition_blocks) {
  const int64_t partition_bytes = partition_blocks * layer_bytes;
  int64_t partitions = std::min(frame_wanted, memory_.window_bytes / frames_wanted) / partition_bytes;
  partitions = std::max<int64_t>(partitions, 1);
  const int64_t num_frames = memory_.window_bytes / (partitions * partition_bytes);
  if (memory_.has_file() && num_frames < 2) {
    throw std::invalid_argument("window_bytes is " + std::to_string(memory_.window_bytes) +
                                "; allowed: from " + std::to_string(2 * partition_bytes) +
                                ", two partitions of one layer");
  }
  const std::lock_guard lock(mutex_);
  if (is_acquired_) throw std::logic_error("the second memory serves a step of another program");
  if (memory_.has_file()) {
    allocate_window();
    start_threads();
  }
  if (layer_bytes != layer_bytes_) {
    zeros_.assign(static_cast<size_t>(layer_bytes), 0);
    places_.assign(static_cast<size_t>(memory_.num_slots), zeros_.data());
    layer_bytes_ = layer_bytes;
  }
  frame_blocks_ = partitions * partition_blocks;
  num_frames_ = num_frames;
  failed_.clear();
  stats_ = {};
  is_acquired_ = true;
}

void ColdReader::release() {
  stop();
  const std::lock_guard lock(mutex_);
  is_acquired_ = false;
}

// Once: later steps find it in its place.
void ColdReader::allocate_window() {
  if (window_) return;
  const size_t bytes = (static_cast<size_t>(memory_.window_bytes) + page - 1) / page * page;
  window_.reset(static_cast<uint8_t*>(std::aligned_alloc(page, bytes)));
  if (!window_) throw std::bad_alloc();
}

void ColdReader::start_threads() {
  while (static_cast<int64_t>(threads_.size()) < memory_.num_readers) {
    threads_.emplace_back([this] { work(); });
  }
}

void ColdReader::start(const std::vector<ColdPass>& passes) {
  {
    const std::lock_guard lock(mutex_);
    frames_.assign(static_cast<size_t>(memory_.has_file() ? num_frames_ : 0), {});
    passes_ = &passes;
    pass_ = group_ = 0;
    extent_ = num_claimed_ = num_consumed_ = 0;
  }
  has_work_.notify_all();
}

void ColdReader::stop() {
  std::unique_lock lock(mutex_);
  passes_ = nullptr;
  has_read_.wait(lock, [&] { return num_in_flight_ == 0; });
}

const uint8_t* ColdReader::wait() {
  std::unique_lock lock(mutex_);
  const int64_t index = num_consumed_ % num_frames_;
  const Frame& frame = frames_[static_cast<size_t>(index)];
  const auto is_complete = [&] { return frame.group == num_consumed_ && frame.left == 0; };
  if (!is_complete()) {
    const auto begun = std::chrono::steady_clock::now();
    has_read_.wait(lock, is_complete);
    stats_.wait_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begun).count();
  }
  return window_.get() + index * frame_blocks_ * layer_bytes_;
}

void ColdReader::consume() {
  {
    const std::lock_guard lock(mutex_);
    ++num_consumed_;
  }
  has_work_.notify_all();
}

std::vector<int32_t> ColdReader::failed_slots() {
  const std::lock_guard lock(mutex_);
  std::sort(failed_.begin(), failed_.end());
  failed_.erase(std::unique(failed_.begin(), failed_.end()), failed_.end());
  return failed_;
}

ColdStats ColdReader::take_stats() {
  const std::lock_guard lock(mutex_);
  return std::exchange(stats_, {});
}

// The next extent, if there is one and its group's frame is free.
bool ColdReader::claim(Job& job) {
  if (!passes_) return false;
  if (num_in_flight_ >= readers_of_memory && ns_per_byte_ < ns_per_byte_of_memory) return false;
  for (; pass_ < passes_->size(); ++pass_, group_ = 0) {
    const auto& [layer, walk] = (*passes_)[pass_];
    for (; group_ < walk->groups.size(); ++group_) {
      const ColdGroup& group = walk->groups[group_];
      const int64_t count = group.last_extent - group.first_extent;
      if (count == 0) continue;
      const int64_t index = num_claimed_ % num_frames_;
      Frame& frame = frames_[static_cast<size_t>(index)];
      if (extent_ == 0) {
        if (num_claimed_ - num_consumed_ >= num_frames_) return false;
        frame = {num_claimed_, count};
      }
      const ColdExtent& extent = walk->extents[static_cast<size_t>(group.first_extent + extent_)];
      uint8_t* target = window_.get() + (index * frame_blocks_ + extent.place) * layer_bytes_;
      job = {extent, layer, target, &frame};
      if (++extent_ == count) {
        extent_ = 0;
        ++num_claimed_;
        ++group_;
      }
      ++num_in_flight_;
      return true;
    }
  }
  return false;
}

// How many bytes of the extent were read; the others become zeros.
int64_t ColdReader::read(const Job& job) const {
  const int64_t bytes = job.extent.count * layer_bytes_;
  const int64_t offset = memory_.file_offset(job.extent.slot, job.layer, layer_bytes_);
  int64_t done = 0;
  while (done < bytes) {
    const auto left = static_cast<size_t>(bytes - done);
    const ssize_t count = pread(memory_.fd, job.target + done, left, offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += count;
  }
  std::memset(job.target + done, 0, static_cast<size_t>(bytes - done));
  return done;
}

void ColdReader::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Job job;
    has_work_.wait(lock, [&] { return is_closing_ || claim(job); });
    if (is_closing_) return;
    lock.unlock();
    const auto begun = std::chrono::steady_clock::now();
    const int64_t done = read(job);
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begun;
    lock.lock();
    if (done) ns_per_byte_ += newest_share * (taken.count() / static_cast<double>(done) - ns_per_byte_);
    stats_.bytes_read += done;
    for (int64_t i = done / layer_bytes_; i < job.extent.count; ++i) {
      failed_.push_back(static_cast<int32_t>(job.extent.slot + i));
    }
    --num_in_flight_;
    if (--job.frame->left == 0 || num_in_flight_ == 0) has_read_.notify_all();
  }
}

}  // namespace octavo
