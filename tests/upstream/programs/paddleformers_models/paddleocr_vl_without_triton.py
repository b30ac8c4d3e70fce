"""PaddleOCR-VL cannot be imported without triton.

Its module imports ``paddleformers.triton_kernels``. ``rope_triton.py`` catches the missing import, and then
decorates its kernels with triton's function.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/triton_kernels/rope_triton.py:48 `@triton.jit`
:error: NameError: name 'triton' is not defined
:should print:
    PaddleOCRVLForConditionalGeneration
:change: Define the kernels only if triton is there, and let ``is_available`` return False otherwise.
:workaround: llm_npu.patches.paddleformers.without_cuda.supply_triton_kernels
"""

from paddleformers.transformers.paddleocr_vl.modeling import PaddleOCRVLForConditionalGeneration

print(PaddleOCRVLForConditionalGeneration.__name__)
