#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <array>
#include <string>

#include "checks/checks.h"
#include "kernels/matmul/grouped_matmul.h"

namespace paddle_fused::checks {
namespace {

using namespace kernels;

// Operands as consecutive matrices, each row-major or column-major.
struct Matrices {
  Tensor data;
  int64_t rows, columns;
  bool by_columns;
  std::vector<int64_t> offsets;

  Matrices(ElementType type, int64_t rows, int64_t columns, bool by_columns, std::vector<int64_t> order)
      : data(Tensor::random(type, 0)), rows(rows), columns(columns), by_columns(by_columns) {
    int64_t count = 0;
    for (const int64_t matrix : order) {
      offsets.push_back(matrix * rows * columns);
      count = std::max(count, matrix + 1);
    }
    data = Tensor::random(type, count * rows * columns);
  }

  MatmulOperand operand() const {
    return {data.data(), by_columns ? 1 : columns, by_columns ? rows : 1, offsets.data()};
  }
  double at(int64_t matrix, int64_t row, int64_t column) const {
    return data[offsets[matrix] + (by_columns ? column * rows + row : row * columns + column)];
  }
};

// sum over t of A[i, t] B[i, t]
template <typename Arithmetic>
auto product(const MatmulProblem& p, const Matrices& a, const Matrices& b) {
  using Real = typename Arithmetic::Real;
  std::vector<Real> out;
  for (int64_t i = 0; i < p.outputs; ++i)
    for (int64_t row = 0; row < p.rows; ++row)
      for (int64_t column = 0; column < p.columns; ++column) {
        Real sum = 0;
        for (int64_t matrix = i * p.terms; matrix < (i + 1) * p.terms; ++matrix)
          for (int64_t k = 0; k < p.depth; ++k)
            sum += static_cast<Real>(a.at(matrix, row, k)) * static_cast<Real>(b.at(matrix, k, column));
        out.push_back(sum);
      }
  return out;
}

std::string name_of(const MatmulProblem& p, bool a_by_columns, bool b_by_columns) {
  return std::to_string(p.rows) + "x" + std::to_string(p.depth) + (a_by_columns ? "^T" : "") + " by " +
         std::to_string(p.depth) + "x" + std::to_string(p.columns) + (b_by_columns ? "^T" : "") + ", " +
         type_name(p.type.a) + " by " + type_name(p.type.b) + " to " + type_name(p.type.out) + ", " +
         std::to_string(p.outputs) + " results of " + std::to_string(p.terms) + " terms";
}

void check_product(Report* report, const MatmulProblem& p, bool a_by_columns, bool b_by_columns) {
  std::vector<int64_t> a_order, b_order;
  for (int64_t i = 0; i < p.outputs * p.terms; ++i) {
    a_order.push_back(i);
    b_order.push_back(i % p.terms);  // broadcast over the results
  }
  const Matrices a(p.type.a, p.rows, p.depth, a_by_columns, a_order);
  const Matrices b(p.type.b, p.depth, p.columns, b_by_columns, b_order);
  Tensor out(p.type.out, p.outputs * p.rows * p.columns);
  matmul(p, a.operand(), b.operand(), out.data());
  report->problem(name_of(p, a_by_columns, b_by_columns));
  report->compare("out", out, [&](auto arithmetic) { return product<decltype(arithmetic)>(p, a, b); });
}

// The result as a part of a larger matrix, first written, then accumulated into.
void check_into(Report* report, const MatmulProblem& p) {
  constexpr int64_t kBeside = 3;
  const int64_t stride = p.columns + kBeside;
  const Matrices a(p.type.a, p.rows, p.depth, false, {0}), b(p.type.b, p.depth, p.columns, false, {0});
  Tensor out = Tensor::random(p.type.out, p.rows * stride), before = out;
  matmul_into(p, a.operand(), b.operand(), {out.data(), stride, false});
  const auto expected = [&](auto arithmetic, bool accumulate) {
    const auto sums = product<decltype(arithmetic)>(p, a, b);
    std::vector<typename decltype(arithmetic)::Real> all;
    for (int64_t row = 0; row < p.rows; ++row)
      for (int64_t column = 0; column < stride; ++column) {
        all.push_back(before[row * stride + column]);
        if (column >= p.columns) continue;
        const auto sum = sums[row * p.columns + column];
        all.back() = accumulate ? all.back() + sum : sum;
      }
    return all;
  };
  report->problem("a part, " + name_of(p, false, false));
  report->compare("out", out, [&](auto arithmetic) { return expected(arithmetic, false); });
  out = before;
  matmul_into(p, a.operand(), b.operand(), {out.data(), stride, true});
  report->compare("sum", out, [&](auto arithmetic) { return expected(arithmetic, true); });
}

// Several products with one packed matrix, some rows at a time.
void check_packed(Report* report, const MatmulProblem& p, bool by_columns, int64_t rows_at_once) {
  const Matrices a(p.type.a, p.rows, p.depth, false, {0}), b(p.type.b, p.depth, p.columns, by_columns, {0});
  Tensor out(p.type.out, p.rows * p.columns);
  const PackedMatrix packed(p.type.a, p.type.b, p.depth, p.columns, b.operand());
  for (int64_t row = 0; row < p.rows; row += rows_at_once) {
    const int64_t first = row * p.depth;
    char* to = static_cast<char*>(out.data()) + row * p.columns * element_size(p.type.out);
    packed.multiply(std::min(rows_at_once, p.rows - row), {a.data.data(), p.depth, 1, &first}, p.type.out,
                    {to, p.columns, false});
  }
  report->problem(std::to_string(rows_at_once) + " rows at once, " + name_of(p, false, by_columns));
  report->compare("out", out, [&](auto arithmetic) { return product<decltype(arithmetic)>(p, a, b); });
}

}  // namespace

void check_matmul(Report* report) {
  constexpr ElementType kFloat = ElementType::kFloat32;
  for (const ElementType type : kTypes) {
    report->kernel("matmul", type);
    for (const bool a_by_columns : {false, true})
      for (const bool b_by_columns : {false, true})
        for (const auto& [rows, columns, depth] :
             {std::array<int64_t, 3>{1, 1, 1}, {5, 3, 7}, {17, 33, 65}, {67, 197, 131}, {1, 65, 259}, {130, 1, 33}})
          check_product(report, {type, rows, columns, depth, 1, 1}, a_by_columns, b_by_columns);
    // Longer than the blocks of a product.
    check_product(report, {type, 1027, 5, 9, 1, 1}, false, false);
    check_product(report, {type, 3, 773, 9, 1, 1}, false, false);
    check_product(report, {type, 3, 5, 1029, 1, 1}, false, true);
    check_product(report, {type, 19, 35, 37, 3, 2}, false, false);
    for (const MatmulTypes& types : {MatmulTypes(type, type, kFloat), MatmulTypes(kFloat, type, kFloat),
                                     MatmulTypes(type, kFloat, type)}) {
      check_product(report, {types, 35, 67, 65, 1, 1}, true, false);
      check_product(report, {types, 35, 67, 65, 1, 1}, false, true);
    }
    report->kernel("matmul_into", type);
    check_into(report, {type, 35, 67, 65, 1, 1});
    check_into(report, {{type, type, kFloat}, 5, 19, 0, 1, 1});
    report->kernel("packed matrix", type);
    for (const bool by_columns : {false, true}) {
      check_packed(report, {type, 67, 197, 131, 1, 1}, by_columns, 23);
      check_packed(report, {{type, type, kFloat}, 35, 67, 2051, 1, 1}, by_columns, 30);
      check_packed(report, {type, 5, 19, 0, 1, 1}, by_columns, 3);
    }
  }
}

void check_grouped_matmul(Report* report) {
  const GroupedMatmulShape shape{4, 40, 37, 21};
  const std::vector<int64_t> first{0, 5, 5, 22, 40};  // the second group is empty
  for (const ElementType type : kTypes) {
    report->problem("groups of 5, 0, 17 and 18 rows");
    const auto x = Tensor::random(type, shape.rows * shape.depth);
    const auto dout = Tensor::random(type, shape.rows * shape.columns);
    const auto weight = Tensor::random(type, shape.groups * shape.depth * shape.columns);
    Tensor out(type, dout.count()), dx(type, x.count()), dweight(type, weight.count());
    std::vector<const void*> matrices;
    std::vector<void*> gradients;
    for (int64_t g = 0; g < shape.groups; ++g) {
      const int64_t at = g * shape.depth * shape.columns * element_size(type);
      matrices.push_back(static_cast<const char*>(static_cast<const void*>(weight.data())) + at);
      gradients.push_back(static_cast<char*>(static_cast<void*>(dweight.data())) + at);
    }
    grouped_matmul(type, shape, first.data(), x.data(), matrices.data(), out.data());
    grouped_matmul_dx(type, shape, first.data(), dout.data(), matrices.data(), dx.data());
    grouped_matmul_dweight(type, shape, first.data(), x.data(), dout.data(), gradients.data());

    // Passes x[r, i] W[g, i, j] and its analogs to `visit`.
    const auto for_each = [&](const auto& visit) {
      for (int64_t g = 0; g < shape.groups; ++g)
        for (int64_t r = first[g]; r < first[g + 1]; ++r)
          for (int64_t i = 0; i < shape.depth; ++i)
            for (int64_t j = 0; j < shape.columns; ++j)
              visit(r * shape.depth + i, (g * shape.depth + i) * shape.columns + j, r * shape.columns + j);
    };
    const auto compare = [&](const char* name, const Tensor& result, const Tensor& left, const Tensor& right,
                             const auto& places) {
      report->kernel(name, type);
      report->compare("out", result, [&](auto arithmetic) {
        using Real = typename decltype(arithmetic)::Real;
        std::vector<Real> sums(result.count(), 0);
        for_each([&](int64_t at_x, int64_t at_weight, int64_t at_out) {
          const auto [to, l, r] = places(at_x, at_weight, at_out);
          sums[to] += static_cast<Real>(left[l]) * static_cast<Real>(right[r]);
        });
        return sums;
      });
    };
    using Places = std::array<int64_t, 3>;
    compare("grouped_matmul", out, x, weight, [](int64_t a, int64_t w, int64_t o) { return Places{o, a, w}; });
    compare("grouped_matmul_dx", dx, dout, weight, [](int64_t a, int64_t w, int64_t o) { return Places{a, o, w}; });
    compare("grouped_matmul_dweight", dweight, x, dout,
            [](int64_t a, int64_t w, int64_t o) { return Places{w, a, o}; });
  }
}

}  // namespace paddle_fused::checks
