#include "kernels/matmul/matmul.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/matmul/matmul_table.h"
#include "kernels/no_compute_guard.h"
#include "kernels/workspace.h"

namespace paddle_fused::kernels {
namespace {

// Bytes of B packed at a time, and partial sums kept for further depth steps. Both share the last-level cache with
// the data that is read and written meanwhile.
constexpr int64_t kPackedBytes = 4 << 20, kWaitingSums = 1 << 20;
// Cache up to this many bytes of packed B across row blocks; repack the rest.
constexpr int64_t kStayingBytes = 48 << 20;
// Panels of B packed together. If B's rows are contiguous, all panels of a part are packed together for this depth,
// so memory is read in long runs.
constexpr int64_t kPackedTogether = 8, kPackedDepth = 64;

// Minimum number of tasks per thread.
constexpr int64_t kTasks = 8;

int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }
int64_t round_up(int64_t size, int64_t unit) { return blocks(size, unit) * unit; }

// `count` panels in `parts` parts of almost equal size. Part i has panels begin(i) to begin(i + 1) - 1.
struct EvenParts {
  int64_t count, parts;

  int64_t begin(int64_t i) const { return i * count / parts; }
  int64_t largest() const { return blocks(count, parts); }
};

const MatmulTable& table_of(const MatmulTypes& type) {
  const bool bfloat16 = type.a == ElementType::kBFloat16 && type.b == ElementType::kBFloat16;
  return PF_SELECT_PRODUCT_TABLE(matmul_table, bfloat16);
}

// A thread that packs and multiplies.
class Worker {
 public:
  explicit Worker(const MatmulTable& table) : table_(table) { table_.enter(); }
  ~Worker() { table_.leave(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

 private:
  const MatmulTable& table_;
};

// One product with all its terms. The result is computed part by part. B is packed for a part and shared by all
// threads, unless it is still packed from the previous rows. Each thread then packs blocks of A's rows and multiplies
// them by the panels of B.
// If one block contains all rows, B's panels are used only once, so every thread packs some just before it uses them.
// The sums of a panel and a block of rows stay in the L1 cache. If the depth is packed in several steps, the sums of
// the whole part are kept for the next step.
class Product {
 public:
  // `staying`: bytes of B that may stay packed. `whole`: all of B, packed by pack_whole of a product with many rows;
  // `b` is then not read.
  Product(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, int threads,
          int64_t staying = kStayingBytes, const float* whole = nullptr)
      : problem_(problem), a_(a), b_(b), threads_(threads), table_(table_of(problem.type)), whole_(whole) {
    const int64_t height = table_.panel_rows, width = table_.panel_columns;
    steps_per_term_ = blocks(problem.depth, table_.packed_depth);
    steps_ = problem.terms * steps_per_term_;
    depth_ = round_up(blocks(problem.depth, steps_per_term_), kMatmulSummed);
    few_rows_ = !whole && problem.rows <= table_.block_panels * height;
    const int64_t depth = std::min(depth_, problem.depth);
    const int64_t a_panel = panel_floats(height, depth), b_panel = panel_floats(width, depth);
    part_rows_ = round_up(problem.rows, height);
    part_columns_ = round_up(problem.columns, width);
    const int64_t packed_together = kPackedBytes / table_.packed_size / depth;
    if (!few_rows_) part_columns_ = std::min(part_columns_, at_least_one(packed_together, width));
    if (steps_ > 1) {
      part_columns_ = std::min(part_columns_, at_least_one(kWaitingSums / height, width));
      part_rows_ = std::min(part_rows_, at_least_one(kWaitingSums / part_columns_, height));
      waiting_floats_ = round_up(part_rows_ * part_columns_, kLine);
    }
    // A thread's own memory: its block of A, the sums of one panel of B and, with few rows, some panels of B.
    sums_floats_ = round_up(table_.block_panels * height * width, kLine);
    block_floats_ = round_up(table_.block_panels * a_panel + table_.slack / 4, kLine);
    const int64_t together = kPackedTogether * b_panel;
    own_floats_ = sums_floats_ + block_floats_ + (few_rows_ ? together : 0);
    packed_floats_ = few_rows_ ? 0 : part_columns_ / width * b_panel;
    if (part_rows_ < problem.rows && !few_rows_)
      staying_steps_ = std::clamp<int64_t>(staying / (packed_floats_ * int64_t{sizeof(float)}), 1, steps_);
  }

  int64_t workspace_floats() const {
    return (whole_ ? 0 : staying_steps_ * packed_floats_) + waiting_floats_ + threads_ * own_floats_;
  }

  int64_t whole_floats() const { return blocks(problem_.columns, part_columns_) * steps_ * packed_floats_; }

  // Packs all of B for other products with the same depth and columns.
  void pack_whole(float* to) const {
    for (int64_t column = 0; column < problem_.columns; column += part_columns_) {
      const Part part{0, column, 0, std::min(part_columns_, problem_.columns - column)};
      for (int64_t step = 0; step < steps_; ++step, to += packed_floats_) {
        const Step now = step_of(part, 0, step);
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
        {
          const Worker worker(table_);
          pack_step(now, to);
        }
      }
    }
  }

  // `out` is the start of result number `output`.
  void run(int64_t output, const MatmulPart& out, float* workspace) const {
    const float* whole = whole_;
    for (int64_t column = 0; column < problem_.columns; column += part_columns_, whole += steps_ * packed_floats_)
      for (int64_t row = 0; row < problem_.rows; row += part_rows_) {
        const Part part{row, column, std::min(part_rows_, problem_.rows - row),
                        std::min(part_columns_, problem_.columns - column)};
        for (int64_t step = 0; step < steps_; ++step) {
          Step now = step_of(part, output, step);
          now.waiting = workspace + (whole_ ? 0 : staying_steps_ * packed_floats_);
          if (few_rows_) {
            run_few_rows(now, out);
          } else if (whole_) {
            run_step(now, whole + step * packed_floats_, nullptr, out);
          } else {
            // Steps beyond the kept ones share the last place.
            const int64_t place = std::min(step, staying_steps_ - 1);
            const bool is_there = row > 0 && (place + 1 < staying_steps_ || staying_steps_ == steps_);
            float* const packed = workspace + place * packed_floats_;
            run_step(now, packed, is_there ? nullptr : packed, out);
          }
        }
      }
  }

 private:
  static constexpr int64_t kLine = 16;  // floats per cache line

  struct Part {
    int64_t row, column, rows, columns;
  };
  struct Step {
    const Part& part;
    int64_t matrix, k, depth;
    bool accumulate, last;
    float* waiting;
  };
  // A thread's own memory.
  struct Own {
    float *sums, *a_panels, *b_panels;
  };

  static int64_t at_least_one(int64_t size, int64_t unit) { return std::max<int64_t>(1, size / unit) * unit; }

  int64_t panel_floats(int64_t width, int64_t depth) const {
    return round_up(depth, table_.depth_multiple) * width * table_.packed_size / 4;
  }

  Step step_of(const Part& part, int64_t output, int64_t step) const {
    const int64_t k = step % steps_per_term_ * depth_;
    return {part,     output * problem_.terms + step / steps_per_term_,
            k,        std::min(depth_, problem_.depth - k),
            step > 0, step + 1 == steps_,
            nullptr};
  }

  Own own(const Step& step) const {
    float* sums = step.waiting + waiting_floats_ + omp_get_thread_num() * own_floats_;
    return {sums, sums + sums_floats_, sums + sums_floats_ + block_floats_};
  }

  static MatmulBlock block(const MatmulOperand& x, ElementType type, int64_t matrix, int64_t row, int64_t column,
                           int64_t rows, int64_t columns) {
    const int64_t first = x.offsets[matrix] + row * x.row_stride + column * x.column_stride;
    return {static_cast<const char*>(x.data) + first * element_size(type), x.row_stride, x.column_stride, rows,
            columns};
  }

  // Packs B for the step. Called by all threads of a parallel region, which share the work.
  void pack_step(const Step& step, float* to) const {
    const int64_t column_panels = blocks(step.part.columns, table_.panel_columns);
    if (b_.column_stride == 1) {
#pragma omp for schedule(static)
      for (int64_t k = 0; k < step.depth; k += kPackedDepth)
        pack_b(step, 0, column_panels, k, std::min(kPackedDepth, step.depth - k), to);
    } else {
#pragma omp for schedule(static)
      for (int64_t c = 0; c < column_panels; c += kPackedTogether)
        pack_b(step, c, std::min(kPackedTogether, column_panels - c), 0, step.depth,
               to + c * panel_floats(table_.panel_columns, step.depth));
    }
  }

  // `pack_to`: where B is packed first, or nullptr.
  void run_step(const Step& step, const float* packed, float* pack_to, const MatmulPart& out) const {
    const int64_t column_panels = blocks(step.part.columns, table_.panel_columns);
    const EvenParts rows = blocks_of_rows(blocks(step.part.rows, table_.panel_rows));
    const EvenParts columns = blocks_of_columns(column_panels, rows.parts);
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
      const Worker worker(table_);
      if (pack_to) pack_step(step, pack_to);
#pragma omp for schedule(monotonic : dynamic) nowait
      for (int64_t t = 0; t < rows.parts * columns.parts; ++t) {
        const int64_t row = t / columns.parts, column = t % columns.parts;
        const Own mine = own(step);
        pack_a(step, rows.begin(row), rows.begin(row + 1), mine.a_panels);
        for (int64_t c = columns.begin(column); c < columns.begin(column + 1); ++c)
          multiply(step, rows.begin(row), rows.begin(row + 1), c, mine,
                   packed + c * panel_floats(table_.panel_columns, step.depth), out);
      }
    }
  }

  void run_few_rows(const Step& step, const MatmulPart& out) const {
    const int64_t row_panels = blocks(step.part.rows, table_.panel_rows);
    const int64_t column_panels = blocks(step.part.columns, table_.panel_columns);
    const int64_t together = std::clamp<int64_t>(column_panels / threads_, 1, kPackedTogether);
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
      const Worker worker(table_);
      const Own mine = own(step);
      pack_a(step, 0, row_panels, mine.a_panels);
#pragma omp for schedule(monotonic : dynamic) nowait
      for (int64_t first = 0; first < column_panels; first += together) {
        const int64_t count = std::min(together, column_panels - first);
        pack_b(step, first, count, 0, step.depth, mine.b_panels);
        for (int64_t c = 0; c < count; ++c)
          multiply(step, 0, row_panels, first + c, mine,
                   mine.b_panels + c * panel_floats(table_.panel_columns, step.depth), out);
      }
    }
  }

