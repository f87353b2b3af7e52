// Reading ahead of a file: every group finds its blocks in its frame, wherever the reads before were stopped.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "check/check.hpp"
#include "cold_reader.hpp"

namespace octavo::check {
namespace {

constexpr int64_t lanes = 3, pieces = 3, layers = 2, layer_bytes = 64, num_host = 2, num_slots = 40;
constexpr int64_t partition_blocks = 4;
constexpr int64_t readable = 30;  // slots from here on lie beyond the end of the file

uint8_t byte_of(int64_t slot, int64_t layer) { return static_cast<uint8_t>(1 + slot * layers + layer); }

struct File {
  std::FILE* file = std::tmpfile();

  explicit File(const SecondMemory& memory) {
    for (int64_t slot = num_host; slot < readable; ++slot) {
      for (int64_t layer = 0; layer < layers; ++layer) {
        std::vector<uint8_t> bytes(layer_bytes, byte_of(slot, layer));
        const off_t offset = memory.file_offset(slot, layer, layer_bytes);
        CHECK(pwrite(fileno(file), bytes.data(), bytes.size(), offset) == layer_bytes);
      }
    }
  }
  ~File() { std::fclose(file); }
};

// Groups of up to a partition's blocks, each of one or two extents; every third one reads nothing.
ColdWalk walk_of(Random& random) {
  ColdWalk walk{0, {}, {}, {}};
  for (int64_t partition = 0; partition < 12; ++partition) {
    const auto first = static_cast<int64_t>(walk.extents.size());
    int64_t place = 0;
    for (int64_t left = partition % 3 == 2 ? 0 : 1 + random.below(2); left > 0; --left) {
      const int64_t stripe = random.below((num_slots - num_host) / lanes);
      const int64_t count = 1 + random.below(2);
      walk.extents.push_back({num_host + stripe * lanes, count, place});
      place += count;
    }
    const auto last = static_cast<int64_t>(walk.extents.size());
    walk.groups.push_back({0, partition, partition + 1, first, last, 0, 0});
  }
  return walk;
}

// Consumes `count` groups, and says which slots were read in vain.
void consume(ColdReader& reader, const std::vector<ColdPass>& passes, int64_t count,
             std::vector<int32_t>& failed) {
  for (const auto& [layer, walk] : passes) {
    for (const ColdGroup& group : walk->groups) {
      if (count-- == 0) return;
      if (group.first_extent == group.last_extent) continue;
      const uint8_t* frame = reader.wait();
      for (int64_t i = group.first_extent; i < group.last_extent; ++i) {
        const ColdExtent& extent = walk->extents[static_cast<size_t>(i)];
        for (int64_t at = 0; at < extent.count * layer_bytes; ++at) {
          const int64_t slot = extent.slot + at / layer_bytes;
          const uint8_t expected = slot < readable ? byte_of(slot, layer) : 0;
          CHECK(frame[extent.place * layer_bytes + at] == expected);
          if (slot >= readable) failed.push_back(static_cast<int32_t>(slot));
        }
      }
      reader.consume();
    }
  }
}

}  // namespace

void check_cold_reader() {
  Random random(11);
  SecondMemory memory{nullptr, 0, num_host, 0, lanes, pieces, num_slots, 0, 3};
  const File file(memory);
  memory.fd = fileno(file.file);
  for (const int64_t frames : {2, 5}) {
    memory.window_bytes = frames * partition_blocks * layer_bytes;
    ColdReader reader(memory);
    for (int run = 0; run < 20; ++run) {
      const ColdWalk one = walk_of(random), other = walk_of(random);
      const std::vector<ColdPass> passes{{0, &one}, {1, &other}, {1, &one}};
      std::vector<int32_t> failed;
      reader.acquire(layer_bytes, partition_blocks);
      reader.start(passes);
      consume(reader, passes, random.below(20), failed);
      if (run % 2) {  // and from the beginning
        reader.stop();
        reader.start(passes);
      } else {
        reader.release();
        reader.acquire(layer_bytes, partition_blocks);
        reader.start(passes);
      }
      failed.clear();
      consume(reader, passes, INT64_MAX, failed);
      for (const int32_t slot : reader.failed_slots()) {
        const bool is_expected = run % 2 || std::find(failed.begin(), failed.end(), slot) != failed.end();
        CHECK(slot >= readable && is_expected);
      }
      CHECK(reader.take_stats().bytes_read > 0);
      reader.release();
    }
  }
}

}  // namespace octavo::check
