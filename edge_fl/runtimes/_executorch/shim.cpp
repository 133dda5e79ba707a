// ExecuTorch behind a C ABI, so that Python reaches it without torch: the wheel's own bindings import torch.
//
// A program is loaded from bytes (copied), described, run, destroyed. Nothing is thrown across the ABI, and no
// size reaches ExecuTorch unchecked. What went wrong is told by edge_fl_et_error(), for the calling thread.

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// The wheel exports these but ships no header for them.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t threads);
  size_t get_thread_count() const;
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

namespace {

namespace et = executorch::runtime;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;

constexpr size_t kAlignment = 64;  // a cache line, and more than any vector instruction asks for
constexpr size_t kOverread = 128;  // XNNPACK's vectors may read this far past a tensor (XNN_EXTRA_BYTES)
constexpr size_t kMaxRank = 16;    // as ExecuTorch's own kTensorDimensionLimit
constexpr int64_t kMaxArena = int64_t{1} << 33;  // what a damaged program may ask for at most, in bytes

thread_local std::string last_error;
thread_local std::string first_log;  // of this call: the first line is nearest to the cause

// Programs alive: their XNNPACK parts point into the thread pool.
std::atomic<size_t> alive{0};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void keep_log(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char* message,
              size_t length) {
  if (first_log.empty() && (level == et_pal_log_level_t::kError || level == et_pal_log_level_t::kFatal)) {
    first_log.assign(message, length);
  }
}

// ExecuTorch ends the process where it finds its own state impossible; a device must outlive a bad program.
[[noreturn]] void instead_of_abort() { throw Failure("ExecuTorch gave up"); }

std::string with_log(std::string sentence) {
  return first_log.empty() ? sentence : sentence + " (" + first_log + ")";
}

void check(et::Error error, const char* what) {
  if (error == et::Error::Ok) return;
  const char* name = et::to_string(error);
  if (const char* colons = std::strstr(name, "::")) name = colons + 2;
  throw Failure(std::string(what) + ": " + name);
}

template <typename T>
T take(et::Result<T> result, const char* what) {
  check(result.error(), what);
  return std::move(result.get());
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory allocate(size_t size) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, size + kOverread) != 0) throw std::bad_alloc();
  return Memory(static_cast<uint8_t*>(memory));
}

struct Spec {
  ScalarType type;
  size_t nbytes;
  bool planned;
  std::vector<TensorImpl::SizesType> sizes;
  std::vector<TensorImpl::DimOrderType> order;
  std::vector<TensorImpl::StridesType> strides;
};

Spec spec_of(const et::TensorInfo& info) {
  Spec spec{info.scalar_type(), info.nbytes(), info.is_memory_planned(), {}, {}, {}};
  spec.sizes.assign(info.sizes().begin(), info.sizes().end());
  spec.order.assign(info.dim_order().begin(), info.dim_order().end());
  const size_t rank = spec.sizes.size();
  if (rank > kMaxRank || spec.order.size() != rank) throw Failure("a tensor of impossible rank");
  spec.strides.assign(rank, 1);
  int64_t stride = 1;
  for (size_t axis = rank; axis-- > 0;) {
    if (spec.order[axis] != axis) throw Failure("a tensor whose axes do not lie in order");
    spec.strides[axis] = static_cast<TensorImpl::StridesType>(stride);
    stride *= spec.sizes[axis];
    if (spec.sizes[axis] < 0 || stride > std::numeric_limits<int32_t>::max()) {
      throw Failure("a tensor of impossible size");
    }
  }
  return spec;
}

}  // namespace

// In the order in which things point at one another; destroyed from the last to the first.
struct edge_fl_et_program {
  std::mutex running;
  Memory data;
  std::optional<executorch::extension::BufferDataLoader> loader;
  std::optional<et::Program> program;
  std::vector<Memory> arenas;
  std::vector<et::Span<uint8_t>> spans;
  std::optional<et::HierarchicalAllocator> planned;
  executorch::extension::MallocMemoryAllocator lasting, passing;
  std::optional<et::MemoryManager> manager;
  std::optional<et::Method> method;
  std::vector<Spec> inputs, outputs;
  std::vector<TensorImpl> tensors;  // one an input, pointed at the caller's memory for a run
  bool broken = false;              // ExecuTorch gave up in the middle of a run: nobody knows its state

