#include "bridge/install.h"

#include <cstdio>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "paddle/phi/core/custom_kernel.h"
#include "paddle/phi/core/kernel_factory.h"
#include "bridge/call.h"
#include "bridge/kernel_entry.h"
#include "bridge/reshard.h"
#include "bridge/thunks.h"
#include "runtime/config.h"

namespace virtual_npu {
namespace {

using phi::Backend;
using phi::DataLayout;
using phi::DataType;
using phi::Kernel;
using phi::KernelKey;
using phi::KernelKeyMap;

// Collectives would use the CPU's communicator. Feed, fetch and copies between places refer to the CPU itself.
const std::unordered_set<std::string>& never_bridged() {
  static const std::unordered_set<std::string> names = {
      "all_gather",     "all_reduce",       "all_to_all",      "barrier",           "broadcast",
      "c_allgather",    "c_allreduce_avg",  "c_allreduce_max", "c_allreduce_min",   "c_allreduce_prod",
      "c_allreduce_sum", "c_broadcast",     "c_concat",        "c_reduce_avg",      "c_reduce_max",
      "c_reduce_min",   "c_reduce_prod",    "c_reduce_sum",    "c_reducescatter",   "c_scatter",
      "c_softmax_with_cross_entropy",       "c_softmax_with_multi_label_cross_entropy",
      "dgc",            "fake_init",        "feed",            "fetch",             "fetch_barrier",
      "global_gather",  "global_scatter",   "memcpy_d2h",      "memcpy_h2d",        "mp_allreduce_sum",
      "p_recv",         "p_recv_array",     "p_send",          "p_send_array",      "partial_allgather",
      "partial_recv",   "partial_send",     "recv_v2",         "reduce",            "reduce_scatter",
      "send_v2",
  };
  return names;
}

// npu kernels that only enqueue a collective on their stream. The softmax kernels also compute.
bool queues_its_work(const std::string& name) {
  if (name.rfind("c_softmax_", 0) == 0) return false;
  return never_bridged().count(name) || name.rfind("c_allreduce_", 0) == 0 || name == "mp_allreduce_sum";
}

// CPU kernels that lose additions on several threads: index_put with accumulate=True and repeated indices. A card's
// kernel adds them all.
bool races(const std::string& name) { return name == "index_put"; }

Backend npu_backend() {
  static const Backend backend = phi::TransToPhiBackend(phi::CustomPlace("npu"));
  return backend;
}

// Routes the kernel's calls through entry `number`.
void route(Kernel* kernel, int number) {
  kernel->fn_ = [number](phi::KernelContext* context) { call_with_context(number, context); };
  kernel->variadic_fn_ = thunk_address(number);
}

// Routes a kernel that is written for npu tensors. Returns nullptr if the bridge cannot pass its arguments.
KernelEntry* observe_native(const std::string& name, DataType dtype, Kernel* kernel) {
  Signature signature;
  if (!signature.read(kernel->args_def()) || entry_count() == VIRTUAL_NPU_THUNKS) return nullptr;
  const int number = entry_count();
  KernelEntry& entry = new_entry(name, dtype);
  entry.native = true;
  entry.function = kernel->fn_;
  entry.variadic_function = kernel->variadic_fn_;
  entry.signature = std::move(signature);
  route(kernel, number);
  return &entry;
}

void replace_backend(Kernel* kernel, Backend from) {
  for (auto& input : kernel->args_def_.input_defs_)
    if (input.backend == from) input.backend = npu_backend();
  for (auto& output : kernel->args_def_.output_defs_)
    if (output.backend == from) output.backend = npu_backend();
}

void replace_dtype(Kernel* kernel, DataType from, DataType to) {
  for (auto& input : kernel->args_def_.input_defs_)
    if (input.dtype == from) input.dtype = to;
  for (auto& output : kernel->args_def_.output_defs_)
    if (output.dtype == from) output.dtype = to;
}

class Installer {
 public:
  Installer(const std::string& name, KernelKeyMap& kernels) : name_(name), kernels_(kernels) {
    // Holds plugin kernels (PD_REGISTER_PLUGIN_KERNEL) until Paddle has loaded the plugin.
    auto& plugin = phi::CustomKernelMap::Instance().kernels_;
    const auto found = plugin.find(name);
    plugin_kernels_ = found == plugin.end() ? nullptr : &found->second;
  }