  // Blocks of rows that fit in a thread's caches, in equal numbers per thread.
  EvenParts blocks_of_rows(int64_t panels) const {
    const int64_t fewest = blocks(panels, table_.block_panels);
    return {panels, std::min(panels, round_up(fewest, threads_))};
  }
  // With few blocks of rows per thread, threads would wait for the last ones, so the columns are distributed as well.
  EvenParts blocks_of_columns(int64_t panels, int64_t row_blocks) const {
    const int64_t evenly = threads_ / std::gcd<int64_t>(row_blocks, threads_);
    const int64_t many = blocks(kTasks * threads_, row_blocks);
    return {panels, threads_ == 1 ? 1 : std::min(panels, blocks(many, evenly) * evenly)};
  }

  // Packs panels [begin, end) of A's rows.
  void pack_a(const Step& step, int64_t begin, int64_t end, float* panels) const {
    const int64_t row = begin * table_.panel_rows, rows = std::min(end * table_.panel_rows, step.part.rows) - row;
    const ElementType type = problem_.type.a;
    table_.pack_a[static_cast<int>(type)](
        block(a_, type, step.matrix, step.part.row + row, step.k, rows, step.depth), panels);
  }

  // Packs rows [k, k + depth) of `count` panels of B's columns, starting at `first`.
  void pack_b(const Step& step, int64_t first, int64_t count, int64_t k, int64_t depth, float* panels) const {
    const int64_t column = first * table_.panel_columns;
    const int64_t columns = std::min(count * table_.panel_columns, step.part.columns - column);
    const ElementType type = problem_.type.b;
    table_.pack_b[static_cast<int>(type)](
        block(b_, type, step.matrix, step.k + k, step.part.column + column, depth, columns),
        round_up(step.depth, table_.depth_multiple), panels + panel_floats(table_.panel_columns, k));
  }

