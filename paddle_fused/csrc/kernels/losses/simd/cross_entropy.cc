#include "kernels/losses/cross_entropy_table.h"
#include "kernels/simd/math.h"
#include "kernels/simd/vector_math.h"

namespace paddle_fused::kernels {
namespace PF_TARGET {
namespace {

// One row of a tensor [outer, classes, inner], with classes `stride` elements apart. The loops below are written once
// and compiled for the dense case (Dense::stride is the constant 1, so they vectorize) and for any stride. Dense
// logits, the usual case, have separate loops.
struct Dense {
  static constexpr int64_t stride = 1;
};
struct Strided {
  int64_t stride;
};

// Lower bound of log p. Otherwise log p could be -infinity and 0 * log p NaN.
constexpr float kSmallestLog = -1e20f;

static inline float bounded(float log_p) { return log_p < kSmallestLog ? kSmallestLog : log_p; }

template <typename T>
static inline float maximum_of(const T* x, int64_t count) {
  Floats first = all(to_float(x[0])), second = first;
  int64_t i = 0;
  for (; i + kPair <= count; i += kPair) {
    const Pair v = load<T>(x + i, Whole{});
    first = larger(v.a, first);
    second = larger(v.b, second);
  }
  first = larger(first, second);
  float maximum = first[0];
  for (int lane = 1; lane < kFloats; ++lane) maximum = first[lane] > maximum ? first[lane] : maximum;
  for (; i < count; ++i) maximum = to_float(x[i]) > maximum ? to_float(x[i]) : maximum;
  return maximum;
}

// Softmax of dense logits. Returns log p of the label, or an arbitrary value if the label is not a class. After the
// first loop, the row is in the L2 cache. exponentials[classes, rounded up to Pairs] avoids computing exponentials
// twice.
template <typename T, typename Where>
static inline float softmax_of_row(const T* x, int64_t classes, int64_t label, float* exponentials, T* softmax,
                                   Where where) {
  const float maximum = maximum_of(x, classes);
  const double total = sum_of_pairs(classes, [=](int64_t i, auto part) {
    const Pair e = exp_not_positive(load<T>(x + i, part) - maximum);
    store<float>(exponentials + i, e, Whole{}, Cached{});
    return only<T>(e, part);
  });
  const float log_p =
      label >= 0 && label < classes ? to_float(x[label]) - maximum - __builtin_logf(static_cast<float>(total)) : 0.0f;
  const float scale = static_cast<float>(1.0 / total);
  for_each_pair(0, classes, [=](int64_t i, auto part) {
    store<T>(softmax + i, load<float>(exponentials + i, Whole{}) * scale, part, where);
    __builtin_prefetch(x + classes + i);
  });
  return log_p;
}

template <typename T, typename Layout>
void forward_row(const CrossEntropyProblem& problem, Layout layout, const T* x, const T* soft, int64_t label,
                 float* row, T* softmax, T* loss) {
  const int64_t classes = problem.classes, stride = layout.stride;
  float maximum = 0.0f, log_total = 0.0f;  // log p = (row - maximum) - log_total
  if (problem.use_softmax) {
    maximum = to_float(x[0]);
#pragma omp simd reduction(max : maximum)
    for (int64_t c = 0; c < classes; ++c) {
      row[c] = to_float(x[c * stride]);
      maximum = row[c] > maximum ? row[c] : maximum;
    }
    const double total = sum(classes, [=](int64_t c) { return exp_fast(row[c] - maximum); });
    const float scale = static_cast<float>(1.0 / total);
    log_total = __builtin_logf(static_cast<float>(total));
#pragma omp simd
    for (int64_t c = 0; c < classes; ++c) from_float(exp_fast(row[c] - maximum) * scale, softmax + c * stride);
  } else {
    for (int64_t c = 0; c < classes; ++c) {
      row[c] = __builtin_logf(to_float(x[c * stride]));
      softmax[c * stride] = x[c * stride];
    }
  }
  const auto log_p = [=](int64_t c) { return bounded((row[c] - maximum) - log_total); };
  float value = 0.0f;
  if (soft)
    value = -static_cast<float>(sum(classes, [=](int64_t c) { return to_float(soft[c * stride]) * log_p(c); }));
  else if (label != problem.ignore_index)
    value = -log_p(label);
  from_float(value, loss);
}

template <typename T>
void forward(const CrossEntropyProblem& problem, const void* x_data, int64_t r, float* row, bool stream,
             void* softmax_data, void* loss_data) {
  const int64_t first = r / problem.inner * problem.classes * problem.inner + r % problem.inner;
  const T* x = static_cast<const T*>(x_data) + first;
  const T* soft = problem.soft_labels ? static_cast<const T*>(problem.soft_labels) + first : nullptr;
  const int64_t label = problem.hard_labels ? problem.hard_labels[r] : 0;
  T* softmax = static_cast<T*>(softmax_data) + first;
  T* loss = static_cast<T*>(loss_data) + r;
  if (problem.inner == 1 && problem.use_softmax && !soft) {
    float log_p = 0.0f;
    if (stream && streams_to(softmax, 0)) {
      log_p = softmax_of_row(x, problem.classes, label, row, softmax, Streamed{});
      finish_streams();
    } else {
      log_p = softmax_of_row(x, problem.classes, label, row, softmax, Cached{});
    }
    from_float(label == problem.ignore_index ? 0.0f : -bounded(log_p), loss);
  } else if (problem.inner == 1)
    forward_row(problem, Dense{}, x, soft, label, row, softmax, loss);
  else
    forward_row(problem, Strided{problem.inner}, x, soft, label, row, softmax, loss);
}

// dx = softmax * factor for one row. dx may be softmax.
template <typename T>
static inline void scale_row(Dense, const T* softmax, int64_t classes, float factor, T* dx) {
  for_each_pair(0, classes, [=](int64_t i, auto part) {
    store<T>(dx + i, load<T>(softmax + i, part) * factor, part, Cached{});
  });
}
template <typename T>
static inline void scale_row(Strided layout, const T* softmax, int64_t classes, float factor, T* dx) {
  for (int64_t c = 0; c < classes; ++c) {
    const int64_t i = c * layout.stride;
    from_float(to_float(softmax[i]) * factor, dx + i);
  }
}

template <typename T, typename Layout>
void backward_row(const CrossEntropyProblem& problem, Layout layout, const T* softmax, const T* soft, int64_t label,
                  float g, T* dx) {
  const int64_t classes = problem.classes, stride = layout.stride;
  if (soft) {
    if (problem.use_softmax) {
#pragma omp simd
      for (int64_t c = 0; c < classes; ++c)
        from_float((to_float(softmax[c * stride]) - to_float(soft[c * stride])) * g, dx + c * stride);
    } else {
#pragma omp simd
      for (int64_t c = 0; c < classes; ++c)
        from_float(-to_float(soft[c * stride]) / to_float(softmax[c * stride]) * g, dx + c * stride);
    }
    return;
  }
  // The label's element is read first, because dx may be softmax.
  const bool counts = label != problem.ignore_index;
  const float p = counts ? to_float(softmax[label * stride]) : 0.0f;
  const float others = counts && problem.use_softmax ? g : 0.0f;
  if (others == 0.0f) {
    for (int64_t c = 0; c < classes; ++c) from_float(0.0f, dx + c * stride);
  } else {
    scale_row(layout, softmax, classes, others, dx);
  }
  if (counts) from_float(problem.use_softmax ? (p - 1.0f) * g : -g / p, dx + label * stride);
}

template <typename T>
void backward(const CrossEntropyProblem& problem, const void* softmax_data, const void* dloss_data, int64_t r,
              void* dx_data) {
  const int64_t first = r / problem.inner * problem.classes * problem.inner + r % problem.inner;
  const T* softmax = static_cast<const T*>(softmax_data) + first;
  const T* soft = problem.soft_labels ? static_cast<const T*>(problem.soft_labels) + first : nullptr;
  const int64_t label = problem.hard_labels ? problem.hard_labels[r] : 0;
  const float g = to_float(static_cast<const T*>(dloss_data)[r]);
  T* dx = static_cast<T*>(dx_data) + first;
  if (problem.inner == 1)
    backward_row(problem, Dense{}, softmax, soft, label, g, dx);
  else
    backward_row(problem, Strided{problem.inner}, softmax, soft, label, g, dx);
}

constexpr CrossEntropyTable kTable = {
    {forward<float>, forward<BFloat16>, forward<Float16>},
    {backward<float>, backward<BFloat16>, backward<Float16>},
};

}  // namespace

const CrossEntropyTable& cross_entropy_table() { return kTable; }

}  // namespace PF_TARGET
}  // namespace paddle_fused::kernels