  // Returns the bridged CPU kernels that are overridden by a plugin kernel.
  KernelKeyMap run() {
    bool generic = false;  // Paddle has a kernel of this name for all custom devices
    for (const auto& [key, kernel] : kernels_)
      generic |= key.backend() == Backend::CUSTOM && key.layout() != DataLayout::STRIDED;
    for (const auto& [key, kernel] : kernels_) {
      if (key.backend() == Backend::CUSTOM && key.layout() != DataLayout::STRIDED) alias(key, kernel);
      if (key.backend() != Backend::CPU || !kernel.IsValid() || needs_mkl(key.dtype())) continue;
      bridge(key, kernel, key.dtype(), DataType::UNDEFINED);
      if (generic || key.dtype() != DataType::FLOAT32 || key.layout() == DataLayout::STRIDED) continue;
      for (DataType low : {DataType::BFLOAT16, DataType::FLOAT16})
        if (!kernels_.count({Backend::CPU, key.layout(), low}) || needs_mkl(low)) bridge(key, kernel, low, low);
    }
    for (auto& [key, kernel] : added_) kernels_[key] = kernel;
    return std::move(behind_);
  }

 private:
  // bfloat16 kernels that add rows with MKL, which exists for x86-64 only. On other processors they fail with "Blas
  // VCOPY do not supported on CPU with bfloat16". The float32 kernels replace them.
  bool needs_mkl(DataType dtype) const {
#if defined(__x86_64__)
    return false;
#else
    return dtype == DataType::BFLOAT16 && (name_ == "gather_grad" || name_ == "index_select_grad");
#endif
  }

  bool taken(const KernelKey& npu) const {
    return kernels_.count({Backend::CUSTOM, npu.layout(), npu.dtype()}) || kernels_.count(npu);
  }
  bool has_plugin_kernel(const KernelKey& npu) const { return plugin_kernels_ && plugin_kernels_->count(npu); }

  void bridge(const KernelKey& key, const Kernel& cpu, DataType dtype, DataType promoted) {
    const KernelKey npu_key(npu_backend(), key.layout(), dtype);
    if (taken(npu_key) || cpu.kernel_registered_type_ != phi::KernelRegisteredType::FUNCTION) return;
    Signature signature;
    if (!signature.read(cpu.args_def()) || entry_count() == VIRTUAL_NPU_THUNKS) return;
    const int number = entry_count();
    KernelEntry& entry = new_entry(name_, dtype);
    entry.function = cpu.fn_;
    entry.variadic_function = cpu.variadic_fn_;
    entry.promoted = promoted;
    entry.one_thread = races(name_);
    entry.view = key.layout() == DataLayout::STRIDED;
    entry.signature = std::move(signature);
    Kernel npu(cpu);
    route(&npu, number);
    replace_backend(&npu, Backend::CPU);
    if (entry.promotes()) replace_dtype(&npu, DataType::FLOAT32, promoted);
    if (has_plugin_kernel(npu_key))
      behind_[npu_key] = npu;
    else
      added_.emplace_back(npu_key, npu);
  }

  // The pass that places kernels in a PIR program considers only the concrete backend.
  void alias(const KernelKey& key, const Kernel& generic) {
    const KernelKey npu(npu_backend(), key.layout(), key.dtype());
    if (kernels_.count(npu) || has_plugin_kernel(npu)) return;
    Kernel kernel(generic);
    if (config().checks && kernel.kernel_registered_type_ == phi::KernelRegisteredType::FUNCTION)
      if (KernelEntry* entry = observe_native(name_, key.dtype(), &kernel)) entry->generic = true;
    replace_backend(&kernel, Backend::CUSTOM);
    added_.emplace_back(npu, kernel);
  }

  const std::string& name_;
  KernelKeyMap& kernels_;
  KernelKeyMap* plugin_kernels_;
  std::vector<std::pair<KernelKey, Kernel>> added_;
  KernelKeyMap behind_;
};

void record_plugin_kernels() {
  for (auto& [name, kernels] : phi::CustomKernelMap::Instance().kernels_) {
    for (auto& [key, kernel] : kernels) {
      if (key.backend() != npu_backend()) continue;
      if (KernelEntry* entry = observe_native(name, key.dtype(), &kernel)) entry->queues = queues_its_work(name);
    }
  }
}

}  // namespace

void install_bridge() {
  auto& all = phi::KernelFactory::Instance().kernels();
  std::vector<std::pair<std::string, KernelKeyMap>> behind;
  for (auto& [name, kernels] : all) {
    if (never_bridged().count(name)) continue;
    KernelKeyMap shadowed = Installer(name, kernels).run();
    if (!shadowed.empty()) behind.emplace_back(bridged_name(name), std::move(shadowed));
  }
  for (auto& [name, kernels] : behind) all[name] = std::move(kernels);
  record_plugin_kernels();
  install_reshard();
  if (entry_count() == VIRTUAL_NPU_THUNKS)
    std::fprintf(stderr, "virtual npu: more kernels than thunks; some kernels are not available on npu\n");
}

}  // namespace virtual_npu
