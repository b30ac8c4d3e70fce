// VIRTUAL_NPU_THUNKS entry points, each 16 bytes long, that differ only in their number.
//
// Dygraph calls a phi kernel through a bare function pointer (Kernel::variadic_fn_) with typed arguments, so a bridged
// kernel needs a function address of its own. Thunk number i stores the registers that can carry arguments and calls
//     virtual_npu_bridge_entry(int i, const Registers* registers, const uint64_t* stack_arguments)
#include "bridge/thunks.h"

    .text
    .globl virtual_npu_thunks
    .hidden virtual_npu_thunks
    .globl virtual_npu_bridge_entry

#if defined(__x86_64__)
    .balign 16
    .type virtual_npu_thunks, @function
virtual_npu_thunks:
    .set i, 0
    .rept VIRTUAL_NPU_THUNKS
    .balign 16
    movl $i, %r11d
    jmp virtual_npu_thunk_common
    .set i, i + 1
    .endr

    .balign 16
    .type virtual_npu_thunk_common, @function
virtual_npu_thunk_common:
    .cfi_startproc
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $112, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movsd %xmm0, 48(%rsp)
    movsd %xmm1, 56(%rsp)
    movsd %xmm2, 64(%rsp)
    movsd %xmm3, 72(%rsp)
    movsd %xmm4, 80(%rsp)
    movsd %xmm5, 88(%rsp)
    movsd %xmm6, 96(%rsp)
    movsd %xmm7, 104(%rsp)
    movl %r11d, %edi
    movq %rsp, %rsi
    leaq 16(%rbp), %rdx
    call virtual_npu_bridge_entry@PLT
    leave
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_endproc
    .section .note.GNU-stack,"",@progbits

#elif defined(__aarch64__)
    .balign 16
    .type virtual_npu_thunks, %function
virtual_npu_thunks:
    .set i, 0
    .rept VIRTUAL_NPU_THUNKS
    .balign 16
    movz w16, #i
    b virtual_npu_thunk_common
    .set i, i + 1
    .endr

    .balign 16
    .type virtual_npu_thunk_common, %function
virtual_npu_thunk_common:
    .cfi_startproc
    stp x29, x30, [sp, #-144]!
    .cfi_def_cfa_offset 144
    .cfi_offset x29, -144
    .cfi_offset x30, -136
    mov x29, sp
    .cfi_def_cfa_register x29
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    stp d0, d1, [sp, #80]
    stp d2, d3, [sp, #96]
    stp d4, d5, [sp, #112]
    stp d6, d7, [sp, #128]
    mov w0, w16
    add x1, sp, #16
    add x2, x29, #144
    bl virtual_npu_bridge_entry
    ldp x29, x30, [sp], #144
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa sp, 0
    ret
    .cfi_endproc
    .section .note.GNU-stack,"",%progbits

#else
#error "the bridge knows the calling conventions of x86-64 and AArch64 Linux only"
#endif