  // Multiplies panels [begin, end) of A's rows by one panel of B's columns.
  void multiply(const Step& step, int64_t begin, int64_t end, int64_t column_panel, const Own& own,
                const float* b_panel, const MatmulPart& out) const {
    const int64_t tile_floats = table_.panel_rows * table_.panel_columns;
    const int64_t panels = blocks(step.part.rows, table_.panel_rows);
    const int64_t first_row = begin * table_.panel_rows;
    const int64_t all_rows = std::min(end * table_.panel_rows, step.part.rows) - first_row;
    float* sums = steps_ > 1 ? step.waiting + (column_panel * panels + begin) * tile_floats : own.sums;
    table_.multiply(own.a_panels, all_rows, b_panel, step.depth, sums, step.accumulate);
    if (!step.last) return;
    const auto store = table_.store[static_cast<int>(problem_.type.out)];
    const int64_t column = column_panel * table_.panel_columns;
    const int64_t columns = std::min(table_.panel_columns, step.part.columns - column);
    char* to = static_cast<char*>(out.data);
    for (int64_t m = 0; m < all_rows; m += table_.panel_rows) {
      const int64_t place = (step.part.row + first_row + m) * out.row_stride + step.part.column + column;
      store(sums + m * table_.panel_columns, std::min(table_.panel_rows, all_rows - m), columns,
            to + place * element_size(problem_.type.out), out.row_stride, out.accumulate);
    }
  }

