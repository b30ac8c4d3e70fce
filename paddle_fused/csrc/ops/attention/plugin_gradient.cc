// flash_attention_npu_gradient: the gradient kernel of the plugin's flash_attention_npu as a separate operator.
//
// Autograd calls that kernel with the softmax statistics of the forward call. Ring attention computes a row in several
// blocks and needs each block's gradient for the statistics of the whole row, so it calls the kernel itself. The inputs
// and attributes are those of the installed plugin, with "attention_score_grad" for the gradient of the output.
//
// `import paddle` loads the plugin before this library. Without a plugin, the operator does not exist.
#include <algorithm>
#include <string>
#include <vector>

#include "paddle/phi/api/ext/op_meta_info.h"

namespace paddle_fused::ops::plugin_gradient {
namespace {

using Helper = paddle::OpMetaInfoHelper;
using Shape = std::vector<int64_t>;

std::vector<Shape> shapes(const Shape& query, const Shape& key, const Shape& value) { return {query, key, value}; }
std::vector<paddle::DataType> dtypes(const paddle::DataType& query, const paddle::DataType& key,
                                     const paddle::DataType& value) {
  return {query, key, value};
}

// Replaces names such as "query@GRAD", which forward operators may not have.
std::vector<std::string> plain(std::vector<std::string> names) {
  for (std::string& name : names)
    if (const size_t at = name.find(paddle::kGradTensorSuffix); at != std::string::npos)
      name.replace(at, std::string(paddle::kGradTensorSuffix).size(), "_grad");
  return names;
}

[[maybe_unused]] const bool kRegistered = [] {
  const auto& operators = paddle::OpMetaInfoMap::Instance().GetMap();
  const auto attention = operators.find("flash_attention_npu");
  if (attention == operators.end() || attention->second.size() < 2) return false;
  const paddle::OpMetaInfo gradient = attention->second[1];  // a copy: the registration below may move the original
  paddle::OpMetaInfoBuilder("flash_attention_npu_gradient", 0)
      .Inputs(plain(Helper::GetInputs(gradient)))
      .Outputs(plain(Helper::GetOutputs(gradient)))
      .Attrs(std::vector<std::string>(Helper::GetAttrs(gradient)))
      .SetKernelFn(paddle::KernelFunc(Helper::GetKernelFn(gradient)))
      .SetInferShapeFn(PD_INFER_SHAPE(shapes))
      .SetInferDtypeFn(PD_INFER_DTYPE(dtypes));
  return true;
}();

}  // namespace
}  // namespace paddle_fused::ops::plugin_gradient
