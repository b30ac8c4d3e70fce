#include "checks/launch.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "bridge/random_kernels.h"
#include "checks/finding.h"
#include "checks/poison.h"
#include "observe/source_line.h"
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/custom/custom_context.h"
#include "runtime/config.h"
#include "runtime/device.h"

namespace virtual_npu {
namespace checks {
namespace {

using phi::DenseTensor;

thread_local bool is_open = false;  // a launch on this thread; nested launches belong to it

Work work_of(const std::string& name) { return std::make_shared<const std::string>("'" + name + "' at " + source_line()); }

const DenseTensor* on_device(const phi::TensorBase* tensor) {
  if (!tensor || !DenseTensor::classof(tensor)) return nullptr;
  const auto* dense = static_cast<const DenseTensor*>(tensor);
  if (!dense->Holder() || !dense->Holder()->ptr() || dense->numel() <= 0) return nullptr;
  if (dense->dtype() == phi::DataType::UNDEFINED) return nullptr;
  return dense->place().GetType() == phi::AllocationType::CUSTOM ? dense : nullptr;
}

// Bytes from the first to the last element.
size_t extent(const DenseTensor& tensor) {
  int64_t last = 0;
  for (int i = 0; i < tensor.dims().size(); ++i) last += (tensor.dims()[i] - 1) * tensor.strides()[i];
  return (last + 1) * phi::SizeOf(tensor.dtype());
}

char* begin_of(const DenseTensor& tensor) {
  return static_cast<char*>(tensor.Holder()->ptr()) + tensor.meta().offset;
}

size_t alignment(const DenseTensor& tensor) {
  const bool is_complex = tensor.dtype() == phi::DataType::COMPLEX64 || tensor.dtype() == phi::DataType::COMPLEX128;
  return phi::SizeOf(tensor.dtype()) / (is_complex ? 2 : 1);
}

std::string text(const DenseTensor& tensor) {
  std::ostringstream out;
  out << phi::DataTypeToString(tensor.dtype()) << " [";
  for (int i = 0; i < tensor.dims().size(); ++i) out << (i ? ", " : "") << tensor.dims()[i];
  out << "]";
  return out.str();
}

// The memory of a launch's tensors, with their descriptions.
std::vector<Range> ranges_of(const Tensors& inputs, const Tensors& outputs) {
  std::vector<Range> ranges;
  const auto add = [&](const Tensors& tensors, const char* role, bool writes) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (const DenseTensor* tensor = on_device(tensors[i]))
        ranges.push_back({begin_of(*tensor), extent(*tensor), writes,
                          std::string("its ") + role + " " + std::to_string(i + 1) + " (" + text(*tensor) + ")",
                          alignment(*tensor)});
  };
  add(inputs, "input", false);
  add(outputs, "output", true);
  return ranges;
}

// The part of a range that an in-place kernel uses.
Range reduced(Range range, const Tensors& outputs, const Part& part) {
  const DenseTensor* tensor = on_device(outputs.front());
  if (!tensor || range.address != begin_of(*tensor) || range.bytes != extent(*tensor)) return range;
  range.address = begin_of(*tensor) + part.begin;
  range.bytes = part.end - part.begin;
  return range;
}

// After a launch: its accesses are ordered, and written memory is known to be written.
void check_accesses(const Tensors& inputs, const Tensors& outputs, const std::optional<Part>& part, const void* stream,
                    const Work& work) {
  for (const phi::TensorBase* output : outputs)
    if (const DenseTensor* tensor = on_device(output)) {
      name_origin(begin_of(*tensor), work);
      if (!is_checked(kCheckInit) || !may_be_unwritten(begin_of(*tensor)) || tensor->meta().offset != 0) continue;
      if (tensor->meta().is_contiguous() && !Elements(*tensor).has_poison() &&
          extent(*tensor) + kRounding > tensor->Holder()->size())
        set_written(begin_of(*tensor));
    }
  const Epoch epoch = launch(actor_of(stream));
  const std::vector<Range> ranges = ranges_of(inputs, outputs);
  for (const Range& range : ranges) check_order(part ? reduced(range, outputs, *part) : range, epoch, work);
  if (!is_checked(kCheckMemory)) return;
  // Kernels may resize outputs, so all tensors are known before the first red zone is read.
  for (const Range& range : ranges) use_until(range);
  for (const Range& range : ranges) check_red_zone(range, work);
}

void check_input_bounds(const Tensors& inputs, const Work& work) {
  if (!is_checked(kCheckMemory)) return;
  for (const Range& range : ranges_of(inputs, {})) check_bounds(range, work);
}

bool has_unwritten_elements(const DenseTensor& tensor) {
  return may_be_unwritten(begin_of(tensor)) && Elements(tensor).has_poison();
}

std::string unwritten_text(const Work& work, const DenseTensor& tensor, const char* effect) {
  const std::vector<bool> poisoned = Elements(tensor).poisoned();
  const Work origin = origin_of(begin_of(tensor));
  return *work + " " + effect + " " + std::to_string(std::count(poisoned.begin(), poisoned.end(), true)) + " of " +
         std::to_string(poisoned.size()) + " elements of an input (" + text(tensor) +
         ") that were never written. Its memory was allocated by " + (origin ? *origin : "unknown work") +
         ". Write it first, for example with paddle.zeros.";
}

// The bytes of tensors' memory, to restore them.
class Snapshot {
 public:
  explicit Snapshot(const std::vector<const DenseTensor*>& tensors) {
    for (const DenseTensor* tensor : tensors) {
      char* begin = begin_of(*tensor);
      saved_.push_back({begin, std::string(begin, extent(*tensor))});
    }
  }
  void restore() const {
    for (const auto& [begin, bytes] : saved_) std::memcpy(begin, bytes.data(), bytes.size());
  }
  // Restores memory that is not part of `outputs`.
  void restore_inputs(const Tensors& outputs) const {
    for (const auto& [begin, bytes] : saved_) {
      const char *from = begin, *until = begin + bytes.size();
      const bool is_output = std::any_of(outputs.begin(), outputs.end(), [&](const phi::TensorBase* output) {
        const DenseTensor* tensor = on_device(output);
        return tensor && begin_of(*tensor) < until && from < begin_of(*tensor) + extent(*tensor);
      });
      if (!is_output) std::memcpy(begin, bytes.data(), bytes.size());
    }
  }

