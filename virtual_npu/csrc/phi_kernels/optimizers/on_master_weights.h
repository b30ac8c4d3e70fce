// Optimizers in bfloat16 and float16.
//
// Paddle's CPU kernels do not support master weights: they would update a float32 copy of the 16-bit parameter and
// leave the master weights unchanged. Here, the float32 kernel of the same name runs on the master weights, and the
// result is rounded into the parameter.
#pragma once
#include <cstddef>
#include <deque>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "paddle/phi/core/kernel_registry.h"
#include "element_type.h"
#include "phi_kernels/npu_kernel.h"
#include "phi_kernels/optimizers/float32_arguments.h"

namespace virtual_npu {

// An `Optimizer` names an operator, the type of its kernel function, and the positions of its master weights and its
// flag multi_precision among the arguments. (The context is not counted. Parameters come first among inputs and
// outputs, new master weights last.)
//   struct Sgd {
//     static constexpr char kName[] = "sgd";
//     using Signature = decltype(phi::SGDDenseKernel<float, phi::CustomContext>);
//     static constexpr int kMaster = 3, kMultiPrecision = 4;
//   };
template <typename Optimizer, typename Signature = typename Optimizer::Signature>
class OnMasterWeights;

template <typename Optimizer, typename... Args>
class OnMasterWeights<Optimizer, void(const phi::CustomContext&, Args...)> {
  using DenseTensor = phi::DenseTensor;
  using Inputs = std::vector<const DenseTensor*>;
  using Outputs = std::vector<DenseTensor*>;
  template <int I>
  using Argument = std::decay_t<std::tuple_element_t<I, std::tuple<Args...>>>;

  static constexpr int kCount = sizeof...(Args);
  static constexpr int kFirstOutput = [] {
    constexpr bool is_output[] = {(std::is_same_v<std::decay_t<Args>, DenseTensor*> ||
                                   std::is_same_v<std::decay_t<Args>, Outputs>)...};
    int i = 0;
    while (!is_output[i]) ++i;
    return i;
  }();
  static constexpr bool kMany = std::is_same_v<Argument<0>, Inputs>;
  static_assert(std::is_same_v<Argument<Optimizer::kMaster>,
                               paddle::optional<std::conditional_t<kMany, Inputs, DenseTensor>>>);
  static_assert(std::is_same_v<Argument<Optimizer::kMultiPrecision>, bool>);

 public:
  static void run(const phi::CustomContext& context, Args... args) {
    run_float32(context, std::forward_as_tuple(args...), std::index_sequence_for<Args...>{});
  }

 private:
  template <typename Tuple, std::size_t... I>
  static void run_float32(const phi::CustomContext& context, const Tuple& args, std::index_sequence<I...>) {
    using Function = void (*)(const phi::DeviceContext&, Args...);
    static const auto function = npu_kernel<Function>(context, Optimizer::kName, phi::DataType::FLOAT32);
    Replacement replacement(context);
    if (std::get<Optimizer::kMultiPrecision>(args)) {
      const auto& master = std::get<Optimizer::kMaster>(args);
      if (!master)
        PADDLE_THROW(common::errors::InvalidArgument(
            "%s: multi_precision is set without master weights; accepted: float32 master weights. Pass them.",
            Optimizer::kName));
      replacement.bind(std::get<0>(args), *master, std::get<kFirstOutput>(args), std::get<kCount - 1>(args));
    }
    // Braces, because inputs must be replaced before outputs, and the evaluation order of call arguments is
    // unspecified.
    const std::tuple<decltype(replacement.template get<I>(std::get<I>(args)))...> replaced{
        replacement.template get<I>(std::get<I>(args))...};
    function(context, std::get<I>(replaced)...);
    replacement.float32.store();
  }

  struct Replacement {
    Float32Arguments float32;
    std::deque<Inputs> inputs;
    std::deque<paddle::optional<Inputs>> optional_inputs;
    std::deque<paddle::optional<DenseTensor>> optionals;

    explicit Replacement(const phi::CustomContext& context) : float32(context) {}

