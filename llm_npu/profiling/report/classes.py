"""The class of work of a task, from its operator type, name and engine."""

from __future__ import annotations

import re

ATTENTION, MATMUL, VECTOR = "attention", "matmul", "vector"
AICPU, HOST, COMMUNICATION, COPY = "AICPU", "host fall-back", "communication", "copy"
COMPUTE = (MATMUL, ATTENTION, VECTOR, AICPU, HOST)
CLASSES = (*COMPUTE, COMMUNICATION, COPY)

UNKNOWN = ("", "N/A")  # msprof's missing values, for example with --task-time=l0

_ENGINES = {
    "AI_CPU": AICPU,
    "AICPU": AICPU,
    "HOST_CPU": HOST,
    "HOST": HOST,
    "HCCL": COMMUNICATION,
    "COMMUNICATION": COMMUNICATION,
    "HCCL_AI_CPU": COMMUNICATION,
    "MEMCPY_ASYNC": COPY,
    "MEMCPY": COPY,
    "MEMSET": COPY,
    "SDMA_SQE": COPY,
    "PCIE_DMA_SQE": COPY,
}
# Tasks that only wait for, or record, an event.
_WAITING = re.compile(r"(EVENT|NOTIFY)_(WAIT|RECORD)|PLACE_HOLDER|WRITE_VALUE|PROFILER_TRACE|STREAM_WAIT")

# HCCL's own tasks. Collectives run on the AICPU for any dtype, so they are not fallbacks. Their names end in
# AicpuKernel (allreduceAicpuKernel; msprof uses the same convention). hcomAicpuInit prepares them,
# RunAicpu... are the entry points of their library (libccl_kernel.so), and MatmulAllReduceAicpu is the
# communication of an MC2 matmul.
_HCCL = re.compile(r"^(hcom|hccl|runaicpu)|aicpukernel|(allreduce|allgather|reducescatter|alltoall)\w*aicpu")

# Names are compared in lower case without punctuation: CANN's MatMulV2 equals Paddle's matmul_v2.
_PATTERNS = (
    (COMMUNICATION, _HCCL),
    # A matmul fused with a collective (MC2), including its communication, counts as a matmul.
    (MATMUL, re.compile(r"(matmul|(?<!co)mm)(allreduce|reducescatter|alltoall)")),
    (MATMUL, re.compile(r"(allgather|alltoall)(base)?(matmul|mm)")),
    (COMMUNICATION, re.compile(r"^(c|mp)?(allreduce|allgather|reducescatter|alltoall)")),
    (COMMUNICATION, re.compile(r"^(c|mp)?broadcast$|^(p)?(send|recv)(v2)?$")),
    (
        ATTENTION,
        re.compile(r"flashatt|attentionscore|inferattention|scaleddotproduct|fusedattention|pagedatt"),
    ),
    (
        MATMUL,
        re.compile(
            r"matmul|gemm|^b?mm(v2|grad)?$|addmm|groupedmm|fusedlinear|linearcrossentropy|conv[23]d|^fc"
        ),
    ),
    (COPY, re.compile(r"^mem(cpy|set)")),
)


def key(name: str) -> str:
    """``name`` reduced to lower-case letters and digits, for comparing operators."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def waits(engine: str) -> bool:
    """Whether a task of this type only waits for, or records, an event."""
    return bool(_WAITING.search(engine))


def operator(kind: str, name: str) -> str:
    """The operator type: ``kind`` if the profile contains it, otherwise derived from the task's ``name``.

    The type is the last part of a CANN task name, ``aclnnMatmul_MatMulCommon_MatMulV2``. Names of HCCL tasks
    end in numbers, ``hcom_allReduce__517_0_1``.
    """
    if kind not in UNKNOWN:
        return kind
    if _HCCL.search(key(name)):
        return re.sub(r"_+\d.*$", "", name).rstrip("_")
    return name.rpartition("_")[2] if name.startswith("aclnn") else name


def classify(kind: str, name: str, engine: str) -> str:
    """One of CLASSES for a task of operator type ``kind`` that ``engine`` (msprof's Task Type) ran."""
    known = key(operator(kind, name))
    by_engine = _ENGINES.get(engine.upper())
    if by_engine in (AICPU, HOST) and not _HCCL.search(known):
        return by_engine
    for kind_of_work, pattern in _PATTERNS:
        if pattern.search(known):
            return kind_of_work
    return by_engine or VECTOR


def carries_collective(operator: str) -> bool:
    """Whether a COMMUNICATION operator is the AICPU kernel of an HCCL collective.

    The collective (``hcom_allReduce_``) has a separate row with the same time.
    """
    return "aicpu" in key(operator)


_DTYPES = {
    "float": "float32",
    "fp32": "float32",
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "double": "float64",
    "fp64": "float64",
}


def dtypes(cell: str) -> str:
    """The distinct dtypes of a cell: ``bfloat16, float32`` for ``DT_BF16;DT_BF16;FLOAT``."""
    names = []
    for part in cell.split(";"):
        name = part.strip().strip('"').lower().removeprefix("dt_")
        name = _DTYPES.get(name, name)
        if name and name not in ("n/a", "undefined") and name not in names:
            names.append(name)
    return ", ".join(names)
