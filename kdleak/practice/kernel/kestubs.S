# The few routines that cannot be C: thread switch, first frame of a thread, interrupt entry and
# exit, and the break instructions. All carry unwind data, so a stack walk passes through them.

    .text

# void KiSwapContext(PKTHREAD Old, PKTHREAD New): saves the non-volatile registers on the old
# stack, keeps its pointer in KTHREAD.KernelStack (+58), and returns on the new one.
    .globl KiSwapContext
    .p2align 4
    .seh_proc KiSwapContext
KiSwapContext:
    pushq %rbp
    .seh_pushreg %rbp
    pushq %rbx
    .seh_pushreg %rbx
    pushq %rsi
    .seh_pushreg %rsi
    pushq %rdi
    .seh_pushreg %rdi
    pushq %r12
    .seh_pushreg %r12
    pushq %r13
    .seh_pushreg %r13
    pushq %r14
    .seh_pushreg %r14
    pushq %r15
    .seh_pushreg %r15
    .seh_endprologue
    movq %rsp, 0x58(%rcx)
    movq 0x58(%rdx), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rdi
    popq %rsi
    popq %rbx
    popq %rbp
    retq
    .seh_endproc

# Where a new thread begins (KiSwapContext "returns" here). The word above the frame is 0: a stack
# walk ends at this function.
    .globl KiStartSystemThread
    .p2align 4
    .seh_proc KiStartSystemThread
KiStartSystemThread:
    subq $0x28, %rsp
    .seh_stackalloc 0x28
    .seh_endprologue
    movq %gs:0x188, %rax
    movq 0x450(%rax), %rcx
    movq 0x458(%rax), %rdx
    callq PspSystemThreadStartup
    int3
    .seh_endproc

# First instruction of a processor: rcx = loader block, rdx = processor number.
    .globl KiSystemStartup
    .p2align 4
    .seh_proc KiSystemStartup
KiSystemStartup:
    subq $0x28, %rsp
    .seh_stackalloc 0x28
    .seh_endprologue
    callq KiInitializeKernel
    int3
    .seh_endproc

# The machine enters here as the hardware does for an interrupt gate: it has pushed SS, RSP,
# RFLAGS, CS and RIP.
    .globl KiInterruptDispatchNoLockNoEtw
    .p2align 4
    .seh_proc KiInterruptDispatchNoLockNoEtw
KiInterruptDispatchNoLockNoEtw:
    .seh_pushframe
    pushq %rbp
    .seh_pushreg %rbp
    subq $0x60, %rsp
    .seh_stackalloc 0x60
    .seh_endprologue
    movq %rax, 0x20(%rsp)
    movq %rcx, 0x28(%rsp)
    movq %rdx, 0x30(%rsp)
    movq %r8, 0x38(%rsp)
    movq %r9, 0x40(%rsp)
    movq %r10, 0x48(%rsp)
    movq %r11, 0x50(%rsp)
    callq KiCallInterruptServiceRoutine
    movq 0x20(%rsp), %rax
    movq 0x28(%rsp), %rcx
    movq 0x30(%rsp), %rdx
    movq 0x38(%rsp), %r8
    movq 0x40(%rsp), %r9
    movq 0x48(%rsp), %r10
    movq 0x50(%rsp), %r11
    addq $0x60, %rsp
    popq %rbp
    iretq
    .seh_endproc

# Every other vector: nothing is expected there, stop where a debugger can look.
    .globl KiUnexpectedInterrupt
    .p2align 4
    .seh_proc KiUnexpectedInterrupt
KiUnexpectedInterrupt:
    .seh_pushframe
    .seh_endprologue
    int3
    iretq
    .seh_endproc

# void DbgBreakPointWithStatus(ULONG Status): the int3 has a name of its own, which the debugger
# data block gives to clients (BreakpointWithStatus).
    .globl DbgBreakPointWithStatus
    .globl RtlpBreakWithStatusInstruction
    .p2align 4
DbgBreakPointWithStatus:
RtlpBreakWithStatusInstruction:
    int3
    retq

    .globl DbgBreakPoint
    .p2align 4
DbgBreakPoint:
    int3
    retq

# ULONG DebugService(ULONG Service, PCSTR Text, ULONG Length): the kernel debugger's own services.
    .globl DebugService
    .p2align 4
DebugService:
    movl %ecx, %eax
    movq %rdx, %rcx
    movl %r8d, %edx
    int $0x2d
    int3
    retq

# void KeBugCheckEx(ULONG Code, P1, P2, P3, P4): keeps the registers as they were at its first
# instruction in KPRCB.ProcessorState.ContextFrame (+130), which is what a crash dump shows of the
# processor that crashed.
    .globl KeBugCheckEx
    .p2align 4
    .seh_proc KeBugCheckEx
KeBugCheckEx:
    movq %rcx, 0x08(%rsp)
    movq %rdx, 0x10(%rsp)
    movq %r8, 0x18(%rsp)
    movq %r9, 0x20(%rsp)
    pushfq
    .seh_stackalloc 8
    subq $0x30, %rsp
    .seh_stackalloc 0x30
    .seh_endprologue
    movq %gs:0x20, %rcx
    addq $0x130, %rcx
    movl $0x10001f, 0x30(%rcx)
    movq %rax, 0x78(%rcx)
    movq 0x40(%rsp), %rax
    movq %rax, 0x80(%rcx)
    movq %rdx, 0x88(%rcx)
    movq %rbx, 0x90(%rcx)
    leaq 0x38(%rsp), %rax
    movq %rax, 0x98(%rcx)
    movq %rbp, 0xa0(%rcx)
    movq %rsi, 0xa8(%rcx)
    movq %rdi, 0xb0(%rcx)
    movq %r8, 0xb8(%rcx)
    movq %r9, 0xc0(%rcx)
    movq %r10, 0xc8(%rcx)
    movq %r11, 0xd0(%rcx)
    movq %r12, 0xd8(%rcx)
    movq %r13, 0xe0(%rcx)
    movq %r14, 0xe8(%rcx)
    movq %r15, 0xf0(%rcx)
    leaq KeBugCheckEx(%rip), %rax
    movq %rax, 0xf8(%rcx)
    movl 0x30(%rsp), %eax
    movl %eax, 0x44(%rcx)
    movq 0x60(%rsp), %rax
    movq %rax, 0x20(%rsp)
    movq 0x40(%rsp), %rcx
    movq 0x48(%rsp), %rdx
    callq KeBugCheck2
    int3
    .seh_endproc

# The machine enters here, as the hardware does for a trap, with an exception that nobody handles
# and no debugger sees: rcx = bug check code, rdx and r8 its first parameters, the others 0.
    .globl KiExceptionDispatch
    .p2align 4
    .seh_proc KiExceptionDispatch
KiExceptionDispatch:
    .seh_pushframe
    subq $0x28, %rsp
    .seh_stackalloc 0x28
    .seh_endprologue
    xorl %r9d, %r9d
    movq %r9, 0x20(%rsp)
    callq KeBugCheckEx
    int3
    .seh_endproc
