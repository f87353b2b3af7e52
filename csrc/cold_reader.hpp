// A second memory, for sequences larger than the pool: slots of host memory, which attention reads where they
// are, and slots of a file, which a few threads read ahead of it.
//
//   slots [0, num_host)           slot s at host + s * host_slot_bytes, laid out like a block of the pool
//   slots [num_host, num_slots)   of the file, in stripes of `lanes` slots:
//
//     stripe | layer 0: lane 0, lane 1, ... | layer 1: lane 0, ... | ... | `pieces` layers in all |
//
// So one layer of consecutive slots of a stripe is one extent. What a step reads is known when it begins:
//
//   pass    one layer's attention; walks of layers with the same window are alike
//   group   consecutive partitions of a chunk, whose blocks of the file fill at most one frame
//   frame   of a window of memory: groups that read take its frames in turn, and a frame is filled again when
//           its group was consumed
//
// Results never depend on it: bytes that could not be read count as zeros, and their slots are reported.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

struct SecondMemory {
  const uint8_t* host;  // null: no slots of it
  int64_t host_slot_bytes, num_host;
  int fd;  // -1: no file
  int64_t lanes, pieces;
  int64_t num_slots;  // of both
  int64_t window_bytes, num_readers;

  bool has_file() const { return num_slots > num_host; }
  bool is_in_file(int64_t slot) const { return slot >= num_host; }
  // Whether the bytes of a slot of the file directly follow those of the slot before, in every layer.
  bool follows(int64_t slot) const { return (slot - num_host) % lanes != 0; }
  int64_t file_offset(int64_t slot, int64_t layer, int64_t layer_bytes) const {
    const int64_t stripe = (slot - num_host) / lanes, lane = (slot - num_host) % lanes;
    return (stripe * pieces * lanes + layer * lanes + lane) * layer_bytes;
  }
};

// Slots [slot, slot + count) of the file, side by side in each layer: blocks of a frame from `place` on.
struct ColdExtent {
  int64_t slot, count, place;
};

// Partitions [first_partition, last_partition) of a chunk; extents and host slots of the walk that they read.
struct ColdGroup {
  int64_t chunk, first_partition, last_partition;
  int64_t first_extent, last_extent;
  int64_t first_host, last_host;
};

// All chunks that have cold entries within a window, in ascending order.
struct ColdWalk {
  int64_t window;
  std::vector<ColdGroup> groups;
  std::vector<ColdExtent> extents;
  std::vector<int32_t> host_slots;
};

struct ColdPass {
  int64_t layer;
  const ColdWalk* walk;
};

struct ColdStats {
  int64_t bytes_read = 0, wait_ns = 0;
};

// Serves one step at a time, whose own thread calls it. Its threads sleep while there is nothing to read.
class ColdReader {
 public:
  // Reads from a duplicate of memory.fd. Throws std::system_error if there can be none.
  explicit ColdReader(const SecondMemory& memory);
  ~ColdReader();
  ColdReader(const ColdReader&) = delete;
  ColdReader& operator=(const ColdReader&) = delete;

  const SecondMemory& memory() const { return memory_; }

  // Makes it this step's: std::logic_error if it serves another one. Blocks have `layer_bytes` a layer,
  // partitions so many blocks; std::invalid_argument if the window does not hold two frames of one partition.
  void acquire(int64_t layer_bytes, int64_t partition_blocks);
  // Stops, forgets what failed, and is free for another step.
  void release();

  int64_t blocks_per_frame() const { return frame_blocks_; }
  // By slot: where attention finds a block's bytes of one layer (KvLayer::cold). The step sets those of its
  // next group; the others are earlier ones, or zeros: only prefetches go there.
  const uint8_t** places() { return places_.data(); }

  // Reads ahead for these passes, which must stay until `stop` or `release`. Nothing may be under way.
  void start(const std::vector<ColdPass>& passes);
  // Waits for the reads in flight; what was read and not consumed is dropped.
  void stop();
  // The frame of the next group that reads, complete.
  const uint8_t* wait();
  // That group was consumed: its frame may be filled again.
  void consume();

  // Slots that could not be read since `acquire`, sorted.
  std::vector<int32_t> failed_slots();
  // Since the last call.
  ColdStats take_stats();

 private:
  struct Frame {
    int64_t group = -1;  // among the groups that read
    int64_t left = 0;    // extents still to be read
  };
  struct Job {
    ColdExtent extent;
    int64_t layer;
    uint8_t* target;
    Frame* frame;
  };

  void start_threads();
  void work();
  bool claim(Job& job);
  int64_t read(const Job& job) const;
  void allocate_window();

  SecondMemory memory_;
  std::unique_ptr<uint8_t, void (*)(void*)> window_;
  int64_t layer_bytes_ = 0, frame_blocks_ = 0, num_frames_ = 0;
  std::vector<uint8_t> zeros_;          // of a layer
  std::vector<const uint8_t*> places_;  // kept from step to step: there may be millions

  std::mutex mutex_;  // of everything behind it
  std::condition_variable has_work_, has_read_;
  std::vector<Frame> frames_;
  const std::vector<ColdPass>* passes_ = nullptr;
  size_t pass_ = 0, group_ = 0;  // what is read next
  int64_t extent_ = 0;           // of that group
  int64_t num_claimed_ = 0;      // groups that read whose extents all have been claimed
  int64_t num_consumed_ = 0;
  int64_t num_in_flight_ = 0;    // extents
  double ns_per_byte_ = 0;       // of the last reads: their mean
  std::vector<int32_t> failed_;
  ColdStats stats_;
  bool is_acquired_ = false, is_closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace octavo
