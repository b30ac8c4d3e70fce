"""The wheel bundles MKL 2019, which runs float32 matmul on its SSE2 path on processors that are not
Intel's.

On an AMD EPYC with AVX-512 a float32 matmul is then three to eight times slower than with
``MKL_DEBUG_CPU_TYPE=5``, which this MKL still reads. MKL 2020.1 and later have an AVX2 path for these
processors.

:versions: paddlepaddle 3.0.0 to 3.3.1
:device: cpu
:at:
    cmake/external/mklml.cmake `MKLML_VER`
:prints:
    Intel(R) Math Kernel Library Version 2019.0...
:should print:
    Intel(R) oneAPI Math Kernel Library Version ...
:change:
    Bundle a current oneMKL instead of mklml, whose last release is of 2019. Until then set
    ``MKL_DEBUG_CPU_TYPE`` in ``paddle/__init__.py`` where the processor is not Intel's and has AVX2.
:workaround: virtual_npu.patches._mkl_code_path
"""

import ctypes
from pathlib import Path

import paddle

mkl = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs/libmklml_intel.so"))
text = ctypes.create_string_buffer(200)
mkl.MKL_Get_Version_String(text, len(text))
print(text.value.decode().strip())
