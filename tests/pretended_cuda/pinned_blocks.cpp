// Asks torch's own allocator of pinned memory for blocks of the sizes given, one after the other, each given back at
// once. malloc stands in for cudaHostAlloc. The settings are those of PYTORCH_ALLOC_CONF.
// Prints the number of requests, the blocks made, and the requests whose block was too small, or could not be given back.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <vector>

struct DoneEvent {};
using Block = at::HostBlock<c10::Stream>;

struct OnHeap : at::CachingHostAllocatorImpl<c10::Stream, DoneEvent, Block> {
  int made = 0;

  void allocate_host_memory(size_t size, void** place) override {
    ++made;
    *place = std::malloc(size);
  }
  void free_block(Block* block) override { std::free(block->ptr_); }
  void record_stream(std::optional<std::vector<DoneEvent>>& events, c10::Stream) override { events->emplace_back(); }
  bool query_event(DoneEvent&) override { return true; }
};

int main(int count, char** sizes) {
  if (const char* settings = std::getenv("PYTORCH_ALLOC_CONF"))
    c10::CachingAllocator::AcceleratorAllocatorConfig::instance().parseArgs(settings);
  OnHeap allocator;
  int too_small = 0;
  for (int i = 1; i < count; ++i) {
    const size_t wanted = std::strtoull(sizes[i], nullptr, 10);
    auto [place, block] = allocator.allocate(wanted);
    bool is_wrong = static_cast<Block*>(block)->size_ < wanted;
    try {
      allocator.free(block);
    } catch (const std::exception&) {
      is_wrong = true;
    }
    too_small += is_wrong;
  }
  std::printf("%d %d %d\n", count - 1, allocator.made, too_small);
  return too_small ? 1 : 0;
}