  edge_fl_et_program(const void* bytes, size_t size) : data(allocate(size)) {
    ++alive;
    try {
      load(bytes, size);
    } catch (...) {
      --alive;
      throw;
    }
  }
  ~edge_fl_et_program() { --alive; }

 private:
  void load(const void* bytes, size_t size) {
    if (size < et::Program::kMinHeadBytes) throw Failure("too short for a program");
    std::memcpy(data.get(), bytes, size);
    if (et::Program::check_header(data.get(), size) != et::Program::CompatibleVersion) {
      throw Failure("not a program of this version of ExecuTorch");
    }
    loader.emplace(data.get(), size);
    program.emplace(take(et::Program::load(&*loader, et::Program::Verification::InternalConsistency),
                         "the program is damaged"));
    const et::MethodMeta meta = take(program->method_meta("forward"), "there is no method 'forward'");
    describe(meta);
    reserve(meta);
    method.emplace(take(program->load_method("forward", &*manager), "the method cannot be loaded"));
    if (method->inputs_size() != inputs.size() || method->outputs_size() != outputs.size()) {
      throw Failure("the method's description is not the method's");
    }
  }

  void describe(const et::MethodMeta& meta) {
    for (size_t i = 0; i < meta.num_inputs(); ++i) {
      inputs.push_back(spec_of(take(meta.input_tensor_meta(i), "an input that is no tensor")));
      // Without one ExecuTorch would hand XNNPACK the caller's memory, past whose end it must not read.
      if (!inputs.back().planned) throw Failure("an input without a place in the program's own memory");
    }
    for (size_t i = 0; i < meta.num_outputs(); ++i) {
      outputs.push_back(spec_of(take(meta.output_tensor_meta(i), "an output that is no tensor")));
    }
    tensors.reserve(inputs.size());
    for (Spec& spec : inputs) {
      tensors.emplace_back(spec.type, spec.sizes.size(), spec.sizes.data(), nullptr, spec.order.data(),
                           spec.strides.data());
    }
  }

  void reserve(const et::MethodMeta& meta) {
    int64_t total = 0;
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      const int64_t size = take(meta.memory_planned_buffer_size(i), "an arena without a size");
      if (size < 0 || size > kMaxArena || (total += size) > kMaxArena) {
        throw Failure("an arena of impossible size");
      }
      arenas.push_back(allocate(size));
      spans.emplace_back(arenas.back().get(), static_cast<size_t>(size));
    }
    planned.emplace(et::Span<et::Span<uint8_t>>(spans.data(), spans.size()));
    manager.emplace(&lasting, &*planned, &passing);
  }
};

namespace {

template <typename Pointer>
void expect(const std::vector<Spec>& specs, const char* side, Pointer const* data, const size_t* nbytes,
            size_t count) {
  if (count != specs.size()) {
    throw Failure(std::to_string(count) + " " + side + "s for a program that has " + std::to_string(specs.size()));
  }
  for (size_t i = 0; i < count; ++i) {
    if (data[i] == nullptr || nbytes[i] != specs[i].nbytes) {
      throw Failure(std::string(side) + " " + std::to_string(i) + " has " + std::to_string(nbytes[i]) +
                    " bytes instead of " + std::to_string(specs[i].nbytes));
    }
  }
}

void run(edge_fl_et_program& p, void* const* inputs, void* const* outputs) {
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    p.tensors[i].set_data(inputs[i]);
    check(p.method->set_input(et::EValue(Tensor(&p.tensors[i])), i), "an input is refused");
  }
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    if (p.outputs[i].planned) continue;  // else the program writes into the caller's memory, which saves a copy
    check(p.method->set_output_data_ptr(outputs[i], p.outputs[i].nbytes, i), "an output is refused");
  }
  p.broken = true;
  const et::Error executed = p.method->execute();
  p.broken = false;
  check(executed, "a step failed");
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    const et::EValue& value = p.method->get_output(i);
    if (!value.isTensor()) throw Failure("an output that is no tensor");
    const Tensor& tensor = value.toTensor();
    if (tensor.nbytes() != p.outputs[i].nbytes) throw Failure("an output of another size than planned");
    if (tensor.const_data_ptr() != outputs[i]) std::memcpy(outputs[i], tensor.const_data_ptr(), tensor.nbytes());
  }
}