    void bind(const DenseTensor& param, const DenseTensor& master, DenseTensor* param_out, DenseTensor* master_out) {
      float32.bind_master(&param, &master, param_out, master_out);
    }
    void bind(const Inputs& params, const Inputs& masters, const Outputs& params_out, const Outputs& masters_out) {
      for (std::size_t i = 0; i < params.size(); ++i)
        float32.bind_master(params[i], masters[i], params_out[i], masters_out[i]);
    }

    template <int I, typename T>
    decltype(auto) get(T& value) {
      using Plain = std::decay_t<T>;
      if constexpr (I == Optimizer::kMaster) {
        static const Plain kNone;
        return kNone;
      } else if constexpr (I == Optimizer::kMultiPrecision) {
        return false;
      } else if constexpr (std::is_same_v<Plain, DenseTensor> || std::is_same_v<Plain, phi::SelectedRows>) {
        return *float32.input(&value);
      } else if constexpr (std::is_same_v<Plain, DenseTensor*>) {
        // New master weights are written through the parameter's replacement, so this output needs no tensor.
        return I == kCount - 1 ? nullptr : float32.output(value);
      } else if constexpr (std::is_same_v<Plain, Inputs>) {
        return inputs.emplace_back(replaced(value));
      } else if constexpr (std::is_same_v<Plain, Outputs>) {
        Outputs outputs;
        if (I != kCount - 1)
          for (DenseTensor* tensor : value) outputs.push_back(float32.output(tensor));
        return outputs;
      } else if constexpr (std::is_same_v<Plain, paddle::optional<DenseTensor>>) {
        if (!value) return optionals.emplace_back();
        return optionals.emplace_back(*float32.input(value.get_ptr()));
      } else if constexpr (std::is_same_v<Plain, paddle::optional<Inputs>>) {
        if (!value) return optional_inputs.emplace_back();
        return optional_inputs.emplace_back(replaced(*value));
      } else {
        return value;
      }
    }

    Inputs replaced(const Inputs& tensors) {
      Inputs result;
      for (const DenseTensor* tensor : tensors) result.push_back(float32.input(tensor));
      return result;
    }
  };
};

// Declares the arguments of an optimizer's kernel. State (powers of beta, skip_update) may be on the CPU, where it is
// read without a copy, and keeps its place. With 16-bit parameters, state is float32; in particular, the learning
// rate must not be rounded to their type.
inline void describe_optimizer_arguments(const phi::KernelKey& key, phi::Kernel* kernel) {
  const bool low = is_16_bit_float(key.dtype());
  for (std::size_t i = 1; i < kernel->args_def().input_defs().size(); ++i) {
    kernel->InputAt(i).SetBackend(phi::Backend::ALL_BACKEND);
    if (low) kernel->InputAt(i).SetDataType(phi::DataType::FLOAT32);
  }
  for (std::size_t i = 1; i < kernel->args_def().output_defs().size(); ++i) {
    kernel->OutputAt(i).SetBackend(phi::Backend::UNDEFINED);
    if (low) kernel->OutputAt(i).SetDataType(phi::DataType::UNDEFINED);
  }
}

// Registers `function`, by default OnMasterWeights, for npu.
template <typename Optimizer, auto function = &OnMasterWeights<Optimizer>::run>
class OptimizerRegistration {
 public:
  explicit OptimizerRegistration(
      std::initializer_list<phi::DataType> types = {phi::DataType::BFLOAT16, phi::DataType::FLOAT16}) {
    using Function = decltype(function);
    using Kernel = phi::KernelImpl<Function, function>;
    for (phi::DataType type : types)
      phi::KernelRegistrar(phi::RegType::OUTER, Optimizer::kName, "npu", phi::DataLayout::ALL_LAYOUT, type,
                           &phi::KernelArgsParseFunctor<Function>::Parse, &describe_optimizer_arguments,
                           &Kernel::Compute, reinterpret_cast<void*>(&Kernel::VariadicCompute));
  }
};

}  // namespace virtual_npu
