    .text
    .globl __chkstk
    .p2align 4
    .seh_proc __chkstk
__chkstk:
    push %rcx
    .seh_pushreg %rcx
    push %rax
    .seh_pushreg %rax
    .seh_endprologue
    lea 24(%rsp), %rcx
    xor %r10d, %r10d
    pop %rax
    pop %rcx
    ret
    .seh_endproc
    .globl asm_saves
    .p2align 4
    .seh_proc asm_saves
asm_saves:
    sub $0x58, %rsp
    .seh_stackalloc 0x58
    movq %rbx, 0x50(%rsp)
    .seh_savereg %rbx, 0x50
    movq %rsi, 0x48(%rsp)
    .seh_savereg %rsi, 0x48
    .seh_endprologue
    mov %rcx, %rbx
    mov %rcx, %rsi
    mov %rcx, %rdx
    call leaf
    add %rbx, %rax
    movq 0x50(%rsp), %rbx
    movq 0x48(%rsp), %rsi
    add $0x58, %rsp
    ret
    .seh_endproc
    .globl asm_frame
    .p2align 4
    .seh_proc asm_frame
asm_frame:
    push %rbp
    .seh_pushreg %rbp
    push %r12
    .seh_pushreg %r12
    sub $0x80, %rsp
    .seh_stackalloc 0x80
    lea 0x40(%rsp), %rbp
    .seh_setframe %rbp, 0x40
    .seh_endprologue
    mov %rcx, %r12
    sub $0x120, %rsp
    mov %rcx, %rdx
    call leaf
    call leaf
    xor %ebx, %ebx
    lea 0x40(%rbp), %rsp
    pop %r12
    pop %rbp
    ret
    .seh_endproc
    .globl asm_chained
    .p2align 4
    .seh_proc asm_chained
asm_chained:
    push %rdi
    .seh_pushreg %rdi
    sub $0x40, %rsp
    .seh_stackalloc 0x40
    .seh_endprologue
    mov %rcx, %rdi
    mov %rcx, %rdx
    call leaf
    jmp chained_part
    .seh_startchained
chained_part:
    movq %rbx, 0x30(%rsp)
    .seh_savereg %rbx, 0x30
    .seh_endprologue
    mov %rdi, %rbx
    mov %rax, %rcx
    call leaf
    nop
    movq 0x30(%rsp), %rbx
    .seh_endchained
    nop
    add $0x40, %rsp
    pop %rdi
    ret
    .seh_endproc
    .globl asm_interrupted
    .p2align 4
    .seh_proc asm_interrupted
# Pretends that an interrupt came in the middle of it: pushes what the processor would push and
# calls a handler whose caller is the "machine frame" routine.
asm_interrupted:
    push %rbx
    .seh_pushreg %rbx
    sub $0x40, %rsp
    .seh_stackalloc 0x40
    .seh_endprologue
    mov %rcx, %rbx
    mov %rsp, %rdx
    mov %ss, %eax
    push %rax
    push %rdx
    pushfq
    mov %cs, %eax
    push %rax
    lea interrupted_here(%rip), %rax
    push %rax
    jmp machine_frame
interrupted_here:
    mov %rbx, %rax
    add $0x40, %rsp
    pop %rbx
    ret
    .seh_endproc
    .globl machine_frame
    .p2align 4
    .seh_proc machine_frame
machine_frame:
    .seh_pushframe
    push %rbp
    .seh_pushreg %rbp
    sub $0x28, %rsp
    .seh_stackalloc 0x28
    .seh_endprologue
    mov $5, %ecx
    mov $6, %edx
    call leaf
    mov $7, %ecx
    call recurse
    add $0x28, %rsp
    pop %rbp
    mov 0x18(%rsp), %rsp
    jmp interrupted_here
    .seh_endproc