// Runs `body` so that nothing leaves it but its value, or `otherwise`.
template <typename Body, typename Value>
Value guarded(Value otherwise, Body body) noexcept {
  first_log.clear();
  try {
    return body();
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
  } catch (const std::exception& failure) {
    last_error = with_log(failure.what());
  } catch (...) {
    last_error = with_log("unknown failure");
  }
  return otherwise;
}

const std::vector<Spec>& side(const edge_fl_et_program* p, int outputs) { return outputs ? p->outputs : p->inputs; }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Makes ExecuTorch ready; 0, or -1 where another part of the process already directs its logs and its end.
EXPORT int edge_fl_et_start() {
  return guarded(-1, [] {
    et::PalImpl pal = et::PalImpl::create(keep_log, __FILE__);
    pal.abort = instead_of_abort;
    if (!et::register_pal(pal)) throw Failure("ExecuTorch takes no directions");
    et::runtime_init();
    return 0;
  });
}

// What the last failure in this thread was; valid until its next call.
EXPORT const char* edge_fl_et_error() { return last_error.c_str(); }

// A program of `size` bytes, which are copied; null on failure.
EXPORT edge_fl_et_program* edge_fl_et_load(const void* data, size_t size) {
  return guarded(static_cast<edge_fl_et_program*>(nullptr),
                 [&] { return new edge_fl_et_program(data, size); });
}

EXPORT void edge_fl_et_destroy(edge_fl_et_program* p) {
  guarded(0, [&] { return delete p, 0; });
}

// How many inputs (outputs = 0) or outputs (outputs = 1) the program has.
EXPORT size_t edge_fl_et_count(const edge_fl_et_program* p, int outputs) { return side(p, outputs).size(); }

// One of them: its ScalarType, its rank, and its sizes into an array of 16; 0, or -1.
EXPORT int edge_fl_et_spec(const edge_fl_et_program* p, int outputs, size_t index, int32_t* type, int32_t* rank,
                           int32_t* sizes) {
  return guarded(-1, [&] {
    const Spec& spec = side(p, outputs).at(index);
    *type = static_cast<int32_t>(spec.type);
    *rank = static_cast<int32_t>(spec.sizes.size());
    std::copy(spec.sizes.begin(), spec.sizes.end(), sizes);
    return 0;
  });
}

// Runs the program on `inputs` (only read) and writes `outputs`; each comes with its size in bytes. 0, or -1.
EXPORT int edge_fl_et_run(edge_fl_et_program* p, void* const* inputs, const size_t* input_bytes, size_t n_inputs,
                          void* const* outputs, const size_t* output_bytes, size_t n_outputs) {
  return guarded(-1, [&] {
    const std::lock_guard<std::mutex> alone(p->running);
    if (p->broken) throw Failure("ExecuTorch gave up on it before");
    expect(p->inputs, "input", inputs, input_bytes, n_inputs);
    expect(p->outputs, "output", outputs, output_bytes, n_outputs);
    run(*p, inputs, outputs);
    return 0;
  });
}

// Sets the threads of the process's pool; 0, or -1 while programs are loaded that point into another pool.
EXPORT int edge_fl_et_set_threads(uint32_t threads) {
  return guarded(-1, [&] {
    auto* pool = executorch::extension::threadpool::get_threadpool();
    if (pool == nullptr) throw Failure("there is no thread pool");
    if (pool->get_thread_count() == threads) return 0;
    if (alive > 0) {
      throw Failure("programs are loaded with " + std::to_string(pool->get_thread_count()) + " threads");
    }
    if (threads == 0 || !pool->_unsafe_reset_threadpool(threads)) throw Failure("the pool takes no such number");
    return 0;
  });
}