 private:
  std::vector<std::pair<char*, std::string>> saved_;
};

// The elements of one output after each run.
struct Result {
  const DenseTensor* tensor;
  std::vector<std::string> elements;  // by filler
};

// An element that is the filler in each run is a copy of an unwritten element.
bool is_copy(const Elements& elements, int64_t element, const std::vector<const char*>& values,
             const std::vector<Filler>& fillers) {
  std::string expected(elements.size(), '\0');
  const std::string kept(elements.address(element), elements.size());
  bool copies = true;
  for (size_t run = 0; run < fillers.size(); ++run) {
    elements.fill(element, fillers[run]);
    std::memcpy(expected.data(), elements.address(element), elements.size());
    std::memcpy(elements.address(element), values[run], elements.size());
    const bool both_nan = fillers[run] == Filler::kNaN && elements.is_nan(element);
    copies &= both_nan || std::memcmp(expected.data(), values[run], elements.size()) == 0;
  }
  std::memcpy(elements.address(element), kept.data(), kept.size());
  return copies;
}

// Poisons the copies of unwritten elements. Returns false if another element differs between the runs.
bool poison_copies(const Result& result, const std::vector<Filler>& fillers) {
  const Elements elements(*result.tensor);
  const size_t size = elements.size();
  std::vector<int64_t> copies;
  for (int64_t i = 0; i < elements.count(); ++i) {
    std::vector<const char*> values;
    bool differs = false;
    for (const std::string& run : result.elements) {
      values.push_back(run.data() + i * size);
      differs |= std::memcmp(values.back(), values.front(), size) != 0;
    }
    if (!differs) continue;
    if (!is_copy(elements, i, values, fillers)) return false;
    copies.push_back(i);
  }
  for (int64_t element : copies) elements.poison(element);
  return true;
}

void run_with_fillers(const Tensors& inputs, const Tensors& outputs, const std::vector<const DenseTensor*>& unwritten,
                      const std::function<void()>& compute, const Work& work) {
  std::vector<const DenseTensor*> saved;
  for (const Tensors* tensors : {&inputs, &outputs})
    for (const phi::TensorBase* tensor : *tensors)
      if (const DenseTensor* dense = on_device(tensor)) saved.push_back(dense);
  const Snapshot before(saved);
  std::vector<std::pair<Elements, std::vector<bool>>> poisoned;
  std::vector<Filler> fillers{Filler::kZero, Filler::kOne};
  for (const DenseTensor* tensor : unwritten) {
    poisoned.emplace_back(Elements(*tensor), Elements(*tensor).poisoned());
    if (poisoned.back().first.is_float() && fillers.size() == 2) fillers.push_back(Filler::kNaN);
  }
  const Work origin = origin_of(begin_of(*unwritten.front()));
  const std::string finding = unwritten_text(work, *unwritten.front(), "depends on");
  std::vector<Result> results;
  for (const phi::TensorBase* output : outputs)
    if (output && DenseTensor::classof(output)) results.push_back({static_cast<const DenseTensor*>(output), {}});
  for (Filler filler : fillers) {
    before.restore();
    for (const auto& [elements, mask] : poisoned)
      for (size_t i = 0; i < mask.size(); ++i)
        if (mask[i]) elements.fill(i, filler);
    compute();
    for (Result& result : results) {
      if (!on_device(result.tensor)) continue;
      const Elements elements(*result.tensor);
      std::string bytes;
      for (int64_t i = 0; i < elements.count(); ++i) bytes.append(elements.address(i), elements.size());
      result.elements.push_back(std::move(bytes));
    }
  }
  before.restore_inputs(outputs);
  for (const Result& result : results) {
    const bool comparable = result.elements.size() == fillers.size() &&
                            std::all_of(result.elements.begin(), result.elements.end(), [&](const std::string& run) {
                              return run.size() == result.elements.front().size();
                            });
    if (result.elements.empty()) continue;
    if (!comparable || !poison_copies(result, fillers)) raise_finding("init", finding);
    if (origin && Elements(*result.tensor).has_poison()) name_origin(begin_of(*result.tensor), origin);
  }
}

// Whether the tensor has a NaN that is not poison, so that NaNs among the results prove nothing.
bool has_other_nan(const phi::TensorBase* input) {
  const DenseTensor* tensor = on_device(input);
  if (!tensor) return false;
  const Elements elements(*tensor);
  for (int64_t i = 0; i < elements.count(); ++i)
    if (elements.is_nan(i) && !elements.is_poison(i)) return true;
  return false;
}

class OpenLaunch {
 public:
  OpenLaunch() { is_open = true; }
  ~OpenLaunch() { is_open = false; }
};

}  // namespace

void run_kernel(const std::string& name, const void* stream, const Tensors& inputs, const Tensors& outputs,
                const std::optional<Part>& part, const std::function<void()>& compute) {
  if (is_open) return compute();
  raise_postponed_finding();
  const Work work = work_of(name);
  if (is_checked(kCheckMemory)) check_reuse(actor_of(stream), work);
  check_input_bounds(inputs, work);
  std::vector<const DenseTensor*> unwritten;
  if (is_checked(kCheckInit) && !draws_random_numbers(name))
    for (const phi::TensorBase* input : inputs)
      if (const DenseTensor* tensor = on_device(input))
        if (has_unwritten_elements(*tensor)) unwritten.push_back(tensor);
  {
    const OpenLaunch open;
    if (unwritten.empty())
      compute();
    else
      run_with_fillers(inputs, outputs, unwritten, compute, work);
  }
  computes(actor_of(stream));
  check_accesses(inputs, outputs, part, stream, work);
}

void use_memory(const std::string& name, const void* stream, const std::vector<Range>& ranges) {
  const Work work = work_of(name);
  const Epoch epoch = launch(stream ? actor_of(stream) : kHost);
  for (const Range& range : ranges) {
    if (is_checked(kCheckMemory)) {
      check_bounds(range, work);
      use_until(range);  // a later kernel may see the memory as a smaller tensor
    }
    check_order(range, epoch, work);
  }
}

OperatorCheck::OperatorCheck(const std::string& name, Tensors inputs) : nested_(is_open), inputs_(std::move(inputs)) {
  if (nested_) return;
  raise_postponed_finding();
  work_ = work_of(name);
  check_input_bounds(inputs_, work_);
  if (is_checked(kCheckInit))
    for (const phi::TensorBase* input : inputs_) {
      const DenseTensor* tensor = on_device(input);
      if (!tensor) continue;
      const Elements elements(*tensor);
      if (has_unwritten_elements(*tensor)) {
        if (!elements.is_float()) raise_finding("init", unwritten_text(work_, *tensor, "reads"));
        unwritten_ = tensor;
      }
    }
  if (unwritten_) has_nan_ = std::any_of(inputs_.begin(), inputs_.end(), has_other_nan);
  is_open = true;
}

OperatorCheck::~OperatorCheck() {
  if (!nested_) is_open = false;
}

void OperatorCheck::finish(const Tensors& outputs) {
  if (nested_) return;
  is_open = false;
  if (unwritten_ && !has_nan_)
    for (const phi::TensorBase* output : outputs)
      if (const DenseTensor* tensor = on_device(output)) {
        const Elements elements(*tensor);
        for (int64_t i = 0; i < elements.count(); ++i)
          if (elements.is_nan(i)) raise_finding("init", unwritten_text(work_, *unwritten_, "depends on"));
      }
  const phi::CustomPlace place("npu", current_device());
  const auto* context = static_cast<phi::CustomContext*>(phi::DeviceContextPool::Instance().Get(place));
  check_accesses(inputs_, outputs, std::nullopt, context->stream(), work_);
}

}  // namespace checks
}  // namespace virtual_npu