  const MatmulProblem& problem_;
  const MatmulOperand &a_, &b_;
  const int threads_;
  const MatmulTable& table_;
  const float* const whole_;
  bool few_rows_;
  int64_t steps_per_term_, steps_, depth_;
  int64_t part_rows_, part_columns_;
  int64_t sums_floats_, block_floats_, own_floats_, packed_floats_, waiting_floats_ = 0;
  int64_t staying_steps_ = 1;
};

}  // namespace

bool multiplies_bfloat16() { return active_isa() >= Isa::kAvx512Bf16; }

void matmul(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, void* out) {
  if (compute_is_disabled()) return;
  const int64_t out_bytes = problem.rows * problem.columns * element_size(problem.type.out);
  if (problem.outputs == 0 || out_bytes == 0) return;
  if (problem.depth == 0 || problem.terms == 0) {
    std::memset(out, 0, problem.outputs * out_bytes);
    return;
  }
  // With many results, each thread computes whole results. With few, all threads compute one result at a time.
  const int most = omp_get_max_threads();
  const bool whole = problem.outputs >= 4 * most;
  const Product product(problem, a, b, whole ? 1 : most, kStayingBytes / (whole ? most : 1));
  const int64_t floats = round_up(product.workspace_floats(), 16);
  const CachedWorkspace workspace(floats * (whole ? most : 1));
#pragma omp parallel for schedule(static) if (whole)
  for (int64_t i = 0; i < problem.outputs; ++i) {
    const MatmulPart result{static_cast<char*>(out) + i * out_bytes, problem.columns, false};
    product.run(i, result, workspace.get() + omp_get_thread_num() * floats);
  }
}

void matmul_into(const MatmulProblem& problem, const MatmulOperand& a, const MatmulOperand& b, const MatmulPart& out) {
  if (compute_is_disabled()) return;
  if (problem.rows == 0 || problem.columns == 0) return;
  if (problem.depth == 0) {
    const int64_t size = element_size(problem.type.out);
    for (int64_t row = 0; !out.accumulate && row < problem.rows; ++row)
      std::memset(static_cast<char*>(out.data) + row * out.row_stride * size, 0, problem.columns * size);
    return;
  }
  const Product product(problem, a, b, omp_get_max_threads());
  const CachedWorkspace workspace(product.workspace_floats());
  product.run(0, out, workspace.get());
}

PackedMatrix::PackedMatrix(ElementType a, ElementType b, int64_t depth, int64_t columns, const MatmulOperand& matrix)
    : a_(a), b_(b), depth_(depth), columns_(columns) {
  constexpr int64_t kManyRows = 1 << 30;  // B is packed differently for few rows
  if (compute_is_disabled() || depth == 0 || columns == 0) return;
  const MatmulProblem problem = this->problem(kManyRows, ElementType::kFloat32);
  const MatmulOperand none{};
  const Product product(problem, none, matrix, omp_get_max_threads());
  panels_ = std::make_unique<CachedWorkspace>(product.whole_floats());
  product.pack_whole(panels_->get());
}

PackedMatrix::~PackedMatrix() = default;

MatmulProblem PackedMatrix::problem(int64_t rows, ElementType out) const {
  return {{a_, b_, out}, rows, columns_, depth_, 1, 1};
}

void PackedMatrix::multiply(int64_t rows, const MatmulOperand& a, ElementType type, const MatmulPart& out) const {
  const MatmulProblem problem = this->problem(rows, type);
  const MatmulOperand packed{};
  if (!panels_ || rows == 0) return matmul_into(problem, a, packed, out);
  const Product product(problem, a, packed, omp_get_max_threads(), 0, panels_->get());
  const CachedWorkspace workspace(product.workspace_floats());
  product.run(0, out, workspace.get());
}

}  // namespace paddle_fused::kernels
